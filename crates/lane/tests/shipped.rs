//! The shipped lanes: sound, with known findings, rendered to the golden files.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a helper that fails fails its test

mod common;

use std::fs;

use sparklane_lane::catalog::Catalog;
use sparklane_lane::generation::{GateKind, Generation};
use sparklane_lane::render::{FIREWALL, Rendered, render_all};

/// Every generation of every lane on the cluster that it fits.
fn generations(catalog: &Catalog) -> Vec<Generation> {
    rendered(catalog).into_iter().map(|r| r.generation).collect()
}

fn rendered(catalog: &Catalog) -> Vec<Rendered> {
    let inputs = catalog.clusters.values().flat_map(|c| catalog.lanes_of(c));
    inputs.flat_map(|i| render_all(i).unwrap()).collect()
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
    for rendered in rendered(&common::catalog()) {
        let Some(text) = rendered.files.get(FIREWALL) else { continue };
        let name = format!("{}-{}.firewall.nft", rendered.generation.lane, rendered.generation.role);
        let file = folder.join(&name);
        if bless {
            fs::write(&file, text).unwrap();
        }
        assert_eq!(&fs::read_to_string(&file).unwrap_or_default(), text, "{name}");
        expected.push(name);
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

/// A tool that is rolled back to meets what a later one wrote.
#[test]
fn what_a_later_tool_adds_to_a_generation_is_passed_over() {
    for generation in generations(&common::catalog()) {
        let mut later = serde_json::to_value(&generation).unwrap();
        for part in ["/image", "/engine", "/budgets", "/peers/0", "/gates/0", ""] {
            let map = later.pointer_mut(part).and_then(serde_json::Value::as_object_mut).unwrap();
            map.insert("ofALaterTool".into(), serde_json::json!({ "x": 1 }));
        }
        assert_eq!(serde_json::from_value::<Generation>(later).unwrap(), generation);
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

#[test]
fn rays_start_is_told_everything() {
    let catalog = common::catalog();
    let rendered = render_all(catalog.input("sparks", "ray-0731").unwrap()).unwrap();
    let (head, worker) = (&rendered[0].generation.engine, &rendered[1].generation.engine);
    let (on_head, on_worker) = (head.ray.as_ref().unwrap(), worker.ray.as_ref().unwrap());
    assert_eq!((&on_head.gcs, on_head.join_secs), (&on_worker.gcs, on_worker.join_secs));
    let own = on_head.head.as_ref().unwrap();
    assert_eq!(on_worker.head, None);
    assert_eq!(own.nodes, ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(own.start[..3], ["/usr/local/bin/ray", "start", "--head"]);
    // The dashboard runs programs for everyone who reaches it.
    assert!(own.start.contains(&"--dashboard-host=127.0.0.1".to_owned()));
    for (start, address) in [(&own.start, "10.0.0.1"), (&worker.argv, "10.0.0.2")] {
        assert_eq!(start.last().map(String::as_str), Some("--block"));
        assert!(start.contains(&format!("--node-ip-address={address}")), "{start:?}");
        let mut ports: Vec<&str> =
            start.iter().filter(|a| a.contains("port=")).filter_map(|a| a.split_once('=')).map(|a| a.1).collect();
        let all = ports.len();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), all, "{start:?}");
    }
    for engine in [head, worker] {
        assert_eq!(engine.env["RAY_memory_monitor_refresh_ms"], "0");
        assert_eq!(engine.env["RAY_worker_oom_score_adjustment"], "0");
        let gate = engine.memory.unwrap();
        assert_eq!((gate.share_ppm, gate.margin_bytes, gate.wait_secs), (850_000, 3 << 30, 600));
    }
    let mp = render_all(catalog.input("sparks", "mp-0251").unwrap()).unwrap();
    assert_eq!(mp[1].generation.engine.ray, None);
}
