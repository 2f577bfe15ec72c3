//! The plan as people read it. Pure.

use std::fmt::Write as _;

use sparklane_fabric::facts::System;

use crate::apply::Task;
use crate::machine::Survey;
use crate::propose::{Finding, Level, Proposal, Wanted, Wishes};

/// What nodes need of one another, said in every plan.
pub const BETWEEN: &str = "between the nodes: nothing to set up. Ranks, weights and images cross the rails without ssh; the one question a \
worker asks of the head (`txn decision`) has a key of its own, which each deployment brings and restricts to it";

/// The machines, what is odd, and what is to be done.
#[must_use]
pub fn plan(wishes: &Wishes, surveys: &[Survey], proposal: &Proposal, tasks: &[Task]) -> String {
    let mut out = String::new();
    for (wanted, survey) in wishes.nodes.iter().zip(surveys) {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{:<8} {} ({}): {}", wanted.name.as_str(), wanted.host, wanted.role, machine(survey));
        rails(wanted, proposal, &mut out);
    }
    out.push_str(&findings(&proposal.findings));
    if proposal.cluster.is_none() {
        return out;
    }
    let _ = writeln!(out, "{BETWEEN}");
    if tasks.is_empty() {
        out.push_str("nothing to change: the nodes and the cluster file are as they must be\n");
        return out;
    }
    out.push_str("to be done:\n");
    for (n, task) in tasks.iter().enumerate() {
        let place = task.node().map_or("here", |node| node.as_str());
        let _ = writeln!(out, "  {:>2} {place:<8} {}", n + 1, task.says());
    }
    out
}

fn rails(wanted: &Wanted, proposal: &Proposal, out: &mut String) {
    let Some(node) = proposal.cluster.as_ref().and_then(|c| c.nodes.get(&wanted.name)) else { return };
    for (name, rail) in [("rail1", &node.rail1), ("rail2", &node.rail2)] {
        let rdma = rail.rdma.as_ref().map_or_else(String::new, |rdma| format!(" {rdma}"));
        let _ = writeln!(out, "         {name} {}{rdma} {}/{}", rail.netdev, rail.address, rail.prefix);
    }
}

/// One line about a machine.
fn machine(survey: &Survey) -> String {
    let (files, machine) = (&survey.facts.files, &survey.machine);
    let System { os, dgx, kernel, driver, .. } = &files.system;
    let with = |what: &str, value: &Option<String>| value.as_ref().map(|v| format!("{what}{v}"));
    let docker = survey.facts.live.docker.as_ref();
    let free = machine.free.get("/var/lib").map(|free| format!("{} GiB free", free >> 30));
    let nix = if machine.nix.absent() {
        "no Nix"
    } else if machine.nix.hidden.is_empty() {
        "Nix"
    } else {
        "Nix where ssh does not look"
    };
    let parts = [
        machine.system.map(|s| s.to_string()),
        os.clone(),
        with("DGX OS ", dgx),
        with("kernel ", kernel),
        with("driver ", driver),
        Some(docker.map_or_else(|| "no docker".to_owned(), |d| format!("docker {}", d.version))),
        Some(nix.to_owned()),
        files.mem_total_kb.map(|kb| format!("{} GiB", kb >> 20)),
        free,
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Every finding with what to do.
#[must_use]
pub fn findings(findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings {
        let place = finding.node.as_ref().map_or("all", |node| node.as_str());
        let level = match finding.level {
            Level::Stops => "stops",
            Level::Warns => "warn",
            Level::Note => "note",
        };
        let _ = writeln!(out, "{level}: {place}: {}\n      do: {}", finding.what, finding.remedy);
    }
    out
}
