//! The small image under tests/image, which `nix flake check` and the command's tests compose: made here, and what is committed
//! is what would be made. `SPARKLANE_BLESS=1 cargo test -p sparklane-oci --test fixture` writes it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)] // a test says what went wrong by panicking
#![allow(missing_docs)]

mod base;

use base::{CACHE_PY, SITE, real};
use camino::{Utf8Path, Utf8PathBuf};
use serde_json::json;
use sparklane_oci::compose::{Inputs, Place, Spec, build};
use sparklane_oci::registry::Resolved;
use sparklane_oci::{Pin, digest};

fn committed() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/image")
}

/// Writes all of it below a folder.
fn make(root: &Utf8Path, scratch: &Utf8Path) {
    let base = real(&scratch.join("base"));
    let found = Resolved { index: None, manifest: base.manifest.clone(), config: base.config.clone() };
    let mut pin = Pin::of("127.0.0.1:5000/test/base:1", &found);
    let index = base.index();
    pin.tree = Some(index.digest().unwrap());
    let dir = pin.write(&root.join("pins"), &found).unwrap();
    std::fs::write(dir.join("tree.json"), index.to_bytes().unwrap()).unwrap();
    let wheel = base::wheel::write(
        &root.join("wheels"),
        "protobuf",
        "7.0",
        &[("google/protobuf/__init__.py", "version=7"), ("google/protobuf/new.py", "new")],
    );
    std::fs::write(root.join("header.h"), "Radix Radix\n").unwrap();
    let mut spec = json!({
        "name": "fixture",
        "base": { "reference": pin.reference, "manifest": pin.manifest, "config": pin.config },
        "layers": [
            { "kind": "wheels", "interpreter": "/usr/bin/python3", "site": format!("/{SITE}"), "scripts": "/usr/local/bin",
              "lock": { "format": 1, "python": "cp312", "platform": "aarch64", "glibc": "2.28",
                        "requirements": ["protobuf==7.0"], "wheels": [wheel] } },
            { "kind": "edits", "edits": [{ "path": format!("/{SITE}/vllm/config/cache.py"),
              "preimage": digest::of(CACHE_PY.as_bytes()).hex(),
              "change": { "insertAfter": { "anchor": "            \"swap_space\",\n",
                                           "text": "            \"kv_cache_memory_bytes\",\n" } } }] },
            { "kind": "files", "removes": ["/opt/cache"], "files": [{ "path": "/lib/new/header.h", "source": "header.h",
              "sha256": digest::of(b"Radix Radix\n").hex(), "asserts": [{ "text": "Radix", "count": 2 }] }] }
        ],
        "config": { "env": { "NEW": "1" }, "labels": { "a": "b" }, "entrypoint": ["/usr/bin/python3"] }
    });
    let parsed = Spec::parse("spec", spec.to_string().as_bytes()).unwrap();
    let inputs = Inputs {
        spec: &parsed,
        manifest: &base.manifest,
        config: &base.config,
        index: Some(&index),
        wheels: &root.join("wheels"),
        sources: root,
    };
    let built = build(&inputs, &scratch.join("out"), Place::Renamed).unwrap();
    let layers: Vec<_> = built.layers.iter().map(|l| &l.digest).collect();
    spec["expected"] =
        json!({ "manifest": built.manifest, "config": built.config, "layers": layers, "keys": built.keys });
    std::fs::write(root.join("spec.json"), serde_json::to_string_pretty(&spec).unwrap() + "\n").unwrap();
}

fn listing(root: &Utf8Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in dir.read_dir_utf8().unwrap() {
            let path = entry.unwrap().path().to_owned();
            if path.is_dir() {
                todo.push(path);
            } else {
                found.push((path.strip_prefix(root).unwrap().to_string(), std::fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn the_committed_image_is_the_one_that_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(dir.path()).unwrap();
    if std::env::var_os("SPARKLANE_BLESS").is_some() {
        let _ = std::fs::remove_dir_all(committed());
        std::fs::create_dir_all(committed()).unwrap();
        make(&committed(), root);
        return;
    }
    let fresh = root.join("fresh");
    std::fs::create_dir_all(&fresh).unwrap();
    make(&fresh, root);
    let (new, old) = (listing(&fresh), listing(&committed()));
    let names = |l: &[(String, Vec<u8>)]| l.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    assert_eq!(names(&new), names(&old));
    for ((name, new), (_, old)) in new.iter().zip(&old) {
        assert!(new == old, "tests/image/{name} differs; SPARKLANE_BLESS=1 writes it");
    }
}
