//! `fabric verify` of recorded trees and `fabric judge`, as programs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)] // a test says what went wrong by panicking

#[path = "../../fabric/tests/support/mod.rs"]
mod support;

use std::process::{Command, Output};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;
use support::Pair;

/// The shipped clusters, as an app has them beside it.
fn share(dir: &Utf8Path) {
    let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new("nix-instantiate");
    command.args(["--eval", "--strict", "--json", "--arg", "prebuilt", "null"]).arg(root.join("nix/catalog.nix"));
    let output = command.output().expect("nix-instantiate runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::write(dir.join("lanes.json"), output.stdout).unwrap();
    std::fs::write(dir.join("flake.json"), serde_json::json!({"flake": dir, "inputs": {}}).to_string()).unwrap();
}

fn sparklane(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sparklane")).args(words).output().unwrap()
}

#[test]
fn recorded_trees_of_two_sparks_are_judged_without_them() {
    let dir = tempfile::tempdir().unwrap();
    let dir = Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap();
    std::fs::create_dir_all(&dir).unwrap();
    share(&dir);
    let pair = Pair::new();
    let verify = |trees: &[(&str, Utf8PathBuf)], json: bool| {
        let trees: Vec<String> = trees.iter().map(|(node, dir)| format!("{node}={dir}")).collect();
        let mut words = vec!["fabric", "verify", "--share", dir.as_str(), "--cluster", "sparks"];
        words.extend(trees.iter().flat_map(|tree| ["--sysroot", tree.as_str()]));
        words.extend(json.then_some("--json"));
        let output = sparklane(&words);
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let both = || [("head", pair.head.tree()), ("worker", pair.worker.tree())];
    let (code, table, _) = verify(&both(), false);
    assert_eq!(code, Some(0), "{table}");
    assert!(table.contains("rocep1s0f0 ACTIVE LinkUp") && table.contains("not checked   jumbo"), "{table}");
    pair.worker.mtu("enp1s0f0np0", 1500);
    let (code, text, _) = verify(&both(), true);
    let said: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &said["exitCode"]), (Some(1), &Value::from(1)));
    let rows = said["rows"].as_array().unwrap();
    let mtu = rows.iter().find(|r| r["check"] == "mtu" && r["outcome"] == "failed").unwrap();
    assert_eq!((&mtu["node"], &mtu["rail"], &mtu["wanted"]), (&"worker".into(), &"rail1".into(), &"9000".into()));
    let (code, _, why) = verify(&both()[..1], false);
    assert!(code == Some(2) && why.contains("--sysroot worker=DIR"), "{why}");
    // A tree without what no file tells is that node's failure.
    pair.head.remove("sparklane-live.json");
    let (code, table, _) = verify(&[("head", pair.head.root().to_owned()), ("worker", pair.worker.tree())], false);
    assert!(code == Some(1) && table.contains("sparklane-live.json"), "{table}");
}

#[test]
fn a_log_is_judged_and_its_exit_code_tells() {
    let fixtures = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../fabric/tests/fixtures/nccl");
    let judge = |files: &[&str], more: &[&str]| {
        let files: Vec<Utf8PathBuf> = files.iter().map(|f| fixtures.join(f)).collect();
        let words: Vec<&str> = ["fabric", "judge"]
            .into_iter()
            .chain(files.iter().map(|f| f.as_str()))
            .chain(more.iter().copied())
            .collect();
        let output = sparklane(&words);
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let devices = ["--devices", "rocep1s0f1,roceP2p1s0f1"];
    let (code, text) = judge(&["nccl-roce-2hca.log", "ag-good.log"], &devices);
    assert!(code == Some(0) && text.starts_with("good: 21.40 GB/s, gate 15 GB/s"), "{text}");
    let (code, text) = judge(&["socket.log"], &["--json"]);
    let said: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &said["finding"], &said["exitCode"]), (Some(1), &"socket".into(), &1.into()));
    assert_eq!(judge(&["no-such-file"], &[]).0, Some(1));
    assert_eq!(judge(&["socket.log"], &["--gate", "-1"]).0, Some(2));
}
