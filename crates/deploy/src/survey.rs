//! What `status` says of the cluster, judged from what each node says of itself. Pure.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use sparklane_host::HostPaths;
use sparklane_host::status::{DamagedTxn, NodeStatus, TxnStatus, WeightsStatus};
use sparklane_host::units::UnitStatus;
use sparklane_lane::NodeName;
use sparklane_txn::State;

use crate::error::DeployError;
use crate::trouble::Cause;

/// One node's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// The node.
    pub node: NodeName,
    /// What it says; `None` when no tool is there, or it does not answer.
    pub status: Option<NodeStatus>,
    /// Why it does not answer.
    pub error: Option<String>,
    /// What keeps it from answering.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
}

impl NodeRow {
    /// A node and what came of asking it.
    #[must_use]
    pub fn of(node: NodeName, answer: Result<Option<NodeStatus>, DeployError>) -> Self {
        match answer {
            Ok(status) => Self { node, status, error: None, cause: None },
            Err(error) => {
                let cause = if let DeployError::NoAnswer { cause, .. } = &error { *cause } else { Cause::Tool };
                Self { node, status: None, error: Some(error.to_string()), cause: Some(cause) }
            }
        }
    }
}

/// The whole cluster's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The cluster.
    pub cluster: String,
    /// `release N`, `release N, degraded on NODE: WHY`, `unreleased`, `nothing deployed`, `in doubt`, `mixed`, `unreachable`, `no login on NODE`, `no sudo on NODE`, `no answer from NODE`, `transaction open`, `not serving`.
    pub state: String,
    /// The release that all nodes are on.
    pub release: Option<u64>,
    /// 0 all nodes on one release and serving, 1 not so, 4 in doubt, mixed, or a node does not answer.
    pub exit_code: u8,
    /// What to do.
    pub next: Option<String>,
    /// Every node by rank.
    pub nodes: Vec<NodeRow>,
}

const RESOLVE: &str =
    "on the node: sudo /nix/var/nix/gcroots/sparklane/tool/bin/sparklane txn resolve (docs/operations.md, In doubt)";

const UNSETTLED: &str =
    "nix run .#deploy -- --replace-edited, which places every file anew; then remove the damaged transaction's folder";

impl ClusterStatus {
    /// Judges what the nodes say; the first is the head.
    #[must_use]
    pub fn of(cluster: String, nodes: Vec<NodeRow>) -> Self {
        let at = |node: &NodeName| {
            let row = nodes.iter().find(|row| row.node == *node)?;
            row.status.as_ref()?.current.as_ref().map(|side| &side.path)
        };
        let head = nodes.first().and_then(|row| row.status.as_ref());
        let release = head.and_then(|s| s.releases.iter().rev().find(|r| r.is_on(at))).map(|r| r.number);
        let (state, exit_code, next) = judge(&nodes, release);
        Self { cluster, state, release, exit_code, next, nodes }
    }
}

/// State, exit code and what to do. What needs hands most comes first.
fn judge(nodes: &[NodeRow], release: Option<u64>) -> (String, u8, Option<String>) {
    let said = |state: &str, code: u8, next: &str| (state.to_owned(), code, Some(next.to_owned()));
    let statuses = || nodes.iter().filter_map(|row| row.status.as_ref());
    let lanes: BTreeSet<&str> = statuses().filter_map(|s| s.generation.as_ref()).map(|g| g.lane.as_str()).collect();
    let deployed = statuses().filter(|s| s.current.is_some()).count();
    let doubt = |s: &NodeStatus| {
        s.open.iter().any(|t| t.state == State::InDoubt) || s.last.as_ref().is_some_and(|t| t.state == State::Stuck)
    };
    if statuses().any(doubt) {
        return said("in doubt", 4, RESOLVE);
    }
    let unsettled = |row: &&NodeRow| row.status.as_ref().is_some_and(|s| s.damaged.iter().any(|d| d.unsettled));
    if nodes.iter().find(unsettled).is_some() {
        return said("in doubt", 4, UNSETTLED);
    }
    if let Some((cause, node)) = nodes.iter().filter_map(|row| Some((row.cause?, &row.node))).min() {
        return silent(cause, node);
    }
    if statuses().any(|s| !s.open.is_empty()) {
        return said("transaction open", 1, "wait: it ends at its deadline at the latest");
    }
    if let Some(row) = nodes.iter().find(|row| row.status.as_ref().is_some_and(|s| !s.damaged_releases.is_empty())) {
        let state = format!("release records of {} are damaged", row.node);
        let next =
            "copy the record from another node (same path), or remove it and its root; rollback takes --to N till then";
        return (state, 1, Some(next.to_owned()));
    }
    if let Some(number) = release {
        return match nodes.iter().find(|row| !serves(row)) {
            None => serving(nodes, number),
            Some(NodeRow { status: Some(NodeStatus { engine_of: Some(lane), .. }), .. }) => {
                let next = "the release takes effect when both nodes boot; nix run .#deploy starts it now".to_owned();
                (format!("release {number}, engine still of {lane}"), 1, Some(next))
            }
            Some(row) => {
                // A head that waits for a rank has nothing to tell; the node whose engine failed has.
                let down = |state| nodes.iter().find(|row| engine_is(row, state));
                let node = &down("failed").or_else(|| down("inactive")).unwrap_or(row).node;
                let look = format!("look: journalctl -u sparklane-engine on {node}; deploy again starts both nodes");
                (format!("release {number}, not serving"), 1, Some(look))
            }
        };
    }
    let not_ours = |row: &&NodeRow| row.status.as_ref().is_some_and(|s| s.foreign_profile.is_some());
    if let Some(row) = nodes.iter().find(not_ours) {
        let next = format!("mend the profile of {} as said above, then nix run .#deploy", row.node);
        return ("mixed".to_owned(), 4, Some(next));
    }
    if deployed == 0 {
        said("nothing deployed", 1, "nix run .#deploy")
    } else if deployed == nodes.len() && lanes.len() == 1 {
        said("unreleased", 1, "deploy once with sparklane; it adopts what the nodes have")
    } else {
        said("mixed", 4, "nix run .#deploy brings all nodes to one lane")
    }
}

/// Nobody can say which release a node is on that cannot be asked.
fn silent(cause: Cause, node: &NodeName) -> (String, u8, Option<String>) {
    let (state, next) = match cause {
        Cause::Unreachable => {
            ("unreachable".to_owned(), "bring the node back to the network, then ask again".to_owned())
        }
        Cause::Login => (format!("no login on {node}"), "let ssh in as said above, then ask again".to_owned()),
        Cause::Sudo => (format!("no sudo on {node}"), "mend sudo there as said above, then ask again".to_owned()),
        Cause::Tool => (format!("no answer from {node}"), "mend what is said above, then ask again".to_owned()),
    };
    (state, 4, Some(next))
}

/// All nodes are on one release and serve: what is wrong all the same, worst first.
fn serving(nodes: &[NodeRow], number: u64) -> (String, u8, Option<String>) {
    if let Some((node, state)) = nodes.iter().find_map(unproved) {
        let mend =
            format!("sparklane weights send mends them on {node}; until then it serves, and does not start again");
        return (format!("release {number}, weights {state} on {node}"), 1, Some(mend));
    }
    if let Some((node, why)) = nodes.iter().find_map(open_ports) {
        let mend = format!("on {node}: {}", sparklane_host::firewall::REMEDY);
        return (format!("release {number}, firewall of {node}: {why}"), 1, Some(mend));
    }
    if let Some((node, why)) = nodes.iter().find_map(lost_tool) {
        let mend = "nix run .#deploy puts it back, also of the same lane: no engine starts anew for it".to_owned();
        return (format!("release {number}, tool of {node}: {why}"), 1, Some(mend));
    }
    if let Some((node, why)) = nodes.iter().find_map(degraded) {
        // Still 0: an engine with all seats taken is told so too. `sparklane doctor` has a code for it.
        let look = "sparklane doctor says what is wrong and what becomes of it".to_owned();
        return (format!("release {number}, degraded on {node}: {why}"), 0, Some(look));
    }
    (format!("release {number}"), 0, None)
}

/// A firewall that does not stand as it was loaded.
fn open_ports(row: &NodeRow) -> Option<(&NodeName, &str)> {
    Some((&row.node, row.status.as_ref()?.firewall.as_deref()?))
}

/// A node that answers by its generation's program, as its own tool is not where the boot unit looks.
fn lost_tool(row: &NodeRow) -> Option<(&NodeName, &str)> {
    Some((&row.node, row.status.as_ref()?.tool_lost.as_deref()?))
}

/// Weights under a serving engine that its node cannot prove any more.
fn unproved(row: &NodeRow) -> Option<(&NodeName, &str)> {
    let weights = row.status.as_ref()?.weights.as_ref()?;
    (weights.state != "proved").then_some((&row.node, weights.state.as_str()))
}

fn engine_is(row: &NodeRow, state: &str) -> bool {
    row.status.as_ref().and_then(|s| s.engine.as_ref()).is_some_and(|e| e.active == state)
}

/// An engine that serves, or tries to, while its supervisor doubts it.
fn degraded(row: &NodeRow) -> Option<(&NodeName, &str)> {
    let supervisor = row.status.as_ref()?.supervisor.as_ref()?;
    let doubts = supervisor["state"] == "DEGRADED";
    doubts.then(|| (&row.node, supervisor["reason"].as_str().unwrap_or("its supervisor does not say why")))
}

/// A unit that starts or fails serves nobody, nor does a rank that waits for the others: a worker's unit is up by then,
/// and a head that lost its ranks while it was idle does not know it.
fn serves(row: &NodeRow) -> bool {
    row.status.as_ref().is_some_and(runs)
}

/// True when a node's engine is up and at work, as far as the node can say.
pub(crate) fn runs(status: &NodeStatus) -> bool {
    status.engine.as_ref().is_some_and(|e| e.active == "active")
        && !status.waits_for_ranks
        && status.engine_of.is_none()
}

impl fmt::Display for ClusterStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.cluster, self.state)?;
        let head = self.nodes.first().and_then(|row| row.status.as_ref());
        let serving = head.and_then(|s| s.engine.as_ref()).is_some_and(|e| e.active == "active" && e.text == "serving");
        for (rank, row) in self.nodes.iter().enumerate() {
            write!(f, "\n  {:<8} ", row.node.as_str())?;
            match (&row.status, &row.error) {
                (_, Some(error)) => f.write_str(error.strip_prefix(&format!("{}: ", row.node)).unwrap_or(error))?,
                (None, None) => write!(f, "nothing deployed")?,
                (Some(status), None) => write_node(f, status, serving && rank > 0)?,
            }
        }
        self.next.iter().try_for_each(|next| write!(f, "\n  do: {next}"))
    }
}

/// `with_head`: the head serves, which no worker can know of itself.
fn write_node(f: &mut fmt::Formatter<'_>, s: &NodeStatus, with_head: bool) -> fmt::Result {
    let mut more = |text: &str| write!(f, "{text}");
    more(s.generation.as_ref().map_or("nothing", |g| g.lane.as_str()))?;
    if with_head && runs(s) {
        more(", engine active (serving with the head)")?;
    } else {
        more(&s.engine.as_ref().map_or_else(String::new, engine_text))?;
    }
    let mut line = |text: String| write!(f, "\n             {text}");
    s.engine_of
        .iter()
        .try_for_each(|lane| line(format!("its engine is still that of {lane}, until it starts anew")))?;
    s.supervisor.iter().flat_map(supervisor_lines).try_for_each(&mut line)?;
    s.foreign_profile.iter().try_for_each(|why| line(format!("not ours: {why}")))?;
    s.open.iter().try_for_each(|t| line(open_text(t)))?;
    s.weights.iter().try_for_each(|w| line(weights_text(w)))?;
    if !s.drift.is_empty() {
        line(format!("edited by hand: {}", s.drift.join(", ")))?;
    }
    if let Some(why) = &s.firewall {
        line(format!("firewall: {why}; on the node: {}", sparklane_host::firewall::REMEDY))?;
    }
    if let Some(why) = &s.tool_lost {
        line(format!(
            "tool: {why}; at boot nothing would end a transaction. nix run .#deploy, of the same lane too, puts it back"
        ))?;
    }
    s.damaged.iter().try_for_each(|d| line(damaged_text(d)))?;
    s.damaged_releases.iter().try_for_each(|why| line(format!("damaged release: {why}")))?;
    let unhappy = s.last.as_ref().filter(|t| t.state != State::Committed);
    unhappy.map_or(Ok(()), |t| line(format!("last: {} {} ({})", t.txn, t.state, t.why.as_deref().unwrap_or(""))))
}

fn damaged_text(d: &DamagedTxn) -> String {
    let folder = format!("{}/{}", HostPaths::system().txns(), d.txn);
    match d.state {
        Some(state) => {
            format!("damaged journal: {} was {state}; what follows that record is dropped, nothing hangs on it", d.txn)
        }
        None if d.unsettled => {
            format!("damaged journal: nobody can say how far {} came; deploy again, then: sudo rm -r {folder}", d.txn)
        }
        None => {
            format!("damaged journal: {} holds no record and changed nothing; to forget it: sudo rm -r {folder}", d.txn)
        }
    }
}

/// What the engine's supervisor has to say beyond the unit's own line.
fn supervisor_lines(supervisor: &serde_json::Value) -> Vec<String> {
    let notes = supervisor["notes"].as_array().into_iter().flatten().filter_map(|note| note.as_str());
    let mut lines: Vec<String> = notes.map(str::to_owned).collect();
    let failure = &supervisor["failure"];
    if let Some(why) = failure["why"].as_str() {
        let evidence = failure["evidence"].as_str().map_or_else(String::new, |path| format!(" (evidence: {path})"));
        lines.push(format!("failed last, since boot: {why}{evidence}"));
    }
    lines
}

fn engine_text(engine: &UnitStatus) -> String {
    let text = if engine.text.is_empty() { &engine.sub } else { &engine.text };
    format!(", engine {} ({text})", engine.active)
}

fn weights_text(w: &WeightsStatus) -> String {
    let why = w.why.as_deref().map_or_else(String::new, |why| format!(": {why}"));
    let id: String = w.manifest.chars().take(12).collect();
    format!("weights {} ({} {id}){why}", w.state, w.model)
}

fn open_text(t: &TxnStatus) -> String {
    let why = t.why.as_deref().map_or_else(String::new, |w| format!(": {w}"));
    let torn = if t.torn { " (a torn record was dropped)" } else { "" };
    let left = t.deadline_millis / 1000;
    format!("{} {} by {}, {left} s left{torn}{why}", t.state, t.txn, t.owner)
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
