//! Who listens on TCP, and who may. What is not known fails: the cluster file names what its owner wants besides.

use std::net::IpAddr;

use sparklane_lane::fabric::{AllowedListener, Check};

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
    let mut rows: Vec<Row> = Vec::new();
    for listener in listeners {
        match may(s, listener) {
            May::Yes => {}
            May::Guarded => rows.push(
                Row::failed(check, node, words(listener))
                    .warn()
                    .wanted("bound to the rail alone")
                    .because("the engine binds its rendezvous to every interface")
                    .remedy("let a firewall pass this port on the rails only, and name it in fabric.listeners with that reason"),
            ),
            May::No => rows.push(
                Row::failed(check, node, words(listener))
                    .wanted("loopback, or a listener of the lane on a rail")
                    .because(if listener.address.is_unspecified() { "reachable from every network of this machine" } else { "neither the lane nor the cluster file knows it" })
                    .remedy("stop it or bind it to 127.0.0.1; if it belongs there, name it in fabric.listeners of the cluster file"),
            ),
        }
    }
    if rows.is_empty() {
        rows.push(Row::ok(check, node, format!("{} listeners, all known", listeners.len())));
    }
    rows
}

fn words(l: &Listener) -> String {
    let process = l.process.as_deref().unwrap_or("no process of this machine's namespace");
    let inside = if l.container.is_some() { " in a container" } else { "" };
    format!("{} ({process}{inside}, uid {})", std::net::SocketAddr::new(l.address, l.port), l.uid)
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
    // systemd holds the socket of an sshd that is started by it.
    if l.port == 22 && (process.starts_with("sshd") || process == "systemd") {
        return May::Yes;
    }
    let live = &s.facts.live;
    let engine = live.docker.as_ref().and_then(|d| d.container.as_ref()).map(|c| c.id.as_str());
    let of_engine = engine.is_some() && l.container.as_deref() == engine;
    let on_rail = s.rails().iter().any(|(_, rail)| rail.address.parse() == Ok(address));
    if on_rail && (of_engine || process == "sparklane") {
        return May::Yes;
    }
    let Some(deployed) = live.generation.as_ref().filter(|_| of_engine) else { return May::No };
    match &deployed.api {
        Some((host, port)) if *port == l.port && host.parse() == Ok(address) => return May::Yes,
        _ => {}
    }
    if address.is_unspecified() && deployed.ports.contains(&l.port) { May::Guarded } else { May::No }
}

fn allows(allowed: &AllowedListener, l: &Listener) -> bool {
    let address = allowed.address.as_ref().is_none_or(|a| a.parse() == Ok(plain(l.address)));
    let process = allowed.process.as_ref().is_none_or(|p| Some(p) == l.process.as_ref());
    allowed.port == l.port && address && process
}
