//! Two Sparks as trees: the good pair raises nothing, and every fault of fabric-real.md is named with what to do.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by failing")]

mod support;

use serde_json::json;
use sparklane_fabric::checks::{Outcome, Row};
use sparklane_fabric::table;
use sparklane_lane::fabric::{CHECKS, Check};
use support::{KMSG, Pair};

const RAIL1: &str = "enp1s0f0np0";
const RAIL2: &str = "enP2p1s0f0np0";

fn findings(rows: &[Row]) -> Vec<&Row> {
    rows.iter().filter(|r| matches!(r.outcome, Outcome::Failed | Outcome::Warn)).collect()
}

/// Breaks a pair, and expects a finding of that check whose cause or sight holds the word, with a remedy that holds the other.
#[track_caller]
fn names(break_it: impl FnOnce(&mut Pair), check: Check, word: &str, remedy: &str) -> Vec<Row> {
    let mut pair = Pair::new();
    break_it(&mut pair);
    let rows = pair.rows();
    let found = findings(&rows);
    let fits = |r: &&&Row| {
        let why = format!("{} {}", r.seen, r.cause.as_deref().unwrap_or_default());
        r.check == check && why.contains(word) && r.remedy.as_deref().unwrap_or_default().contains(remedy)
    };
    assert!(found.iter().any(|r| fits(&r)), "{}", table::text(&rows));
    for row in found {
        assert!(row.remedy.is_some() && row.wanted.is_some() && row.cause.is_some(), "{row:#?}");
    }
    rows
}

/// Only findings of these checks.
#[track_caller]
fn only(rows: &[Row], checks: &[Check]) {
    let others: Vec<&Row> = findings(rows).into_iter().filter(|r| !checks.contains(&r.check)).collect();
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
fn a_good_pair_raises_nothing_and_is_judged_in_every_check() {
    let pair = Pair::new();
    let rows = pair.rows();
    assert_eq!(findings(&rows), Vec::<&Row>::new(), "{}", table::text(&rows));
    for check in CHECKS {
        assert!(rows.iter().any(|r| r.check == check && r.outcome == Outcome::Ok), "{check} was not judged");
    }
    // What healthy machines show: the 27 W line, the x0 line, bursts of NV_ERR_NO_MEMORY, 200000 for each half.
    for word in ["27W", "Unknown x0 link", "NV_ERR_NO_MEMORY"] {
        assert!(KMSG.contains(word));
    }
    assert!(rows.iter().any(|r| r.check == Check::Speed && r.seen.starts_with("200000")));
    // Both directions of both rails.
    let jumbo: Vec<_> = rows.iter().filter(|r| r.check == Check::Jumbo).collect();
    assert_eq!(jumbo.len(), 4);
    assert!(table::text(&rows).contains("worker rail2 -> head"), "{}", table::text(&rows));
}

#[test]
fn the_table_is_as_kept() {
    let mut pair = Pair::new();
    pair.worker.mtu(RAIL2, 1500);
    pair.worker.lost.insert("rail2", ("Message too long (os error 90)", true));
    pair.head.lose("rail2", true);
    let text = table::text(&pair.rows());
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mtu-one-side.txt");
    if std::env::var_os("SPARKLANE_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(path).unwrap(), "SPARKLANE_BLESS=1 cargo test -p sparklane-fabric");
}

#[test]
fn no_cable_at_boot_is_the_nic_gone_from_the_bus() {
    let rows = names(|p| p.head.without_nic(), Check::Nic, "hotplug_enabled 1", "reboot both nodes with the cable in");
    assert!(
        rows.iter().any(|r| r.check == Check::Netdev
            && r.outcome == Outcome::Skipped
            && r.seen.contains("the NIC is not there"))
    );
}

#[test]
fn a_half_with_two_pci_lanes() {
    names(
        |p| p.head.put("sys/bus/pci/devices/0002:01:00.0/current_link_width", "2"),
        Check::Nic,
        "2 PCI lanes",
        "fwupdmgr",
    );
    let line = "6,9,1150104,-;mlx5_core 0002:01:00.0: 63.014 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe x2 link at 0002:00:00.0 (capable of 126.028 Gb/s with 32.0 GT/s PCIe x4 link)\n";
    names(|p| p.head.put("dev/kmsg", &format!("{KMSG}{line}")), Check::Kernel, "x2 link", "fwupdmgr");
}

#[test]
fn a_management_port_taken_for_a_rail() {
    names(|p| p.cluster["nodes"]["head"]["rail2"]["netdev"] = json!("enP7s7"), Check::Netdev, "r8127", "cluster file");
    names(
        |p| p.cluster["nodes"]["head"]["rail2"]["netdev"] = json!("enp9s9"),
        Check::Netdev,
        "another device",
        "rail2.netdev",
    );
}

#[test]
fn a_rail_without_a_link() {
    let down = |p: &mut Pair| {
        p.worker.carrier(RAIL1, false);
        p.worker.carrier(RAIL2, false);
    };
    names(down, Check::Link, "not seated", "reboot both nodes with the cable in");
    names(|p| p.worker.other_cage(), Check::Link, "enP2p1s0f1np1, enp1s0f1np1 have a link", "cluster file");
    let off = |p: &mut Pair| {
        p.worker.carrier(RAIL1, false);
        p.worker.remove(&format!("sys/class/net/{RAIL1}/carrier"));
    };
    names(off, Check::Link, "switched off", "ip link set dev enp1s0f0np0 up");
}

#[test]
fn one_half_of_the_cage_up_is_half_of_the_bandwidth() {
    names(|p| p.worker.carrier(RAIL2, false), Check::Halves, "98 instead of 161", RAIL2);
    let two_cages = |p: &mut Pair| {
        p.cluster["nodes"]["head"]["rail2"]["netdev"] = json!("enP2p1s0f1np1");
        p.cluster["nodes"]["head"]["rail2"]["rdma"] = json!("roceP2p1s0f1");
    };
    names(two_cages, Check::Halves, "two cages", "one cage");
}

#[test]
fn a_link_that_came_up_at_25g() {
    names(
        |p| p.head.put(&format!("sys/class/net/{RAIL1}/speed"), "25000"),
        Check::Speed,
        "25000",
        "reboot both nodes with the cable in",
    );
    names(|p| p.head.put(&format!("sys/class/net/{RAIL1}/speed"), "-1"), Check::Speed, "not known", "QSFP");
}

#[test]
fn mtu_left_at_1500() {
    let rows = names(|p| p.head.mtu(RAIL1, 1500), Check::Mtu, "1500", "host.rails.mtu = 9000");
    let row = rows.iter().find(|r| r.check == Check::RdmaMtu && r.outcome == Outcome::Failed).unwrap();
    assert!(row.seen.starts_with("1024") && row.rail.as_deref() == Some("rail1"), "{row:?}");
    only(&rows, &[Check::Mtu, Check::RdmaMtu]);
}

#[test]
fn a_one_sided_mtu_lets_small_packets_pass() {
    let lost = |p: &mut Pair| p.head.lose("rail1", true);
    names(lost, Check::Jumbo, "84 bytes pass", "the worker first");
    let crossed = |p: &mut Pair| p.head.lose("rail1", false);
    names(crossed, Check::Jumbo, "paired crosswise", "same cage");
}

fn addresses(p: &mut Pair, one: &str, two: &str) {
    p.head.live["addresses"] = json!([
        {"netdev": RAIL1, "address": one, "prefix": 24},
        {"netdev": RAIL2, "address": two, "prefix": 24},
    ]);
}

#[test]
fn addresses_that_are_not_the_rails() {
    names(|p| addresses(p, "10.0.1.1", "10.0.0.1"), Check::Address, "swapped", "deploy again");
    names(|p| addresses(p, "10.9.0.1", "10.0.1.1"), Check::Address, "wrong subnet", "netplan");
    names(|p| addresses(p, "10.0.1.9", "10.0.1.1"), Check::Address, "other rail's subnet", "netplan");
    names(|p| addresses(p, "10.0.0.7", "10.0.1.1"), Check::Address, "do not agree", "netplan");
    names(|p| addresses(p, "169.254.35.62", "10.0.1.1"), Check::Address, "change at every boot", "netplan");
    let half =
        |p: &mut Pair| p.head.live["addresses"] = json!([{"netdev": RAIL1, "address": "10.0.0.1", "prefix": 24}]);
    names(half, Check::Address, "only one of the two halves", "netplan");
    let prefix = |p: &mut Pair| p.head.live["addresses"][2]["prefix"] = json!(16);
    names(prefix, Check::Address, "prefix length", "netplan");
}

/// fabric-real.md 04: .10 and .14 of one /24, pasted as a good table.
#[test]
fn both_halves_in_one_subnet() {
    names(|p| addresses(p, "192.168.100.10", "192.168.100.14"), Check::Subnets, "192.168.100.0/24", "another subnet");
}

#[test]
fn a_default_route_on_a_rail() {
    let route = json!({"netdev": RAIL1, "destination": null, "prefix": 0, "gateway": "10.0.0.254"});
    names(|p| p.head.live["routes"].as_array_mut().unwrap().push(route), Check::DefaultRoute, RAIL1, "/etc/netplan");
}

#[test]
fn rdma_devices_that_are_not_as_declared() {
    let port = "sys/class/infiniband/rocep1s0f0/ports/1";
    names(|p| p.head.put(&format!("{port}/state"), "1: DOWN"), Check::Rdma, "DOWN", "link's row");
    names(|p| p.head.put(&format!("{port}/link_layer"), "InfiniBand"), Check::Rdma, "InfiniBand", "LINK_TYPE_P1=2");
    names(|p| p.head.remove("sys/class/infiniband/rocep1s0f0"), Check::Rdma, "RDMA part is not loaded", "mlx5_ib");
    let swapped = |p: &mut Pair| p.cluster["nodes"]["head"]["rail1"]["rdma"] = json!("rocep1s0f1");
    names(swapped, Check::RdmaMap, "rocep1s0f1 -> enp1s0f1np1", "rdma = \"rocep1s0f0\"");
    names(|p| p.cluster["nodes"]["head"]["rail1"]["rdma"] = json!("mlx5_0"), Check::Rdma, "mlx5_N", "rocep1s0f0");
    names(|p| p.head.remove("dev/infiniband"), Check::Infiniband, "no /dev/infiniband", "ib_uverbs");
}

#[test]
fn no_roce_v2_gid_of_the_address() {
    let types = "sys/class/infiniband/rocep1s0f0/ports/1/gid_attrs/types/3";
    names(|p| p.head.put(types, "IB/RoCE v1"), Check::Gid, "no RoCE v2 GID", "give the rail its address");
}

#[test]
fn what_the_lane_tells_nccl() {
    let one = |p: &mut Pair| p.head.live["generation"]["nccl"]["NCCL_IB_HCA"] = json!("rocep1s0f0");
    names(one, Check::Nccl, "half of the bandwidth", "deploy");
    let foreign = |p: &mut Pair| p.head.live["generation"]["nccl"]["NCCL_IB_HCA"] = json!("rocep1s0f1,roceP2p1s0f1");
    names(foreign, Check::Nccl, "not used", "deploy");
    let index = |p: &mut Pair| p.head.live["generation"]["nccl"]["NCCL_IB_GID_INDEX"] = json!("1");
    names(index, Check::Nccl, "NCCL_IB_GID_INDEX=1", "leave");
    let conf = |p: &mut Pair| p.head.live["docker"]["container"]["ncclConf"] = json!(true);
    names(conf, Check::Nccl, "/etc/nccl.conf", "compose the image without it");
}

#[test]
fn locked_memory_at_each_of_its_three_places() {
    let small = json!({"bytes": 8_388_608});
    let (unit, login, inside) = (small.clone(), small.clone(), small);
    names(|p| p.head.live["unitMemlock"] = unit, Check::MemlockUnit, "8192 KiB", "DefaultLimitMEMLOCK");
    names(|p| p.head.live["login"]["memlock"] = login, Check::MemlockLogin, "8192 KiB", "host.memlock");
    names(
        |p| p.head.live["docker"]["container"]["memlock"] = inside,
        Check::MemlockContainer,
        "8192 KiB",
        "ulimits.memlock",
    );
    let tailscale = |p: &mut Pair| p.head.live["login"] = json!({"via": "tailscaled", "memlock": {"bytes": 65536}});
    names(tailscale, Check::Login, "skip PAM", "tailscale set --ssh=false");
    let none = |p: &mut Pair| p.head.live["docker"]["container"] = json!(null);
    let mut pair = Pair::new();
    none(&mut pair);
    assert!(pair.rows().iter().any(|r| r.check == Check::MemlockContainer && r.outcome == Outcome::Skipped));
}

#[test]
fn the_gpu_on_the_host_and_in_the_container() {
    names(|p| p.head.remove("proc/driver/nvidia/version"), Check::Gpu, "no driver", "dkms");
    names(|p| p.head.remove("proc/driver/nvidia/gpus"), Check::Gpu, "No devices were found", "power");
    names(
        |p| p.head.live["docker"]["container"]["gpuDevices"] = json!([]),
        Check::GpuContainer,
        "nvidiactl",
        "nvidia-ctk",
    );
}

#[test]
fn a_kernel_without_contiguous_memory() {
    let text = "MemTotal:       127535084 kB\nCmaTotal:              0 kB\n";
    names(|p| p.head.put("proc/meminfo", text), Check::Cma, "CmaTotal: 0", "kho=off");
}

#[test]
fn kernel_lines_that_matter() {
    let with = |line: &str| format!("{KMSG}6,9,900000000,-;{line}\n");
    let plugged = with("cx7-pcie-hotplug MTKP0001:00: Cable plugin");
    let rows =
        names(|p| p.head.put("dev/kmsg", &plugged), Check::Kernel, "13 Gb/s", "reboot both nodes with the cable in");
    assert!(findings(&rows).iter().all(|r| r.outcome == Outcome::Warn));
    let fatal = with("pcieport 0000:00:00.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:01:00.1");
    names(|p| p.head.put("dev/kmsg", &fatal), Check::Kernel, "900 s after boot", "reboot");
}

#[test]
fn clocks_that_are_apart() {
    let rows = names(|p| p.worker.live["unixMillis"] = json!(1_000_005_000_u64), Check::Clock, "ms apart", "set-ntp");
    only(&rows, &[Check::Clock]);
    // Within what the measurement can tell.
    let mut pair = Pair::new();
    pair.worker.live["unixMillis"] = json!(1_000_000_900_u64);
    assert_eq!(findings(&pair.rows()), Vec::<&Row>::new());
}

#[test]
fn listeners_that_nobody_asked_for() {
    let with = |p: &mut Pair, l: serde_json::Value| p.head.live["listeners"].as_array_mut().unwrap().push(l);
    let on_all = json!({"address": "0.0.0.0", "port": 8265, "uid": 1000, "process": "dashboard", "container": null});
    let rows = names(|p| with(p, on_all.clone()), Check::Listeners, "0.0.0.0:8265 (dashboard, uid 1000)", "127.0.0.1");
    only(&rows, &[Check::Listeners]);
    // On a rail, but of no container of ours.
    let stray = json!({"address": "10.0.0.1", "port": 9999, "uid": 0, "process": "nc", "container": null});
    names(|p| with(p, stray), Check::Listeners, "10.0.0.1:9999", "fabric.listeners");
    // A name of ours, and somebody else's program.
    let named = json!({"address": "10.0.0.1", "port": 4444, "uid": 1001, "process": "sparklane", "container": null});
    names(|p| with(p, named), Check::Listeners, "10.0.0.1:4444 (sparklane, uid 1001)", "fabric.listeners");
    // mp's rendezvous binds every interface.
    let rendezvous = json!({"address": "::", "port": 6379, "uid": 0, "process": "python", "container": "c".repeat(64)});
    let open = |p: &mut Pair| {
        with(p, rendezvous.clone());
        p.cluster["host"]["firewall"] = json!(null);
        p.head.live["generation"]["firewall"] = json!(null);
    };
    let rows = names(open, Check::Listeners, "[::]:6379", "host.firewall");
    assert!(findings(&rows).iter().all(|r| r.outcome == Outcome::Warn));
    // Behind the lane's own table nobody else reaches it, for as long as that stands.
    let mut pair = Pair::new();
    with(&mut pair, rendezvous.clone());
    assert_eq!(findings(&pair.rows()), Vec::<&Row>::new());
    let gone = |p: &mut Pair| {
        with(p, rendezvous.clone());
        p.head.live["generation"]["firewall"]["trouble"] = json!("the table inet sparklane is gone");
    };
    let rows = names(gone, Check::Firewall, "is gone", "systemctl start sparklane-firewall");
    assert!(findings(&rows).iter().any(|r| r.check == Check::Listeners && r.outcome == Outcome::Warn));
    only(&rows, &[Check::Firewall, Check::Listeners]);
    // A mapped address is the one it maps.
    let mapped = json!({"address": "::ffff:127.0.0.1", "port": 1, "uid": 0, "process": "x", "container": null});
    let mut pair = Pair::new();
    with(&mut pair, mapped);
    assert_eq!(findings(&pair.rows()), Vec::<&Row>::new());
    // Named by the owner.
    let mut pair = Pair::new();
    with(&mut pair, on_all);
    pair.cluster["fabric"] = json!({"listeners": [{"port": 8265, "process": "dashboard", "reason": "ours"}]});
    assert_eq!(findings(&pair.rows()), Vec::<&Row>::new());
}

#[test]
fn udp_sockets_that_nobody_asked_for() {
    let of = |address: &str, port: u16, process: &str, container: Option<String>| json!({"protocol": "udp", "address": address, "port": port, "uid": 0, "process": process, "container": container});
    let with = |p: &mut Pair, l: serde_json::Value| p.head.live["listeners"].as_array_mut().unwrap().push(l);
    let stray = || of("0.0.0.0", 631, "cups-browsed", None);
    let rows = names(|p| with(p, stray()), Check::Listeners, "udp 0.0.0.0:631 (cups-browsed", "fabric.listeners");
    only(&rows, &[Check::Listeners]);
    // The usual ports are the usual programs' only; the engine has no business with UDP; heartbeats stay on the rails.
    let bad = [
        of("0.0.0.0", 5353, "nc", None),
        of("0.0.0.0", 40000, "python", Some("c".repeat(64))),
        of("0.0.0.0", 25010, "sparklane", None),
        of("10.0.0.1", 25011, "sparklane", None),
    ];
    for l in bad {
        names(|p| with(p, l), Check::Listeners, "udp ", "127.0.0.1");
    }
    // A client that waits for an answer, and what the owner names; a TCP port of that number is another thing.
    let mut pair = Pair::new();
    with(&mut pair, of("0.0.0.0", 45678, "curl", None));
    with(&mut pair, stray());
    let named = |protocol: &str| json!({"listeners": [{"port": 631, "protocol": protocol, "reason": "printers"}]});
    pair.cluster["fabric"] = named("udp");
    assert_eq!(findings(&pair.rows()), Vec::<&Row>::new());
    pair.cluster["fabric"] = named("tcp");
    assert_eq!(findings(&pair.rows()).len(), 1);
}

#[test]
fn every_difference_of_the_nodes_is_a_row() {
    let differs = |change: fn(&mut Pair), words: &str| drop(names(change, Check::Parity, words, "both"));
    differs(
        |p| p.worker.put("proc/sys/kernel/osrelease", "6.17.0-1014-nvidia"),
        "kernel: head 6.17.0-1032-nvidia, worker 6.17.0-1014-nvidia",
    );
    differs(|p| p.worker.put("etc/dgx-release", "DGX_SWBUILD_VERSION=\"7.2.3\""), "DGX OS: head 7.6.0, worker 7.2.3");
    differs(|p| p.worker.remove("usr/local/cuda/version.json"), "CUDA: head 13.0.2, worker none");
    differs(|p| p.worker.put("sys/class/dmi/id/bios_version", "old"), "board firmware");
    let uefi = |p: &mut Pair| p.worker.live["firmware"]["UEFI Device Firmware 22222222"] = json!("0x00000515");
    names(uefi, Check::Parity, "UEFI Device Firmware 22222222: head 0x00000516, worker 0x00000515", "fwupdmgr");
    names(
        |p| p.worker.live["firmware"] = json!({}),
        Check::Parity,
        "11111111: head 0x0200980f, worker none",
        "fwupdmgr",
    );
    differs(|p| p.worker.live["docker"]["version"] = json!("28.0"), "docker: head 29.2.1, worker 28.0");
    let firmware = |p: &mut Pair| p.worker.put("sys/class/infiniband/roceP2p1s0f0/fw_ver", "28.47.1088");
    names(firmware, Check::Parity, "NIC firmware: head 28.45.4028, worker 28.45.4028 and 28.47.1088", "fwupdmgr");
    differs(
        |p| p.worker.put("proc/driver/nvidia/version", "NVRM version: NVIDIA  580.95.05  Release"),
        "driver: head 580.178.04, worker 580.95.05",
    );
    for (key, words) in [("image", "image: "), ("weights", "weights: "), ("lane", "lane: ")] {
        names(|p| p.worker.live["generation"][key] = json!("other"), Check::Release, words, "deploy");
    }
    let env = |p: &mut Pair| p.worker.live["generation"]["nccl"]["NCCL_NET"] = json!("Socket");
    names(env, Check::Release, "NCCL environment", "deploy");
}

#[test]
fn the_cluster_file_weighs_findings() {
    let outcome = |severity: &str| {
        let mut pair = Pair::new();
        pair.head.mtu(RAIL1, 1500);
        pair.cluster["fabric"] = json!({"severity": {"mtu": severity, "rdma-mtu": "ignore"}});
        let rows = pair.rows();
        assert!(rows.iter().any(|r| r.check == Check::RdmaMtu && r.outcome == Outcome::Ignored));
        rows.iter().find(|r| r.check == Check::Mtu && r.rail.as_deref() == Some("rail1")).unwrap().outcome
    };
    assert_eq!(
        [outcome("fail"), outcome("warn"), outcome("ignore")],
        [Outcome::Failed, Outcome::Warn, Outcome::Ignored]
    );
}

#[test]
fn what_is_declared_absent_is_never_ok() {
    let mut pair = Pair::new();
    pair.cluster["absent"] = json!(["gpu", "rdma", "link-speed", "sys-resource"]);
    for node in ["head", "worker"] {
        for rail in ["rail1", "rail2"] {
            pair.cluster["nodes"][node][rail]["rdma"] = json!(null);
        }
    }
    let rows = pair.rows();
    for check in [
        Check::Nic,
        Check::Speed,
        Check::Rdma,
        Check::RdmaMap,
        Check::RdmaMtu,
        Check::Gid,
        Check::Nccl,
        Check::Infiniband,
        Check::MemlockUnit,
        Check::MemlockLogin,
        Check::MemlockContainer,
        Check::Gpu,
        Check::GpuContainer,
        Check::Cma,
    ] {
        assert!(rows.iter().filter(|r| r.check == check).all(|r| r.outcome == Outcome::Declared), "{check}");
    }
    assert_eq!(findings(&rows), Vec::<&Row>::new());
}

#[test]
fn a_node_that_does_not_answer_fails_and_the_other_is_judged() {
    let pair = Pair::new();
    let mut asked = pair.asked();
    asked[1].facts = Err("no route to host".into());
    let rows = pair.judge(&asked);
    let failed: Vec<_> = findings(&rows);
    assert_eq!(failed.len(), 1, "{failed:#?}");
    assert!(failed[0].check == Check::Facts && failed[0].seen.contains("no route"));
    assert!(rows.iter().any(|r| r.check == Check::Parity && r.outcome == Outcome::Skipped));
}
