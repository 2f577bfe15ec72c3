//! What a deployment would do, from what nodes say and what was built. Pure.

use std::fmt;

use serde::Serialize;
use sparklane_host::status::{NodeStatus, TxnStatus};
use sparklane_lane::diff::{NodeDiff, diff};
use sparklane_lane::{Generation, NodeName, Release};
use sparklane_txn::plan::engine_changed;
use sparklane_txn::spec::Side;

use crate::survey::runs;

/// One node's part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePlan {
    /// The node.
    pub node: NodeName,
    /// Where it is; `None` when nothing was deployed.
    pub from: Option<String>,
    /// Where it goes.
    pub to: String,
    /// True when the content is the same.
    pub same: bool,
    /// What differs; `None` on a first deployment, where everything is new.
    pub changes: Option<NodeDiff>,
    /// Files a first deployment places.
    pub places: Vec<String>,
    /// Managed files someone edited.
    pub edited: Vec<String>,
}

/// The whole cluster's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPlan {
    /// The lane.
    pub lane: String,
    /// The release in force, when all nodes are on one.
    pub release: Option<u64>,
    /// True when the engine restarts on all nodes.
    pub restarts_engine: bool,
    /// True when there is nothing to do.
    pub unchanged: bool,
    /// Transactions that are still open, with their nodes: what this is compared with is not committed.
    pub open: Vec<String>,
    /// Nodes by rank.
    pub nodes: Vec<NodePlan>,
}

/// A node's two sides.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The node.
    pub node: NodeName,
    /// What it says of itself.
    pub status: NodeStatus,
    /// Where it shall go.
    pub to: Side,
    /// The content of that.
    pub generation: Generation,
}

/// The release that all nodes are on, by the head's records.
#[must_use]
pub fn release_in_force(facts: &[NodeFacts]) -> Option<Release> {
    let head = facts.iter().find(|f| f.generation.role.decides())?;
    let at = |node: &NodeName| facts.iter().find(|f| f.node == *node)?.status.current.as_ref().map(|s| &s.path);
    head.status.releases.iter().rev().find(|r| r.is_on(at)).cloned()
}

/// Computes the plan.
#[must_use]
pub fn plan(facts: &[NodeFacts]) -> ClusterPlan {
    let release = release_in_force(facts);
    let nodes: Vec<NodePlan> = facts.iter().map(node_plan).collect();
    let same = nodes.iter().all(|n| n.same && n.edited.is_empty());
    let serving = facts.iter().all(|f| runs(&f.status));
    let whole = facts.iter().all(|f| f.status.firewall.is_none() && f.status.tool_lost.is_none());
    let restarts_engine = !serving || facts.iter().any(|f| engine_changed(f.status.generation.as_ref(), &f.generation));
    let lane = facts.first().map(|f| f.generation.lane.to_string()).unwrap_or_default();
    ClusterPlan {
        lane,
        unchanged: same && serving && whole && release.is_some(),
        release: release.map(|r| r.number),
        restarts_engine,
        open: facts.iter().flat_map(open).collect(),
        nodes,
    }
}

fn open(facts: &NodeFacts) -> Vec<String> {
    let one = |t: &TxnStatus| format!("{}: transaction {} of {} is {}", facts.node, t.txn, t.owner, t.state);
    facts.status.open.iter().map(one).collect()
}

fn node_plan(facts: &NodeFacts) -> NodePlan {
    let old = facts.status.generation.as_ref();
    let current = facts.status.current.as_ref();
    NodePlan {
        node: facts.node.clone(),
        from: current.map(|s| s.path.to_string()),
        to: facts.to.path.to_string(),
        same: current.map(|s| &s.generation) == Some(&facts.to.generation),
        changes: old.map(|old| diff(old, &facts.generation)),
        places: if old.is_none() { facts.generation.files.keys().cloned().collect() } else { Vec::new() },
        edited: facts.status.drift.clone(),
    }
}

impl fmt::Display for ClusterPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.release.map_or_else(|| "no release".to_owned(), |n| format!("release {n}"));
        writeln!(f, "lane {} from {from}", self.lane)?;
        for open in &self.open {
            writeln!(f, "{open}: compared with what the node is on now, which is not committed")?;
        }
        for node in &self.nodes {
            match &node.changes {
                Some(changes) => write!(f, "{changes}")?,
                None => {
                    writeln!(f, "{}:\n  first deployment", node.node)?;
                    for path in &node.places {
                        writeln!(f, "    + {path}")?;
                    }
                }
            }
            for path in &node.edited {
                writeln!(f, "  edited by hand: {path}")?;
            }
        }
        let engine = if self.restarts_engine { "restarts on all nodes" } else { "is left alone" };
        if self.unchanged { write!(f, "nothing to do") } else { write!(f, "the engine {engine}") }
    }
}
