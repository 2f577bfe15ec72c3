//! Whatever a file says, reading it ends in a value or in problems.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a helper that fails fails its test

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use sparklane_lane::catalog::{Catalog, RawCatalog, read_weights};
use sparklane_lane::render::render_all;
use sparklane_lane::{Cluster, ImageSpec, Lane, reader};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map("[a-zA-Z]{0,8}", inner, 0..6)
                .prop_map(|m| Value::Object(m.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn sound() -> Value {
    json!({"lanes": {"l": {"name": "l", "description": "", "image": "i", "executor": {"kind": "mp", "port": 25000},
            "model": {"path": "/m", "servedName": "m", "weights": null}, "api": {"host": "127.0.0.1", "port": 8000},
            "serve": {"tensorParallelSize": 2, "maxNumSeqs": 6, "maxCudagraphCaptureSize": 48, "gpuMemoryUtilization": 0.85,
                "kvCacheMemoryBytes": 1000, "extraArgs": ["--x"], "shutdownTimeout": 3,
                "speculativeConfig": {"method": "dspark", "num_speculative_tokens": 3, "draft_sample_method": "greedy"}},
            "env": {"A": "1"}, "container": {"ulimits": {"stack": 1}},
            "gates": [{"name": "t", "scope": "cluster", "budgetSecs": 20,
                "check": {"kind": "tokens", "prompt": "hi", "maxTokens": 8, "minTokens": 1}}],
            "budgets": {"startSecs": 900, "confirmSecs": 30, "stopSecs": 40}}},
        "clusters": {"c": {"name": "c", "description": "", "defaultLane": "l", "buildSystem": "x86_64-linux",
            "ssh": {"user": "o"}, "trustedKey": null, "keepReleases": 5, "absent": ["rdma"],
            "nodes": {"head": node("head", 0, 1), "worker": node("worker", 1, 2)}}},
        "images": {"i": {"name": "i", "description": "", "reference": "r", "systems": ["x86_64-linux"], "vllm": "0.25.2",
            "serve": ["/sim"], "kvBlockBytes": 1000, "env": {"registered": ["A"], "forbidden": ["B=1"]},
            "speculation": [{"method": "dspark", "min": 1, "max": 7, "sampling": ["greedy"]}]}},
        "weights": {}})
}

fn node(role: &str, rank: u8, host: u8) -> Value {
    let rail = |n: u8| json!({"netdev": format!("rail{n}"), "address": format!("10.0.{n}.{host}"), "prefix": 24});
    json!({"role": role, "rank": rank, "system": "x86_64-linux", "host": "h", "rail1": rail(1), "rail2": rail(2),
           "memoryBytes": 1u64 << 36})
}

/// Paths of every value in a document.
fn paths(value: &Value, here: String, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| paths(v, format!("{here}/{k}"), found)),
        Value::Array(items) => items.iter().enumerate().for_each(|(n, v)| paths(v, format!("{here}/{n}"), found)),
        _ => {}
    }
    found.push(here);
}

fn use_all(document: &Value) {
    let Ok(raw) = serde_json::from_value::<RawCatalog>(document.clone()) else {
        return;
    };
    let (catalog, _) = Catalog::read(&raw);
    for cluster in catalog.clusters.values() {
        for input in catalog.lanes_of(cluster) {
            let _ = render_all(input);
        }
    }
}

#[test]
fn the_sound_document_is_sound() {
    let raw: RawCatalog = serde_json::from_value(sound()).unwrap();
    let (catalog, problems) = Catalog::read(&raw);
    assert!(!sparklane_lane::catalog::any_refused(&problems), "{problems:#?}");
    assert_eq!(catalog.lanes_of(&catalog.clusters["c"]).len(), 1);
}

proptest! {
    #[test]
    fn any_json_is_read_or_refused(value in any_json()) {
        let _ = reader::read::<Lane>(&value);
        let _ = reader::read::<Cluster>(&value);
        let _ = reader::read::<ImageSpec>(&value);
        let _ = read_weights("w", &value.to_string());
        use_all(&value);
    }

    /// One value of a sound document is replaced by anything.
    #[test]
    fn a_damaged_document_is_read_or_refused(at: prop::sample::Index, junk in any_json()) {
        let mut document = sound();
        let mut all = Vec::new();
        paths(&document, String::new(), &mut all);
        *document.pointer_mut(&all[at.index(all.len())]).unwrap() = junk;
        use_all(&document);
    }

    /// Numbers at their limits are the damage that types do not catch.
    #[test]
    fn extreme_numbers_are_survived(at: prop::sample::Index, number in prop_oneof![Just(0u64), Just(u64::from(u32::MAX)), Just(u64::MAX)]) {
        let mut document = sound();
        let mut all = Vec::new();
        paths(&document, String::new(), &mut all);
        all.retain(|p| document.pointer(p).is_some_and(Value::is_number));
        *document.pointer_mut(&all[at.index(all.len())]).unwrap() = json!(number);
        use_all(&document);
    }

    /// A slip in any key is named, with its path.
    #[test]
    fn an_unknown_key_is_always_refused(at: prop::sample::Index) {
        let mut lane = sound()["lanes"]["l"].clone();
        let mut all = Vec::new();
        paths(&lane, String::new(), &mut all);
        // Free maps take any key.
        all.retain(|p| lane.pointer(p).is_some_and(Value::is_object) && !p.ends_with("/env") && !p.ends_with("/ulimits"));
        let path = &all[at.index(all.len())];
        lane.pointer_mut(path).unwrap().as_object_mut().unwrap().insert("zzz".into(), json!(1));
        let problems = reader::read::<Lane>(&lane).unwrap_err();
        let expected = format!("{}.zzz", path.trim_start_matches('/').replace("/0", "[0]").replace('/', "."));
        prop_assert_eq!(&problems[0].path, expected.trim_start_matches('.'));
    }
}
