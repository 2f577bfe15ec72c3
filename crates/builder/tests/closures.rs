//! Closures as Nix would have them built, and checks that fail when they should.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a helper that fails fails its test

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use sparklane_builder::{Attrs, What, build};
use sparklane_lane::{Generation, sha256_hex};

/// A store of our own.
struct Store {
    folder: tempfile::TempDir,
}

impl Store {
    fn new() -> Self {
        let store = Self { folder: tempfile::tempdir().unwrap() };
        store.program("tool/bin/sparklane", 62);
        store
    }

    fn path(&self, name: &str) -> Utf8PathBuf {
        Utf8PathBuf::from_path_buf(self.folder.path().join(name)).unwrap()
    }

    /// An ELF header of a machine, static as far as it goes.
    fn program(&self, name: &str, machine: u16) {
        let mut bytes = vec![0u8; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn build(&self, what: What, out: &str, mut attrs: Value) -> Result<Utf8PathBuf, String> {
        let out = self.path(out);
        attrs["outputs"] = json!({ "out": out });
        let attrs = Attrs::from_value(attrs).unwrap();
        build(what, &attrs).map(|()| out).map_err(|e| e.to_string())
    }

    fn generation(&self, out: &str, change: impl Fn(&mut Value)) -> Result<Utf8PathBuf, String> {
        let mut attrs = json!({"tool": self.path("tool"), "node": "head", "laneName": "l", "lane": lane(),
            "cluster": cluster(), "image": image(), "composed": null, "weights": weights()});
        change(&mut attrs);
        self.build(What::Generation, out, attrs)
    }

    fn check(&self, what: What, generations: &[&Utf8Path], more: Value) -> Result<String, String> {
        let named: serde_json::Map<_, _> =
            generations.iter().map(|g| (g.file_name().unwrap().to_owned(), json!(g))).collect();
        let mut attrs = json!({ "generations": named });
        attrs.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let report = self.path("report");
        if report.exists() {
            fs::remove_file(report).unwrap();
        }
        self.build(what, "report", attrs).map(|out| fs::read_to_string(out).unwrap())
    }
}

fn lane() -> Value {
    json!({"name": "l", "description": "", "image": "i", "executor": {"kind": "mp", "port": 25000},
        "model": {"path": "/models/m", "servedName": "m", "weights": "w"}, "serve": {"tensorParallelSize": 2},
        "gates": [{"name": "tokens", "scope": "cluster", "budgetSecs": 20,
            "check": {"kind": "tokens", "prompt": "hi", "maxTokens": 8, "minTokens": 1}}],
        "budgets": {"startSecs": 60, "confirmSecs": 30, "stopSecs": 10}})
}

fn cluster() -> Value {
    let node = |role: &str, rank: u8| {
        json!({"role": role, "rank": rank, "system": "x86_64-linux", "host": "h",
            "rail1": {"netdev": "rail1", "address": format!("10.0.1.1{rank}")},
            "rail2": {"netdev": "rail2", "address": format!("10.0.2.1{rank}")}})
    };
    json!({"name": "c", "description": "", "defaultLane": "l", "buildSystem": "x86_64-linux", "absent": ["rdma"],
        "ssh": {"user": "o"}, "nodes": {"head": node("head", 0), "worker": node("worker", 1)}})
}

fn image() -> Value {
    json!({"name": "i", "description": "", "reference": "r", "systems": ["x86_64-linux"], "vllm": "0.25.2",
        "serve": ["/sim", "serve"]})
}

fn weights() -> Value {
    let manifest = json!({"model": "a/b", "revision": "0".repeat(40),
        "files": [{"path": "x", "size": 3, "sha256": "0".repeat(64)}]});
    json!({"name": "w", "text": manifest.to_string()})
}

#[test]
fn a_closure_holds_what_its_generation_says() {
    let store = Store::new();
    let out = store.generation("g", |_| {}).unwrap();
    let generation: Generation = serde_json::from_slice(&fs::read(out.join("generation.json")).unwrap()).unwrap();
    let binary = sha256_hex(&fs::read(out.join("bin/sparklane")).unwrap());
    let id = fs::read_to_string(out.join("generation.id")).unwrap();
    assert_eq!(id.trim_end(), generation.id(&binary).unwrap().as_str());
    assert_eq!(out.join("activate-rs").read_link_utf8().unwrap(), "bin/sparklane");
    assert_eq!(out.join("deploy-rs-activate").read_link_utf8().unwrap(), "bin/sparklane");
    let manifest = fs::read_to_string(out.join("weights.json")).unwrap();
    let manifest = sparklane_lane::weights::WeightsManifest::parse(&manifest).unwrap();
    assert_eq!(generation.weights.unwrap().manifest, manifest.id());
    assert!(!out.join("image").is_symlink(), "the image is whole elsewhere");
    let composed = store.generation("composed", |a| a["composed"] = json!(store.path("layout"))).unwrap();
    assert_eq!(composed.join("image").read_link_utf8().unwrap(), store.path("layout"));
    let same = fs::read_to_string(composed.join("generation.id")).unwrap();
    assert_eq!(same, id, "an image is known by its digest, not by where its layers come from");
    for path in generation.files.keys() {
        assert!(out.join(path.trim_start_matches('/')).exists(), "{path}");
    }
}

#[test]
fn every_mistake_of_every_file_is_shown_at_once() {
    let store = Store::new();
    let error = store
        .generation("g", |a| {
            a["lane"]["serve"] = json!({"maxNumSeq": 3});
            a["lane"]["budgets"]["startSecs"] = json!("long");
            a["cluster"]["nodes"]["head"]["rale1"] = json!({});
        })
        .unwrap_err();
    for line in [
        "nix/lanes/l.nix: error: serve.maxNumSeq: unknown key (did you mean `maxNumSeqs`?)",
        "nix/lanes/l.nix: error: budgets.startSecs: is \"long\", expected integer",
        "nix/clusters/c.nix: error: nodes.head.rale1: unknown key (did you mean `rail1`? It is set too, here or by a base)",
    ] {
        assert!(error.lines().any(|l| l == line), "{line} is not in:\n{error}");
    }
    assert!(!store.path("g").exists());
}

#[test]
fn rules_and_missing_names_refuse_too() {
    let store = Store::new();
    let refused = |change: fn(&mut Value)| store.generation("g", change).unwrap_err();
    assert!(refused(|a| a["lane"]["api"] = json!({"host": "0.0.0.0"})).contains("nix/lanes/l.nix: error: api.host"));
    assert!(refused(|a| a["image"] = Value::Null).contains("error: image: there is no image \"i\""));
    assert!(refused(|a| a["weights"]["text"] = Value::Null).contains("error: model.weights: there is no weights"));
    assert!(refused(|a| a["weights"]["text"] = json!("{}")).contains("nix/weights/w.json: error: model: is missing"));
    assert!(refused(|a| a["cluster"]["keepReleases"] = json!(1)).contains("nix/clusters/c.nix: error: keepReleases"));
    assert!(refused(|a| a["node"] = json!("third")).contains("no node third"));
}

#[test]
fn a_differing_entry_is_found() {
    let store = Store::new();
    let (a, b) = (store.generation("a/g", |_| {}).unwrap(), store.generation("b/g", |_| {}).unwrap());
    let again = json!({"again": {"g": b}});
    assert!(store.check(What::CheckDeterminism, &[&a], again.clone()).unwrap().contains("entries alike"));
    fs::remove_file(b.join("activate-rs")).unwrap();
    symlink("bin/other", b.join("activate-rs")).unwrap();
    assert!(store.check(What::CheckDeterminism, &[&a], again).unwrap_err().contains("g: activate-rs differs"));
    let same = json!({"again": {"g": a}});
    assert!(store.check(What::CheckDeterminism, &[&a], same).unwrap_err().contains("one store path"));
}

#[test]
fn a_foreign_program_is_found() {
    let store = Store::new();
    let out = store.generation("g", |_| {}).unwrap();
    assert_eq!(store.check(What::CheckElf, &[&out], json!({})).unwrap(), "g\n");
    store.program("tool/bin/sparklane", 183);
    let error = store.check(What::CheckElf, &[&out], json!({})).unwrap_err();
    assert!(error.contains("g: activate-rs is for ELF machine 183"), "{error}");
    store.program("tool/bin/sparklane", 62);
    fs::write(out.join("etc/script"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(out.join("etc/script"), fs::Permissions::from_mode(0o755)).unwrap();
    let error = store.check(What::CheckElf, &[&out], json!({})).unwrap_err();
    assert!(error.contains("etc/script is executable and no ELF"), "{error}");
}

#[test]
fn a_changed_or_stray_file_is_found() {
    let store = Store::new();
    let out = store.generation("g", |_| {}).unwrap();
    assert_eq!(store.check(What::CheckUnits, &[&out], json!({})).unwrap(), "g\n");
    let unit = out.join("etc/systemd/system/sparklane-engine.service");
    fs::set_permissions(&unit, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&unit, "[Service]\nType=simple\nExecStart=/bin/sh -c x\n").unwrap();
    fs::write(out.join("etc/stray"), "").unwrap();
    let error = store.check(What::CheckUnits, &[&out], json!({})).unwrap_err();
    for part in ["is not what generation.json says", "runs a shell", "Type=notify is missing", "etc/stray is not in"] {
        assert!(error.contains(part), "{part} is not in:\n{error}");
    }
}

#[test]
fn another_argument_is_found() {
    let store = Store::new();
    let out = store.generation("g", |_| {}).unwrap();
    let generation: Generation = serde_json::from_slice(&fs::read(out.join("generation.json")).unwrap()).unwrap();
    let golden = store.path("golden");
    fs::create_dir(&golden).unwrap();
    fs::write(golden.join("l-head.argv.json"), json!(generation.engine.argv).to_string()).unwrap();
    fs::write(golden.join("l-head.env.json"), json!(generation.engine.env).to_string()).unwrap();
    let more = json!({ "golden": golden });
    assert_eq!(store.check(What::CheckGolden, &[&out], more.clone()).unwrap(), "g\n");
    fs::write(golden.join("l-head.argv.json"), "[]").unwrap();
    assert!(store.check(What::CheckGolden, &[&out], more.clone()).unwrap_err().contains("l-head.argv.json: is []"));
    fs::remove_file(golden.join("l-head.env.json")).unwrap();
    assert!(store.check(What::CheckGolden, &[&out], more).unwrap_err().contains("l-head.env.json"));
}

#[test]
fn deploy_rs_gets_only_what_it_reads() {
    let store = Store::new();
    let out = store.generation("g", |_| {}).unwrap();
    let node = json!({"hostname": "h", "profiles": {"sparklane": {"path": out, "user": "root", "sshUser": "o",
        "sshOpts": [], "profilePath": "/nix/var/nix/profiles/sparklane", "tempPath": "/run", "activationTimeout": 120,
        "confirmTimeout": 30, "autoRollback": true, "magicRollback": true}}});
    let check = |change: fn(&mut Value)| {
        let mut node = node.clone();
        change(&mut node);
        store.check(What::CheckDeployRs, &[], json!({"nodes": {"n": node}}))
    };
    assert_eq!(check(|_| {}).unwrap(), "deploy.nodes.n\n");
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 7] = [
        (|n| n["hostnam"] = json!("x"), "deploy.nodes.n: has unknown keys"),
        (|n| n["profiles"]["sparklane"]["tempPath"] = json!("/tmp"), "tempPath is not /run"),
        (|n| n["profiles"]["sparklane"]["confirmTimeout"] = json!(65_536), "a time is outside 1 to 65535"),
        (|n| n["profiles"]["sparklane"]["magicRolback"] = json!(true), "has unknown keys"),
        (|n| n["profiles"]["sparklane"]["magicRollback"] = json!(false), "rollback is off"),
        (|n| n["profiles"]["sparklane"]["path"] = json!("/nowhere"), "path has no activate-rs"),
        (|n| drop(n["profiles"].as_object_mut().unwrap().remove("sparklane")), "is missing"),
    ];
    for (change, what) in cases {
        let error = check(change).unwrap_err();
        assert!(error.contains(what), "{what} is not in:\n{error}");
    }
    let none = store.check(What::CheckDeployRs, &[], json!({"nodes": {}}));
    assert!(none.unwrap_err().contains("nothing to check"));
}

#[test]
fn a_package_is_a_static_program_of_its_system() {
    let store = Store::new();
    let package = |system: &str| {
        let attrs = json!({"program": store.path("tool/bin/sparklane"), "nodeSystem": system});
        store.build(What::Package, &format!("p-{system}"), attrs)
    };
    let out = package("x86_64-linux").unwrap();
    assert_eq!(fs::metadata(out.join("bin/sparklane")).unwrap().permissions().mode() & 0o777, 0o555);
    assert!(package("aarch64-linux").unwrap_err().contains("is for ELF machine 62"));
}

#[test]
fn apps_name_their_flake() {
    let store = Store::new();
    let attrs = json!({"tool": store.path("tool"), "names": ["deploy", "lane"], "flake": "/f",
        "inputs": {"s/wheelhouse": "/w"}, "catalog": {"lanes": {}}});
    let out = store.build(What::Apps, "apps", attrs).unwrap();
    assert_eq!(out.join("bin/deploy").read_link_utf8().unwrap(), store.path("tool/bin/sparklane"));
    let flake: Value = serde_json::from_slice(&fs::read(out.join("share/sparklane/flake.json")).unwrap()).unwrap();
    assert_eq!(flake, json!({"flake": "/f", "inputs": {"s/wheelhouse": "/w"}}));
    assert!(out.join("share/sparklane/lanes.json").exists());
}
