//! What must not differ between nodes. Unequal firmware alone is known to cost seven eighths of the bandwidth.

use std::collections::BTreeSet;

use sparklane_lane::NodeName;
use sparklane_lane::cluster::Absent;
use sparklane_lane::fabric::Check;

use crate::checks::{Input, Row};
use crate::facts::NodeFacts;

/// One thing to compare: its name, how to read it, what to do when it differs.
struct Item {
    check: Check,
    name: &'static str,
    of: fn(&NodeFacts) -> Option<String>,
    remedy: &'static str,
    /// Part of the comparison only where the machines have this.
    needs: Option<Absent>,
}

const SAME_UPDATE: &str =
    "bring both nodes to one update level: sudo apt full-upgrade and sudo fwupdmgr update on both, reboot both";
const DEPLOY: &str = "deploy: it brings all nodes to one release";

const ITEMS: [Item; 15] = [
    Item { check: Check::Release, name: "tool", of: |f| Some(f.tool.clone()), remedy: DEPLOY, needs: None },
    Item {
        check: Check::Release,
        name: "lane",
        of: |f| Some(f.live.generation.as_ref()?.lane.clone()),
        remedy: DEPLOY,
        needs: None,
    },
    Item {
        check: Check::Release,
        name: "image",
        of: |f| f.live.generation.as_ref()?.image.clone(),
        remedy: DEPLOY,
        needs: None,
    },
    Item {
        check: Check::Release,
        name: "weights",
        of: |f| f.live.generation.as_ref()?.weights.clone(),
        remedy: DEPLOY,
        needs: None,
    },
    Item {
        check: Check::Parity,
        name: "kernel",
        of: |f| f.files.system.kernel.clone(),
        remedy: SAME_UPDATE,
        needs: None,
    },
    Item {
        check: Check::Parity,
        name: "distribution",
        of: |f| f.files.system.os.clone(),
        remedy: SAME_UPDATE,
        needs: None,
    },
    Item {
        check: Check::Parity,
        name: "docker",
        of: |f| Some(f.live.docker.as_ref()?.version.clone()),
        remedy: SAME_UPDATE,
        needs: None,
    },
    Item {
        check: Check::Parity,
        name: "DGX OS",
        of: |f| f.files.system.dgx.clone(),
        remedy: SAME_UPDATE,
        needs: Some(Absent::Gpu),
    },
    Item {
        check: Check::Parity,
        name: "driver",
        of: |f| f.files.system.driver.clone(),
        remedy: SAME_UPDATE,
        needs: Some(Absent::Gpu),
    },
    Item {
        check: Check::Parity,
        name: "CUDA",
        of: |f| f.files.system.cuda.clone(),
        remedy: SAME_UPDATE,
        needs: Some(Absent::Gpu),
    },
    Item {
        check: Check::Parity,
        name: "GPU firmware",
        of: |f| f.files.system.vbios.clone(),
        remedy: SAME_UPDATE,
        needs: Some(Absent::Gpu),
    },
    Item {
        check: Check::Parity,
        name: "nvidia-container-toolkit",
        of: |f| f.files.system.toolkit.clone(),
        remedy: SAME_UPDATE,
        needs: Some(Absent::Gpu),
    },
    Item { check: Check::Parity, name: "board firmware", of: bios, remedy: SAME_UPDATE, needs: Some(Absent::Gpu) },
    Item {
        check: Check::Parity,
        name: "NIC firmware",
        of: nic_firmware,
        remedy: SAME_UPDATE,
        needs: Some(Absent::Rdma),
    },
    Item { check: Check::Release, name: "NCCL environment", of: nccl, remedy: DEPLOY, needs: Some(Absent::Rdma) },
];

/// Boards of different makers have different numbers of the same firmware.
fn bios(f: &NodeFacts) -> Option<String> {
    let system = &f.files.system;
    Some(format!("{} {}", system.board.as_deref().unwrap_or("unknown board"), system.bios.as_ref()?))
}

/// Of all functions; more than one on one node is a difference in itself, and shown as such.
fn nic_firmware(f: &NodeFacts) -> Option<String> {
    let all: BTreeSet<&str> = f.files.rdma.values().map(|d| d.fw_ver.as_str()).filter(|v| !v.is_empty()).collect();
    (!all.is_empty()).then(|| all.into_iter().collect::<Vec<_>>().join(" and "))
}

/// Without what names a node's own devices.
fn nccl(f: &NodeFacts) -> Option<String> {
    let own = ["NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"];
    let env = &f.live.generation.as_ref()?.nccl;
    let shared: Vec<String> =
        env.iter().filter(|(k, _)| !own.contains(&k.as_str())).map(|(k, v)| format!("{k}={v}")).collect();
    Some(shared.join(" "))
}

pub(crate) fn rows(input: Input<'_>) -> Vec<Row> {
    let answers: Vec<(&NodeName, &NodeFacts)> =
        input.nodes.iter().filter_map(|a| Some((&a.node, a.facts.as_ref().ok()?))).collect();
    if answers.len() < 2 {
        return vec![Row::skipped(Check::Parity, None, "fewer than two nodes answer")];
    }
    let wanted = |item: &&Item| item.needs.is_none_or(|thing| input.cluster.has(thing));
    let mut rows: Vec<Row> = ITEMS.iter().filter(wanted).filter_map(|item| row(item, &answers)).collect();
    rows.extend(firmware(&answers));
    rows
}

/// fwupd's devices, one row for all that are the same and one for each that is not.
fn firmware(answers: &[(&NodeName, &NodeFacts)]) -> Vec<Row> {
    let of = |f: &'_ NodeFacts, device: &str| f.live.firmware.as_ref().and_then(|all| all.get(device).cloned());
    let known = answers.iter().filter_map(|(_, f)| f.live.firmware.as_ref());
    let devices: BTreeSet<&String> = known.flat_map(|all| all.keys()).collect();
    if devices.is_empty() {
        return Vec::new();
    }
    let mut rows = Vec::new();
    for device in &devices {
        let values: Vec<(&NodeName, Option<String>)> = answers.iter().map(|(node, f)| (*node, of(f, device))).collect();
        if values.windows(2).any(|w| w.first().map(|v| &v.1) != w.last().map(|v| &v.1)) {
            rows.push(differs(Check::Parity, &format!("firmware of {device}"), &values).remedy(SAME_UPDATE));
        }
    }
    if rows.is_empty() {
        rows.push(Row::ok(Check::Parity, None, format!("firmware of {} devices (fwupd)", devices.len())));
    }
    rows
}

fn differs(check: Check, name: &str, values: &[(&NodeName, Option<String>)]) -> Row {
    let told: Vec<String> =
        values.iter().map(|(node, v)| format!("{node} {}", v.as_deref().unwrap_or("none"))).collect();
    let row = Row::failed(check, None, format!("{name}: {}", told.join(", "))).wanted("the same on all nodes");
    if name == "NIC firmware" {
        row.because("unequal firmware of the NICs is known to leave 3 GB/s of 21")
    } else {
        row.because("the nodes were updated or deployed at different times")
    }
}

/// `None` where no node has such a thing.
fn row(item: &Item, answers: &[(&NodeName, &NodeFacts)]) -> Option<Row> {
    let values: Vec<(&NodeName, Option<String>)> = answers.iter().map(|(node, f)| (*node, (item.of)(f))).collect();
    let distinct: BTreeSet<&Option<String>> = values.iter().map(|(_, v)| v).collect();
    if let [only] = distinct.into_iter().collect::<Vec<_>>()[..] {
        let value = only.as_ref()?;
        return Some(Row::ok(item.check, None, format!("{} {value}", item.name).trim_end().to_owned()));
    }
    Some(differs(item.check, item.name, &values).remedy(item.remedy))
}
