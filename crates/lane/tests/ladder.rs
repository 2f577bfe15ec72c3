//! The ladder over the shipped lanes' own files: every step's patch is one that Nix reads, and it leads to the end.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a helper that fails fails its test

mod common;

use std::path::Path;
use std::process::Command;

use sparklane_lane::Catalog;
use sparklane_lane::catalog::{RawCatalog, any_refused};
use sparklane_lane::ladder::{Rung, next, patch};

fn run(command: &mut Command) -> Vec<u8> {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    out.stdout
}

fn catalog(root: &Path) -> Catalog {
    let mut nix = Command::new("nix-instantiate");
    nix.args(["--eval", "--strict", "--json", "--arg", "prebuilt", "null"]).arg(root.join("nix/catalog.nix"));
    let raw: RawCatalog = serde_json::from_slice(&run(&mut nix)).unwrap();
    let (catalog, problems) = Catalog::read(&raw);
    assert!(!any_refused(&problems), "{problems:#?}");
    catalog
}

/// Down from one lane to the end, each patch applied by git; gives the steps.
fn descend(lane: &str) -> Vec<Rung> {
    let dir = tempfile::tempdir().unwrap();
    for part in ["nix", "images"] {
        run(Command::new("cp").arg("-r").arg(common::root().join(part)).arg(dir.path()));
    }
    let file = format!("nix/lanes/{lane}.nix");
    let mut rungs = Vec::new();
    loop {
        let catalog = catalog(dir.path());
        let now = &catalog.lanes[lane];
        let Some(rung) = next(now, &catalog.images[&now.image]) else { return rungs };
        let text = std::fs::read_to_string(dir.path().join(&file)).unwrap();
        let diff = patch::unified(&file, &text, &patch::apply(&text, &rung.changes).unwrap());
        std::fs::write(dir.path().join("diff"), diff).unwrap();
        run(Command::new("git").args(["apply", "--unidiff-zero", "diff"]).current_dir(dir.path()));
        rungs.push(rung);
    }
}

#[test]
fn every_lane_gets_to_the_end() {
    // As the recipe: length, sequences twice, share, speculation.
    for lane in ["ray-0731", "mp-0251"] {
        let rungs = descend(lane);
        let first: Vec<&str> = rungs.iter().map(|r| r.changes[0].key).collect();
        let order = ["maxModelLen", "maxNumSeqs", "maxNumSeqs", "gpuMemoryUtilization", "speculativeConfig"];
        assert_eq!(first, order, "{lane}");
    }
    let pins: Vec<String> = descend("mp-0251")
        .iter()
        .filter_map(|r| r.changes.iter().find(|c| c.key == "kvCacheMemoryBytes"))
        .map(|c| c.new.clone())
        .collect();
    // 10,000, 7,500, 5,625 and 4,218 blocks: still more than one longest sequence.
    assert_eq!(pins, ["10657920000", "7993440000", "5995080000", "4495510656"]);
}
