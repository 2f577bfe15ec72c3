//! Who may be written to, on TCP and UDP, and by right. What is not known fails: the cluster file names what its owner
//! wants besides. And the table that keeps strangers from what the engine binds to every interface.

use std::net::IpAddr;

use sparklane_lane::fabric::{AllowedListener, Check, Transport};

use crate::checks::{Row, Subject};
use crate::facts::Listener;

/// Why a listener may be there.
enum May {
    Yes,
    /// It may, if something else keeps strangers out.
    Guarded,
    No,
}

pub(crate) fn rows(s: Subject<'_>) -> Vec<Row> {
    let (check, node) = (Check::Listeners, Some(s.name));
    let listeners = &s.facts.live.listeners;
    let mut rows: Vec<Row> = vec![firewall(s)];
    let told = rows.len();
    for listener in listeners {
        match may(s, listener) {
            May::Yes => {}
            May::Guarded => rows.push(
                Row::failed(check, node, words(listener))
                    .warn()
                    .wanted("bound to the rail alone")
                    .because("the engine binds its rendezvous to every interface")
                    .remedy(
                        "host.firewall = { }; in the cluster file, deploy: it is then reached over the rails only; \
                         where another firewall does that, name the port in fabric.listeners with that reason",
                    ),
            ),
            May::No => rows.push(
                Row::failed(check, node, words(listener))
                    .wanted("loopback, or a listener of the lane on a rail")
                    .because(if listener.address.is_unspecified() { "reachable from every network of this machine" } else { "neither the lane nor the cluster file knows it" })
                    .remedy("stop it or bind it to 127.0.0.1; if it belongs there, name it in fabric.listeners of the cluster file"),
            ),
        }
    }
    if rows.len() == told {
        rows.push(Row::ok(check, node, format!("{} listeners, all known", listeners.len())));
    }
    rows
}

fn firewall(s: Subject<'_>) -> Row {
    let (check, node) = (Check::Firewall, Some(s.name));
    let deployed = s.facts.live.generation.as_ref().and_then(|g| g.firewall.as_ref());
    match deployed {
        Some(table) => match &table.trouble {
            None => Row::ok(check, node, "the table stands as it was loaded"),
            Some(trouble) => Row::failed(check, node, trouble)
                .wanted("the deployed lane's table")
                .because("nft flush ruleset, a restart of nftables.service, or a change by hand")
                .remedy(&table.remedy),
        },
        None if s.cluster.host.firewall.is_some() => Row::skipped(check, node, "no lane with a table is deployed yet"),
        None => Row::skipped(check, node, "the cluster file has no host.firewall"),
    }
}

fn words(l: &Listener) -> String {
    let process = l.process.as_deref().unwrap_or("no process of this machine's namespace");
    let inside = if l.container.is_some() { " in a container" } else { "" };
    let udp = if l.protocol == Transport::Udp { "udp " } else { "" };
    format!("{udp}{} ({process}{inside}, uid {})", std::net::SocketAddr::new(l.address, l.port), l.uid)
}

/// An IPv4 address in IPv6 form is what it is.
fn plain(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

fn may(s: Subject<'_>, l: &Listener) -> May {
    let address = plain(l.address);
    let process = l.process.as_deref().unwrap_or_default();
    if address.is_loopback() || s.cluster.fabric.listeners.iter().any(|a| allows(a, l)) {
        return May::Yes;
    }
    if l.protocol == Transport::Udp {
        return if udp(s, l, address, process) { May::Yes } else { May::No };
    }
    // systemd holds the socket of an sshd that is started by it.
    if l.port == 22 && (process.starts_with("sshd") || process == "systemd") {
        return May::Yes;
    }
    let live = &s.facts.live;
    let engine = live.docker.as_ref().and_then(|d| d.container.as_ref()).map(|c| c.id.as_str());
    let of_engine = engine.is_some() && l.container.as_deref() == engine;
    let on_rail = s.rails().iter().any(|(_, rail)| rail.address.parse() == Ok(address));
    if on_rail && (of_engine || ours(l)) {
        return May::Yes;
    }
    let Some(deployed) = live.generation.as_ref().filter(|_| of_engine) else { return May::No };
    match &deployed.api {
        Some((host, port)) if *port == l.port && host.parse() == Ok(address) => return May::Yes,
        _ => {}
    }
    if !address.is_unspecified() || !deployed.ports.contains(&l.port) {
        return May::No;
    }
    let guarded = deployed.firewall.as_ref().is_some_and(|table| table.trouble.is_none());
    if guarded { May::Yes } else { May::Guarded }
}

/// Ports of what every machine of a network runs: DHCP's clients, time, names on the link. Port and process both count.
const USUAL: [(u16, &[&str]); 7] = [
    (68, &["systemd-network", "NetworkManager", "dhclient", "dhcpcd"]),
    (546, &["systemd-network", "NetworkManager", "dhclient", "dhcpcd"]),
    (123, &["chronyd", "ntpd", "ntpsec", "systemd-timesyn"]),
    (323, &["chronyd"]),
    (5353, &["avahi-daemon", "systemd-resolve"]),
    (5355, &["systemd-resolve"]),
    (41641, &["tailscaled"]),
];

/// Users from here on are people (login.defs: `UID_MIN`).
const FIRST_USER: u32 = 1000;

/// Ports that the kernel hands out from here on (`net.ipv4.ip_local_port_range`).
const HANDED_OUT: u16 = 32768;

/// A UDP socket without a peer is a server's, or a client's that waits for an answer: who asks a name server has one for
/// as long as that takes. Nothing tells the two apart but the port, which a client lets the kernel choose.
fn udp(s: Subject<'_>, l: &Listener, address: IpAddr, process: &str) -> bool {
    let heartbeats = s.facts.live.generation.as_ref().and_then(|g| g.heartbeats);
    let on_rail = s.rails().iter().any(|(_, rail)| rail.address.parse() == Ok(address));
    let beats = on_rail && ours(l) && heartbeats == Some(l.port);
    let usual = USUAL.iter().any(|(port, processes)| *port == l.port && processes.contains(&process));
    let usual = usual && l.uid < FIRST_USER;
    beats || usual || l.port >= HANDED_OUT && l.container.is_none()
}

/// A name is anybody's to choose; the user is not.
fn ours(l: &Listener) -> bool {
    l.process.as_deref() == Some("sparklane") && l.uid == 0
}

fn allows(allowed: &AllowedListener, l: &Listener) -> bool {
    let address = allowed.address.as_ref().is_none_or(|a| a.parse() == Ok(plain(l.address)));
    let process = allowed.process.as_ref().is_none_or(|p| Some(p) == l.process.as_ref());
    allowed.port == l.port && allowed.protocol == l.protocol && address && process
}
