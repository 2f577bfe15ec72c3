//! Two Sparks as file trees, made after fabric-real.md (blocks ibv-cage1-mtu9000, gids-cage0, sysfs-paths, dgxrel-gx10,
//! dmesg-pcie-bw, k-27w, meminfo-serving), and what each answers.

#![allow(dead_code, reason = "the tests that share this need a part each")]

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use sparklane_fabric::checks::{Asked, Input, Row, judge};
use sparklane_fabric::facts::{NodeFacts, RECORD, Root, recorded};
use sparklane_fabric::ping::{Ping, Target};
use sparklane_lane::Cluster;

/// The shipped cluster of two Sparks, with the cable in cage 0.
pub fn cluster() -> Value {
    let node = |role: &str, rank: u32, last: u32| {
        json!({
            "role": role, "rank": rank, "system": "aarch64-linux", "host": format!("192.168.1.1{rank}"),
            "rail1": {"netdev": "enp1s0f0np0", "rdma": "rocep1s0f0", "address": format!("10.0.0.{last}")},
            "rail2": {"netdev": "enP2p1s0f0np0", "rdma": "roceP2p1s0f0", "address": format!("10.0.1.{last}")},
            "memoryBytes": 130_620_000_000_u64,
        })
    };
    json!({
        "name": "sparks", "description": "two DGX Sparks", "defaultLane": "ray-0731", "buildSystem": "x86_64-linux",
        "ssh": {"user": "operator"}, "trustedKey": null,
        "nodes": {"head": node("head", 0, 1), "worker": node("worker", 1, 2)},
        "host": {"rails": {"mtu": 9000}, "memlock": true, "firewall": {}},
    })
}

/// Four functions: netdev, RDMA device, PCI address, cage, whether the cable is in that cage.
const PORTS: [(&str, &str, &str, &str, bool); 4] = [
    ("enp1s0f0np0", "rocep1s0f0", "0000:01:00.0", "p0", true),
    ("enp1s0f1np1", "rocep1s0f1", "0000:01:00.1", "p1", false),
    ("enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0", "p0", true),
    ("enP2p1s0f1np1", "roceP2p1s0f1", "0002:01:00.1", "p1", false),
];

pub const KMSG: &str = "6,1,103426,-;pci 000f:01:00.0: 0.000 Gb/s available PCIe bandwidth, limited by Unknown x0 link at 000f:00:00.0 (capable of 32.000 Gb/s with 2.5 GT/s PCIe x16 link)
6,2,1150104,-;mlx5_core 0000:01:00.0: 126.028 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x4 link)
4,3,1533198,-;mlx5_core 0000:01:00.0: mlx5_pcie_event:326:(pid 12): Detected insufficient power on the PCIe slot (27W).
6,4,5309621,-;cx7-pcie-hotplug MTKP0001:00: PCIe hotplug driver initialized successfully
6,5,5406738,-;cx7-pcie-hotplug MTKP0001:00: Hotplug enabled
4,6,90406738,-;NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359
4,7,90406739,-;NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359
";

/// A machine in a folder.
pub struct Spark {
    dir: tempfile::TempDir,
    pub live: Value,
    /// Changed by a test: what comes of packets over a rail, by the rail's name.
    pub lost: BTreeMap<&'static str, (&'static str, bool)>,
    last: u32,
}

impl Spark {
    pub fn new(last: u32) -> Self {
        let spark = Self { dir: tempfile::tempdir().unwrap(), live: live(last), lost: BTreeMap::new(), last };
        for (at, (netdev, rdma, pci, cage, up)) in PORTS.into_iter().enumerate() {
            spark.netdev(netdev, 10 + at, ("mlx5_core", pci), up);
            spark.put(&format!("sys/class/net/{netdev}/phys_port_name"), cage);
            spark.rdma(rdma, netdev, pci, up);
            spark.put(&format!("sys/bus/pci/devices/{pci}/vendor"), "0x15b3");
            spark.put(&format!("sys/bus/pci/devices/{pci}/device"), "0x1021");
            spark.put(&format!("sys/bus/pci/devices/{pci}/current_link_width"), "4");
            spark.put(&format!("sys/bus/pci/devices/{pci}/current_link_speed"), "32.0 GT/s PCIe");
            spark.put(&format!("dev/infiniband/uverbs{at}"), "");
        }
        spark.netdev("enP7s7", 2, ("r8127", "0007:01:00.0"), true);
        spark.put("sys/class/net/enP7s7/mtu", "1500");
        spark.put("sys/class/net/lo/ifindex", "1");
        spark.put("sys/class/net/lo/mtu", "65536");
        spark.put("dev/infiniband/rdma_cm", "");
        for (path, text) in [
            ("sys/bus/pci/devices/000f:01:00.0/vendor", "0x10de"),
            ("sys/bus/platform/drivers/cx7-pcie-hotplug/MTKP0001:00/pcie_hotplug/hotplug_enabled", "1"),
            ("sys/class/dmi/id/product_name", "GX10"),
            ("sys/class/dmi/id/bios_version", "GX10DGX.0105.2026.0505.1153"),
            ("proc/sys/kernel/osrelease", "6.17.0-1032-nvidia"),
            (
                "proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.178.04  Release Build  (dvs-builder@U22)",
            ),
            (
                "proc/driver/nvidia/gpus/000f:01:00.0/information",
                "Model: \t\t NVIDIA GB10\nVideo BIOS: \t 9a.0b.25.00.00\nGPU Firmware: \t 580.178.04",
            ),
            (
                "proc/meminfo",
                "MemTotal:       127535084 kB\nMemFree:         1234567 kB\nCmaTotal:         131072 kB\nCmaFree:           69320 kB",
            ),
            ("proc/uptime", "86400.12 1700000.00"),
            ("etc/os-release", "NAME=\"Ubuntu\"\nPRETTY_NAME=\"Ubuntu 24.04.4 LTS\""),
            (
                "etc/dgx-release",
                "DGX_PLATFORM=\"GX10\"\nDGX_SWBUILD_VERSION=\"7.2.3\"\nDGX_OTA_VERSION=\"7.5.0\"\nDGX_OTA_VERSION=\"7.6.0\"\nDGX_OTA_DATE=\"mer. 16 sept. 2026 17:08:05 CEST\"",
            ),
            ("usr/local/cuda/version.json", "{\"cuda\":{\"name\":\"CUDA SDK\",\"version\":\"13.0.2\"}}"),
            (
                "var/lib/dpkg/status",
                "Package: nvidia-container-toolkit\nStatus: install ok installed\nVersion: 1.19.1-1\n",
            ),
            ("dev/kmsg", KMSG),
        ] {
            spark.put(path, text);
        }
        spark
    }

    fn base(&self) -> &Utf8Path {
        Utf8Path::from_path(self.dir.path()).unwrap()
    }

    fn at(&self, path: &str) -> Utf8PathBuf {
        self.base().join(path)
    }

    pub fn put(&self, path: &str, text: &str) {
        let at = self.at(path);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, text).unwrap();
    }

    pub fn remove(&self, path: &str) {
        let at = self.at(path);
        if at.is_dir() { std::fs::remove_dir_all(at).unwrap() } else { std::fs::remove_file(at).unwrap() }
    }

    fn link(&self, path: &str, target: &str) {
        let at = self.at(path);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, at).unwrap();
    }

    fn netdev(&self, name: &str, index: usize, (driver, pci): (&str, &str), up: bool) {
        let at = |file: &str| format!("sys/class/net/{name}/{file}");
        self.put(&at("ifindex"), &index.to_string());
        self.put(&at("operstate"), if up { "up" } else { "down" });
        self.put(&at("carrier"), if up { "1" } else { "0" });
        self.put(&at("speed"), if up { "200000" } else { "-1" });
        self.put(&at("mtu"), if up { "9000" } else { "1500" });
        self.put(&at("address"), "4c:bb:47:00:00:10");
        self.link(&at("device"), &format!("../../../devices/{pci}"));
        self.put(&format!("sys/devices/{pci}/x"), "");
        if !self.at(&format!("sys/devices/{pci}/driver")).is_symlink() {
            self.link(&format!("sys/devices/{pci}/driver"), &format!("../../../bus/pci/drivers/{driver}"));
        }
    }

    fn rdma(&self, name: &str, netdev: &str, pci: &str, up: bool) {
        let at = |file: &str| format!("sys/class/infiniband/{name}/{file}");
        self.put(&at("fw_ver"), "28.45.4028");
        self.link(&at("device"), &format!("../../../devices/{pci}"));
        self.put(&at("ports/1/state"), if up { "4: ACTIVE" } else { "1: DOWN" });
        self.put(&at("ports/1/phys_state"), if up { "5: LinkUp" } else { "3: Disabled" });
        self.put(&at("ports/1/link_layer"), "Ethernet");
        self.put(&at("ports/1/rate"), if up { "200 Gb/sec (2X NDR)" } else { "40 Gb/sec (4X QDR)" });
        let third = if name.contains("P2") { 1 } else { 0 };
        let own = format!("0000:0000:0000:0000:0000:ffff:0a00:{third:02x}{:02x}", self.last);
        let link_local = "fe80:0000:0000:0000:32c5:99ff:fe00:0013";
        let mut gids = vec![(0, link_local, "IB/RoCE v1"), (1, link_local, "RoCE v2")];
        if up {
            gids.extend([(2, own.as_str(), "IB/RoCE v1"), (3, own.as_str(), "RoCE v2")]);
        }
        for (index, gid, kind) in gids {
            self.put(&at(&format!("ports/1/gids/{index}")), gid);
            self.put(&at(&format!("ports/1/gid_attrs/types/{index}")), kind);
            self.put(&at(&format!("ports/1/gid_attrs/ndevs/{index}")), netdev);
        }
        // An unused entry: the GID is zero, and reading its type is an error.
        self.put(&at("ports/1/gids/9"), "0000:0000:0000:0000:0000:0000:0000:0000");
    }

    pub fn mtu(&self, netdev: &str, mtu: u32) {
        self.put(&format!("sys/class/net/{netdev}/mtu"), &mtu.to_string());
    }

    pub fn carrier(&self, netdev: &str, up: bool) {
        self.put(&format!("sys/class/net/{netdev}/carrier"), if up { "1" } else { "0" });
        self.put(&format!("sys/class/net/{netdev}/operstate"), if up { "up" } else { "down" });
        self.put(&format!("sys/class/net/{netdev}/speed"), if up { "200000" } else { "-1" });
    }

    /// Packets over a rail are lost; small ones perhaps not.
    pub fn lose(&mut self, rail: &'static str, small: bool) {
        self.lost.insert(rail, ("no answer in 1400 ms", small));
    }

    /// The cable in the other cage.
    pub fn other_cage(&self) {
        for (netdev, _, _, cage, _) in PORTS {
            self.carrier(netdev, cage == "p1");
        }
    }

    /// As without a cable at boot, with power saving on.
    pub fn without_nic(&self) {
        for (netdev, rdma, pci, _, _) in PORTS {
            self.remove(&format!("sys/class/net/{netdev}"));
            self.remove(&format!("sys/class/infiniband/{rdma}"));
            self.remove(&format!("sys/bus/pci/devices/{pci}"));
        }
        self.remove("dev/infiniband");
    }

    /// The folder, with the record of what no file tells.
    pub fn tree(&self) -> Utf8PathBuf {
        self.put(RECORD, &self.live.to_string());
        self.base().to_owned()
    }

    pub fn root(&self) -> &Utf8Path {
        self.base()
    }

    pub fn facts(&self, peer: &str, peer_last: u32) -> NodeFacts {
        let mut facts = recorded("0.1.0", &Root::new(self.tree())).unwrap();
        facts.millis = 40;
        let ping = |(third, rail, netdev): (u8, &'static str, &str)| {
            let address = std::net::Ipv4Addr::new(10, 0, third, u8::try_from(peer_last).unwrap());
            let target = Target { rail: rail.into(), netdev: netdev.into(), peer: peer.into(), address, mtu: 9000 };
            match self.lost.get(rail) {
                None => Ping { target, micros: Some(120), error: None, small: true },
                Some((why, small)) => Ping { target, micros: None, error: Some((*why).into()), small: *small },
            }
        };
        facts.pings = [(0, "rail1", "enp1s0f0np0"), (1, "rail2", "enP2p1s0f0np0")].map(ping).to_vec();
        facts
    }
}

fn live(last: u32) -> Value {
    let address =
        |netdev: &str, address: String, prefix: u8| json!({"netdev": netdev, "address": address, "prefix": prefix});
    let container = "c".repeat(64);
    let listener = |address: &str, port: u16, process: &str, container: Option<&String>| json!({"address": address, "port": port, "uid": 0, "process": process, "container": container});
    let udp = |address: &str, port: u16, process: &str| json!({"protocol": "udp", "address": address, "port": port, "uid": 0, "process": process, "container": null});
    json!({
        "addresses": [
            address("lo", "127.0.0.1".into(), 8),
            address("enP7s7", format!("192.168.1.1{last}"), 24),
            address("enp1s0f0np0", format!("10.0.0.{last}"), 24),
            address("enP2p1s0f0np0", format!("10.0.1.{last}"), 24),
        ],
        "routes": [
            {"netdev": "enP7s7", "destination": null, "prefix": 0, "gateway": "192.168.1.1"},
            {"netdev": "enp1s0f0np0", "destination": "10.0.0.0", "prefix": 24, "gateway": null},
        ],
        "listeners": [
            listener("0.0.0.0", 22, "sshd", None),
            listener("::", 22, "sshd", None),
            listener("127.0.0.53", 53, "systemd-resolve", None),
            listener("127.0.0.1", 8000, "vllm", Some(&container)),
            listener(&format!("10.0.0.{last}"), 6379, "gcs_server", Some(&container)),
            listener(&format!("10.0.0.{last}"), 40123, "python", Some(&container)),
            udp(&format!("10.0.0.{last}"), 25010, "sparklane"),
            udp(&format!("10.0.1.{last}"), 25010, "sparklane"),
            udp("127.0.0.53", 53, "systemd-resolve"),
            udp("0.0.0.0", 5353, "avahi-daemon"),
            udp("::", 51234, "avahi-daemon"),
            udp(&format!("192.168.1.1{last}"), 68, "NetworkManager"),
        ],
        "unitMemlock": {"bytes": null},
        "login": {"via": "sshd", "memlock": {"bytes": null}},
        "docker": {"version": "29.2.1", "container": {
            "id": container, "memlock": {"bytes": null}, "nccl_conf": false,
            "gpuDevices": ["nvidia-uvm", "nvidia0", "nvidiactl"],
        }},
        "firmware": {"UEFI Device Firmware 11111111": "0x0200980f", "UEFI Device Firmware 22222222": "0x00000516"},
        "generation": {
            "lane": "ray-0731", "image": "sha256:1", "weights": "w1", "api": ["127.0.0.1", 8000], "ports": [6379],
            "heartbeats": 25010, "firewall": {"trouble": null, "remedy": "systemctl start sparklane-firewall"},
            "nccl": {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0", "NCCL_SOCKET_IFNAME": "enp1s0f0np0", "NCCL_NET": "IB"},
        },
        "unixMillis": 1_000_000_140_u64,
        "unread": [],
    })
}

/// Two machines and their cluster file.
pub struct Pair {
    pub cluster: Value,
    pub head: Spark,
    pub worker: Spark,
}

impl Pair {
    pub fn new() -> Self {
        Self { cluster: cluster(), head: Spark::new(1), worker: Spark::new(2) }
    }

    pub fn asked(&self) -> Vec<Asked> {
        let one = |node: &str, facts: NodeFacts| Asked {
            node: node.parse().unwrap(),
            facts: Ok(facts),
            between: Some((1_000_000_000, 1_000_000_200)),
        };
        vec![one("head", self.head.facts("worker", 2)), one("worker", self.worker.facts("head", 1))]
    }

    pub fn rows(&self) -> Vec<Row> {
        self.judge(&self.asked())
    }

    pub fn judge(&self, nodes: &[Asked]) -> Vec<Row> {
        let cluster: Cluster = serde_json::from_value(self.cluster.clone()).unwrap();
        judge(Input { cluster: &cluster, nodes })
    }
}
