//! After a way back: do the ranks of the old lane belong together? Each node proves its own part at its own time, and a
//! head may have answered with a rank of the lane that its worker was just leaving.

use std::time::{Duration, Instant};

use sparklane_host::status::NodeStatus;
use sparklane_txn::cluster::{NodeEnd, Outcome, Stops};

use super::Flow;
use crate::plan::NodeFacts;

/// How long a worker may take to join the head that serves; a head that lost its ranks starts anew meanwhile.
const JOIN_WAIT: Duration = Duration::from_secs(15);
/// Between two questions.
const AGAIN: Duration = Duration::from_millis(300);

impl Flow<'_> {
    /// What was driven, unless a rank still waits beside a head that counts as serving.
    pub(super) fn together(&self, outcome: Outcome) -> Outcome {
        let (Outcome::RolledBack { .. } | Outcome::Tested { .. }) = &outcome else { return outcome };
        let until = Instant::now() + JOIN_WAIT;
        loop {
            let Ok(statuses) = self.statuses() else { return outcome };
            let apart = apart(&statuses);
            if apart.iter().all(|waits| !waits) {
                return outcome;
            }
            if Instant::now() >= until {
                return in_doubt(outcome, &apart);
            }
            std::thread::sleep(AGAIN);
        }
    }
}

/// How the engines that run now are stopped: one that finishes its requests needs its workers until then.
pub(super) fn stops(facts: &[NodeFacts]) -> Stops {
    let old = || facts.iter().filter_map(|f| f.status.generation.as_ref());
    if old().any(|g| drains(&g.engine.argv)) { Stops::InTurn } else { Stops::Overlapping }
}

fn drains(argv: &[String]) -> bool {
    const FLAG: &str = "--shutdown-timeout";
    let after = argv.iter().skip_while(|a| *a != FLAG).nth(1);
    let joined = argv.iter().find_map(|a| a.strip_prefix(FLAG)?.strip_prefix('='));
    after.map(String::as_str).or(joined).is_some_and(|secs| secs != "0")
}

/// Per node by rank: it waits for ranks while its head's engine is up.
fn apart(statuses: &[Option<NodeStatus>]) -> Vec<bool> {
    let up = |s: &NodeStatus| s.engine.as_ref().is_some_and(|e| e.active == "active");
    let head = statuses.first().and_then(Option::as_ref).is_some_and(up);
    statuses.iter().map(|s| head && s.as_ref().is_some_and(|s| up(s) && s.waits_for_ranks)).collect()
}

fn in_doubt(outcome: Outcome, apart: &[bool]) -> Outcome {
    let (why, nodes) = match outcome {
        Outcome::RolledBack { why, nodes } => (why, nodes),
        Outcome::Tested { nodes } => ("the test passed".to_owned(), nodes),
        other => return other,
    };
    let said = |(end, waits): (NodeEnd, &bool)| {
        let detail = waits.then(|| "its rank waits for the others, and the head serves without it".to_owned());
        NodeEnd { detail: detail.or(end.detail), ..end }
    };
    let nodes = nodes.into_iter().zip(apart).map(said).collect();
    Outcome::InDoubt { why: format!("{why}; back on the old lane, whose ranks do not belong together"), nodes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparklane_host::units::UnitStatus;

    fn status(active: &str, waits_for_ranks: bool) -> Option<NodeStatus> {
        let engine = UnitStatus { active: active.into(), ..UnitStatus::default() };
        Some(NodeStatus { engine: Some(engine), waits_for_ranks, ..NodeStatus::default() })
    }

    #[test]
    fn an_engine_that_drains_is_known_by_its_flag() {
        let argv = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        assert!(drains(&argv(&["vllm", "serve", "--shutdown-timeout", "30", "--x"])));
        assert!(drains(&argv(&["vllm", "serve", "--shutdown-timeout=30"])));
        for cut in [&["vllm", "serve"][..], &["vllm", "--shutdown-timeout", "0"], &["vllm", "--shutdown-timeout=0"]] {
            assert!(!drains(&argv(cut)), "{cut:?}");
        }
    }

    #[test]
    fn a_rank_that_waits_beside_a_serving_head_is_not_with_it() {
        assert_eq!(apart(&[status("active", false), status("active", true)]), [false, true]);
        assert_eq!(apart(&[status("active", false), status("active", false)]), [false, false]);
        assert_eq!(apart(&[status("activating", true), status("active", true)]), [false, false], "the head waits too");
        assert_eq!(apart(&[None, status("active", true)]), [false, false]);
        let end = |node: &str| NodeEnd { node: node.parse().unwrap(), state: None, detail: None };
        let back = Outcome::RolledBack { why: "gate".into(), nodes: vec![end("head"), end("worker")] };
        let Outcome::InDoubt { why, nodes } = in_doubt(back, &[false, true]) else { panic!("not in doubt") };
        assert!(why.starts_with("gate; ") && nodes[0].detail.is_none() && nodes[1].detail.is_some(), "{why} {nodes:?}");
    }
}
