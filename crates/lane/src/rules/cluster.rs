//! Rules about a cluster by itself.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use crate::cluster::{Absent, Cluster, Rail};
use crate::ids::Role;
use crate::problem::Problem;

pub(super) const RULES: &[fn(&Cluster) -> Vec<Problem>] = &[
    ssh_words_are_words,
    ranks_count_from_the_head,
    rails_are_usable,
    rails_are_distinct,
    rails_are_not_the_way_in,
    rdma_is_everywhere,
    releases_are_kept,
    key_is_a_key,
    host_keys_are_keys,
    listeners_can_be_met,
    firewall_is_loadable,
];

/// They become arguments of ssh, which would take one with a leading dash as an option.
fn ssh_words_are_words(cluster: &Cluster) -> Vec<Problem> {
    let hosts = cluster.nodes.iter().map(|(name, node)| (format!("nodes.{name}.host"), &node.host));
    let words = std::iter::once(("ssh.user".to_owned(), &cluster.ssh.user)).chain(hosts);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
    let bad = words.filter(|(_, word)| word.is_empty() || word.starts_with('-') || !word.chars().all(plain));
    bad.map(|(at, word)| Problem::error(at, format!("{word:?} is no user or host name"))).collect()
}

/// A Linux interface name holds 15 bytes.
const NETDEV_MOST: usize = 15;

fn ranks_count_from_the_head(cluster: &Cluster) -> Vec<Problem> {
    let mut problems = Vec::new();
    let heads = cluster.nodes.values().filter(|n| n.role == Role::Head).count();
    if heads != 1 {
        problems.push(Problem::error("nodes", format!("has {heads} heads, expected one")));
    }
    for (expected, (name, node)) in (0u32..).zip(cluster.by_rank()) {
        if node.rank != expected {
            let what = format!("is {}, expected {expected}: ranks count from 0", node.rank);
            problems.push(Problem::error(format!("nodes.{name}.rank"), what));
        }
        if (node.role == Role::Head) != (node.rank == 0) {
            problems.push(Problem::error(format!("nodes.{name}.role"), "the head, and only the head, has rank 0"));
        }
    }
    problems
}

fn rails_are_usable(cluster: &Cluster) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (at, rail) in rails(cluster) {
        if rail.address.parse::<Ipv4Addr>().is_err() {
            problems
                .push(Problem::error(format!("{at}.address"), format!("{:?} is not an IPv4 address", rail.address)));
        }
        if !(8..=30).contains(&rail.prefix) {
            problems.push(Problem::error(format!("{at}.prefix"), format!("is {}, outside 8 to 30", rail.prefix)));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if rail.netdev.is_empty() || rail.netdev.len() > NETDEV_MOST || !rail.netdev.chars().all(plain) {
            problems.push(Problem::error(format!("{at}.netdev"), format!("{:?} is no interface name", rail.netdev)));
        }
    }
    problems
}

/// Two rails of a node in one subnet share one route, and half the cable idles; one rail in two subnets does not connect.
fn rails_are_distinct(cluster: &Cluster) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut addresses = BTreeSet::new();
    for (at, rail) in rails(cluster) {
        if !addresses.insert(&rail.address) {
            problems.push(Problem::error(format!("{at}.address"), format!("{} is used twice", rail.address)));
        }
    }
    let head = cluster.head().map(|(_, node)| node);
    for (name, node) in &cluster.nodes {
        if node.rail1.netdev == node.rail2.netdev {
            problems.push(Problem::error(format!("nodes.{name}.rail2.netdev"), "is the netdev of rail1 too"));
        }
        if let (Some(one), Some(two)) = (subnet(&node.rail1), subnet(&node.rail2))
            && overlap(one, two)
        {
            let what = if one == two {
                "is in the subnet of rail1".to_owned()
            } else {
                format!("its subnet {} overlaps {}, that of rail1", told(two), told(one))
            };
            let problem = Problem::error(format!("nodes.{name}.rail2.address"), what);
            problems.push(problem.suggest("give each rail a subnet of its own, the same on all nodes"));
        }
        for (key, own, heads) in
            [("rail1", &node.rail1, head.map(|h| &h.rail1)), ("rail2", &node.rail2, head.map(|h| &h.rail2))]
        {
            if let (Some(own), Some(heads)) = (subnet(own), heads.and_then(subnet))
                && own != heads
            {
                problems.push(Problem::error(format!("nodes.{name}.{key}.address"), "is not in the head's subnet"));
            }
        }
    }
    problems
}

/// A node whose management address lies in a rail's subnet would be answered over the cable, which the control host is
/// not on. Host names are not looked up.
fn rails_are_not_the_way_in(cluster: &Cluster) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (name, node) in &cluster.nodes {
        let Ok(host) = node.host.parse::<Ipv4Addr>() else { continue };
        for (key, rail) in [("rail1", &node.rail1), ("rail2", &node.rail2)] {
            let Some(subnet) = subnet(rail).filter(|s| overlap(*s, (host.to_bits(), 32))) else { continue };
            let what = format!("its subnet {} holds {host}, the management address (nodes.{name}.host)", told(subnet));
            let problem = Problem::error(format!("nodes.{name}.{key}.address"), what);
            problems.push(problem.suggest(
                "give the rail a subnet of its own on all nodes, such as 192.168.177.0/24, or as host the node's \
                 address on the network by which it is managed",
            ));
        }
    }
    problems
}

fn rdma_is_everywhere(cluster: &Cluster) -> Vec<Problem> {
    let expected = cluster.has(Absent::Rdma);
    let odd = rails(cluster).filter(|(_, rail)| rail.rdma.is_some() != expected);
    let (what, advice) = if expected {
        (
            "is missing",
            "name the rail's RDMA device; machines that have none say so: absent = [ \"rdma\" \"link-speed\" ]",
        )
    } else {
        ("is set, but the cluster declares rdma absent", "take \"rdma\" out of absent, or the device out of the rail")
    };
    odd.map(|(at, _)| Problem::error(format!("{at}.rdma"), what).suggest(advice)).collect()
}

fn releases_are_kept(cluster: &Cluster) -> Vec<Problem> {
    if cluster.keep_releases >= 2 {
        return Vec::new();
    }
    vec![Problem::error("keepReleases", format!("is {}: nothing to roll back to", cluster.keep_releases))]
}

/// The kernel keeps 15 bytes of a process's name.
const COMM_MOST: usize = 15;

fn listeners_can_be_met(cluster: &Cluster) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (n, listener) in cluster.fabric.listeners.iter().enumerate() {
        let at = |key: &str| format!("fabric.listeners[{n}].{key}");
        if let Some(address) = listener.address.as_deref().filter(|a| a.parse::<IpAddr>().is_err()) {
            problems.push(Problem::error(at("address"), format!("{address:?} is no address")));
        }
        if let Some(process) = listener.process.as_deref().filter(|p| p.is_empty() || p.len() > COMM_MOST) {
            let what = format!("{process:?} is no process's name: the kernel keeps {COMM_MOST} bytes of it");
            problems.push(Problem::error(at("process"), what));
        }
    }
    problems
}

/// What stands there becomes part of a script for nft.
fn firewall_is_loadable(cluster: &Cluster) -> Vec<Problem> {
    let Some(firewall) = &cluster.host.firewall else { return Vec::new() };
    let mut problems = Vec::new();
    if !cluster.host.unit {
        problems.push(Problem::error("host.firewall", "needs host.unit: the engine's unit loads it before a start"));
    }
    for (n, network) in firewall.api_from.iter().enumerate().filter(|(_, network)| !is_network(network)) {
        problems.push(Problem::error(format!("host.firewall.apiFrom[{n}]"), format!("{network:?} is no network")));
    }
    problems
}

/// `ADDRESS` or `ADDRESS/PREFIX`.
fn is_network(text: &str) -> bool {
    let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
    let most = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    let digits = |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit());
    prefix.is_none_or(|p| digits(p) && p.parse::<u8>().is_ok_and(|p| p <= most))
}

fn key_is_a_key(cluster: &Cluster) -> Vec<Problem> {
    let bad = cluster
        .trusted_key
        .as_deref()
        .is_some_and(|k| k.split_once(':').is_none_or(|(n, b)| n.is_empty() || b.len() != 44));
    if !bad {
        return Vec::new();
    }
    vec![Problem::error("trustedKey", "is not a Nix public key (name:base64)")]
}

/// They become lines of a `known_hosts` file.
fn host_keys_are_keys(cluster: &Cluster) -> Vec<Problem> {
    let plain = |word: &str| word.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=-@.".contains(&b));
    let good =
        |key: &str| key.split_once(' ').is_some_and(|(kind, body)| body.len() > 40 && plain(kind) && plain(body));
    let all = cluster.nodes.iter().flat_map(|(name, node)| node.host_keys.iter().enumerate().map(move |k| (name, k)));
    let bad = all.filter(|(_, (_, key))| !good(key));
    bad.map(|(name, (n, key))| {
        Problem::error(format!("nodes.{name}.hostKeys[{n}]"), format!("{key:?} is no public key (type base64)"))
    })
    .collect()
}

fn rails(cluster: &Cluster) -> impl Iterator<Item = (String, &Rail)> {
    cluster.by_rank().into_iter().flat_map(|(name, node)| {
        [(format!("nodes.{name}.rail1"), &node.rail1), (format!("nodes.{name}.rail2"), &node.rail2)]
    })
}

fn subnet(rail: &Rail) -> Option<(u32, u8)> {
    let address: Ipv4Addr = rail.address.parse().ok()?;
    let host_bits = 32u32.checked_sub(u32::from(rail.prefix))?;
    let mask = u32::MAX.checked_shl(host_bits).unwrap_or(0);
    Some((address.to_bits() & mask, rail.prefix))
}

/// True when one holds an address of the other.
fn overlap((a, a_prefix): (u32, u8), (b, b_prefix): (u32, u8)) -> bool {
    let differ = u32::from(a_prefix.min(b_prefix));
    (a ^ b).leading_zeros() >= differ
}

/// `10.0.0.0/24`.
fn told((network, prefix): (u32, u8)) -> String {
    format!("{}/{prefix}", Ipv4Addr::from_bits(network))
}

#[cfg(test)]
mod tests {
    use super::super::{check_cluster, fixture};
    use crate::cluster::{Cluster, Firewall, Node};
    use crate::fabric::{AllowedListener, Transport};
    use crate::ids::Role;
    use crate::problem::Severity;

    fn found(change: impl Fn(&mut Cluster)) -> Vec<String> {
        let mut cluster = fixture::case().cluster;
        change(&mut cluster);
        let problems = check_cluster(&cluster);
        assert!(problems.iter().all(|p| p.severity == Severity::Error));
        problems.into_iter().map(|p| p.path).collect()
    }

    fn node<'a>(cluster: &'a mut Cluster, name: &str) -> &'a mut Node {
        cluster.nodes.get_mut(&name.parse().unwrap()).unwrap()
    }

    #[test]
    fn ssh() {
        assert_eq!(found(|c| c.ssh.user = "-oProxyCommand=x".into()), ["ssh.user"]);
        assert_eq!(found(|c| node(c, "worker").host = "a b".into()), ["nodes.worker.host"]);
        assert_eq!(found(|c| node(c, "head").host = "fe80::1%eth0".into()), [""; 0]);
    }

    #[test]
    fn ranks() {
        assert_eq!(found(|c| node(c, "worker").rank = 2), ["nodes.worker.rank"]);
        assert_eq!(found(|c| node(c, "head").role = Role::Worker), ["nodes", "nodes.head.role"]);
        assert_eq!(found(|c| c.nodes.clear()), ["nodes"]);
    }

    #[test]
    fn rails() {
        assert_eq!(found(|c| node(c, "worker").rail1.address = "10.0.1".into()), ["nodes.worker.rail1.address"]);
        assert_eq!(found(|c| node(c, "worker").rail1.address = "10.0.1.1".into()), ["nodes.worker.rail1.address"]);
        assert_eq!(found(|c| node(c, "worker").rail1.address = "10.0.9.2".into()), ["nodes.worker.rail1.address"]);
        let both = |c: &mut Cluster| node(c, "worker").rail2.address = "10.0.1.3".into();
        assert_eq!(found(both), ["nodes.worker.rail2.address", "nodes.worker.rail2.address"]);
        assert_eq!(found(|c| node(c, "head").rail2.netdev = "rail1".into()), ["nodes.head.rail2.netdev"]);
        assert_eq!(found(|c| node(c, "head").rail2.netdev = "a-name-that-is-long".into()), ["nodes.head.rail2.netdev"]);
        assert_eq!(found(|c| node(c, "head").rail2.rdma = None), ["nodes.head.rail2.rdma"]);
        assert!(found(|c| node(c, "head").rail2.prefix = 40).contains(&"nodes.head.rail2.prefix".to_owned()));
    }

    #[test]
    fn a_rail_is_not_the_way_in_and_does_not_overlap_the_other() {
        let [a, b] = ["nodes.head.rail1.address", "nodes.worker.rail1.address"];
        // The fixture's rails are 10.0.1.0/24 and 10.0.2.0/24.
        assert_eq!(found(|c| node(c, "head").host = "10.0.1.77".into()), [a]);
        assert_eq!(found(|c| node(c, "worker").host = "10.0.1.2".into()), [b]);
        assert_eq!(found(|c| node(c, "head").host = "10.0.2.200".into()), ["nodes.head.rail2.address"]);
        for other in ["10.0.3.77", "spark-a", "spark-a.10.0.1.77", "fe80::1%eth0", "10.0.1"] {
            assert_eq!(found(|c| node(c, "head").host = other.into()), [""; 0], "{other}");
        }
        let wide = |c: &mut Cluster| c.nodes.values_mut().for_each(|n| n.rail1.prefix = 16);
        assert_eq!(found(wide), ["nodes.head.rail2.address", "nodes.worker.rail2.address"]);
        let mut cluster = fixture::case().cluster;
        wide(&mut cluster);
        let narrow = |c: &mut Cluster| c.nodes.values_mut().for_each(|n| n.rail2.prefix = 22);
        assert_eq!(found(narrow), ["nodes.head.rail2.address", "nodes.worker.rail2.address"]);
        node(&mut cluster, "head").host = "10.0.9.9".into();
        let told: Vec<String> = check_cluster(&cluster).iter().map(ToString::to_string).collect();
        assert!(
            told[0].contains("its subnet 10.0.2.0/24 overlaps 10.0.0.0/16, that of rail1 (give each rail"),
            "{told:#?}"
        );
        let way_in =
            "nodes.head.rail1.address: its subnet 10.0.0.0/16 holds 10.0.9.9, the management address (nodes.head.host)";
        assert!(told.iter().any(|t| t.contains(way_in) && t.contains("192.168.177.0/24")), "{told:#?}");
    }

    #[test]
    fn listeners() {
        let with = |address: Option<&str>, process: Option<&str>| {
            found(|c| {
                c.fabric.listeners = vec![AllowedListener {
                    port: 1,
                    protocol: Transport::Tcp,
                    address: address.map(Into::into),
                    process: process.map(Into::into),
                    reason: "x".into(),
                }];
            })
        };
        assert_eq!(with(Some("10.0.0.1"), Some("node_exporter")), [""; 0]);
        assert_eq!(
            with(Some("eth0"), Some("a-name-of-16-bytes")),
            ["fabric.listeners[0].address", "fabric.listeners[0].process"]
        );
    }

    #[test]
    fn firewall() {
        let with = |from: &[&str]| {
            found(|c| {
                let api_from = from.iter().map(|f| (*f).to_owned()).collect();
                c.host.firewall = Some(Firewall { api_from });
            })
        };
        assert_eq!(with(&["192.168.1.0/24", "10.0.0.7", "fd00::/8", "::1"]), [""; 0]);
        assert_eq!(with(&["10.0.0.0/33"]), ["host.firewall.apiFrom[0]"]);
        for bad in ["", "/", "10.0.0.1/", "10.0.0.1/+8", "10.0.0.1 } accept", "eth0", "fd00::/129"] {
            assert_eq!(with(&["10.0.0.1", bad]), ["host.firewall.apiFrom[1]"], "{bad}");
        }
        let without_unit = |c: &mut Cluster| {
            c.host.firewall = Some(Firewall::default());
            c.host.unit = false;
        };
        assert_eq!(found(without_unit), ["host.firewall"]);
    }

    #[test]
    fn the_rest() {
        assert_eq!(found(|c| c.keep_releases = 1), ["keepReleases"]);
        assert_eq!(found(|c| c.trusted_key = Some("x".into())), ["trustedKey"]);
        let key = format!("ssh-ed25519 AAAA{}", "b".repeat(64));
        let keys = |keys: &[&str]| keys.iter().map(|k| (*k).to_owned()).collect::<Vec<_>>();
        assert_eq!(found(|c| node(c, "head").host_keys = keys(&[&key])), [""; 0]);
        let evil = format!("{key}\n* {key}");
        assert_eq!(
            found(|c| node(c, "head").host_keys = keys(&["ssh-ed25519", &key, &evil])),
            ["nodes.head.hostKeys[0]", "nodes.head.hostKeys[2]"]
        );
    }
}
