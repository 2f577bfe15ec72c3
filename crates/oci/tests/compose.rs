//! Images composed on a base of the real one's shape, seen as an independent applier shows them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)] // a test says what went wrong by panicking
#![allow(missing_docs)]

mod base;

use std::collections::BTreeMap;

use base::{Base, CACHE_PY, SITE, apply, real};
use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use sparklane_oci::base::TreeIndex;
use sparklane_oci::compose::{Built, Inputs, Place, Spec, build};
use sparklane_oci::verify::{Extent, verify};
use sparklane_oci::{Layout, OciError, digest, media};

struct Case {
    dir: tempfile::TempDir,
    base: Base,
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = real(&Utf8Path::from_path(dir.path()).unwrap().join("base"));
        Self { dir, base }
    }

    fn root(&self) -> &Utf8Path {
        Utf8Path::from_path(self.dir.path()).unwrap()
    }

    fn spec(&self, layers: Value) -> Value {
        let base = json!({ "reference": "example/base:1", "manifest": self.base.manifest.digest(),
            "config": self.base.config.digest() });
        json!({ "name": "t", "base": base, "layers": layers, "config": { "env": { "NEW": "1" } } })
    }

    fn build(&self, spec: &Value, index: Option<&TreeIndex>, out: &str) -> Result<Built, OciError> {
        let spec = Spec::parse("spec", spec.to_string().as_bytes())?;
        let inputs = Inputs {
            spec: &spec,
            manifest: &self.base.manifest,
            config: &self.base.config,
            index,
            wheels: &self.root().join("wheels"),
            sources: self.root(),
        };
        build(&inputs, &self.root().join(out), Place::Renamed)
    }

    /// The whole image's tree. The image is proved on the way by code that knows nothing of the builder's.
    fn tree(&self, built: &Built, out: &str) -> BTreeMap<String, Vec<u8>> {
        let layout = Layout::open(self.root().join(out)).unwrap().with_shared(self.base.root.clone());
        let manifest = layout.manifest(&built.manifest).unwrap();
        layout.config(&manifest).unwrap();
        let report = verify(&layout, &built.manifest, Extent::Whole).unwrap();
        assert!(report.good(), "{:#?}", report.findings);
        assert_eq!((report.ours, report.read), (built.layers.len(), report.layers));
        apply(&layout, &manifest)
    }
}

fn edit() -> Value {
    json!({ "kind": "edits", "edits": [{
        "path": format!("/{SITE}/vllm/config/cache.py"), "preimage": digest::of(CACHE_PY.as_bytes()).hex(),
        "change": { "insertAfter": { "anchor": "            \"swap_space\",\n",
            "text": "            \"kv_cache_memory_bytes\",\n" } } }] })
}

fn files(case: &Case) -> Value {
    std::fs::write(case.root().join("hello"), "hi\n").unwrap();
    json!({ "kind": "files", "files": [{ "path": "/lib/new/hello", "source": "hello",
        "sha256": digest::of(b"hi\n").hex(), "mode": "0755" }], "removes": ["/opt/cache"] })
}

#[test]
fn an_edit_and_files_on_a_base_of_the_real_shape() {
    let case = Case::new();
    let index = case.base.index();
    let built = case.build(&case.spec(json!([edit(), files(&case)])), Some(&index), "out").unwrap();
    let (before, after) =
        (apply(&Layout::open(&case.base.root).unwrap(), &case.base.manifest), case.tree(&built, "out"));
    let text = String::from_utf8(after[&format!("{SITE}/vllm/config/cache.py")].clone()).unwrap();
    assert!(text.contains("\"swap_space\",\n            \"kv_cache_memory_bytes\",\n"), "{text}");
    let record = String::from_utf8(after[&format!("{SITE}/vllm-0.25.1.dist-info/RECORD")].clone()).unwrap();
    let row = record.lines().find(|l| l.starts_with("vllm/config/cache.py,")).unwrap();
    assert!(row.ends_with(&format!(",{}", text.len())), "{row}");
    assert_eq!(after["usr/lib/new/hello"], b"hi\n");
    let changed: Vec<&String> = after.iter().filter(|(p, b)| before.get(*p) != Some(b)).map(|(p, _)| p).collect();
    assert_eq!(changed.len(), 3, "{changed:?}");
    let gone: Vec<&String> = before.keys().filter(|p| !after.contains_key(*p)).collect();
    assert!(gone.iter().all(|p| p.starts_with("opt/cache") || p.ends_with(".pyc")), "{gone:?}");
    assert_eq!(gone.len(), 4, "{gone:?}");
    assert!(built.unproved.is_empty());
    let own = Layout::open(case.root().join("out")).unwrap().blobs().unwrap();
    assert_eq!(own.len(), 4, "two layers, config and manifest of ours, nothing of the base");
}

/// The recorded digest: whoever moves it must mean to.
#[test]
fn the_golden_digest() {
    let case = Case::new();
    let index = case.base.index();
    let built = case.build(&case.spec(json!([edit(), files(&case)])), Some(&index), "out").unwrap();
    assert_eq!((built.layers[0].digest.as_str(), built.manifest.as_str()), (GOLDEN_LAYER, GOLDEN));
}

const GOLDEN_LAYER: &str = "sha256:e800d38d9c95af13be8ab608915ad89f8e534ae93e1c7c26b3402b16f0f607b1";
const GOLDEN: &str = "sha256:b0c4a7c05a038991aa9276ebff70878d66e8164fc7879f601e92e5a3c5ffd2ea";

/// Issue row 14 (rules_oci#439): the output has no byte of the base's layers, and none is read; 20 GB stay where they are.
#[test]
fn row_14_the_base_is_not_copied() {
    let case = Case::new();
    let index = case.base.index();
    std::fs::rename(&case.base.root, case.root().join("gone")).unwrap();
    let built = case.build(&case.spec(json!([edit(), files(&case)])), Some(&index), "out").unwrap();
    let blobs =
        case.root().join("out/blobs/sha256").read_dir_utf8().unwrap().map(|e| e.unwrap().file_name().to_owned());
    let ours = built.layers.iter().map(|l| &l.digest).chain([&built.manifest, &built.config]);
    let mut ours: Vec<String> = ours.map(|d| d.hex().to_owned()).collect();
    ours.sort();
    let mut blobs: Vec<String> = blobs.collect();
    blobs.sort();
    assert_eq!(blobs, ours);
}

#[test]
fn a_moved_digest_is_explained() {
    let case = Case::new();
    let index = case.base.index();
    let mut spec = case.spec(json!([edit(), files(&case)]));
    let built = case.build(&spec, Some(&index), "a").unwrap();
    let layers: Vec<_> = built.layers.iter().map(|l| &l.digest).collect();
    spec["expected"] =
        json!({ "manifest": built.manifest, "config": built.config, "layers": layers, "keys": built.keys });
    assert_eq!(serde_json::to_value(built.expected()).unwrap(), spec["expected"], "what --record writes");
    case.build(&spec, Some(&index), "b").unwrap();
    spec["config"]["env"]["NEW"] = json!("2");
    let error = case.build(&spec, Some(&index), "c").unwrap_err().to_string();
    assert!(error.contains("config.Env moved") && !error.contains("layer 0"), "{error}");
    spec["layers"][1]["files"][0]["mode"] = json!("0644");
    let error = case.build(&spec, Some(&index), "c").unwrap_err().to_string();
    assert!(error.contains("layer 1 (files /lib/new/hello -/opt/cache)"), "{error}");
    assert!(!case.root().join("c").exists());
    let left: Vec<_> = case.root().read_dir_utf8().unwrap().map(|e| e.unwrap().file_name().to_owned()).collect();
    assert!(!left.iter().any(|n| n.ends_with(".tmp")), "{left:?}");
}

#[test]
fn without_an_index_it_says_what_it_cannot_prove() {
    let case = Case::new();
    assert!(case.build(&case.spec(json!([edit()])), None, "a").unwrap_err().to_string().contains("image pin"));
    let mut layer = files(&case);
    layer["files"][0]["path"] = json!("/usr/lib/new/hello");
    let built = case.build(&case.spec(json!([layer])), None, "b").unwrap();
    assert!(!built.unproved.is_empty());
    assert_eq!(case.tree(&built, "b")["usr/lib/new/hello"], b"hi\n");
}

#[test]
fn an_unknown_preimage_is_refused_with_the_way_out() {
    let case = Case::new();
    let mut layer = edit();
    layer["edits"][0]["preimage"] = Value::Null;
    let error = case.build(&case.spec(json!([layer])), Some(&case.base.index()), "a").unwrap_err().to_string();
    assert!(error.contains("sparklane image pin"), "{error}");
}

/// Issue row 5, whole: no path of ours goes through a link of the base.
#[test]
fn row_05_no_layer_puts_a_folder_in_a_links_place() {
    let case = Case::new();
    let built = case.build(&case.spec(json!([files(&case)])), Some(&case.base.index()), "out").unwrap();
    let layout = Layout::open(case.root().join("out")).unwrap();
    let (file, _) = layout.open_blob(&built.layers[0].digest).unwrap();
    let mut archive = tar::Archive::new(flate2::read::MultiGzDecoder::new(file));
    let paths: Vec<Utf8PathBuf> = archive
        .entries()
        .unwrap()
        .map(|e| Utf8PathBuf::from_path_buf(e.unwrap().path().unwrap().into()).unwrap())
        .collect();
    assert_eq!(paths, ["opt/.wh.cache", "usr/lib/new", "usr/lib/new/hello"]);
}

fn wheels(rows: Vec<Value>) -> Value {
    json!({ "kind": "wheels", "interpreter": "/usr/bin/python3", "site": format!("/{SITE}"), "scripts": "/usr/local/bin",
        "lock": { "format": 1, "python": "cp312", "platform": "aarch64", "glibc": "2.28", "requirements": ["protobuf"],
            "wheels": rows } })
}

/// Issue row 25 (importlib_metadata#457, cpython#100666): after an upgrade there is one dist-info, and the old files are gone.
#[test]
fn row_25_an_upgrade_leaves_nothing_of_the_old_version() {
    let case = Case::new();
    let row = base::wheel::write(
        &case.root().join("wheels"),
        "protobuf",
        "7.0",
        &[("google/protobuf/__init__.py", "version=7"), ("google/protobuf/new.py", "new")],
    );
    let built = case.build(&case.spec(json!([wheels(vec![row])])), Some(&case.base.index()), "out").unwrap();
    let tree = case.tree(&built, "out");
    let found: Vec<&str> = tree.keys().filter(|p| p.contains("proto")).map(|p| p.trim_start_matches(SITE)).collect();
    let expected = [
        "/google/protobuf/__init__.py",
        "/google/protobuf/new.py",
        "/protobuf-7.0.dist-info/INSTALLER",
        "/protobuf-7.0.dist-info/METADATA",
        "/protobuf-7.0.dist-info/RECORD",
        "/protobuf-7.0.dist-info/WHEEL",
    ];
    assert_eq!(found, expected);
    assert_eq!(tree[&format!("{SITE}/google/protobuf/__init__.py")], b"version=7");
    assert!(built.why.iter().any(|w| w.contains("protobuf 5.0 of the base gives way to 7.0")), "{:?}", built.why);
}

#[test]
fn the_same_version_is_left_and_a_refusal_is_one() {
    let case = Case::new();
    let folder = case.root().join("wheels");
    let same = base::wheel::write(&folder, "protobuf", "5.0", &[("google/protobuf/__init__.py", "other")]);
    let built = case.build(&case.spec(json!([wheels(vec![same])])), Some(&case.base.index()), "out").unwrap();
    assert!(built.why[0].contains("in the base already"), "{:?}", built.why);
    assert_eq!(case.tree(&built, "out")[&format!("{SITE}/google/protobuf/__init__.py")], b"version=5");
    let other = base::wheel::write(&folder, "protobuf", "7.0", &[("google/protobuf/__init__.py", "7")]);
    let mut layer = wheels(vec![other]);
    layer["upgrade"] = json!("refuse");
    let error = case.build(&case.spec(json!([layer])), Some(&case.base.index()), "no").unwrap_err().to_string();
    assert!(error.contains("5.0") && error.contains("7.0"), "{error}");
    for (key, value, word) in [
        ("site", json!("/usr/lib/python3.12/site-packages"), "does not import from"),
        ("interpreter", json!("/opt/python"), "no python at"),
    ] {
        let mut layer = wheels(vec![]);
        layer[key] = value;
        let error = case.build(&case.spec(json!([layer])), Some(&case.base.index()), "no").unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

/// An edit of a module that a layer of ours brings is a mistake in the spec.
#[test]
fn layers_know_of_each_other() {
    let case = Case::new();
    let row = base::wheel::write(&case.root().join("wheels"), "vllm", "0.26", &[("vllm/config/cache.py", CACHE_PY)]);
    let spec = case.spec(json!([wheels(vec![row]), edit()]));
    let error = case.build(&spec, Some(&case.base.index()), "no").unwrap_err().to_string();
    assert!(error.contains("changed it already"), "{error}");
}

#[test]
fn what_is_built_verifies_and_damage_is_found() {
    let case = Case::new();
    let row =
        base::wheel::write(&case.root().join("wheels"), "protobuf", "7.0", &[("google/protobuf/__init__.py", "7")]);
    let spec = case.spec(json!([wheels(vec![row]), edit(), files(&case)]));
    let built = case.build(&spec, Some(&case.base.index()), "out").unwrap();
    let alone = Layout::open(case.root().join("out")).unwrap();
    let report = verify(&alone, &built.manifest, Extent::OursOnly).unwrap();
    assert!(report.good() && report.read == report.ours, "{report:?}");
    let whole = alone.clone().with_shared(case.base.root.clone());
    let report = verify(&whole, &built.manifest, Extent::Whole).unwrap();
    assert!(report.good() && report.read == report.layers, "{report:?}");

    let path = alone.own_path(&built.layers[1].digest);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let report = verify(&whole, &built.manifest, Extent::Whole).unwrap();
    assert!(!report.good() && report.findings[0].at.starts_with("layer 45"), "{report:?}");
}

/// Issue row 12 (ggcr#1826, #2034): layers that are not compressed, and two blobs of one diff_id.
#[test]
fn row_12_plain_layers_and_one_diff_id_twice() {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_create(Utf8Path::from_path(dir.path()).unwrap()).unwrap();
    let tar = base::layer(&[("a", 'f', b"x")]);
    let gzip = base::gzip(&tar);
    let (plain, packed) = (layout.write_blob(&tar).unwrap(), layout.write_blob(&gzip).unwrap());
    let id = digest::of(&tar);
    let config = json!({ "os": "linux", "architecture": "arm64", "history": [{}, {}],
        "rootfs": { "type": "layers", "diff_ids": [id, id] } });
    let config = config.to_string();
    let config_digest = layout.write_blob(config.as_bytes()).unwrap();
    let manifest = json!({ "schemaVersion": 2, "mediaType": media::OCI_MANIFEST,
        "config": { "mediaType": media::OCI_CONFIG, "size": config.len(), "digest": config_digest },
        "layers": [{ "mediaType": media::OCI_LAYER_TAR, "size": tar.len(), "digest": plain },
                   { "mediaType": media::OCI_LAYER_GZIP, "size": gzip.len(), "digest": packed }] });
    let manifest = layout.write_blob(manifest.to_string().as_bytes()).unwrap();
    let report = verify(&layout, &manifest, Extent::Whole).unwrap();
    assert_eq!(report.findings, [], "{report:?}");
}

/// Issue row 29 (containerization#369, microsandbox#1287): a layout's image is found with and without a name.
#[test]
fn row_29_layouts_with_and_without_names() {
    let case = Case::new();
    let built = case.build(&case.spec(json!([edit()])), Some(&case.base.index()), "out").unwrap();
    let root = case.root().join("out");
    let layout = Layout::open(&root).unwrap();
    assert_eq!(layout.list().unwrap()[0].0.as_deref(), Some("t"));
    let text = std::fs::read_to_string(root.join("index.json")).unwrap();
    let mut index: Value = serde_json::from_str(&text).unwrap();
    index["manifests"][0].as_object_mut().unwrap().remove("annotations");
    std::fs::write(root.join("index.json"), index.to_string()).unwrap();
    let found = layout.list().unwrap();
    assert_eq!((found[0].0.as_deref(), &found[0].1.digest), (None, &built.manifest));
}
