//! The nftables table of our own: the ranks' ports over the rails from the other nodes, the API where the lane says.
//!
//! It only ever drops packets to ports that the lane declares, so it can cut off neither ssh nor anybody else's service;
//! and what it accepts passes this table alone: a packet still needs the consent of every other one (ufw's, docker's).

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use super::{Input, ray};
use crate::cluster::{Firewall, Node};
use crate::lane::Executor;

/// Path of nft's script.
pub const FIREWALL: &str = "/etc/sparklane/firewall.nft";
/// Path of the unit that loads it before an engine starts.
pub const FIREWALL_UNIT: &str = "/etc/systemd/system/sparklane-firewall.service";
/// Family and name of the table.
pub const TABLE: (&str, &str) = ("inet", "sparklane");

/// Ports that programs get for themselves where nothing says otherwise (`net.ipv4.ip_local_port_range`): NCCL's, Gloo's
/// and our transfers' listeners are among them, all bound to a rail's address.
const EPHEMERAL: &str = "32768-60999";

/// The script. It replaces the table in one transaction of the kernel: no packet sees none, or half of one.
pub(super) fn script(input: Input<'_>, node: &Node, firewall: &Firewall) -> String {
    let (family, name) = TABLE;
    let mut text = format!(
        "add table {family} {name}\ndelete table {family} {name}\n\ntable {family} {name} {{\n\tchain input {{\n\
         \t\ttype filter hook input priority -10; policy accept;\n\t\tiifname \"lo\" accept\n"
    );
    for rule in rules(input, node, firewall) {
        let _ = writeln!(text, "\t\t{rule}");
    }
    text.push_str("\t}\n}\n");
    text
}

fn rules(input: Input<'_>, node: &Node, firewall: &Firewall) -> Vec<String> {
    let mut rules = peers(input, node);
    let tcp: Vec<String> = guarded(input.lane.executor).into_iter().map(words).collect();
    if node.role.decides() {
        rules.extend(api(&input.lane.api, node, firewall));
    }
    rules.push(format!("tcp dport {{ {} }} drop", tcp.join(", ")));
    rules.push(format!("udp dport {} drop", input.lane.watchdog.port));
    // A machine answers to its rails' addresses on every interface, so who routes them over management gets there. New
    // connections only, told by their flags: answers to ours, and connection tracking, are none of our business.
    rules.push(format!(
        "ip daddr {{ {}, {} }} tcp dport {EPHEMERAL} tcp flags & (fin | syn | rst | ack) == syn drop",
        node.rail1.address, node.rail2.address
    ));
    rules
}

/// The other nodes, on the rail they are on.
fn peers(input: Input<'_>, node: &Node) -> Vec<String> {
    let others: Vec<&Node> =
        input.cluster.by_rank().into_iter().map(|(_, other)| other).filter(|other| other.rank != node.rank).collect();
    let rule = |own: &crate::cluster::Rail, theirs: Vec<&str>| {
        let first = theirs.first()?;
        let from = if theirs.len() == 1 { (*first).to_owned() } else { format!("{{ {} }}", theirs.join(", ")) };
        Some(format!("iifname \"{}\" ip saddr {from} ip daddr {} accept", own.netdev, own.address))
    };
    let rail1 = rule(&node.rail1, others.iter().map(|o| o.rail1.address.as_str()).collect());
    let rail2 = rule(&node.rail2, others.iter().map(|o| o.rail2.address.as_str()).collect());
    rail1.into_iter().chain(rail2).collect()
}

/// TCP ports that the ranks meet at. Ray's lets whoever reaches it run programs; vLLM's rendezvous is bound to every interface.
fn guarded(executor: Executor) -> BTreeSet<(u16, u16)> {
    match executor {
        Executor::Mp { port } => BTreeSet::from([(port, port)]),
        Executor::Ray { port, .. } => {
            let last = ray::NEXT_PORTS.iter().map(|(_, above)| *above).max().unwrap_or(0);
            let mut ports: BTreeSet<(u16, u16)> = ray::OTHER_PORTS.iter().map(|port| (*port, *port)).collect();
            ports.insert((port, port.saturating_add(last)));
            ports.insert((*ray::ACTOR_PORTS.start(), *ray::ACTOR_PORTS.end()));
            ports
        }
    }
}

fn words((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// The API: nothing of it from outside when it is on loopback or a rail, else what the cluster file lets in.
fn api(api: &crate::lane::Api, node: &Node, firewall: &Firewall) -> Vec<String> {
    let port = api.port;
    let inside = api.host == "localhost"
        || api.host.parse::<IpAddr>().is_ok_and(|a| a.is_loopback())
        || [&node.rail1, &node.rail2].iter().any(|rail| rail.address == api.host);
    if firewall.api_from.is_empty() && !inside {
        return Vec::new();
    }
    let (v6, v4): (Vec<&String>, Vec<&String>) = firewall.api_from.iter().partition(|network| network.contains(':'));
    let accept = |family: &str, from: Vec<&String>| {
        let from: Vec<&str> = from.into_iter().map(String::as_str).collect();
        (!from.is_empty()).then(|| format!("{family} saddr {{ {} }} tcp dport {port} accept", from.join(", ")))
    };
    accept("ip", v4).into_iter().chain(accept("ip6", v6)).chain([format!("tcp dport {port} drop")]).collect()
}

/// The unit. The engine's requires it, so that every start of an engine begins with the table as it should be; a switch
/// loads it by itself. It stays `inactive` between two starts on purpose: the kernel has the table, not the unit.
pub(super) const UNIT: &str = "\
[Unit]
Description=sparklane: the ranks' ports over the rails only (nftables)
Documentation=file:/etc/sparklane/firewall.nft
After=sparklane-resolve.service nftables.service ufw.service netfilter-persistent.service
RequiresMountsFor=/nix
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/nix/var/nix/profiles/sparklane/bin/sparklane node firewall
Restart=on-failure
RestartMode=direct
RestartSec=5
CapabilityBoundingSet=CAP_NET_ADMIN
LockPersonality=yes
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateMounts=yes
PrivateTmp=yes
ProcSubset=pid
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
ProtectSystem=strict
RestrictAddressFamilies=AF_NETLINK AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RuntimeDirectory=sparklane
RuntimeDirectoryPreserve=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
UMask=0077
";
