//! Each rail as an RDMA device, and what the lane tells NCCL of it.

use std::net::Ipv4Addr;

use sparklane_lane::cluster::{Absent, Rail};
use sparklane_lane::fabric::Check;

use super::{Row, Subject};
use crate::facts::Rdma;

const ALL: [Check; 6] = [Check::Rdma, Check::RdmaMap, Check::RdmaMtu, Check::Gid, Check::Nccl, Check::Infiniband];

pub(super) fn rows(s: Subject<'_>) -> Vec<Row> {
    let node = Some(s.name);
    if !s.cluster.has(Absent::Rdma) {
        return ALL.iter().map(|check| Row::declared(*check, node, "rdma")).collect();
    }
    let mut rows = Vec::new();
    for (name, rail) in s.rails() {
        if s.facts.files.netdevs.contains_key(&rail.netdev) {
            rows.extend(device(s, rail).into_iter().map(|row| row.on(name)));
        }
    }
    rows.push(infiniband(s));
    rows.extend(nccl(s));
    rows
}

fn device(s: Subject<'_>, rail: &Rail) -> Vec<Row> {
    let node = Some(s.name);
    let name = rail.rdma.as_deref().unwrap_or_default();
    let Some(found) = s.facts.files.rdma.get(name) else {
        let of_rail = s.facts.files.rdma.iter().find(|(_, d)| d.netdev.as_deref() == Some(rail.netdev.as_str()));
        let row = Row::failed(Check::Rdma, node, format!("no {name}")).wanted(name);
        return vec![match of_rail {
            Some((other, _)) => row
                .because(format!(
                    "{} belongs to {other} here (old images and udev rules name them mlx5_N)",
                    rail.netdev
                ))
                .remedy(format!("set this rail's rdma = \"{other}\" in the cluster file")),
            None => row
                .because("the netdev has no RDMA device: the driver's RDMA part is not loaded")
                .remedy("sudo modprobe mlx5_ib; apt install rdma-core"),
        }];
    };
    vec![state(s, name, found), map(s, rail, name, found), active_mtu(s, rail), gid(s, rail, name, found)]
}

fn state(s: Subject<'_>, name: &str, found: &Rdma) -> Row {
    let (check, node) = (Check::Rdma, Some(s.name));
    if !found.link_layer.is_empty() && found.link_layer != "Ethernet" {
        return Row::failed(check, node, format!("{name}: link layer {}", found.link_layer))
            .wanted("Ethernet (RoCE)")
            .because("the port's type is set to InfiniBand")
            .remedy("sudo mlxconfig -d <pci> set LINK_TYPE_P1=2, then power off and on");
    }
    if found.state == "ACTIVE" {
        return Row::ok(check, node, format!("{name} {} {}", found.state, found.phys_state));
    }
    Row::failed(check, node, format!("{name} {} {}", found.state, found.phys_state))
        .wanted("ACTIVE LinkUp")
        .because("the port has no link")
        .remedy("see the link's row; after a cable was moved, reboot both nodes with the cable in")
}

fn map(s: Subject<'_>, rail: &Rail, name: &str, found: &Rdma) -> Row {
    let (check, node) = (Check::RdmaMap, Some(s.name));
    let netdev = found.netdev.as_deref().unwrap_or("no netdev");
    if netdev == rail.netdev {
        return Row::ok(check, node, format!("{name} -> {netdev}"));
    }
    let right = s.facts.files.rdma.iter().find(|(_, d)| d.netdev.as_deref() == Some(rail.netdev.as_str()));
    let row = Row::failed(check, node, format!("{name} -> {netdev}"))
        .wanted(format!("{name} -> {}", rail.netdev))
        .because("the cluster file pairs a rail with the RDMA device of another port; NCCL_IB_HCA is made from it");
    match right {
        Some((other, _)) => row.remedy(format!("set this rail's rdma = \"{other}\" in the cluster file")),
        None => row.remedy("look which device has it: rdma link"),
    }
}

/// The kernel gives RoCE ports no MTU of their own in sysfs or rdma netlink; drivers answer `ibv_query_port` with the
/// largest InfiniBand MTU that fits the netdev's (`iboe_get_mtu`: less 96 bytes of headers), so that is what is judged.
#[must_use]
fn roce_mtu(netdev: u32) -> u32 {
    let room = netdev.saturating_sub(96);
    [4096, 2048, 1024, 512, 256].into_iter().find(|mtu| room >= *mtu).unwrap_or(0)
}

fn active_mtu(s: Subject<'_>, rail: &Rail) -> Row {
    let mtu = s.facts.files.netdevs.get(&rail.netdev).map_or(0, |dev| dev.mtu);
    let seen = roce_mtu(mtu);
    if seen == 4096 {
        return Row::ok(Check::RdmaMtu, Some(s.name), "4096 (follows from the netdev's MTU)");
    }
    Row::failed(Check::RdmaMtu, Some(s.name), format!("{seen}, as the netdev's MTU is {mtu}"))
        .wanted("4096")
        .because("RoCE takes the largest of 256 to 4096 that fits the netdev's MTU less its headers")
        .remedy("raise the netdev's MTU to 9000 on both nodes (see its row)")
}

fn gid(s: Subject<'_>, rail: &Rail, name: &str, found: &Rdma) -> Row {
    let (check, node) = (Check::Gid, Some(s.name));
    let wanted: Option<Ipv4Addr> = rail.address.parse().ok();
    let v2 = |g: &&crate::facts::Gid| g.kind == "RoCE v2";
    if let Some(gid) = found.gids.iter().filter(v2).find(|g| ipv4_of(&g.gid).is_some() && ipv4_of(&g.gid) == wanted) {
        return Row::ok(check, node, format!("{name} index {} is {}", gid.index, rail.address));
    }
    let others: Vec<String> =
        found.gids.iter().filter(v2).filter_map(|g| Some(format!("{} at {}", ipv4_of(&g.gid)?, g.index))).collect();
    let seen = if others.is_empty() { "no RoCE v2 GID of an IPv4 address".to_owned() } else { others.join(", ") };
    Row::failed(check, node, format!("{name}: {seen}"))
        .wanted(format!("a RoCE v2 GID of {}", rail.address))
        .because("the kernel makes it from the rail's address: the address is missing, or on another device")
        .remedy("give the rail its address (see its row); a fixed NCCL_IB_GID_INDEX is not needed then")
}

/// The address in `0000:0000:0000:0000:0000:ffff:c0a8:640a`.
fn ipv4_of(gid: &str) -> Option<Ipv4Addr> {
    gid.parse::<std::net::Ipv6Addr>().ok()?.to_ipv4_mapped()
}

fn infiniband(s: Subject<'_>) -> Row {
    let (check, node, have) = (Check::Infiniband, Some(s.name), &s.facts.files.infiniband);
    let verbs = have.iter().filter(|n| n.starts_with("uverbs")).count();
    if verbs >= 2 {
        return Row::ok(check, node, format!("{verbs} uverbs"));
    }
    let seen = if have.is_empty() { "no /dev/infiniband".to_owned() } else { format!("{verbs} uverbs") };
    Row::failed(check, node, seen)
        .wanted("uverbs of both halves")
        .because("ib_uverbs is not loaded, or a half has no RDMA device")
        .remedy("sudo modprobe ib_uverbs mlx5_ib; apt install rdma-core")
}

/// What the deployed lane tells NCCL.
fn nccl(s: Subject<'_>) -> Vec<Row> {
    let (check, node) = (Check::Nccl, Some(s.name));
    let Some(deployed) = &s.facts.live.generation else {
        return vec![Row::skipped(check, node, "nothing is deployed")];
    };
    let mut rows = Vec::new();
    let wanted: Vec<&str> = s.rails().iter().filter_map(|(_, rail)| rail.rdma.as_deref()).collect();
    let value = deployed.nccl.get("NCCL_IB_HCA").map_or("", String::as_str);
    let named: Vec<&str> = value
        .trim_start_matches('=')
        .split(',')
        .filter_map(|d| d.split(':').next())
        .filter(|d| !d.is_empty())
        .collect();
    let all = |these: &[&str], those: &[&str]| these.iter().all(|d| those.contains(d));
    let row = if all(&named, &wanted) && all(&wanted, &named) {
        Row::ok(check, node, format!("NCCL_IB_HCA={value}"))
    } else {
        let missing: Vec<&str> = wanted.iter().copied().filter(|d| !named.contains(d)).collect();
        let cause = if missing.is_empty() {
            "devices that are no rails are named".to_owned()
        } else {
            format!("{} is not used: half of the bandwidth, or TCP when none is left", missing.join(", "))
        };
        Row::failed(check, node, format!("NCCL_IB_HCA={value}"))
            .wanted(wanted.join(","))
            .because(cause)
            .remedy("deploy the lane again from this cluster file")
    };
    rows.push(row);
    if let Some(index) = deployed.nccl.get("NCCL_IB_GID_INDEX") {
        rows.push(fixed_index(s, index));
    }
    if s.facts.live.docker.as_ref().and_then(|d| d.container.as_ref()).is_some_and(|c| c.nccl_conf) {
        rows.push(
            Row::failed(check, node, "/etc/nccl.conf is in the engine's image")
                .warn()
                .wanted("no such file")
                .because("it sets whatever the lane's environment leaves out")
                .remedy("compose the image without it, or set every variable that it names in the lane"),
        );
    }
    rows
}

fn fixed_index(s: Subject<'_>, index: &str) -> Row {
    let right = |rail: &Rail| {
        let device = rail.rdma.as_ref().and_then(|name| s.facts.files.rdma.get(name))?;
        let gid = device.gids.iter().find(|g| g.index.to_string() == index)?;
        (gid.kind == "RoCE v2" && ipv4_of(&gid.gid) == rail.address.parse().ok()).then_some(())
    };
    let bad: Vec<&str> =
        s.rails().into_iter().filter(|(_, rail)| right(rail).is_none()).map(|(name, _)| name).collect();
    if bad.is_empty() {
        return Row::ok(Check::Nccl, Some(s.name), format!("NCCL_IB_GID_INDEX={index}"));
    }
    Row::failed(
        Check::Nccl,
        Some(s.name),
        format!("NCCL_IB_GID_INDEX={index} is no RoCE v2 IPv4 GID of {}", bad.join(", ")),
    )
    .wanted("no fixed index, or one that fits both rails")
    .because("the table's order changes with the addresses of the netdev")
    .remedy("leave NCCL_IB_GID_INDEX out of the lane: NCCL finds the GID by itself")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_of_a_port_is_the_largest_that_fits() {
        // Seen on real machines: 1024 at 1500, 4096 at 9000 (fabric-real.md, ibv-cage1-mtu9000 and ibv-short-spaces).
        assert_eq!([1500, 9000, 4192, 4191, 100].map(roce_mtu), [1024, 4096, 4096, 2048, 0]);
        assert_eq!(ipv4_of("0000:0000:0000:0000:0000:ffff:c0a8:640a"), Some(Ipv4Addr::new(192, 168, 100, 10)));
        assert_eq!(ipv4_of("fe80:0000:0000:0000:32c5:99ff:fe00:0013"), None);
    }
}
