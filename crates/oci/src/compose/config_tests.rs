use serde_json::{Value, json};

use super::*;
use crate::compose::spec::{Base, EPOCH};
use crate::digest;
use crate::media;

fn base(family: Family, layers: usize, config: &Value) -> (Manifest, Config) {
    let ids: Vec<Digest> = (0..layers).map(|i| digest::of(format!("layer {i}").as_bytes())).collect();
    let mut config = config.clone();
    config["rootfs"] = json!({ "type": "layers", "diff_ids": ids });
    let config = config.to_string().into_bytes();
    let layers: Vec<Value> =
        ids.iter().map(|d| json!({ "mediaType": family.layer(Compression::Gzip), "size": 7, "digest": d })).collect();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": family.manifest(),
        "config": { "mediaType": family.config(), "size": config.len(), "digest": digest::of(&config) },
        "layers": layers, "x-unknown": { "kept": 1.50 },
    });
    let manifest = Manifest::parse(None, manifest.to_string().into_bytes()).unwrap();
    (manifest, Config::parse(config).unwrap())
}

fn spec(base: &Manifest, delta: Delta) -> Spec {
    Spec {
        name: "t".into(),
        base: Base {
            reference: "example/base:1".into(),
            manifest: base.digest().clone(),
            config: base.config.digest.clone(),
        },
        layers: Vec::new(),
        config: delta,
        epoch: EPOCH,
        expected: None,
    }
}

fn ours(n: usize) -> Vec<Added> {
    let one = |i| Added {
        digest: digest::of(format!("ours {i}").as_bytes()),
        size: 9,
        diff_id: digest::of(format!("ours id {i}").as_bytes()),
        title: format!("files /{i}"),
    };
    (0..n).map(one).collect()
}

fn rich(rows: usize) -> Value {
    let history: Vec<Value> = (0..rows)
        .flat_map(|i| {
            [
                json!({ "created_by": format!("step {i} && x > y"), "unknown": i }),
                json!({ "created_by": "ENV", "empty_layer": true }),
            ]
        })
        .collect();
    json!({
        "architecture": "arm64", "os": "linux", "docker_version": "26", "container_config": { "Env": ["OLD=1"] },
        "config": {
            "User": "1000", "Env": ["PATH=/bin", "A=1", "B=2=3"], "Entrypoint": ["/e"], "Cmd": ["c"], "WorkingDir": "/w",
            "Labels": { "z": "1", "a": "<&>" }, "Healthcheck": { "Test": ["NONE"] }, "Shell": ["/bin/sh"], "StopTimeout": 9,
            "Volumes": { "/v1": {}, "/v0": {} }, "ExposedPorts": { "80/tcp": {}, "443/tcp": {} },
        },
        "history": history, "moby.buildkit.buildinfo.v1": "e30=",
    })
}

fn made(base: &(Manifest, Config), delta: Delta, n: usize) -> (Value, Value, Documents) {
    let documents = documents(&base.0, &base.1, &spec(&base.0, delta), &ours(n)).unwrap();
    let config = Config::parse(documents.config.clone()).unwrap();
    config.check_against(&Manifest::parse(None, documents.manifest.clone()).unwrap()).unwrap();
    let read = |bytes: &[u8]| serde_json::from_slice(bytes).unwrap();
    (read(&documents.config), read(&documents.manifest), documents)
}

/// Issue row 1 (nix2container#79): with an empty delta all of the base's config is in the result.
#[test]
fn row_01_an_empty_delta_keeps_everything() {
    let base = base(Family::Docker, 3, &rich(3));
    let (config, manifest, documents) = made(&base, Delta::default(), 1);
    let old = Value::Object(base.1.tree().clone());
    for key in ["architecture", "os", "docker_version", "container_config", "config", "moby.buildkit.buildinfo.v1"] {
        assert_eq!(config[key], old[key], "{key}");
    }
    assert_eq!(manifest["x-unknown"], json!({ "kept": 1.5 }));
    assert_eq!(documents.warnings, Vec::<String>::new());
    assert_eq!(config["created"], "2020-01-01T00:00:00Z");
}

/// Issue row 2 (nix2container#57, buildah#4025): one row of history that is not empty for each layer, whatever the base had.
#[test]
fn row_02_history_fits_the_layers() {
    for rows in [0, 1, 3, 5] {
        let base = base(Family::Oci, 3, &rich(rows));
        let (config, _, documents) = made(&base, Delta::default(), 2);
        let history = config["history"].as_array().unwrap();
        let full = history.iter().filter(|r| r["empty_layer"] != true).count();
        assert_eq!(full, 5, "{rows}");
        assert_eq!(documents.warnings.is_empty(), rows == 3, "{rows}");
        assert_eq!(history[history.len() - 1]["created_by"], "sparklane: files /1");
    }
}

/// Issue row 7 (buildkit#4614, moby#43124): our time touches neither the base's layers nor its history.
#[test]
fn row_07_base_history_and_layers_are_untouched() {
    let base = base(Family::Docker, 3, &rich(3));
    let (config, manifest, _) = made(&base, Delta::default(), 2);
    let (old_history, old_layers) = (&base.1.tree()["history"], &base.0.tree()["layers"]);
    assert_eq!(config["history"].as_array().unwrap()[..6], old_history.as_array().unwrap()[..]);
    assert_eq!(manifest["layers"].as_array().unwrap()[..3], old_layers.as_array().unwrap()[..]);
}

/// Issue row 10 (oci-spec-rs#249): maps keep their order; a hundred builds give one digest.
#[test]
fn row_10_a_hundred_builds_one_digest() {
    let mut config = rich(2);
    for i in 0..8 {
        config["config"]["Labels"][format!("l{}", 7 - i)] = json!("x");
        config["config"]["Volumes"][format!("/v{}", 7 - i)] = json!({});
    }
    let base = base(Family::Oci, 2, &config);
    let delta = Delta { labels: [("new".to_owned(), Some("1".to_owned()))].into(), ..Delta::default() };
    let digests: std::collections::HashSet<Digest> =
        (0..100).map(|_| digest::of(&made(&base, delta.clone(), 1).2.manifest)).collect();
    assert_eq!(digests.len(), 1);
}

/// Issue row 11 (ggcr#1606, rules_img#518): our layers are of the base's family.
#[test]
fn row_11_media_types_are_never_mixed() {
    for (family, layer) in [(Family::Docker, media::DOCKER_LAYER_GZIP), (Family::Oci, media::OCI_LAYER_GZIP)] {
        let (_, manifest, documents) = made(&base(family, 2, &rich(2)), Delta::default(), 2);
        assert_eq!(manifest["mediaType"], family.manifest());
        assert_eq!(manifest["config"]["mediaType"], family.config());
        assert!(manifest["layers"].as_array().unwrap().iter().all(|l| l["mediaType"] == layer));
        assert_eq!(manifest.get("annotations").is_some(), family == Family::Oci);
        assert_eq!(documents.warnings, Vec::<String>::new());
    }
}

/// Issue row 28 (buildkit#3067): too many layers are refused before anything is written.
#[test]
fn row_28_more_layers_than_docker_takes() {
    let base = base(Family::Docker, 124, &rich(124));
    let error = documents(&base.0, &base.1, &spec(&base.0, Delta::default()), &ours(2)).unwrap_err();
    assert!(error.contains("126") && error.contains("125"), "{error}");
    let fits = documents(&base.0, &base.1, &spec(&base.0, Delta::default()), &ours(1)).unwrap();
    assert!(fits.warnings[0].contains("125 layers"), "{:?}", fits.warnings);
}

#[test]
fn the_delta_is_merged_in_the_base_order() {
    let base = base(Family::Docker, 1, &rich(1));
    let some = |s: &str| Some(s.to_owned());
    let delta = Delta {
        env: [("A".into(), some("9")), ("B".into(), None), ("NEW".into(), some("x=y"))].into(),
        labels: [("a".into(), None), ("n".into(), some("1"))].into(),
        entrypoint: Some(vec!["/new".into()]),
        workdir: some("/"),
        ..Delta::default()
    };
    let (config, _, _) = made(&base, delta.clone(), 1);
    assert_eq!(config["config"]["Env"], json!(["PATH=/bin", "A=9", "NEW=x=y"]));
    assert_eq!(config["config"]["Labels"], json!({ "z": "1", "n": "1" }));
    assert_eq!(config["config"]["Entrypoint"], json!(["/new"]));
    assert_eq!(config["config"].get("Cmd"), None);
    assert_eq!(config["config"]["WorkingDir"], "/");
    let both = Delta { cmd: Some(vec!["k".into()]), ..delta };
    assert_eq!(made(&base, both, 1).0["config"]["Cmd"], json!(["k"]));
}

#[test]
fn escapes_of_the_base_stay() {
    let text = br#"{"architecture":"arm64","os":"linux","config":{"Env":["X=\u003c\u0026"],"Labels":{"q":"\u003e"}},"history":[{"created_by":"a \u0026\u0026 b","created":"2024-01-01T00:00:00.123456789Z"}],"rootfs":{"type":"layers","diff_ids":[]},"n":1.50}"#;
    let config = Config::parse(text.to_vec()).unwrap();
    let manifest = json!({ "schemaVersion": 2, "mediaType": media::OCI_MANIFEST,
        "config": { "mediaType": media::OCI_CONFIG, "size": text.len(), "digest": digest::of(text), "data": base64(text) }, "layers": [] });
    let manifest = Manifest::parse(None, manifest.to_string().into_bytes()).unwrap();
    let delta = Delta { env: [("N".into(), Some("1".into()))].into(), ..Delta::default() };
    let (_, new, documents) = made(&(manifest, config), delta, 1);
    let text = String::from_utf8(documents.config).unwrap();
    for kept in [r#"["X=\u003c\u0026","N=1"]"#, r#"{"q":"\u003e"}"#, r"a \u0026\u0026 b", "123456789Z", r#""n":1.50"#] {
        assert!(text.contains(kept), "{kept} in {text}");
    }
    assert_eq!(new["config"].get("data"), None);
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
