//! What takes two nodes: packets from one to the other, and their clocks.

use sparklane_lane::fabric::Check;

use super::{Input, Row, mtu};
use crate::facts::NodeFacts;
use crate::ping::Ping;

/// Skew that counts, in milliseconds: evidence of two nodes is put in order by it.
const SKEW: u64 = 1000;

pub(super) fn rows(input: Input<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for asked in input.nodes {
        let Ok(facts) = &asked.facts else { continue };
        if facts.pings.is_empty() {
            rows.push(Row::skipped(Check::Jumbo, Some(&asked.node), "nothing was sent: a recorded tree, or no peer"));
        }
        for ping in &facts.pings {
            let row = jumbo(input, facts, ping);
            let row = Row { node: Some(asked.node.clone()), ..row }.on(&ping.target.rail);
            rows.push(match ping.target.peer.parse() {
                Ok(peer) => row.to(&peer),
                Err(_) => row,
            });
        }
    }
    rows.extend(clocks(input));
    rows
}

fn jumbo(input: Input<'_>, facts: &NodeFacts, ping: &Ping) -> Row {
    let check = Check::Jumbo;
    let bytes = ping.target.mtu;
    let (Some(micros), None) = (ping.micros, &ping.error) else {
        let error = ping.error.as_deref().unwrap_or("no answer");
        let row = Row::failed(check, None, format!("{bytes} bytes to {}: {error}", ping.target.address))
            .wanted("an answer to a packet that may not be fragmented");
        let up = facts.files.netdevs.get(&ping.target.netdev).is_some_and(|d| d.carrier == Some(true));
        return match (ping.small, up) {
            (true, _) => row
                .because("84 bytes pass and whole packets do not: the MTU is lower at one end; new connections will hang there")
                .remedy(format!("make the MTU {} on both ends of this rail, the worker first", mtu(input.cluster))),
            (false, true) => row
                .because("nothing passes though the link is up: an address is missing or on another port, the ports are paired crosswise, or a firewall drops it")
                .remedy("compare both nodes' address rows of this rail; put the cable into the same cage on both nodes"),
            (false, false) => row.because("the rail has no link").remedy("see the link's row"),
        };
    };
    Row::ok(check, None, format!("{bytes} bytes in {micros} us"))
}

/// The first node's clock against each other's. An answer's time is known to lie between two readings of the control
/// host's clock, so each offset is a span; nodes differ when the spans are apart.
fn clocks(input: Input<'_>) -> Vec<Row> {
    let span = |asked: &super::Asked| {
        let facts = asked.facts.as_ref().ok()?;
        let (sent, received) = asked.between?;
        let at = i128::from(facts.live.unix_millis);
        let earliest = i128::from(sent) + i128::from(facts.millis);
        Some((at - i128::from(received), at - earliest.min(i128::from(received))))
    };
    let Some((first, others)) = input.nodes.split_first() else { return Vec::new() };
    let one = |other: &super::Asked| {
        let (node, check) = (Some(&other.node), Check::Clock);
        let (Some(a), Some(b)) = (span(first), span(other)) else {
            return Row::skipped(check, node, "a recorded tree, or no answer").to(&first.node);
        };
        let apart = (a.0 - b.1).max(b.0 - a.1).max(0);
        let row = if apart <= i128::from(SKEW) {
            Row::ok(check, node, format!("at least {apart} ms apart, measured to {} ms", (a.1 - a.0) + (b.1 - b.0)))
        } else {
            Row::failed(check, node, format!("{apart} ms apart"))
                .wanted(format!("at most {SKEW} ms"))
                .because("a node's clock is not kept by NTP")
                .remedy("timedatectl set-ntp true; timedatectl timesync-status on both nodes")
        };
        row.to(&first.node)
    };
    others.iter().map(one).collect()
}
