//! The shipped lanes against the two recipes they replace, flag by flag: every difference is a row of
//! nix/lanes/deviations.toml, and every row is a difference.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a helper that fails fails its test

mod common;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use sparklane_lane::catalog::Deviation;
use sparklane_lane::diff::argv_table;
use sparklane_lane::generation::Engine;
use sparklane_lane::ids::Role;
use sparklane_lane::render::{Input, render_all};
use sparklane_lane::{Catalog, Cluster};

type Table = BTreeMap<String, String>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kit {
    cluster: Machines,
    #[serde(flatten)]
    common: Roles,
    container: Table,
    lanes: BTreeMap<String, Roles>,
}

#[derive(Debug, Default, Deserialize)]
struct Roles {
    #[serde(default)]
    all: Values,
    #[serde(default)]
    head: Values,
    #[serde(default)]
    worker: Values,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Values {
    #[serde(default)]
    argv: Table,
    #[serde(default)]
    env: Table,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Machines {
    head: Addresses,
    worker: Addresses,
    netdev: [String; 2],
    rdma: [String; 2],
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Addresses {
    host: String,
    rail1: String,
    rail2: String,
}

/// One difference: (lane, role, key, recipe's value, ours).
type Difference = (String, Role, String, Option<String>, Option<String>);

fn kit(name: &str) -> Kit {
    let path = common::root().join("tests/fixtures").join(name);
    toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Our cluster with the recipe's machines.
fn cluster(catalog: &Catalog, machines: &Machines) -> Cluster {
    let mut cluster = catalog.clusters["sparks"].clone();
    for node in cluster.nodes.values_mut() {
        let addresses = if node.role == Role::Head { &machines.head } else { &machines.worker };
        node.host.clone_from(&addresses.host);
        for (n, rail, address) in [(0, &mut node.rail1, &addresses.rail1), (1, &mut node.rail2, &addresses.rail2)] {
            rail.address.clone_from(address);
            rail.netdev.clone_from(&machines.netdev[n]);
            rail.rdma = Some(machines.rdma[n].clone());
        }
    }
    cluster
}

/// What the recipe gives one role, as `argv.X`, `env.X`, `container.X`. A Ray worker's process is `ray start`, so
/// arguments for all roles are those of vLLM processes only.
fn theirs(kit: &Kit, lane: &str, role: Role) -> Table {
    let mut table = Table::new();
    let own = &kit.lanes[lane];
    for roles in [&kit.common, own] {
        for values in [&roles.all, if role == Role::Head { &roles.head } else { &roles.worker }] {
            table.extend(values.argv.iter().map(|(k, v)| (format!("argv.{k}"), v.clone())));
            table.extend(values.env.iter().map(|(k, v)| (format!("env.{k}"), v.clone())));
        }
    }
    table.extend(kit.container.iter().map(|(k, v)| (format!("container.{k}"), v.clone())));
    table
}

fn ours(engine: &Engine) -> Table {
    let mut table = Table::new();
    table.extend(argv_table(&engine.argv).into_iter().map(|(k, v)| (format!("argv.{k}"), v)));
    table.extend(engine.env.iter().map(|(k, v)| (format!("env.{k}"), v.clone())));
    let mut container = |key: &str, value: String| table.insert(format!("container.{key}"), value);
    container("gpus", engine.gpus.to_string());
    container("devices", engine.devices.join(","));
    container("capabilities", engine.capabilities.join(","));
    container("shmBytes", engine.shm_bytes.to_string());
    if let Some(adj) = engine.oom_score_adj {
        container("oomScoreAdj", adj.to_string());
    }
    for (name, bytes) in &engine.ulimits {
        container(&format!("ulimits.{name}"), bytes.to_string());
    }
    table
}

/// JSON values compare by meaning, everything else by text.
fn same(a: Option<&String>, b: Option<&String>) -> bool {
    // 1.0 and 1 are one number; objects of the recipes are flat.
    let parsed = |text: &String| {
        let map: BTreeMap<String, serde_json::Value> = serde_json::from_str(text).unwrap();
        let number = |v: &serde_json::Value| v.as_f64().map_or_else(|| v.to_string(), |n| n.to_string());
        map.iter().map(|(key, v)| (key.clone(), number(v))).collect::<Table>()
    };
    match (a, b) {
        (Some(a), Some(b)) if a.starts_with('{') && b.starts_with('{') => parsed(a) == parsed(b),
        (a, b) => a == b,
    }
}

fn differences(catalog: &Catalog, kit: &Kit) -> Vec<Difference> {
    let cluster = cluster(catalog, &kit.cluster);
    let mut found = Vec::new();
    for name in kit.lanes.keys() {
        let input = Input { cluster: &cluster, ..catalog.input("sparks", name).unwrap() };
        for rendered in render_all(input).unwrap() {
            let role = rendered.generation.role;
            let (theirs, ours) = (theirs(kit, name, role), ours(&rendered.generation.engine));
            let keys: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
            for key in keys.into_iter().filter(|k| !same(theirs.get(*k), ours.get(*k))) {
                found.push((name.clone(), role, key.clone(), theirs.get(key).cloned(), ours.get(key).cloned()));
            }
        }
    }
    found
}

/// A row holds for the lanes of its name (a trailing `*` for any rest), and for one role when its key starts with it.
fn explains(row: &Deviation, (lane, role, key, theirs, ours): &Difference) -> bool {
    let of_role = row.key.strip_prefix(&format!("{role}.")).unwrap_or(&row.key);
    row.covers(lane) && of_role == key && row.kit == *theirs && row.ours == *ours
}

#[test]
fn every_difference_is_a_row_and_every_row_a_difference() {
    let catalog = common::catalog();
    let kits = [kit("ray-kit.toml"), kit("mp-kit.toml")];
    let found: Vec<Difference> = kits.iter().flat_map(|k| differences(&catalog, k)).collect();
    let rows = &catalog.deviations;

    let unexplained: Vec<_> = found.iter().filter(|d| !rows.iter().any(|r| explains(r, d))).collect();
    assert!(unexplained.is_empty(), "differences without a row: {unexplained:#?}");

    let lanes: Vec<&String> = kits.iter().flat_map(|k| k.lanes.keys()).collect();
    for row in rows {
        assert!(!row.reason.is_empty(), "{row:?}");
        let covered: Vec<_> = lanes.iter().filter(|l| row.covers(l)).collect();
        assert!(!covered.is_empty(), "a row of no lane: {row:?}");
        for lane in covered {
            assert!(found.iter().any(|d| d.0 == **lane && explains(row, d)), "{lane} does not differ: {row:?}");
        }
    }
}

#[test]
fn the_mp_recipe_is_transcribed_whole() {
    // 60 names in its compose file; NCCL_IB_GID_INDEX is the one left out. The preamble's five are none of them.
    let kit = kit("mp-kit.toml");
    let names: BTreeSet<String> =
        theirs(&kit, "mp-0251", Role::Head).into_keys().filter(|k| k.starts_with("env.")).collect();
    assert_eq!(names.len(), 59 + 5, "{names:#?}");
}
