//! The cluster file that the machines' answers amount to, and what stands in its way. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use serde::Serialize;
use sparklane_lane::cluster::{Absent, Host, Node, Rail, Rails, Ssh};
use sparklane_lane::fabric::Fabric;
use sparklane_lane::problem::Severity;
use sparklane_lane::rules::check_cluster;
use sparklane_lane::{Cluster, ClusterName, LaneName, NodeName, Role, System};

use crate::machine::Survey;
use crate::rails::{self, Addresses, Half};
use crate::subnet::Subnet;

/// MTU of the rails.
const MTU: u32 = 9000;
/// Loading weights fills the page cache of a memory that the GPU shares (mp-kit.md, T2).
const SYSCTL: [(&str, &str); 4] = [
    ("vm.dirty_background_ratio", "2"),
    ("vm.dirty_ratio", "5"),
    ("vm.min_free_kbytes", "4194304"),
    ("vm.vfs_cache_pressure", "200"),
];
/// Free bytes for an image, its weights and the ones before.
const ROOM: u64 = 300 << 30;
/// `MemTotal` differs a little from kernel to kernel.
const MEMORY_STEP: u64 = 10_000_000;

/// A node as it was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its name in the cluster.
    pub name: NodeName,
    /// Its role.
    pub role: Role,
    /// Its rank.
    pub rank: u32,
    /// Name or address of the management network.
    pub host: String,
}

/// What the operator wants.
#[derive(Debug, Clone)]
pub struct Wishes {
    /// The cluster's name.
    pub name: ClusterName,
    /// Who deploys.
    pub user: String,
    /// Further arguments of ssh.
    pub ssh_opts: Vec<String>,
    /// The nodes by rank.
    pub nodes: Vec<Wanted>,
    /// The lane that `deploy` takes when none is named, if the operator named it.
    pub lane: Option<LaneName>,
    /// The same where he did not: for Sparks, and for a rehearsal.
    pub usual: [LaneName; 2],
    /// Netdevs of the rails, where they are not to be found.
    pub rails: Option<[String; 2]>,
    /// System of the control host.
    pub build_system: System,
    /// Public half of the key that signs closures.
    pub trusted_key: Option<String>,
    /// The cluster file that is there already.
    pub existing: Option<Cluster>,
}

/// How much a finding weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Nothing can be proposed, so nothing is done.
    Stops,
    /// It would keep a lane from serving.
    Warns,
    /// Worth knowing.
    Note,
}

/// Something about the machines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How much it weighs.
    pub level: Level,
    /// Where; `None` for all of them.
    pub node: Option<NodeName>,
    /// What.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// What the machines' answers amount to.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// The cluster file; `None` when something stops it.
    pub cluster: Option<Cluster>,
    /// What is odd, worst first.
    pub findings: Vec<Finding>,
}

/// Collects findings.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, level: Level, node: Option<&NodeName>, what: impl Into<String>, remedy: impl Into<String>) {
        let (what, remedy) = (what.into(), remedy.into());
        self.0.push(Finding { level, node: node.cloned(), what, remedy });
    }
}

/// One node with its answer.
type Asked<'a> = (&'a Wanted, &'a Survey);

/// Makes the cluster file. `surveys` are in the order of the wishes' nodes.
#[must_use]
pub fn propose(wishes: &Wishes, surveys: &[Survey]) -> Proposal {
    let mut findings = Findings::default();
    let asked: Vec<Asked<'_>> = wishes.nodes.iter().zip(surveys).collect();
    machines(&asked, &mut findings);
    // All nodes are looked at, so that a person mends all in one go.
    let each: Vec<Option<[Half; 2]>> = asked.iter().map(|one| halves(wishes, one, &mut findings)).collect();
    let halves: Option<Vec<[Half; 2]>> = each.into_iter().collect();
    let cluster = halves.and_then(|halves| {
        let Some(addresses) = rails::addresses(&halves, &taken(&asked, &halves)) else {
            findings.add(
                Level::Stops,
                None,
                "no private subnet is free for the rails",
                "give the rails addresses by hand",
            );
            return None;
        };
        let made = cluster(wishes, &asked, &halves, &addresses);
        told(&made, (&addresses, &halves), &asked, &mut findings);
        Some(made)
    });
    for problem in cluster.iter().flat_map(check_cluster).filter(|p| p.severity == Severity::Error) {
        findings.add(
            Level::Stops,
            None,
            problem.to_string(),
            "mend the file, or have another one proposed: --file FILE",
        );
    }
    let stops = findings.0.iter().any(|f| f.level == Level::Stops);
    findings.0.sort();
    Proposal { cluster: cluster.filter(|_| !stops), findings: findings.0 }
}

/// True for a machine with a GPU; others rehearse.
fn serves(survey: &Survey) -> bool {
    !survey.facts.files.system.gpus.is_empty()
}

fn machines(asked: &[Asked<'_>], findings: &mut Findings) {
    for (wanted, survey) in asked {
        let name = Some(&wanted.name);
        if survey.machine.system.is_none() {
            findings.add(
                Level::Stops,
                name,
                "is of a system that no lane runs on",
                "nodes are aarch64 or x86-64 machines",
            );
        }
        if survey.facts.live.docker.is_none() {
            let how = if serves(survey) {
                "DGX OS has it: systemctl enable --now docker; else packages docker.io and nvidia-container-toolkit"
            } else {
                "packages docker.io and docker-cli, then systemctl enable --now docker"
            };
            findings.add(Level::Warns, name, "docker does not answer; engines run in it", how);
        }
        if survey.machine.host_keys.is_empty() {
            let what = "sshd shows a host key that is none of /etc/ssh/ssh_host_*_key.pub, so hostKeys are not written";
            findings.add(Level::Note, name, what, "known_hosts counts, or write hostKeys by hand");
        }
        let room = survey.machine.free.get("/var/lib").copied().filter(|free| serves(survey) && *free < ROOM);
        if let Some(free) = room {
            let what = format!("{} GiB are free below /var/lib; an image and its weights take about 200", free >> 30);
            findings.add(Level::Warns, name, what, "make room, or mount a larger disk at /var/lib/sparklane");
        }
    }
    for (n, (one, survey)) in asked.iter().enumerate() {
        let same = asked.iter().skip(n + 1).find(|(_, other)| !macs(survey).is_disjoint(&macs(other)));
        if let Some((other, _)) = same {
            let what = format!("{} and {} are the same machine", one.host, other.host);
            findings.add(Level::Stops, Some(&other.name), what, "name each machine once");
        }
    }
    let kinds: BTreeSet<Option<System>> = asked.iter().map(|(_, s)| s.machine.system).collect();
    if kinds.len() > 1 || asked.iter().map(|(_, s)| serves(s)).collect::<BTreeSet<_>>().len() > 1 {
        findings.add(
            Level::Stops,
            None,
            "the machines are of different kinds",
            "ranks of one engine need like machines",
        );
    }
}

/// Addresses of hardware. Virtual devices have made-up ones, docker's the same everywhere.
fn macs(survey: &Survey) -> BTreeSet<&str> {
    let devices = survey.facts.files.netdevs.values().filter(|dev| dev.pci.is_some());
    devices.map(|dev| dev.mac.as_str()).filter(|mac| !mac.is_empty() && *mac != "00:00:00:00:00:00").collect()
}

fn halves(wishes: &Wishes, (wanted, survey): &Asked<'_>, findings: &mut Findings) -> Option<[Half; 2]> {
    let chosen = match &wishes.rails {
        Some(names) => rails::named(&survey.facts, names),
        None if serves(survey) || !survey.facts.files.nic.is_empty() => rails::found(&survey.facts),
        None => Err((
            "no GPU and no ConnectX-7: no rails to find".to_owned(),
            "for a rehearsal name two netdevs: --rails NETDEV,NETDEV".to_owned(),
        )),
    };
    match chosen {
        Ok((halves, odd)) => {
            if let Some(why) = halves.iter().find_map(|half| no_rail(survey, half, &wanted.host)) {
                findings.add(
                    Level::Stops,
                    Some(&wanted.name),
                    why,
                    "name the netdevs of the cable: --rails NETDEV,NETDEV",
                );
                return None;
            }
            for what in odd {
                findings.add(
                    Level::Note,
                    Some(&wanted.name),
                    what,
                    "nothing now; sparklane fabric verify looks after it",
                );
            }
            Some(halves)
        }
        Err((what, remedy)) => {
            findings.add(Level::Stops, Some(&wanted.name), what, remedy);
            None
        }
    }
}

/// Why a netdev cannot be a rail: a deployment sets its addresses and MTU, and would cut off who is not on the cable.
fn no_rail(survey: &Survey, half: &Half, host: &str) -> Option<String> {
    let (live, netdev) = (&survey.facts.live, &half.netdev);
    let reached = live.addresses.iter().any(|a| a.netdev == *netdev && a.address.to_string() == host);
    if netdev == "lo" {
        Some("lo is no rail".to_owned())
    } else if reached {
        Some(format!("{netdev} is the way by which it is managed ({host})"))
    } else if live.routes.iter().any(|r| r.netdev == *netdev && r.destination.is_none()) {
        Some(format!("{netdev} has the default route"))
    } else {
        None
    }
}

/// Subnets of everything that is no rail.
fn taken(asked: &[Asked<'_>], halves: &[[Half; 2]]) -> Vec<Subnet> {
    let of = |((_, survey), halves): (&Asked<'_>, &[Half; 2])| {
        let live = &survey.facts.live;
        let rail = |netdev: &str| halves.iter().any(|half| half.netdev == netdev);
        let v4 = |address: IpAddr| if let IpAddr::V4(v4) = address { Some(v4) } else { None };
        let own = live.addresses.iter().filter(|a| !rail(&a.netdev));
        let own: Vec<Subnet> = own.filter_map(|a| Some(Subnet::of(v4(a.address)?, a.prefix))).collect();
        let routes = live.routes.iter().filter(|r| !rail(&r.netdev) && r.prefix > 0);
        let routes = routes.filter_map(|r| Some(Subnet::of(v4(r.destination?)?, r.prefix)));
        own.into_iter().chain(routes.collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    asked.iter().zip(halves).flat_map(of).collect()
}

/// Addresses that the machines do not have yet.
fn told(
    cluster: &Cluster,
    (addresses, halves): (&Addresses, &[[Half; 2]]),
    asked: &[Asked<'_>],
    findings: &mut Findings,
) {
    let how = if cluster.host.rails.is_some() {
        "the first deployment sets what the cluster file says (host.rails)"
    } else {
        "give the netdevs these addresses, or let deployments do it: host.rails.mtu in the cluster file"
    };
    for (rail, why) in &addresses.changed {
        let at = usize::from(*rail == "rail2");
        let new: Vec<String> =
            addresses.of.iter().filter_map(|pair| pair.get(at)).map(|(a, p)| format!("{a}/{p}")).collect();
        let what = format!("{rail}: {why}; proposed: {}", new.join(", "));
        findings.add(Level::Note, None, what, how);
        for ((wanted, _), (halves, made)) in asked.iter().zip(halves.iter().zip(&addresses.of)) {
            let (Some(half), Some((new, _))) = (halves.get(at), made.get(at)) else { continue };
            if let Some((old, prefix)) = half.address.filter(|(old, _)| old != new) {
                let what = format!("{rail}: {} has {old}/{prefix}, which gives way to {new}", half.netdev);
                let remedy = format!(
                    "find what sets it (grep -r {} /etc/netplan) and take it out before the first deployment",
                    half.netdev
                );
                findings.add(Level::Warns, Some(&wanted.name), what, remedy);
            }
        }
    }
}

/// The file: what was there already, with what the machines say of themselves.
fn cluster(wishes: &Wishes, asked: &[Asked<'_>], halves: &[[Half; 2]], addresses: &Addresses) -> Cluster {
    let mut cluster = wishes.existing.clone().unwrap_or_else(|| blank(wishes, asked, halves));
    let before = std::mem::take(&mut cluster.nodes);
    for ((asked, halves), made) in asked.iter().zip(halves).zip(&addresses.of) {
        let (wanted, _) = asked;
        cluster.nodes.insert(wanted.name.clone(), node(wishes, asked, (halves, made), before.get(&wanted.name)));
    }
    cluster.ssh.user.clone_from(&wishes.user);
    cluster.ssh.opts.clone_from(&wishes.ssh_opts);
    cluster.trusted_key = wishes.trusted_key.clone().or(cluster.trusted_key);
    if let Some(lane) = &wishes.lane {
        cluster.default_lane.clone_from(lane);
    }
    cluster
}

/// One node's part of the file.
fn node(
    wishes: &Wishes,
    (wanted, survey): &Asked<'_>,
    (halves, made): (&[Half; 2], &[(Ipv4Addr, u8); 2]),
    old: Option<&Node>,
) -> Node {
    let rail = |half: &Half, (address, prefix): (Ipv4Addr, u8)| Rail {
        netdev: half.netdev.clone(),
        rdma: half.rdma.clone(),
        address: address.to_string(),
        prefix,
    };
    let ([half1, half2], [address1, address2]) = (halves, made);
    let kb = survey.facts.files.mem_total_kb.filter(|_| serves(survey));
    let shown = survey.machine.host_keys.clone();
    let memory = kb.map(|kb| kb.saturating_mul(1024) / MEMORY_STEP * MEMORY_STEP);
    Node {
        role: wanted.role,
        rank: wanted.rank,
        system: survey.machine.system.unwrap_or(wishes.build_system),
        host: wanted.host.clone(),
        rail1: rail(half1, *address1),
        rail2: rail(half2, *address2),
        memory_bytes: old.and_then(|node| node.memory_bytes).or(memory),
        host_keys: if shown.is_empty() { old.map_or_else(Vec::new, |node| node.host_keys.clone()) } else { shown },
    }
}

/// A file for machines that have none.
fn blank(wishes: &Wishes, asked: &[Asked<'_>], halves: &[[Half; 2]]) -> Cluster {
    let sparks = asked.iter().all(|(_, survey)| serves(survey));
    let sysctl: BTreeMap<String, String> = SYSCTL.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let host = Host { rails: Some(Rails { mtu: MTU }), memlock: true, sysctl, ..Host::default() };
    let [ours, rehearsed] = &wishes.usual;
    let usual = if sparks { ours } else { rehearsed };
    Cluster {
        name: wishes.name.clone(),
        description: format!("{} {}", count(asked.len()), if sparks { "DGX Sparks" } else { "rehearsal nodes" }),
        default_lane: wishes.lane.clone().unwrap_or_else(|| usual.clone()),
        keep_releases: 5,
        build_system: wishes.build_system,
        ssh: Ssh { user: wishes.user.clone(), opts: Vec::new() },
        trusted_key: None,
        nodes: BTreeMap::new(),
        absent: absent(asked, halves),
        host: if sparks { host } else { Host::default() },
        fabric: Fabric { preflight: sparks, ..Fabric::default() },
    }
}

/// What the machines lack, so that checks say `n/a: declared`. A NIC whose RDMA is not loaded has it all the same.
fn absent(asked: &[Asked<'_>], halves: &[[Half; 2]]) -> Vec<Absent> {
    let no_nic = asked.iter().all(|(_, survey)| survey.facts.files.nic.is_empty());
    let bare = no_nic && halves.iter().flatten().all(|half| half.rdma.is_none());
    let gpu = asked.iter().all(|(_, survey)| serves(survey));
    let bound = !gpu && asked.iter().any(|(_, survey)| !survey.machine.sys_resource);
    let all = [(Absent::Gpu, !gpu), (Absent::Rdma, bare), (Absent::LinkSpeed, bare), (Absent::SysResource, bound)];
    all.into_iter().filter(|(_, is)| *is).map(|(absent, _)| absent).collect()
}

fn count(n: usize) -> String {
    match n {
        2 => "two".to_owned(),
        n => n.to_string(),
    }
}
