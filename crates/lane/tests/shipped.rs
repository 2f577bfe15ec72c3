//! The shipped lanes: sound, with known findings, rendered to the golden files.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a helper that fails fails its test

mod common;

use std::fs;

use sparklane_lane::catalog::Catalog;
use sparklane_lane::generation::{GateKind, Generation};
use sparklane_lane::render::render_all;

/// Every generation of every lane on the cluster that it fits.
fn generations(catalog: &Catalog) -> Vec<Generation> {
    let inputs = catalog.clusters.values().flat_map(|c| catalog.lanes_of(c));
    inputs.flat_map(|i| render_all(i).unwrap()).map(|r| r.generation).collect()
}

#[test]
fn findings_are_the_known_ones() {
    let (_, problems) = Catalog::read(common::raw());
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        ["nix/lanes/mp-0251.nix: note: serve.kvCacheMemoryBytes: is 20000 blocks of 1065792 bytes; \
          432128 bytes stay unused"]
    );
}

/// `SPARKLANE_BLESS=1 cargo test` writes them anew.
#[test]
fn argv_and_env_are_golden() {
    let folder = common::root().join("tests/golden");
    let bless = std::env::var_os("SPARKLANE_BLESS").is_some();
    let mut expected = Vec::new();
    for generation in generations(&common::catalog()) {
        for (kind, value) in [
            ("argv", serde_json::to_value(&generation.engine.argv).unwrap()),
            ("env", serde_json::to_value(&generation.engine.env).unwrap()),
        ] {
            let name = format!("{}-{}.{kind}.json", generation.lane, generation.role);
            let text = format!("{}\n", serde_json::to_string_pretty(&value).unwrap());
            let file = folder.join(&name);
            if bless {
                fs::write(&file, &text).unwrap();
            }
            assert_eq!(fs::read_to_string(&file).unwrap_or_default(), text, "{name}");
            expected.push(name);
        }
    }
    let mut present: Vec<String> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    present.sort();
    expected.sort();
    assert_eq!(present, expected, "a golden file without a lane, or the reverse");
}

#[test]
fn a_generation_survives_its_file() {
    for generation in generations(&common::catalog()) {
        let bytes = generation.canonical().unwrap();
        let read: Generation = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(read, generation);
        assert_eq!(read.canonical().unwrap(), bytes);
    }
}

#[test]
fn the_labs_first_two_lanes_differ_in_one_flag() {
    let catalog = common::catalog();
    let of = |lane: &str| render_all(catalog.input("lab", lane).unwrap()).unwrap();
    for (a, b) in of("lab-a").iter().zip(of("lab-b").iter()) {
        let diff = sparklane_lane::diff::diff(&a.generation, &b.generation);
        let keys: Vec<&str> = diff.argv.iter().map(|c| c.key.as_str()).collect();
        assert_eq!(keys, ["--max-num-seqs"]);
        assert!(diff.env.is_empty() && diff.image.is_empty() && diff.weights.is_empty());
    }
}

#[test]
fn every_cache_follows_the_lanes_name() {
    for generation in generations(&common::catalog()) {
        for (kind, folder) in &generation.engine.cache_roots {
            assert_eq!(*folder, format!("/var/lib/sparklane/cache/{}/{kind}", generation.lane));
            let mount = generation.engine.mounts.iter().find(|m| m.source == *folder).unwrap();
            assert!(generation.engine.env.values().any(|v| *v == mount.target), "{kind} is mounted and unused");
        }
    }
}

#[test]
fn ranks_meet_on_the_heads_first_rail() {
    for generation in generations(&common::catalog()) {
        let head = &generation.head().unwrap().rail1;
        let table = sparklane_lane::diff::argv_table(&generation.engine.argv);
        let met = table.get("--master-addr").or_else(|| table.get("--address"));
        if let Some(met) = met {
            assert_eq!(met.split(':').next(), Some(head.as_str()));
        }
        assert!(generation.gates.iter().any(|g| matches!(g.kind, GateKind::Tokens { .. })));
    }
}

#[test]
fn the_weights_are_the_published_ones() {
    let catalog = common::catalog();
    let weights = &catalog.weights["deepseek-v4-flash-0731"].manifest;
    let shards = weights.files.iter().filter(|f| f.path.ends_with(".safetensors"));
    assert_eq!(shards.clone().count(), 48);
    assert_eq!(shards.map(|f| f.size).sum::<u64>(), 166_886_535_336);
    assert_eq!(weights.files.len(), 53);
}
