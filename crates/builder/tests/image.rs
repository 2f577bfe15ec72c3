//! The image builder on the committed small image, as Nix runs it.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)] // a helper that fails fails its test

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sparklane_builder::{Attrs, What, build};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/image").canonicalize().unwrap()
}

fn attrs(out: &Path) -> Value {
    let root = fixture();
    let spec: Value = serde_json::from_slice(&std::fs::read(root.join("spec.json")).unwrap()).unwrap();
    let pin = root.join("pins").join(&spec["base"]["manifest"].as_str().unwrap()[7..]);
    json!({ "outputs": { "out": out }, "spec": spec, "manifest": pin.join("manifest.json"), "config": pin.join("config.json"),
        "index": pin.join("tree.json"), "wheels": root.join("wheels"), "sources": root })
}

fn run(attrs: Value) -> Result<(), String> {
    build(What::Image, &Attrs::from_value(attrs).unwrap()).map_err(|e| e.to_string())
}

#[test]
fn the_small_image_has_its_recorded_digest() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    run(attrs(&out)).unwrap();
    let image: Value = serde_json::from_slice(&std::fs::read(out.join("image.json")).unwrap()).unwrap();
    assert_eq!(image["manifest"], attrs(&out)["spec"]["expected"]["manifest"]);
    let index = std::fs::read_to_string(out.join("index.json")).unwrap();
    assert!(index.contains(image["manifest"].as_str().unwrap()), "{index}");
}

#[test]
fn what_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut without = attrs(&dir.path().join("a"));
    without["config"] = Value::Null;
    assert!(run(without).unwrap_err().contains("sparklane image pin"));
    let mut without = attrs(&dir.path().join("b"));
    without["index"] = Value::Null;
    assert!(run(without).unwrap_err().contains("tree index"));
    let mut moved = attrs(&dir.path().join("c"));
    moved["spec"]["config"]["env"]["NEW"] = json!("2");
    let error = run(moved).unwrap_err();
    assert!(error.contains("config.Env moved"), "{error}");
    assert!(!dir.path().join("c").exists());
}
