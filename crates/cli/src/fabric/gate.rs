//! The gate `fabric`: after a start a node looks at itself, as `sparklane fabric verify` would.

use std::time::Duration;

use sparklane_engine::http::{HttpError, Response};
use sparklane_engine::judge::Verdict;
use sparklane_engine::probe::{HttpProber, Prober};
use sparklane_fabric::checks::{Asked, Input, Outcome, Row, judge};
use sparklane_lane::fabric::Check;
use sparklane_lane::{Cluster, Generation, NodeName};

use super::node::own_facts;
use super::verify::targets;

/// The API, and the machine it is asked on.
pub struct NodeProber {
    api: HttpProber,
    node: NodeName,
}

impl NodeProber {
    /// For the node of a generation.
    #[must_use]
    pub fn of(generation: &Generation) -> Self {
        let api = HttpProber { key_file: generation.engine.api_key_file.as_ref().map(Into::into) };
        Self { api, node: generation.node.clone() }
    }
}

impl Prober for NodeProber {
    fn get(&self, url: &str, timeout: Duration) -> Result<Response, HttpError> {
        self.api.get(url, timeout)
    }

    fn post(&self, url: &str, json: &[u8], timeout: Duration) -> Result<Response, HttpError> {
        self.api.post(url, json, timeout)
    }

    fn fabric(&self, cluster: &serde_json::Value) -> Verdict {
        let cluster: Cluster = match serde_json::from_value(cluster.clone()) {
            Ok(cluster) => cluster,
            Err(error) => return Verdict::Bad(format!("the cluster file in the generation: {error}")),
        };
        // The profile still is the former generation's until the switch, but gates come after it.
        let facts = own_facts(&targets(&cluster, &self.node));
        let asked = [Asked { node: self.node.clone(), facts, between: None }];
        verdict(&judge(Input { cluster: &cluster, nodes: &asked }))
    }
}

/// A rail that was just configured needs a moment, so nothing that fails is final before the budget is.
fn verdict(rows: &[Row]) -> Verdict {
    let failed: Vec<&Row> = rows.iter().filter(|r| r.outcome == Outcome::Failed && counts(r.check)).collect();
    let judged = rows.iter().filter(|r| r.outcome == Outcome::Ok).count();
    if failed.is_empty() {
        return Verdict::Pass(format!("{judged} checks of this node hold"));
    }
    let word = |row: &&Row| {
        let rail = row.rail.as_deref().map(|rail| format!(" {rail}")).unwrap_or_default();
        let remedy = row.remedy.as_deref().map(|remedy| format!(" ({remedy})")).unwrap_or_default();
        format!("{}{rail}: {}{remedy}", row.check, row.seen)
    };
    Verdict::NotYet(failed.iter().map(word).collect::<Vec<_>>().join("; "))
}

/// What compares nodes is not for one of them, and it was not asked through a login.
fn counts(check: Check) -> bool {
    !matches!(check, Check::Parity | Check::Release | Check::Clock | Check::Login | Check::MemlockLogin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(check: &str, outcome: &str) -> Row {
        let row = serde_json::json!({"check": check, "node": "head", "rail": "rail1", "peer": null, "outcome": outcome,
            "seen": "1500", "wanted": null, "cause": null, "remedy": "deploy"});
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn only_what_one_node_can_know_fails_the_gate() {
        let rows = [row("mtu", "ok"), row("parity", "failed"), row("clock", "failed"), row("kernel", "warn")];
        assert_eq!(verdict(&rows), Verdict::Pass("1 checks of this node hold".into()));
        let Verdict::NotYet(why) = verdict(&[row("mtu", "failed"), row("listeners", "failed")]) else { panic!() };
        assert_eq!(why, "mtu rail1: 1500 (deploy); listeners rail1: 1500 (deploy)");
    }
}
