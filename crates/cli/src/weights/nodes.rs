//! `weights status --cluster` and `weights verify --against`: several nodes, asked from the control host.

use std::collections::BTreeSet;
use std::process::ExitCode;

use serde::Serialize;
use sparklane_deploy::flow::weights::Has;
use sparklane_deploy::progress::Quiet;
use sparklane_deploy::{DeployError, Flow};
use sparklane_lane::NodeName;

use super::local::{Row, StatusArgs, VerifyArgs};

/// One node's store.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeRow {
    node: NodeName,
    /// `None` when it does not answer.
    entries: Option<Vec<Row>>,
    error: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    exit_code: u8,
    nodes: Vec<NodeRow>,
    /// Where nodes differ, and what to do.
    differences: Vec<String>,
}

/// Shows every node's store. Exit codes: 0 all have the same proved weights, 1 not so, 4 a node does not answer.
pub fn status(args: &StatusArgs) -> ExitCode {
    let words = ["weights", "status", "--json", "--store", args.store.as_str()];
    let answers = match args.reach.reports::<Vec<Row>>(&words) {
        Ok(answers) => answers,
        Err(error) => return super::refused(args.reach.json(), error.exit_code(), &error.to_string()),
    };
    let rows = answers.into_iter().map(|(node, answer)| match answer {
        Ok(entries) => NodeRow { node, entries: Some(entries.unwrap_or_default()), error: None },
        Err(error) => NodeRow { node, entries: None, error: Some(error.to_string()) },
    });
    let nodes: Vec<NodeRow> = rows.collect();
    let differences = differences(&nodes);
    let exit_code = match () {
        () if nodes.iter().any(|n| n.error.is_some()) => 4,
        () if differences.is_empty() => 0,
        () => 1,
    };
    let status = Status { exit_code, nodes, differences };
    if args.reach.json() {
        println!("{}", serde_json::to_string(&status).unwrap_or_default());
    } else {
        println!("{}", lines(&status).join("\n"));
    }
    ExitCode::from(exit_code)
}

/// Entries that are not proved on every node that answers.
fn differences(nodes: &[NodeRow]) -> Vec<String> {
    let answering: Vec<(&NodeName, &Vec<Row>)> =
        nodes.iter().filter_map(|n| Some((&n.node, n.entries.as_ref()?))).collect();
    let names: BTreeSet<&str> = answering.iter().flat_map(|(_, rows)| rows.iter().map(|r| r.name.as_str())).collect();
    let of = |name: &str| -> Option<String> {
        let state = |rows: &[Row]| {
            // A folder that is mended stands in staging too: the better of both counts.
            let mut states = rows.iter().filter(|r| r.name == name).map(|r| r.state.as_str());
            let first = states.next().unwrap_or("absent");
            states.find(|s| *s == "proved").unwrap_or(first).to_owned()
        };
        let states: Vec<(&NodeName, String)> = answering.iter().map(|(node, rows)| (*node, state(rows))).collect();
        if states.iter().all(|(_, s)| s == "proved") {
            return None;
        }
        let told: Vec<String> = states.iter().map(|(node, state)| format!("{state} on {node}")).collect();
        let holder = states.iter().find(|(_, s)| s == "proved").map(|(node, _)| node);
        let what = match holder {
            Some(node) => format!("sparklane weights send --from {node} brings what is missing"),
            None => "on a node: sparklane weights verify --deep, fetch or adopt".to_owned(),
        };
        Some(format!("{name}: {}; {what}", told.join(", ")))
    };
    names.into_iter().filter_map(of).collect()
}

fn lines(status: &Status) -> Vec<String> {
    let mut lines = Vec::new();
    for row in &status.nodes {
        let node = row.node.as_str();
        match (&row.entries, &row.error) {
            (Some(entries), _) if entries.is_empty() => lines.push(format!("{node:<8} no weights")),
            (Some(entries), _) => lines.extend(entries.iter().map(|entry| format!("{node:<8} {}", entry.line()))),
            (None, error) => lines.push(format!("{node:<8} {}", error.as_deref().unwrap_or("no answer"))),
        }
    }
    lines.extend(status.differences.iter().map(|d| format!("differs: {d}")));
    lines
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Compared {
    exit_code: u8,
    manifest: String,
    nodes: Vec<ComparedNode>,
    /// What to do where they differ.
    next: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ComparedNode {
    node: NodeName,
    has: Option<Has>,
    error: Option<String>,
}

/// Compares two nodes. Exit codes: 0 both have proved the same manifest, 3 not so, 4 a node does not answer.
pub fn compare(args: &VerifyArgs) -> ExitCode {
    match compared(args) {
        Ok(found) => {
            if args.reach.json() {
                println!("{}", serde_json::to_string(&found).unwrap_or_default());
            } else {
                found.nodes.iter().for_each(|row| println!("{}", told(row)));
                found.next.iter().for_each(|next| println!("do: {next}"));
            }
            ExitCode::from(found.exit_code)
        }
        Err(error) => super::refused(args.reach.json(), error.exit_code(), &error.to_string()),
    }
}

fn compared(args: &VerifyArgs) -> Result<Compared, DeployError> {
    let manifest = super::manifest(&args.manifest).map_err(|e| DeployError::Refused(e.to_string()))?;
    let (site, options) = (args.reach.site()?, args.reach.options(None));
    let flow = Flow::new(&site, &options, &Quiet)?;
    let first = || site.members().into_iter().next().map(|m| m.node);
    let Some((one, other)) = args.node.clone().or_else(first).zip(args.against.clone()) else {
        return Err(DeployError::Refused("the cluster has no node".into()));
    };
    if one == other {
        return Err(DeployError::Usage(format!("{one} is compared with itself; name another with --node")));
    }
    let answers = flow.have_weights(&manifest, &[one, other], args.deep)?;
    let nodes: Vec<ComparedNode> = answers
        .into_iter()
        .map(|(node, answer)| match answer {
            Ok(has) => ComparedNode { node, has: Some(has), error: None },
            Err(error) => ComparedNode { node, has: None, error: Some(error.to_string()) },
        })
        .collect();
    let (exit_code, next) = verdict(&nodes, args.manifest.as_str());
    Ok(Compared { exit_code, manifest: manifest.id(), nodes, next })
}

fn verdict(nodes: &[ComparedNode], file: &str) -> (u8, Option<String>) {
    if nodes.iter().any(|n| n.error.is_some()) {
        return (4, Some("bring the node back to the network, then ask again".into()));
    }
    let proved = |n: &&ComparedNode| n.has.as_ref().is_some_and(Has::is_proved);
    let good = nodes.iter().find(proved);
    let bad = nodes.iter().find(|n| !proved(n));
    match (good, bad) {
        (_, None) => (0, None),
        (Some(good), Some(bad)) => {
            (3, Some(format!("sparklane weights send {file} --from {} --to {}", good.node, bad.node)))
        }
        (None, Some(_)) => (3, Some(format!("on a node: sparklane weights fetch {file}, or verify --deep"))),
    }
}

fn told(row: &ComparedNode) -> String {
    let node = row.node.as_str();
    match (&row.has, &row.error) {
        (Some(has), _) => {
            let why = if has.why.is_empty() { String::new() } else { format!(": {}", has.why.join("; ")) };
            format!("{node:<8} {}{why}", has.state)
        }
        (None, error) => format!("{node:<8} {}", error.as_deref().unwrap_or("no answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(node: &str, entries: &[(&str, &str)]) -> NodeRow {
        let row = |(name, state): &(&str, &str)| {
            serde_json::from_value(serde_json::json!({"name": name, "state": state, "why": []})).unwrap()
        };
        NodeRow { node: node.parse().unwrap(), entries: Some(entries.iter().map(row).collect()), error: None }
    }

    #[test]
    fn only_what_every_node_has_proved_is_no_difference() {
        let both = [store("head", &[("a@1-2", "proved")]), store("worker", &[("a@1-2", "proved")])];
        assert_eq!(differences(&both), Vec::<String>::new());
        let missing = [store("head", &[("a@1-2", "proved")]), store("worker", &[])];
        let told = differences(&missing).join("");
        assert!(told.contains("proved on head, absent on worker") && told.contains("--from head"), "{told}");
        let bad = [store("head", &[("a@1-2", "unproved")]), store("worker", &[("a@1-2", "partial")])];
        assert!(differences(&bad)[0].contains("verify --deep"));
        let mended = [store("head", &[("a@1-2", "partial"), ("a@1-2", "proved")])];
        assert_eq!(differences(&mended), Vec::<String>::new());
    }

    #[test]
    fn of_two_nodes_the_good_one_mends_the_other() {
        let node = |name: &str, state: &str, why: &[&str]| ComparedNode {
            node: name.parse().unwrap(),
            has: Some(serde_json::from_value(serde_json::json!({"state": state, "why": why})).unwrap()),
            error: None,
        };
        assert_eq!(verdict(&[node("head", "proved", &[]), node("worker", "proved", &[])], "m"), (0, None));
        let rows = [node("head", "unproved", &["x: sha256 is 1"]), node("worker", "proved", &[])];
        let (code, next) = verdict(&rows, "m.json");
        assert_eq!((code, next.as_deref()), (3, Some("sparklane weights send m.json --from worker --to head")));
        assert_eq!(told(&rows[0]), "head     unproved: x: sha256 is 1");
        let gone = ComparedNode { has: None, error: Some("no route".into()), ..node("worker", "x", &[]) };
        assert_eq!(verdict(&[node("head", "proved", &[]), gone], "m").0, 4);
    }
}
