//! What must be true of the machines, judged from their facts. Pure: cluster and facts in, rows out.

mod host;
mod pair;
mod rails;
mod rdma;

use serde::{Deserialize, Serialize};
use sparklane_lane::NodeName;
use sparklane_lane::cluster::{Cluster, Node, Rail};
use sparklane_lane::fabric::{Check, Severity};

use crate::facts::NodeFacts;
use crate::{audit, parity};

/// MTU where the cluster file leaves the rails to someone else.
pub const MTU: u32 = 9000;

/// What is judged.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Every node's answer, by rank.
    pub nodes: &'a [Asked],
}

/// One node's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    /// The node.
    pub node: NodeName,
    /// Its facts, or why there are none.
    pub facts: Result<NodeFacts, String>,
    /// The control host's wall clock in milliseconds when it asked and when it had the answer; `None` for a recorded tree.
    pub between: Option<(u64, u64)>,
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// Worth a look; does not fail the command.
    Warn,
    /// Not as it should be.
    Failed,
    /// The cluster file says that these machines do not have it.
    Declared,
    /// Could not be judged, and why is said; never `ok`.
    Skipped,
    /// The cluster file says that it does not matter.
    Ignored,
}

impl Outcome {
    /// The word in the table.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Failed => "FAILED",
            Self::Declared => "n/a: declared",
            Self::Skipped => "not checked",
            Self::Ignored => "ignored",
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The check.
    pub check: Check,
    /// The node it is about; `None` for all of them.
    pub node: Option<NodeName>,
    /// The rail it is about.
    pub rail: Option<String>,
    /// The node at the other end, for what has a direction.
    pub peer: Option<NodeName>,
    /// How it ended.
    pub outcome: Outcome,
    /// What was seen.
    pub seen: String,
    /// What was expected, where that was not seen.
    pub wanted: Option<String>,
    /// What causes this, as far as owners of such machines know.
    pub cause: Option<String>,
    /// What to do.
    pub remedy: Option<String>,
}

impl Row {
    fn new(check: Check, node: Option<&NodeName>, outcome: Outcome, seen: impl Into<String>) -> Self {
        Self {
            check,
            node: node.cloned(),
            rail: None,
            peer: None,
            outcome,
            seen: seen.into(),
            wanted: None,
            cause: None,
            remedy: None,
        }
    }

    pub(crate) fn ok(check: Check, node: Option<&NodeName>, seen: impl Into<String>) -> Self {
        Self::new(check, node, Outcome::Ok, seen)
    }

    pub(crate) fn skipped(check: Check, node: Option<&NodeName>, why: impl Into<String>) -> Self {
        Self::new(check, node, Outcome::Skipped, why)
    }

    pub(crate) fn declared(check: Check, node: Option<&NodeName>, what: &str) -> Self {
        Self::new(check, node, Outcome::Declared, format!("{what} is declared absent"))
    }

    pub(crate) fn failed(check: Check, node: Option<&NodeName>, seen: impl Into<String>) -> Self {
        Self::new(check, node, Outcome::Failed, seen)
    }

    pub(crate) fn warn(self) -> Self {
        Self { outcome: Outcome::Warn, ..self }
    }

    pub(crate) fn wanted(self, wanted: impl Into<String>) -> Self {
        Self { wanted: Some(wanted.into()), ..self }
    }

    pub(crate) fn because(self, cause: impl Into<String>) -> Self {
        Self { cause: Some(cause.into()), ..self }
    }

    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    pub(crate) fn on(self, rail: &str) -> Self {
        Self { rail: Some(rail.to_owned()), ..self }
    }

    pub(crate) fn to(self, peer: &NodeName) -> Self {
        Self { peer: Some(peer.clone()), ..self }
    }
}

/// One node as checks see it.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub cluster: &'a Cluster,
    pub name: &'a NodeName,
    pub node: &'a Node,
    pub facts: &'a NodeFacts,
}

impl<'a> Subject<'a> {
    pub(crate) fn rails(self) -> [(&'static str, &'a Rail); 2] {
        [("rail1", &self.node.rail1), ("rail2", &self.node.rail2)]
    }

    pub(crate) fn mtu(self) -> u32 {
        mtu(self.cluster)
    }
}

/// The MTU that a cluster's rails should have.
#[must_use]
pub fn mtu(cluster: &Cluster) -> u32 {
    cluster.host.rails.map_or(MTU, |rails| rails.mtu)
}

/// Judges everything. Rows come in the order of the checks, then of ranks.
#[must_use]
pub fn judge(input: Input<'_>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for asked in input.nodes {
        let Some(node) = input.cluster.nodes.get(&asked.node) else { continue };
        let name = &asked.node;
        match &asked.facts {
            Err(why) => rows.push(
                Row::failed(Check::Facts, Some(name), why)
                    .wanted("an answer")
                    .remedy("bring the node back to the network, or deploy once so that it has the tool"),
            ),
            Ok(facts) => rows.extend(one(Subject { cluster: input.cluster, name, node, facts })),
        }
    }
    rows.extend(pair::rows(input));
    rows.extend(parity::rows(input));
    rows.sort_by_key(|row| row.check);
    rows.into_iter().map(|row| weighed(row, input.cluster)).collect()
}

fn one(subject: Subject<'_>) -> Vec<Row> {
    let facts = subject.facts;
    let unread = &facts.live.unread;
    let said = format!("tool {}, {} ms", facts.tool, facts.millis);
    let known = if unread.is_empty() {
        Row::ok(Check::Facts, Some(subject.name), said)
    } else {
        Row::failed(Check::Facts, Some(subject.name), unread.join("; "))
            .warn()
            .remedy("what could not be asked is not judged; journalctl -b on the node tells more")
    };
    let parts: [fn(Subject<'_>) -> Vec<Row>; 4] = [rails::rows, rdma::rows, host::rows, audit::rows];
    std::iter::once(known).chain(parts.iter().flat_map(|rows| rows(subject))).collect()
}

/// The cluster file's own weight of a finding.
fn weighed(row: Row, cluster: &Cluster) -> Row {
    let found = matches!(row.outcome, Outcome::Failed | Outcome::Warn);
    let outcome = match cluster.fabric.severity.get(&row.check) {
        Some(Severity::Fail) if found => Outcome::Failed,
        Some(Severity::Warn) if found => Outcome::Warn,
        Some(Severity::Ignore) if found => Outcome::Ignored,
        _ => row.outcome,
    };
    Row { outcome, ..row }
}
