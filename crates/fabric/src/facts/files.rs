//! What sysfs, procfs and a few files of the distribution tell.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::kmsg::{self, Notice};
use super::root::Root;

/// What files tell of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Files {
    /// Network devices by name.
    pub netdevs: BTreeMap<String, Netdev>,
    /// RDMA devices by name.
    pub rdma: BTreeMap<String, Rdma>,
    /// PCI functions of Mellanox NICs by address.
    pub nic: BTreeMap<String, Pci>,
    /// True when the NIC leaves the bus without a cable (`cx7-pcie-hotplug`); `None` where no such driver is.
    pub hotplug: Option<bool>,
    /// Names in `/dev/infiniband`.
    pub infiniband: Vec<String>,
    /// Software and firmware.
    pub system: System,
    /// `MemTotal` in kB.
    pub mem_total_kb: Option<u64>,
    /// `CmaTotal` in kB; `None` where the kernel prints none.
    pub cma_total_kb: Option<u64>,
    /// Seconds since boot.
    pub uptime_secs: Option<u64>,
    /// Kernel lines about the NIC.
    pub kernel: Vec<Notice>,
}

/// A network device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Netdev {
    /// Its number.
    pub index: u32,
    /// `up`, `down`, `unknown`, ….
    pub operstate: String,
    /// Carrier; `None` when the device is administratively down, where the kernel does not tell.
    pub carrier: Option<bool>,
    /// Mb/s; `None` when the driver does not say.
    pub speed: Option<u32>,
    /// MTU in bytes.
    pub mtu: u32,
    /// MAC address.
    pub mac: String,
    /// Its PCI function; `None` for virtual ones.
    pub pci: Option<String>,
    /// Its driver.
    pub driver: Option<String>,
    /// `p0` or `p1` on a Spark: the cage.
    pub port: Option<String>,
}

/// An RDMA device's port 1; a ConnectX-7 function has no other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rdma {
    /// `ACTIVE`, `DOWN`, ….
    pub state: String,
    /// `LinkUp`, `Disabled`, `Polling`, ….
    pub phys_state: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// e.g. `200 Gb/sec (2X HDR)`.
    pub rate: String,
    /// Firmware.
    pub fw_ver: String,
    /// Its PCI function.
    pub pci: Option<String>,
    /// The netdev of its first GID: the one it carries packets through.
    pub netdev: Option<String>,
    /// GIDs in use.
    pub gids: Vec<Gid>,
}

/// A GID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gid {
    /// Index in the table.
    pub index: u16,
    /// Eight groups of four hex digits.
    pub gid: String,
    /// `RoCE v2` or `IB/RoCE v1`.
    pub kind: String,
    /// Its netdev.
    pub netdev: String,
}

/// A PCI function of the NIC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pci {
    /// Lanes in use.
    pub width: Option<u32>,
    /// e.g. `32.0 GT/s PCIe`.
    pub speed: Option<String>,
}

/// Versions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct System {
    /// Kernel release.
    pub kernel: Option<String>,
    /// The distribution (`PRETTY_NAME`).
    pub os: Option<String>,
    /// DGX OS: the last OTA version, else the build.
    pub dgx: Option<String>,
    /// The board (`product_name`).
    pub board: Option<String>,
    /// Its firmware (`bios_version`).
    pub bios: Option<String>,
    /// NVIDIA's kernel driver.
    pub driver: Option<String>,
    /// The GPU's firmware (`Video BIOS`).
    pub vbios: Option<String>,
    /// CUDA's version file.
    pub cuda: Option<String>,
    /// Package `nvidia-container-toolkit`.
    pub toolkit: Option<String>,
    /// GPUs that the driver knows, by PCI address.
    pub gpus: Vec<String>,
}

impl Files {
    /// Names of netdevs by their number.
    #[must_use]
    pub fn index_of(&self) -> BTreeMap<u32, String> {
        self.netdevs.iter().map(|(name, netdev)| (netdev.index, name.clone())).collect()
    }
}

/// Reads a tree. `kmsg` names another kernel log than `/dev/kmsg` of the tree.
#[must_use]
pub fn read(root: &Root, kmsg: Option<&str>) -> Files {
    let meminfo = root.text("proc/meminfo").unwrap_or_default();
    let kb = |key: &str| meminfo.lines().find_map(|l| l.strip_prefix(key)?.split_whitespace().next()?.parse().ok());
    let uptime = root.text("proc/uptime");
    Files {
        netdevs: root.list("sys/class/net").into_iter().filter_map(|n| Some((n.clone(), netdev(root, &n)?))).collect(),
        rdma: root.list("sys/class/infiniband").into_iter().map(|n| (n.clone(), rdma(root, &n))).collect(),
        nic: nic(root),
        hotplug: hotplug(root),
        infiniband: root.list("dev/infiniband"),
        system: system(root),
        mem_total_kb: kb("MemTotal:"),
        cma_total_kb: kb("CmaTotal:"),
        uptime_secs: uptime.and_then(|t| t.split('.').next()?.parse().ok()),
        kernel: kmsg::read(kmsg.map_or_else(|| root.path("dev/kmsg"), Into::into).as_path()),
    }
}

/// `None` for what is no device, as the file `bonding_masters`.
fn netdev(root: &Root, name: &str) -> Option<Netdev> {
    let at = |file: &str| format!("sys/class/net/{name}/{file}");
    Some(Netdev {
        index: root.number(&at("ifindex"))?,
        operstate: root.text(&at("operstate")).unwrap_or_default(),
        carrier: root.number::<u8>(&at("carrier")).map(|c| c == 1),
        // -1 and 0 are how drivers say that they do not know.
        speed: root.number::<i64>(&at("speed")).and_then(|s| u32::try_from(s).ok()).filter(|s| *s > 0 && *s < u32::MAX),
        mtu: root.number(&at("mtu")).unwrap_or_default(),
        mac: root.text(&at("address")).unwrap_or_default(),
        pci: root.link(&at("device")),
        driver: root.link(&at("device/driver")),
        port: root.text(&at("phys_port_name")),
    })
}

/// sysfs writes `4: ACTIVE`.
fn word(text: Option<String>) -> String {
    let text = text.unwrap_or_default();
    text.split_once(": ").map_or(text.as_str(), |(_, word)| word).to_owned()
}

fn rdma(root: &Root, name: &str) -> Rdma {
    let device = |file: &str| format!("sys/class/infiniband/{name}/{file}");
    let port = |file: &str| device(&format!("ports/1/{file}"));
    let gid = |index: String| -> Option<Gid> {
        let gid = root.text(&port(&format!("gids/{index}")))?;
        if gid.chars().all(|c| c == '0' || c == ':') {
            return None;
        }
        Some(Gid {
            index: index.parse().ok()?,
            gid,
            kind: root.text(&port(&format!("gid_attrs/types/{index}")))?,
            netdev: root.text(&port(&format!("gid_attrs/ndevs/{index}"))).unwrap_or_default(),
        })
    };
    let mut gids: Vec<Gid> = root.list(&port("gids")).into_iter().filter_map(gid).collect();
    gids.sort_by_key(|g| g.index);
    let by_gid = gids.iter().map(|g| g.netdev.clone()).find(|n| !n.is_empty());
    Rdma {
        state: word(root.text(&port("state"))),
        phys_state: word(root.text(&port("phys_state"))),
        link_layer: root.text(&port("link_layer")).unwrap_or_default(),
        rate: root.text(&port("rate")).unwrap_or_default(),
        fw_ver: root.text(&device("fw_ver")).unwrap_or_default(),
        pci: root.link(&device("device")),
        netdev: by_gid.or_else(|| root.list(&device("device/net")).into_iter().next()),
        gids,
    }
}

/// PCI id of Mellanox.
const MELLANOX: &str = "0x15b3";

fn nic(root: &Root) -> BTreeMap<String, Pci> {
    let bus = "sys/bus/pci/devices";
    let ours = |address: &String| root.text(&format!("{bus}/{address}/vendor")).as_deref() == Some(MELLANOX);
    let read = |address: String| {
        let pci = Pci {
            width: root.number(&format!("{bus}/{address}/current_link_width")),
            speed: root.text(&format!("{bus}/{address}/current_link_speed")),
        };
        (address, pci)
    };
    root.list(bus).into_iter().filter(ours).map(read).collect()
}

fn hotplug(root: &Root) -> Option<bool> {
    let driver = "sys/bus/platform/drivers/cx7-pcie-hotplug";
    let devices = root.list(driver).into_iter();
    devices
        .filter_map(|d| root.number::<u8>(&format!("{driver}/{d}/pcie_hotplug/hotplug_enabled")))
        .next()
        .map(|n| n == 1)
}

/// Value of `KEY=` or `KEY="…"`; of several the last, which is what an update appends.
fn last_value(text: &str, key: &str) -> Option<String> {
    let value = |line: &str| Some(line.trim().strip_prefix(key)?.strip_prefix('=')?.trim_matches('"').to_owned());
    text.lines().rev().find_map(value).filter(|v| !v.is_empty())
}

fn system(root: &Root) -> System {
    let release = root.text("etc/dgx-release").unwrap_or_default();
    let driver = root.text("proc/driver/nvidia/version");
    let gpus = root.list("proc/driver/nvidia/gpus");
    let first = gpus.first().and_then(|gpu| root.text(&format!("proc/driver/nvidia/gpus/{gpu}/information")));
    let vbios = |text: String| text.lines().find_map(|l| Some(l.strip_prefix("Video BIOS:")?.trim().to_owned()));
    System {
        kernel: root.text("proc/sys/kernel/osrelease"),
        os: root.text("etc/os-release").and_then(|t| last_value(&t, "PRETTY_NAME")),
        dgx: last_value(&release, "DGX_OTA_VERSION").or_else(|| last_value(&release, "DGX_SWBUILD_VERSION")),
        board: root.text("sys/class/dmi/id/product_name"),
        bios: root.text("sys/class/dmi/id/bios_version"),
        driver: driver.as_deref().and_then(driver_version),
        vbios: first.and_then(vbios),
        cuda: root.text("usr/local/cuda/version.json").as_deref().and_then(cuda_version),
        toolkit: root.text("var/lib/dpkg/status").and_then(|t| package(&t, "nvidia-container-toolkit")),
        gpus,
    }
}

/// The version in `NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.159.03  Release Build …`.
fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().find(|l| l.starts_with("NVRM version:"))?;
    let digits = |w: &&str| {
        w.split('.').count() >= 2 && w.split('.').all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
    };
    line.split_whitespace().find(digits).map(str::to_owned)
}

fn cuda_version(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    value.get("cuda")?.get("version")?.as_str().map(str::to_owned)
}

/// Version of an installed package.
fn package(status: &str, name: &str) -> Option<String> {
    let stanza =
        status.split("\n\n").find(|s| s.lines().next().and_then(|l| l.strip_prefix("Package: ")) == Some(name))?;
    let field = |key: &str| stanza.lines().find_map(|l| l.strip_prefix(key)).map(str::trim);
    field("Status:").filter(|s| s.ends_with(" installed"))?;
    field("Version:").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_are_found_in_real_lines() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.159.03  Release Build  (dvs-builder@U22)\nGCC version:  gcc version 13.3.0\n";
        assert_eq!(driver_version(text).as_deref(), Some("580.159.03"));
        let release = "DGX_SWBUILD_VERSION=\"7.2.3\"\nDGX_OTA_VERSION=\"7.3.1\"\n\nDGX_OTA_VERSION=\"7.6.0\"\nDGX_OTA_DATE=\"mer. 16 sept.\"\n";
        assert_eq!(last_value(release, "DGX_OTA_VERSION").as_deref(), Some("7.6.0"));
        let status = "Package: nvidia-container-toolkit-base\nStatus: install ok installed\nVersion: 0\n\nPackage: nvidia-container-toolkit\nStatus: install ok installed\nVersion: 1.19.1-1\n";
        assert_eq!(package(status, "nvidia-container-toolkit").as_deref(), Some("1.19.1-1"));
        assert_eq!(package(&status.replace("ok installed", "ok config-files"), "nvidia-container-toolkit"), None);
        assert_eq!(word(Some("4: ACTIVE".into())), "ACTIVE");
        assert_eq!(cuda_version(r#"{"cuda":{"name":"CUDA SDK","version":"13.0.2"}}"#).as_deref(), Some("13.0.2"));
    }

    proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in ".{0,400}") {
            let _ = (driver_version(&text), last_value(&text, "A"), package(&text, "a"), cuda_version(&text), word(Some(text)));
        }
    }
}
