//! The one answer of a command: for people a few lines, for programs one JSON object, and an exit code.

use serde::{Deserialize, Serialize};
use sparklane_lane::{ClusterName, LaneName, TxnId};
use sparklane_txn::State;
use sparklane_txn::cluster::{NodeEnd, Outcome};

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// A new release is durable.
    Committed,
    /// Every node serves this already; nothing was done.
    Unchanged,
    /// Checks passed; nothing was changed because only that was asked.
    Checked,
    /// The lane passed its gates; the nodes are back as they were, as asked.
    Tested,
    /// Refused before any change.
    Refused,
    /// Failed; every node is back, proved by reading.
    RolledBack,
    /// Nobody can say which release a node is on.
    InDoubt,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Verdict {
    /// What became of it.
    pub verdict: VerdictKind,
    /// The process's exit code.
    pub exit_code: u8,
    /// The cluster.
    pub cluster: ClusterName,
    /// The lane that was asked for.
    pub lane: LaneName,
    /// The release in force now, when known.
    pub release: Option<u64>,
    /// The release before.
    pub previous: Option<u64>,
    /// The transaction, when one was staged.
    pub txn: Option<TxnId>,
    /// What failed, on which node.
    pub why: Option<String>,
    /// What to do, when hands are needed.
    pub next: Option<String>,
    /// Where each node ended.
    pub nodes: Vec<NodeEnd>,
    /// Milliseconds from the command's start.
    pub millis: u64,
}

/// What a verdict is about.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The cluster.
    pub cluster: ClusterName,
    /// The lane.
    pub lane: LaneName,
    /// The release in force before.
    pub previous: Option<u64>,
}

impl Verdict {
    /// A verdict without a transaction.
    #[must_use]
    pub fn plain(subject: &Subject, verdict: VerdictKind, why: Option<String>) -> Self {
        Self {
            verdict,
            exit_code: exit_code(verdict),
            cluster: subject.cluster.clone(),
            lane: subject.lane.clone(),
            release: subject.previous,
            previous: subject.previous,
            txn: None,
            why,
            next: None,
            nodes: Vec::new(),
            millis: 0,
        }
    }

    /// The verdict on a driven transaction that would have made release `number`.
    #[must_use]
    pub fn of(subject: &Subject, txn: TxnId, number: u64, outcome: Outcome) -> Self {
        let (kind, why, nodes) = match outcome {
            Outcome::Committed { nodes } => (VerdictKind::Committed, None, nodes),
            Outcome::Tested { nodes } => (VerdictKind::Tested, None, nodes),
            Outcome::Refused { why, nodes } => (VerdictKind::Refused, Some(why), nodes),
            Outcome::RolledBack { why, nodes } => (VerdictKind::RolledBack, Some(why), nodes),
            Outcome::InDoubt { why, nodes } => (VerdictKind::InDoubt, Some(why), nodes),
        };
        let release = match kind {
            VerdictKind::Committed => Some(number),
            VerdictKind::InDoubt => None,
            _ => subject.previous,
        };
        let next = (kind == VerdictKind::InDoubt).then(|| in_doubt(&nodes));
        Self { txn: Some(txn), release, nodes, next, ..Self::plain(subject, kind, why) }
    }

    /// For people: what, where, why, what to do.
    #[must_use]
    pub fn lines(&self) -> String {
        let lane = &self.lane;
        let release = self.release.map_or_else(|| "no release".into(), |n| format!("release {n}"));
        let mut text = match self.verdict {
            VerdictKind::Committed => format!("committed: {release}, lane {lane} on all nodes"),
            VerdictKind::Unchanged => format!("unchanged: all nodes serve lane {lane} ({release})"),
            VerdictKind::Checked => format!("checked: lane {lane} may be deployed; nothing was changed"),
            VerdictKind::Tested => format!("tested: lane {lane} passed its gates; back on {release}"),
            VerdictKind::Refused => format!("refused, nothing was changed ({release})"),
            VerdictKind::RolledBack if self.previous.is_none() => {
                "failed; nothing was deployed before, everything placed was removed again".into()
            }
            VerdictKind::RolledBack => format!("failed and rolled back: all nodes are on {release} again, read back"),
            VerdictKind::InDoubt => "in doubt: hands are needed".into(),
        };
        if let Some(why) = &self.why {
            text.push_str(&format!("\n  why: {why}"));
        }
        for end in &self.nodes {
            let state = end.state.map_or("no answer", sparklane_txn::State::as_str);
            let detail = end.detail.as_ref().map_or_else(String::new, |d| format!(" ({d})"));
            text.push_str(&format!("\n  {}: {state}{detail}", end.node));
        }
        if let Some(next) = &self.next {
            text.push_str(&format!("\n  do: {next}"));
        }
        text
    }
}

fn in_doubt(nodes: &[NodeEnd]) -> String {
    let names = |wanted: &dyn Fn(Option<State>) -> bool| {
        let those: Vec<&str> = nodes.iter().filter(|n| wanted(n.state)).map(|n| n.node.as_str()).collect();
        those.join(", ")
    };
    let silent = names(&|state| state.is_none());
    let stuck = names(&|state| state == Some(State::Stuck));
    let mut text = Vec::new();
    if !silent.is_empty() {
        text.push(format!(
            "bring {silent} back to the network; nodes end the transaction by themselves at its deadline"
        ));
    }
    if !stuck.is_empty() {
        text.push(format!(
            "mend what is said of {stuck}, then there: sudo /nix/var/nix/gcroots/sparklane/tool/bin/sparklane txn resolve"
        ));
    }
    text.push("then look: sparklane status".to_owned());
    text.join("; ")
}

fn exit_code(kind: VerdictKind) -> u8 {
    match kind {
        VerdictKind::Committed | VerdictKind::Unchanged | VerdictKind::Checked | VerdictKind::Tested => 0,
        VerdictKind::Refused => 1,
        VerdictKind::RolledBack => 3,
        VerdictKind::InDoubt => 4,
    }
}
