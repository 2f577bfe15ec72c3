//! The NIC, and each rail as a netdev.

use std::net::{IpAddr, Ipv4Addr};

use sparklane_lane::cluster::{Absent, Rail};
use sparklane_lane::fabric::Check;

use super::{Row, Subject};
use crate::facts::Netdev;

/// Driver of a ConnectX-7.
const DRIVER: &str = "mlx5_core";
/// What ethtool and sysfs say of each half, though one half carries about half of it (fabric-real.md).
const SPEED: u32 = 200_000;
/// PCI lanes of each half.
const LANES: u32 = 4;

const CABLED_REBOOT: &str = "reboot both nodes with the cable in";

pub(super) fn rows(s: Subject<'_>) -> Vec<Row> {
    let mut rows = vec![nic(s)];
    for (name, rail) in s.rails() {
        let found = s.facts.files.netdevs.get(&rail.netdev);
        rows.extend(netdev(s, rail, found).into_iter().chain(address(s, name, rail)).map(|row| row.on(name)));
    }
    rows.extend([subnets(s), default_route(s), halves(s)]);
    rows
}

fn nic(s: Subject<'_>) -> Row {
    let (check, node, files) = (Check::Nic, Some(s.name), &s.facts.files);
    if !s.cluster.has(Absent::Rdma) {
        return Row::declared(check, node, "rdma");
    }
    if files.nic.is_empty() {
        let cause = match files.hotplug {
            Some(true) => {
                "no cable at boot: power saving (hotplug_enabled 1) takes the NIC off the bus 15 to 22 s after it"
            }
            _ => "no cable at boot, or the NIC's firmware did not start",
        };
        return Row::failed(check, node, "no NIC on the PCI bus")
            .wanted("4 functions of a ConnectX-7")
            .because(cause)
            .remedy(CABLED_REBOOT);
    }
    let narrow = files.nic.iter().find(|(_, pci)| pci.width.is_some_and(|w| w < LANES));
    if let Some((address, pci)) = narrow {
        return Row::failed(check, node, format!("{address} has {} PCI lanes", pci.width.unwrap_or_default()))
            .wanted(format!("{LANES} lanes"))
            .because("system firmware from before 2026-04 gives one half of the NIC two lanes")
            .remedy("update the firmware: sudo fwupdmgr update, then reboot");
    }
    Row::ok(check, node, format!("{} functions", files.nic.len()))
}

fn netdev(s: Subject<'_>, rail: &Rail, found: Option<&Netdev>) -> Vec<Row> {
    let node = Some(s.name);
    let name = &rail.netdev;
    let Some(dev) = found else {
        if s.cluster.has(Absent::Rdma) && s.facts.files.nic.is_empty() {
            return vec![Row::skipped(Check::Netdev, node, format!("{name}: the NIC is not there"))];
        }
        let known: Vec<&str> = cabled(s).map(|(name, _)| name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return vec![
            Row::failed(Check::Netdev, node, format!("no {name}; devices with a link: {known}"))
                .wanted(name.as_str())
                .because("the cluster file names another device than this machine has")
                .remedy("set rail1.netdev and rail2.netdev of this node to the two devices of one cage"),
        ];
    };
    let mut rows = Vec::new();
    let driver = dev.driver.as_deref().unwrap_or("none");
    if s.cluster.has(Absent::Rdma) && driver != DRIVER {
        rows.push(
            Row::failed(Check::Netdev, node, format!("{name}: driver {driver}"))
                .wanted(DRIVER)
                .because("management port and Wi-Fi begin like the second half's name (enP7s7, wlP9s9)")
                .remedy("name the NIC's device in the cluster file (enp1s0f0np0 and enP2p1s0f0np0, or f1 and np1)"),
        );
    } else {
        rows.push(Row::ok(Check::Netdev, node, format!("{name} ({driver})")));
    }
    let up = dev.carrier == Some(true) && dev.operstate != "down";
    if up {
        rows.push(Row::ok(Check::Link, node, format!("{name} up")));
        rows.push(speed(s, rail, dev));
    } else {
        rows.push(link_down(s, rail, dev));
    }
    rows.push(mtu(s, rail, dev));
    rows
}

/// Devices of the NIC, or of any kind where there is none, that have a link.
fn cabled(s: Subject<'_>) -> impl Iterator<Item = (&String, &Netdev)> {
    let all = s.facts.files.netdevs.iter();
    all.filter(|(_, dev)| dev.driver.as_deref() == Some(DRIVER) && dev.carrier == Some(true))
}

fn link_down(s: Subject<'_>, rail: &Rail, dev: &Netdev) -> Row {
    let name = &rail.netdev;
    let ours = |name: &str| s.rails().iter().any(|(_, rail)| rail.netdev == name);
    let other: Vec<&str> = cabled(s).map(|(name, _)| name.as_str()).filter(|name| !ours(name)).collect();
    let row = Row::failed(Check::Link, Some(s.name), format!("{name} {}", dev.operstate)).wanted("up");
    if !other.is_empty() {
        let cause = format!("the cable is in the other cage: {} have a link", other.join(", "));
        return row
            .because(cause)
            .remedy("name those devices as the rails in the cluster file, or move the cable and reboot both nodes");
    }
    match dev.carrier {
        None => row
            .because("the device is switched off")
            .remedy(format!("sudo ip link set dev {name} up; then look which file of /etc/netplan should do it")),
        _ => row
            .because("no cable, a cable that is not seated, or a peer that is off")
            .remedy(format!("seat the cable at both ends (same cage on both nodes), then {CABLED_REBOOT}")),
    }
}

fn speed(s: Subject<'_>, rail: &Rail, dev: &Netdev) -> Row {
    let (check, node, name) = (Check::Speed, Some(s.name), &rail.netdev);
    if !s.cluster.has(Absent::LinkSpeed) {
        return Row::declared(check, node, "link-speed");
    }
    match dev.speed {
        Some(speed) if speed >= SPEED => {
            Row::ok(check, node, format!("{speed} Mb/s (of the port; each half carries about 100 Gb/s)"))
        }
        seen => {
            Row::failed(check, node, seen.map_or_else(|| format!("{name}: not known"), |s| format!("{name}: {s} Mb/s")))
                .wanted(format!("{SPEED} Mb/s"))
                .because(
                    "the link came up lower after a cable was plugged while the machine ran, or it is another cable",
                )
                .remedy(format!("{CABLED_REBOOT}; a 200G or 400G QSFP cable is needed"))
        }
    }
}

fn mtu(s: Subject<'_>, rail: &Rail, dev: &Netdev) -> Row {
    let (wanted, name) = (s.mtu(), &rail.netdev);
    if dev.mtu == wanted {
        return Row::ok(Check::Mtu, Some(s.name), wanted.to_string());
    }
    Row::failed(Check::Mtu, Some(s.name), format!("{name}: {}", dev.mtu))
        .wanted(wanted.to_string())
        .because("MTU left as it was, or lowered at one end: RoCE then moves 1024 bytes a packet, and large packets are lost")
        .remedy(format!(
            "set host.rails.mtu = {wanted} in the cluster file and deploy; by hand, workers first: sudo ip link set dev {name} mtu {wanted}"
        ))
}

/// IPv4 addresses of a netdev.
fn ipv4_of<'a>(s: Subject<'a>, netdev: &str) -> Vec<(Ipv4Addr, u8)> {
    let of = |a: &crate::facts::Address| match a.address {
        IpAddr::V4(address) if a.netdev == netdev => Some((address, a.prefix)),
        _ => None,
    };
    s.facts.live.addresses.iter().filter_map(of).collect()
}

fn address(s: Subject<'_>, name: &str, rail: &Rail) -> Option<Row> {
    s.facts.files.netdevs.get(&rail.netdev)?;
    let (check, node) = (Check::Address, Some(s.name));
    let wanted = format!("{}/{} on {}", rail.address, rail.prefix, rail.netdev);
    let here = ipv4_of(s, &rail.netdev);
    let declared: Option<Ipv4Addr> = rail.address.parse().ok();
    if let Some((address, prefix)) = here.iter().find(|(a, _)| Some(*a) == declared) {
        if *prefix == rail.prefix {
            return Some(Row::ok(check, node, format!("{address}/{prefix}")));
        }
        let row = Row::failed(check, node, format!("{address}/{prefix} on {}", rail.netdev)).wanted(wanted);
        return Some(row.because("another prefix length: another subnet than the peer's").remedy(netplan(s)));
    }
    let text = |all: &[(Ipv4Addr, u8)]| {
        let all: Vec<String> = all.iter().map(|(a, p)| format!("{a}/{p}")).collect();
        if all.is_empty() { "no address".to_owned() } else { all.join(", ") }
    };
    let row = Row::failed(check, node, format!("{} on {}", text(&here), rail.netdev)).wanted(wanted);
    let elsewhere = s.facts.live.addresses.iter().find(|a| Some(a.address) == declared.map(IpAddr::V4));
    let other = s.rails().into_iter().find(|(other, _)| *other != name).map(|(_, rail)| rail);
    let subnet = |(a, p): (Ipv4Addr, u8)| masked(a, p);
    let row = match (elsewhere, other) {
        (Some(at), Some(other)) if at.netdev == other.netdev => {
            row.because(format!("the addresses of the two rails are swapped: {} is on {}", rail.address, at.netdev))
        }
        (Some(at), _) => row.because(format!("{} is on {}", rail.address, at.netdev)),
        (None, _) if here.is_empty() => {
            row.because("the rail is not configured: only one of the two halves is, or none")
        }
        (None, _) if here.iter().all(|(a, _)| a.is_link_local()) => {
            row.because("automatic addresses (netplan link-local), which change at every boot")
        }
        (None, Some(other)) if here.iter().any(|own| declared_subnet(other) == subnet(*own)) => {
            row.because("the rail is in the other rail's subnet")
        }
        (None, _) if here.iter().any(|own| declared_subnet(rail) == subnet(*own)) => {
            row.because("another address of the right subnet: the cluster file and the machine do not agree")
        }
        (None, _) => row.because("the rail is in a wrong subnet"),
    };
    Some(row.remedy(netplan(s)))
}

fn netplan(s: Subject<'_>) -> &'static str {
    if s.cluster.host.rails.is_some() {
        "deploy again: the generation manages the rails' netplan file; another file of /etc/netplan may set them too"
    } else {
        "give the address in /etc/netplan and netplan apply, or let generations manage it: host.rails.mtu in the cluster file"
    }
}

fn declared_subnet(rail: &Rail) -> Option<(u32, u8)> {
    masked(rail.address.parse().ok()?, rail.prefix)
}

fn masked(address: Ipv4Addr, prefix: u8) -> Option<(u32, u8)> {
    let mask = u32::MAX.checked_shl(32_u32.checked_sub(u32::from(prefix))?).unwrap_or(0);
    Some((address.to_bits() & mask, prefix))
}

/// What the machine really has, whatever is declared.
fn subnets(s: Subject<'_>) -> Row {
    let (check, node) = (Check::Subnets, Some(s.name));
    let [one, two] = s.rails().map(|(_, rail)| {
        let real = ipv4_of(s, &rail.netdev);
        real.into_iter().filter_map(|(a, p)| masked(a, p)).collect::<Vec<_>>()
    });
    if one.is_empty() || two.is_empty() {
        return Row::skipped(check, node, "a rail has no address");
    }
    let overlap = |a: (u32, u8), b: (u32, u8)| {
        let prefix = a.1.min(b.1);
        masked(Ipv4Addr::from_bits(a.0), prefix) == masked(Ipv4Addr::from_bits(b.0), prefix)
    };
    match one.iter().find(|a| two.iter().any(|b| overlap(**a, *b))) {
        None => Row::ok(check, node, "distinct"),
        Some((net, prefix)) => {
            Row::failed(check, node, format!("both rails are in {}/{prefix}", Ipv4Addr::from_bits(*net)))
                .wanted("a subnet for each rail")
                .because(
                    "one route serves both addresses: half of the cable idles, and answers leave by the wrong half",
                )
                .remedy("give the second rail's addresses another subnet, on both nodes and in the cluster file")
        }
    }
}

fn default_route(s: Subject<'_>) -> Row {
    let (check, node) = (Check::DefaultRoute, Some(s.name));
    let default = |r: &&crate::facts::Route| r.destination.is_none() && r.prefix == 0;
    let rails = s.rails();
    let on_rail = |r: &&crate::facts::Route| rails.iter().any(|(_, rail)| rail.netdev == r.netdev);
    match s.facts.live.routes.iter().filter(default).find(on_rail) {
        None => Row::ok(check, node, "not on a rail"),
        Some(route) => Row::failed(check, node, format!("on {}", route.netdev))
            .wanted("on the management network")
            .because("DHCP on the rail, or a gateway in its netplan")
            .remedy(format!(
                "remove gateway and DHCP of {} from /etc/netplan; sudo ip route del default dev {0}",
                route.netdev
            )),
    }
}

/// One cable brings up both halves of its cage, so two ports Up and two Down is the full state of one cable.
fn halves(s: Subject<'_>) -> Row {
    let (check, node) = (Check::Halves, Some(s.name));
    let rails = s.rails().map(|(_, rail)| (rail, s.facts.files.netdevs.get(&rail.netdev)));
    let [(one, Some(first)), (two, Some(second))] = rails else {
        return Row::skipped(check, node, "a rail has no device");
    };
    let up = |dev: &Netdev| dev.carrier == Some(true);
    match (up(first), up(second)) {
        (true, true) => Row::ok(check, node, "both up"),
        (false, false) => Row::skipped(check, node, "both down"),
        (is_first, _) => {
            let (good, bad) = if is_first { (one, two) } else { (two, one) };
            let row = Row::failed(check, node, format!("{} up, {} down", good.netdev, bad.netdev)).wanted("both up");
            if first.port != second.port {
                row.because("the rails are declared in two cages, and the cable is in one of them")
                    .remedy("name the two halves of one cage (names ending in the same npN) in the cluster file")
            } else {
                row.because("one half of the cage has no link: half of the bandwidth (98 instead of 161 Gb/s)")
                    .remedy(format!("sudo ip link set dev {} up; if it stays down, {CABLED_REBOOT}", bad.netdev))
            }
        }
    }
}
