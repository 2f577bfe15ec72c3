//! Which netdevs of a machine are the two rails, and which addresses they get. Pure.
//!
//! On a Spark the function of the PCI address (`.0`, `.1`; `p0`, `p1`) is the cage and the domain (`0000`, `0002`) is the
//! half: one cable brings up both halves of its cage, so one cable is two ports up and two down (fabric-real.md, facts).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use sparklane_fabric::facts::{Netdev, NodeFacts};

use crate::subnet::{Subnet, candidates};

/// The NIC's driver.
const DRIVER: &str = "mlx5_core";

/// A netdev that is to be a rail, and what it has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Half {
    /// The netdev.
    pub netdev: String,
    /// Its RDMA device.
    pub rdma: Option<String>,
    /// IPv4 address and prefix length that it has; link-local ones do not count.
    pub address: Option<(Ipv4Addr, u8)>,
}

/// The two rails of a machine and what is odd about them; or what keeps it from having any, and what to do.
pub type Chosen = Result<([Half; 2], Vec<String>), (String, String)>;

const REBOOT: &str = "plug the cable into the same cage at both ends, then reboot both machines with it in: without one at boot \
                      the NIC leaves the bus, and one that is plugged later may carry 13 Gb/s";

/// Takes the netdevs that were named.
pub fn named(facts: &NodeFacts, names: &[String; 2]) -> Chosen {
    if let Some(missing) = names.iter().find(|name| !facts.files.netdevs.contains_key(*name)) {
        let known: Vec<&str> = facts.files.netdevs.keys().map(String::as_str).collect();
        return Err((format!("has no netdev {missing}"), format!("name two of: {}", known.join(", "))));
    }
    Ok((names.each_ref().map(|name| half(facts, name)), Vec::new()))
}

/// Finds the rails of a Spark.
pub fn found(facts: &NodeFacts) -> Chosen {
    let ports: Vec<Port<'_>> = facts.files.netdevs.iter().filter_map(|(name, dev)| port(name, dev)).collect();
    if ports.is_empty() {
        let seen = if facts.files.nic.is_empty() { "no ConnectX-7 on the PCI bus" } else { "the NIC has no netdev" };
        return Err((format!("{seen}: no cable at boot?"), REBOOT.to_owned()));
    }
    let cages: BTreeSet<&str> = ports.iter().map(|p| p.cage).collect();
    let of = |cage: &str| {
        let mut halves: Vec<&Port<'_>> = ports.iter().filter(|p| p.cage == cage).collect();
        halves.sort_by_key(|p| p.domain);
        halves
    };
    let pairs: Vec<Vec<&Port<'_>>> = cages.into_iter().map(of).filter(|halves| halves.len() == 2).collect();
    let lit = |halves: &&Vec<&Port<'_>>| halves.iter().filter(|p| p.dev.carrier == Some(true)).count();
    let full: Vec<&Vec<&Port<'_>>> = pairs.iter().filter(|p| lit(p) == 2).collect();
    if let Some(first) = full.first() {
        let second = (full.len() > 1).then(|| {
            let cage = first.first().map_or("", |p| p.cage);
            format!("two cables are in; the one in cage {cage} is taken (--rails takes another)")
        });
        return rails(facts, first, second.into_iter().collect());
    }
    let partly: Vec<&Vec<&Port<'_>>> = pairs.iter().filter(|p| lit(p) == 1).collect();
    match partly[..] {
        [] => Err((format!("no link on any of {}", names(ports.iter())), REBOOT.to_owned())),
        [one] => one_half(facts, one),
        _ => Err((
            format!("one half is up in each cage: {}", names(ports.iter().filter(|p| p.dev.carrier == Some(true)))),
            "both halves of the cage with the cable must be up: ip link set dev NETDEV up; else reboot both machines"
                .to_owned(),
        )),
    }
}

/// A half that is switched off tells nothing of its cable; one that is on and has no carrier is broken.
fn one_half(facts: &NodeFacts, halves: &[&Port<'_>]) -> Chosen {
    let dark: Vec<&&Port<'_>> = halves.iter().filter(|p| p.dev.carrier != Some(true)).collect();
    let name = dark.first().map_or("", |p| p.name);
    if dark.iter().all(|p| p.dev.carrier.is_none()) {
        let odd =
            format!("{name} is switched off (the other half of its cage is up); the first deployment switches it on");
        return rails(facts, halves, vec![odd]);
    }
    Err((
        format!(
            "{name} has no link though the other half of its cage has: half the cable would idle (98 in place of 161 Gb/s)"
        ),
        format!("ip link set dev {name} up; if it stays down: {REBOOT}"),
    ))
}

fn rails(facts: &NodeFacts, halves: &[&Port<'_>], odd: Vec<String>) -> Chosen {
    let made: Vec<Half> = halves.iter().map(|p| half(facts, p.name)).collect();
    if let Some(bare) = made.iter().find(|h| h.rdma.is_none()) {
        return Err((
            format!("{} has no RDMA device", bare.netdev),
            "load mlx5_ib (modprobe mlx5_ib; package rdma-core), then ask again".to_owned(),
        ));
    }
    let Ok(two) = <[Half; 2]>::try_from(made) else {
        return Err(("has not two halves in one cage".to_owned(), REBOOT.to_owned()));
    };
    Ok((two, odd))
}

/// A port of the NIC.
struct Port<'a> {
    name: &'a str,
    dev: &'a Netdev,
    /// Function of the PCI address.
    cage: &'a str,
    domain: &'a str,
}

fn port<'a>(name: &'a str, dev: &'a Netdev) -> Option<Port<'a>> {
    let pci = dev.pci.as_deref().filter(|_| dev.driver.as_deref() == Some(DRIVER))?;
    let (rest, function) = pci.rsplit_once('.')?;
    let (domain, _) = rest.split_once(':')?;
    Some(Port { name, dev, cage: dev.port.as_deref().unwrap_or(function), domain })
}

fn names<'a>(ports: impl Iterator<Item = &'a Port<'a>>) -> String {
    ports.map(|p| p.name).collect::<Vec<_>>().join(", ")
}

fn half(facts: &NodeFacts, netdev: &str) -> Half {
    let pci = facts.files.netdevs.get(netdev).and_then(|dev| dev.pci.as_ref());
    let rdma =
        facts.files.rdma.iter().find(|(_, r)| pci.is_some() && r.pci.as_ref() == pci).map(|(name, _)| name.clone());
    let own = facts.live.addresses.iter().filter(|a| a.netdev == netdev);
    let v4 = own.filter_map(|a| match a.address {
        IpAddr::V4(v4) if !v4.is_link_local() => Some((v4, a.prefix)),
        _ => None,
    });
    Half { netdev: netdev.to_owned(), rdma, address: v4.min() }
}

/// Addresses of the rails of all nodes, by rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    /// `[rail1, rail2]` of each node, with prefix length.
    pub of: Vec<[(Ipv4Addr, u8); 2]>,
    /// Why they are not what the machines have: rail's name and reason.
    pub changed: Vec<(&'static str, String)>,
}

/// Prefix lengths that a cluster file takes.
const PREFIXES: std::ops::RangeInclusive<u8> = 8..=30;

/// Keeps what the machines have where it fits together, fills gaps, and proposes subnets that nobody uses otherwise.
/// `taken` are the subnets of everything else on any node. `None` when there is no subnet left.
#[must_use]
pub fn addresses(halves: &[[Half; 2]], taken: &[Subnet]) -> Option<Addresses> {
    let mut changed = Vec::new();
    let mut subnets: Vec<Subnet> = Vec::new();
    let mut columns: Vec<Vec<(Ipv4Addr, u8)>> = Vec::new();
    for (rail, name) in ["rail1", "rail2"].into_iter().enumerate() {
        let present: Vec<Option<(Ipv4Addr, u8)>> = halves.iter().filter_map(|h| Some(h.get(rail)?.address)).collect();
        let used: Vec<Subnet> = taken.iter().chain(&subnets).copied().collect();
        let kept = keep(&present, &used);
        let (subnet, why) = match kept {
            Ok(subnet) => (Some(subnet), None),
            Err(why) => (candidates().find(|c| !used.iter().any(|u| u.overlaps(*c)) && fresh(*c, halves)), Some(why)),
        };
        let subnet = subnet?;
        let column = if why.is_some() { fill(&vec![None; present.len()], subnet)? } else { fill(&present, subnet)? };
        let missing = present.iter().filter(|p| p.is_none()).count();
        match why {
            Some(why) => changed.push((name, why)),
            None if missing > 0 => changed.push((name, format!("{missing} of {} have no address yet", present.len()))),
            None => {}
        }
        subnets.push(subnet);
        columns.push(column);
    }
    let (first, second) = (columns.first()?, columns.get(1)?);
    Some(Addresses { of: first.iter().zip(second).map(|(a, b)| [*a, *b]).collect(), changed })
}

/// A subnet that no rail has now: its old addresses stay until somebody takes them away.
fn fresh(subnet: Subnet, halves: &[[Half; 2]]) -> bool {
    let all = halves.iter().flatten().filter_map(|half| half.address);
    !all.map(|(address, prefix)| Subnet::of(address, prefix)).any(|other| other.overlaps(subnet))
}

/// The one subnet of the addresses that are there, or why they do not fit together.
fn keep(present: &[Option<(Ipv4Addr, u8)>], used: &[Subnet]) -> Result<Subnet, String> {
    let there: Vec<(Ipv4Addr, u8)> = present.iter().flatten().copied().collect();
    let subnets: BTreeSet<Subnet> = there.iter().map(|(address, prefix)| Subnet::of(*address, *prefix)).collect();
    let told = |them: &BTreeSet<Subnet>| them.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    let subnet = match subnets.iter().copied().collect::<Vec<_>>()[..] {
        [] => return Err("no node has an address on it".to_owned()),
        [one] => one,
        _ => return Err(format!("its ends are in different subnets ({})", told(&subnets))),
    };
    let distinct: BTreeSet<Ipv4Addr> = there.iter().map(|(address, _)| *address).collect();
    if distinct.len() < there.len() {
        return Err("two nodes have the same address on it".to_owned());
    }
    if let Some(other) = used.iter().find(|other| other.overlaps(subnet)) {
        let is = if *other == subnet { "is in use".to_owned() } else { format!("overlaps {other}, which is in use") };
        return Err(format!("its subnet {subnet} {is} on the other rail or elsewhere"));
    }
    if !PREFIXES.contains(&subnet.prefix()) || fill(present, subnet).is_none() {
        return Err(format!("its subnet {subnet} does not hold all nodes"));
    }
    Ok(subnet)
}

/// Those that are there, and the lowest free hosts for the others; `None` when the subnet is too small.
fn fill(present: &[Option<(Ipv4Addr, u8)>], subnet: Subnet) -> Option<Vec<(Ipv4Addr, u8)>> {
    let mut used: BTreeMap<Ipv4Addr, ()> = present.iter().flatten().map(|(address, _)| (*address, ())).collect();
    let one = |(rank, own): (u32, &Option<(Ipv4Addr, u8)>)| {
        if let Some(own) = own {
            return Some(*own);
        }
        let mut hosts = (rank + 1..).chain(1..=rank).map_while(|n| subnet.host(n));
        let free = hosts.find(|host| !used.contains_key(host))?;
        used.insert(free, ());
        Some((free, subnet.prefix()))
    };
    (0u32..).zip(present).map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn half_at(address: Option<(Ipv4Addr, u8)>) -> Half {
        Half { netdev: "x".into(), rdma: None, address }
    }

    fn some_address() -> impl Strategy<Value = Option<(Ipv4Addr, u8)>> {
        // Few networks and hosts, so that they meet.
        proptest::option::of((0u8..3, 0u8..4, prop_oneof![Just(24u8), Just(30), Just(16)]))
            .prop_map(|a| a.map(|(third, last, prefix)| (Ipv4Addr::new(10, 0, third, last), prefix)))
    }

    proptest! {
        /// Whatever machines have: rails end up distinct, each in one subnet, off everything else; and asked again about
        /// machines that have what was proposed, nothing is changed.
        #[test]
        fn what_is_proposed_fits_together_and_is_kept(
            nodes in proptest::collection::vec([some_address(), some_address()], 1..5),
            mgmt in 0u8..4,
        ) {
            let halves: Vec<[Half; 2]> = nodes.into_iter().map(|pair| pair.map(half_at)).collect();
            let taken = [Subnet::of(Ipv4Addr::new(10, 0, mgmt, 1), 24)];
            let made = addresses(&halves, &taken).unwrap();
            let subnets: Vec<BTreeSet<Subnet>> =
                [0, 1].map(|rail| made.of.iter().map(|a| Subnet::of(a[rail].0, a[rail].1)).collect()).to_vec();
            prop_assert!(subnets.iter().all(|s| s.len() == 1), "{subnets:?}");
            let [first, second] = [0, 1].map(|rail| *subnets[rail].first().unwrap());
            prop_assert!(!first.overlaps(second) && !first.overlaps(taken[0]) && !second.overlaps(taken[0]));
            let all: BTreeSet<Ipv4Addr> = made.of.iter().flatten().map(|(a, _)| *a).collect();
            prop_assert_eq!(all.len(), made.of.len() * 2);
            let now: Vec<[Half; 2]> = made.of.iter().map(|pair| pair.map(|a| half_at(Some(a)))).collect();
            let again = addresses(&now, &taken).unwrap();
            prop_assert_eq!((again.of, again.changed), (made.of, vec![]));
        }
    }

    #[test]
    fn when_everything_is_taken_nothing_is_proposed() {
        let taken = [Subnet::of(Ipv4Addr::new(0, 0, 0, 0), 0)];
        assert_eq!(addresses(&[[half_at(None), half_at(None)]], &taken), None);
    }
}
