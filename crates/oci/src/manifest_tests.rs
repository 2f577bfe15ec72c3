//! Documents that are read, and those that are refused.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest::of(content).as_str(), "size": content.len() })
}

fn manifest() -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": media::DOCKER_MANIFEST,
        "config": descriptor(media::DOCKER_CONFIG, b"config"),
        "layers": [descriptor(media::DOCKER_LAYER_GZIP, b"one"), descriptor(media::DOCKER_LAYER_GZIP, b"one")],
        "x-unknown": { "z": 1, "a": 2 },
    })
}

fn parse(value: &Value) -> Result<Document, OciError> {
    Document::parse(None, value.to_string().into_bytes())
}

fn entry(platform: Value) -> Value {
    let mut entry = descriptor(media::OCI_MANIFEST, platform.to_string().as_bytes());
    entry["platform"] = platform;
    entry
}

fn index(entries: Vec<Value>) -> Index {
    let value = json!({ "schemaVersion": 2, "mediaType": media::OCI_INDEX, "manifests": entries });
    match parse(&value).unwrap() {
        Document::Index(index) => index,
        Document::Manifest(_) => panic!("an index"),
    }
}

#[test]
fn a_manifest_keeps_its_bytes_and_unknown_fields() {
    let bytes = format!(" {}\n", manifest()).into_bytes();
    let found = Manifest::parse(Some("application/vnd.docker.distribution.manifest.v2+json"), bytes.clone()).unwrap();
    assert_eq!(found.bytes(), bytes);
    assert_eq!(*found.digest(), digest::of(&bytes));
    assert_eq!(found.family(), Family::Docker);
    assert_eq!(found.layers.len(), 2);
    assert_eq!(found.blobs().len(), 2, "a layer that is there twice is one blob");
    assert_eq!(serde_json::to_string(&found.tree()["x-unknown"]).unwrap(), r#"{"z":1,"a":2}"#);
    found.check_image().unwrap();
}

#[test]
fn what_is_no_manifest_is_refused_with_the_place() {
    let with = |key: &str, value: Value| {
        let mut m = manifest();
        m[key] = value;
        parse(&m).unwrap_err().to_string()
    };
    assert!(with("schemaVersion", json!(1)).contains("schemaVersion"));
    assert!(with("manifests", json!([])).contains("both"));
    assert!(with("layers", json!([{ "mediaType": "x", "size": 1 }])).contains("layers[0].digest"));
    assert!(with("layers", json!([{ "mediaType": "x", "digest": "sha512:00", "size": 1 }])).contains("sha512"));
    let negative = json!([{ "mediaType": "x", "digest": digest::of(b"").as_str(), "size": -1 }]);
    assert!(with("layers", negative).contains("size"));
    assert!(with("config", json!(null)).contains("config"));
    assert!(with("mediaType", json!("application/json")).contains("neither"));
    assert!(with("annotations", json!({ "a": 1 })).contains("annotations.a"));
    let served = Document::parse(Some(media::OCI_MANIFEST), manifest().to_string().into_bytes());
    assert!(served.unwrap_err().to_string().contains("calls itself"));
    assert!(Document::parse(None, b"[]".to_vec()).is_err());
}

#[test]
fn embedded_data_must_be_the_blob() {
    let encode = |b: &[u8]| base64::engine::general_purpose::STANDARD.encode(b);
    let mut m = manifest();
    m["config"]["data"] = json!(encode(b"config"));
    let Document::Manifest(found) = parse(&m).unwrap() else { panic!("a manifest") };
    assert_eq!(found.config.data.as_deref(), Some(&b"config"[..]));
    m["config"]["data"] = json!(encode(b"c0nfig"));
    assert!(parse(&m).unwrap_err().to_string().contains("digest"));
    m["config"]["data"] = json!("*");
    assert!(parse(&m).unwrap_err().to_string().contains("base64"));
}

#[test]
fn layers_that_may_not_be_distributed_are_refused() {
    let mut m = manifest();
    m["layers"][1]["mediaType"] = json!("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip");
    let Document::Manifest(found) = parse(&m).unwrap() else { panic!("a manifest") };
    assert!(found.check_image().unwrap_err().to_string().contains("layers[1]"));
}

#[test]
fn exactly_one_platform_is_chosen() {
    let arm = json!({ "os": "linux", "architecture": "arm64", "variant": "v8" });
    let amd = json!({ "os": "linux", "architecture": "amd64" });
    let unknown = json!({ "os": "unknown", "architecture": "unknown" });
    let wanted = Platform::linux("arm64");
    let both = index(vec![entry(amd.clone()), entry(unknown.clone()), entry(arm.clone())]);
    assert_eq!(both.choose(&wanted).unwrap().digest, both.manifests[2].digest);

    let none = index(vec![entry(amd.clone()), entry(unknown.clone())]);
    assert!(none.choose(&wanted).unwrap_err().to_string().contains("offers linux/amd64"));

    let other = json!({ "os": "linux", "architecture": "arm64" });
    let two = index(vec![entry(arm.clone()), entry(other)]);
    assert!(two.choose(&wanted).unwrap_err().to_string().contains("2 images"));

    let mut attestation = entry(arm.clone());
    attestation["annotations"] = json!({ "vnd.docker.reference.type": "attestation-manifest" });
    assert!(index(vec![attestation]).choose(&wanted).is_err());

    let bare = descriptor(media::OCI_MANIFEST, b"m");
    assert!(index(vec![bare.clone()]).choose(&wanted).is_ok());
    assert!(index(vec![bare, entry(amd)]).choose(&wanted).is_err());
    assert!(
        index(vec![entry(json!({ "os": "linux", "architecture": "arm64", "variant": "v9" }))]).choose(&wanted).is_err()
    );
}

#[test]
fn a_config_tells_platform_and_diff_ids() {
    let value = json!({
        "architecture": "arm64", "os": "linux", "config": { "Env": ["A=1"] },
        "rootfs": { "type": "layers", "diff_ids": [digest::of(b"a").as_str()] },
    });
    let config = Config::parse(value.to_string().into_bytes()).unwrap();
    assert_eq!(config.platform.to_string(), "linux/arm64");
    assert_eq!(config.diff_ids, [digest::of(b"a")]);
    let mut bad = value;
    bad["rootfs"]["diff_ids"][0] = json!("sha256:00");
    assert!(Config::parse(bad.to_string().into_bytes()).unwrap_err().to_string().contains("diff_ids[0]"));
}

fn any_json() -> impl Strategy<Value = Value> {
    let keys = "(schemaVersion|mediaType|config|layers|manifests|digest|size|platform|annotations|data|os|[a-z]{1,3})";
    let texts = prop_oneof![
        Just(media::OCI_MANIFEST.to_owned()),
        Just(media::OCI_INDEX.to_owned()),
        Just(digest::of(b"").to_string()),
        "\\PC{0,8}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|f| json!(f)),
        Just(json!(2)),
        texts.prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys, inner), 0..8).prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_document_is_answered(value in any_json()) {
        let bytes = value.to_string().into_bytes();
        if let Ok(Document::Index(index)) = Document::parse(None, bytes.clone()) {
            let _ = index.choose(&Platform::linux("arm64"));
        }
        let _ = Config::parse(bytes);
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = Document::parse(Some(media::OCI_MANIFEST), bytes.clone());
        let _ = Config::parse(bytes);
    }
}
