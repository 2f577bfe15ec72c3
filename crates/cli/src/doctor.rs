//! `sparklane doctor`: every detector on every node, and what each hit means.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;
use sparklane_deploy::progress::Quiet;
use sparklane_deploy::survey::ClusterStatus;
use sparklane_deploy::{DeployError, Flow};
use sparklane_engine::doctor::{self, Finding};
use sparklane_engine::state::EngineState;
use sparklane_fabric::checks::{Input, Outcome, Row, judge};

use crate::deploy::Reach;
use crate::fabric::verify;
use crate::report::refused;

/// Look for everything that is known to go wrong, on all nodes: machines, cable, transactions, engines.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane doctor --cluster lab
  sparklane doctor --cluster lab --json

Numbers such as G13 are those of docs/gotchas.md. What is over is told, and does not count.

Exit codes: 0 nothing is wrong, 1 something is, 2 usage, 4 a node cannot be asked.")]
pub struct Args {
    #[command(flatten)]
    reach: Reach,
}

/// One hit.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Hit {
    /// `None` for the cluster as a whole.
    node: Option<String>,
    /// `fabric`, `deployment` or `engine`.
    part: &'static str,
    #[serde(flatten)]
    finding: Finding,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Diagnosis {
    exit_code: u8,
    cluster: String,
    /// Checks of machines and cable that were made, good ones too.
    checks: usize,
    hits: Vec<Hit>,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    let diagnosis = match diagnose(args) {
        Ok(diagnosis) => diagnosis,
        Err(error) => return Ok(refused(args.reach.json(), error.exit_code(), &error.to_string())),
    };
    if args.reach.json() {
        println!("{}", serde_json::to_string(&diagnosis).unwrap_or_default());
    } else {
        print!("{}", text(&diagnosis));
    }
    Ok(ExitCode::from(diagnosis.exit_code))
}

fn diagnose(args: &Args) -> Result<Diagnosis, DeployError> {
    let site = args.reach.site()?;
    let options = args.reach.options(None);
    let flow = Flow::new(&site, &options, &Quiet)?;
    let rows = judge(Input { cluster: &site.cluster, nodes: &verify::survey(&flow, &site.cluster, None) });
    let status = flow.survey();
    let mut hits: Vec<Hit> = deployment(&status).into_iter().chain(engines(&status)).collect();
    hits.extend(rows.iter().filter_map(machine));
    let wrong = hits.iter().any(|hit| !hit.finding.past);
    let exit_code = if status.exit_code == 4 { 4 } else { u8::from(wrong) };
    Ok(Diagnosis { exit_code, cluster: site.cluster.name.to_string(), checks: rows.len(), hits })
}

/// A finding of machines and cable.
fn machine(row: &Row) -> Option<Hit> {
    if !matches!(row.outcome, Outcome::Failed | Outcome::Warn) {
        return None;
    }
    let place = row.rail.as_ref().map_or_else(String::new, |rail| format!(" on {rail}"));
    let wanted = row.wanted.as_ref().map_or_else(String::new, |wanted| format!(", wanted: {wanted}"));
    Some(Hit {
        node: row.node.as_ref().map(ToString::to_string),
        part: "fabric",
        finding: Finding {
            gotcha: None,
            past: false,
            seen: format!("{}{place}: {}{wanted}", row.check, row.seen),
            means: row.cause.clone(),
            remedy: row.remedy.clone().unwrap_or_else(|| "docs/fabric.md says what is looked at".to_owned()),
        },
    })
}

/// What `status` would have one do.
fn deployment(status: &ClusterStatus) -> Option<Hit> {
    let remedy = status.next.clone().filter(|_| status.exit_code != 0)?;
    let finding = Finding { gotcha: None, past: false, seen: status.state.clone(), means: None, remedy };
    Some(Hit { node: None, part: "deployment", finding })
}

/// What the supervisors say of themselves.
fn engines(status: &ClusterStatus) -> Vec<Hit> {
    let of = |row: &sparklane_deploy::survey::NodeRow| {
        let said = row.status.as_ref().and_then(|s| s.supervisor.clone());
        let state = said.and_then(|value| serde_json::from_value::<EngineState>(value).ok());
        let found = state.as_ref().map(doctor::findings).unwrap_or_default();
        let node = row.node.to_string();
        found.into_iter().map(move |finding| Hit { node: Some(node.clone()), part: "engine", finding })
    };
    status.nodes.iter().flat_map(of).collect()
}

fn text(diagnosis: &Diagnosis) -> String {
    let count = diagnosis.hits.iter().filter(|hit| !hit.finding.past).count();
    let mut text = match count {
        0 => format!("{}: nothing is wrong ({} checks of machines and cable)\n", diagnosis.cluster, diagnosis.checks),
        1 => format!("{}: 1 finding\n", diagnosis.cluster),
        n => format!("{}: {n} findings\n", diagnosis.cluster),
    };
    for hit in &diagnosis.hits {
        let finding = &hit.finding;
        let number = finding.gotcha.as_ref().map_or_else(String::new, |g| format!(" [{g}]"));
        let past = if finding.past { " (over)" } else { "" };
        let node = hit.node.as_deref().unwrap_or("cluster");
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {node:<8} {}{number}{past}: {}", hit.part, finding.seen);
        if let Some(means) = &finding.means {
            let _ = writeln!(text, "           means: {means}");
        }
        if !finding.past {
            let _ = writeln!(text, "           do: {}", finding.remedy);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_is_told_and_does_not_count() {
        let finding = |past| Finding {
            gotcha: Some("G13".into()),
            past,
            seen: "killed".into(),
            means: Some("memory".into()),
            remedy: "ladder".into(),
        };
        let hit = |past| Hit { node: Some("head".into()), part: "engine", finding: finding(past) };
        let of = |hits| Diagnosis { exit_code: 0, cluster: "lab".into(), checks: 7, hits };
        assert_eq!(text(&of(vec![])), "lab: nothing is wrong (7 checks of machines and cable)\n");
        let said = text(&of(vec![hit(true)]));
        assert!(said.starts_with("lab: nothing is wrong") && said.contains("[G13] (over): killed"), "{said}");
        assert!(!said.contains("do: "), "{said}");
        let said = text(&of(vec![hit(false)]));
        assert!(said.starts_with("lab: 1 finding") && said.contains("do: ladder"), "{said}");
    }
}
