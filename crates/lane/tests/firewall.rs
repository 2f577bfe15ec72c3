//! The nftables table: nft itself takes every script, and what is in it follows from lane and cluster.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a helper that fails fails its test

mod common;

use std::process::Command;

use proptest::prelude::*;
use sparklane_lane::cluster::{Cluster, Firewall};
use sparklane_lane::lane::{Executor, Lane};
use sparklane_lane::render::{FIREWALL, FIREWALL_UNIT, Input, Rendered, render_all};

/// The shipped cluster of two Sparks with its mp lane, changed.
fn with(change: impl Fn(&mut Cluster, &mut Lane)) -> Vec<Rendered> {
    with_lane("mp-0251", change)
}

fn with_lane(name: &str, change: impl Fn(&mut Cluster, &mut Lane)) -> Vec<Rendered> {
    let catalog = common::catalog();
    let cluster = catalog.clusters.values().find(|c| c.name.to_string() == "sparks").unwrap();
    let lanes = catalog.lanes_of(cluster);
    let input = lanes.iter().find(|i| i.lane.name.to_string() == name).unwrap();
    let (mut cluster, mut lane) = (cluster.clone(), input.lane.clone());
    change(&mut cluster, &mut lane);
    render_all(Input { cluster: &cluster, lane: &lane, image: input.image, weights: input.weights }).unwrap()
}

fn script(rendered: &Rendered) -> &str {
    rendered.files.get(FIREWALL).map_or("", String::as_str)
}

/// Loads it into the kernel in a network namespace of its own, twice, as a change of lanes does. Needs nft and unshare
/// (Debian: nftables, util-linux), which CI installs.
#[track_caller]
fn nft_takes(scripts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let mut all = String::new();
    for (n, script) in scripts.iter().enumerate() {
        let file = folder.path().join(n.to_string());
        std::fs::write(&file, script).unwrap();
        all.push_str(&format!("include \"{}\"\n", file.display()));
    }
    let main = folder.path().join("all");
    std::fs::write(&main, format!("{all}{all}")).unwrap();
    let output = Command::new("unshare")
        .args(["--map-root-user", "--net", "/usr/sbin/nft", "--file"])
        .arg(&main)
        .output()
        .expect("unshare runs");
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), scripts.join("\n"));
}

#[test]
fn nft_takes_every_shipped_script_after_every_other() {
    let catalog = common::catalog();
    let inputs = catalog.clusters.values().flat_map(|c| catalog.lanes_of(c));
    let all: Vec<Rendered> = inputs.flat_map(|i| render_all(i).unwrap()).collect();
    let scripts: Vec<&str> = all.iter().map(script).filter(|s| !s.is_empty()).collect();
    assert!(scripts.len() >= 8, "two nodes of four lanes, and {} scripts", scripts.len());
    nft_takes(&scripts);
}

#[test]
fn without_a_firewall_there_is_neither_script_nor_unit_nor_a_word_of_it() {
    for rendered in with(|cluster, _| cluster.host.firewall = None) {
        assert!(!rendered.files.contains_key(FIREWALL) && !rendered.files.contains_key(FIREWALL_UNIT));
        assert!(!rendered.files.values().any(|text| text.contains("firewall")));
    }
    for rendered in with(|_, _| ()) {
        assert!(rendered.files.contains_key(FIREWALL_UNIT));
        let engine = &rendered.files["/etc/systemd/system/sparklane-engine.service"];
        assert!(engine.contains("Requires=sparklane-firewall.service\nAfter=sparklane-firewall.service\n"));
    }
}

#[test]
fn the_api_is_reached_where_the_lane_and_the_cluster_say() {
    let rules = |host: &str, from: &[&str]| {
        let rendered = with(|cluster, lane| {
            lane.api.host = host.to_owned();
            cluster.host.firewall = Some(Firewall { api_from: from.iter().map(|f| (*f).to_owned()).collect() });
        });
        let of_api = |r: &Rendered| -> Vec<String> {
            script(r).lines().map(str::trim).filter(|l| l.contains("dport 8000 ")).map(str::to_owned).collect()
        };
        nft_takes(&rendered.iter().map(script).collect::<Vec<_>>());
        assert_eq!(of_api(&rendered[1]), [""; 0], "the worker has no API");
        of_api(&rendered[0])
    };
    assert_eq!(rules("127.0.0.1", &[]), ["tcp dport 8000 drop"]);
    assert_eq!(rules("10.0.0.1", &[]), ["tcp dport 8000 drop"]);
    assert_eq!(rules("0.0.0.0", &[]), [""; 0]);
    assert_eq!(rules("192.168.1.10", &[]), [""; 0]);
    assert_eq!(
        rules("0.0.0.0", &["192.168.1.0/24", "fd00::/8", "10.1.2.3"]),
        [
            "ip saddr { 192.168.1.0/24, 10.1.2.3 } tcp dport 8000 accept",
            "ip6 saddr { fd00::/8 } tcp dport 8000 accept",
            "tcp dport 8000 drop"
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the ports are: ssh is never among what is dropped, and nft takes it.
    #[test]
    fn any_ports_make_a_script_that_nft_takes(port in 1024_u16..8_000, beats in 1024_u16.., api in 1024_u16.., ray: bool) {
        let rendered = with_lane(if ray { "ray-0731" } else { "mp-0251" }, |_, lane| {
            lane.executor = if ray { Executor::Ray { port, join_secs: 60 } } else { Executor::Mp { port } };
            lane.watchdog.port = beats;
            lane.api.port = api;
        });
        let scripts: Vec<&str> = rendered.iter().map(script).collect();
        for line in scripts.iter().flat_map(|s| s.lines()).filter(|l| l.contains("drop")) {
            prop_assert!(line.contains(" dport ") && !line.contains(" 22,") && !line.contains(" 22 "), "{line}");
        }
        nft_takes(&scripts);
    }
}
