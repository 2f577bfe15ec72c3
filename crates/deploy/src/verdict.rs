//! The one answer of a command: for people a few lines, for programs one JSON object, and an exit code.

use serde::{Deserialize, Serialize};
use sparklane_lane::{ClusterName, LaneName, NodeName, TxnId};
use sparklane_txn::State;
use sparklane_txn::cluster::{NodeEnd, Outcome};

use crate::error::DeployError;
use crate::flow::Target;
use crate::site::Site;

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
    /// Begun and not finished; nothing that serves was touched.
    Failed,
    /// Asked for something that does not exist or makes no sense.
    Usage,
    /// Someone else holds a node.
    Busy,
}

impl VerdictKind {
    /// The kind's name as in the JSON object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Unchanged => "unchanged",
            Self::Checked => "checked",
            Self::Tested => "tested",
            Self::Refused => "refused",
            Self::RolledBack => "rolled-back",
            Self::InDoubt => "in-doubt",
            Self::Failed => "failed",
            Self::Usage => "usage",
            Self::Busy => "busy",
        }
    }
}

impl From<&DeployError> for VerdictKind {
    fn from(error: &DeployError) -> Self {
        match error {
            DeployError::Refused(_) | DeployError::NoAnswer { .. } => Self::Refused,
            DeployError::Usage(_) => Self::Usage,
            DeployError::Failed(_) => Self::Failed,
            DeployError::Busy(_) => Self::Busy,
            DeployError::InDoubt(_) => Self::InDoubt,
        }
    }
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Verdict {
    /// What became of it.
    pub verdict: VerdictKind,
    /// The process's exit code.
    pub exit_code: u8,
    /// The cluster; `None` when none of the flake's was named.
    pub cluster: Option<ClusterName>,
    /// The lane that was asked for; `None` when the flake or the records have no such lane.
    pub lane: Option<LaneName>,
    /// The release of that lane which is in force now; `None` when this command neither made nor found one.
    pub release: Option<u64>,
    /// The release that was in force before, of whatever lane; it still is, unless the verdict says otherwise.
    pub previous: Option<u64>,
    /// The transaction, when one was staged.
    pub txn: Option<TxnId>,
    /// What failed, on which node.
    pub why: Option<String>,
    /// What to do, when hands are needed.
    pub next: Option<String>,
    /// Every node by rank, and where it ended; without a state when it was not begun there.
    pub nodes: Vec<NodeEnd>,
    /// Milliseconds from the command's start.
    pub millis: u64,
}

/// What a verdict is about, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// The cluster.
    pub cluster: Option<ClusterName>,
    /// The lane.
    pub lane: Option<LaneName>,
    /// The release in force before.
    pub previous: Option<u64>,
    /// The transaction, once its staging began.
    pub txn: Option<TxnId>,
    /// The nodes by rank.
    pub nodes: Vec<NodeName>,
}

impl Subject {
    /// What a flake and a target say before anything is asked.
    #[must_use]
    pub fn of(site: &Site, target: &Target) -> Self {
        let lane = match target {
            Target::Lane(name) => site.lane(name.as_deref()).ok(),
            Target::ReleaseOfLane(lane) => Some(lane.clone()),
            Target::Release(_) => None,
        };
        let nodes = site.members().into_iter().map(|m| m.node).collect();
        Self { cluster: Some(site.cluster.name.clone()), lane, nodes, ..Self::default() }
    }
}

impl Verdict {
    /// A verdict without a driven transaction.
    #[must_use]
    pub fn plain(subject: &Subject, verdict: VerdictKind, why: Option<String>) -> Self {
        let bare = |node: &NodeName| NodeEnd { node: node.clone(), state: None, detail: None };
        Self {
            verdict,
            exit_code: exit_code(verdict),
            cluster: subject.cluster.clone(),
            lane: subject.lane.clone(),
            release: subject.previous.filter(|_| verdict == VerdictKind::Unchanged),
            previous: subject.previous,
            txn: subject.txn.clone(),
            why,
            next: None,
            nodes: subject.nodes.iter().map(bare).collect(),
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
        let release = (kind == VerdictKind::Committed).then_some(number);
        let next = (kind == VerdictKind::InDoubt).then(|| in_doubt(&nodes));
        Self { txn: Some(txn), release, nodes, next, ..Self::plain(subject, kind, why) }
    }

    /// For people: what, where, why, what to do.
    #[must_use]
    pub fn lines(&self) -> String {
        let lane = self.lane.as_ref().map_or("?", LaneName::as_str);
        let release = self.release.or(self.previous).map_or_else(|| "no release".into(), |n| format!("release {n}"));
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
            VerdictKind::Failed => "failed; nothing that serves was touched".into(),
            VerdictKind::Usage => "not understood".into(),
            VerdictKind::Busy => "busy".into(),
        };
        if let Some(why) = &self.why {
            text.push_str(&format!("\n  why: {why}"));
        }
        for end in self.nodes.iter().filter(|n| n.state.is_some() || n.detail.is_some()) {
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
        VerdictKind::Usage => 2,
        VerdictKind::RolledBack | VerdictKind::Failed => 3,
        VerdictKind::InDoubt => 4,
        VerdictKind::Busy => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject {
            cluster: "lab".parse().ok(),
            lane: "lab-b".parse().ok(),
            previous: Some(1),
            txn: None,
            nodes: vec!["head".parse().unwrap(), "worker".parse().unwrap()],
        }
    }

    fn keys(verdict: &Verdict) -> Vec<String> {
        serde_json::to_value(verdict).unwrap().as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn every_outcome_has_the_same_keys_and_the_code_of_its_error() {
        let whole = keys(&Verdict::plain(&subject(), VerdictKind::Unchanged, None));
        for key in ["cluster", "lane", "txn", "nodes", "release", "why"] {
            assert!(whole.contains(&key.to_owned()), "{key}");
        }
        type Make = fn(String) -> DeployError;
        let makes: [Make; 5] =
            [DeployError::Refused, DeployError::Usage, DeployError::Failed, DeployError::Busy, DeployError::InDoubt];
        for make in makes {
            let error = make("x".into());
            for subject in [subject(), Subject::default()] {
                let verdict = Verdict::plain(&subject, VerdictKind::from(&error), Some(error.to_string()));
                assert_eq!(keys(&verdict), whole);
                assert_eq!(serde_json::to_value(verdict.verdict).unwrap(), verdict.verdict.as_str());
                assert_eq!(verdict.exit_code, error.exit_code(), "{error:?}");
                assert_eq!(verdict.nodes.len(), subject.nodes.len());
            }
        }
    }

    #[test]
    fn a_release_is_told_only_of_the_lane_that_was_asked_for() {
        let checked = Verdict::plain(&subject(), VerdictKind::Checked, None);
        assert_eq!((checked.release, checked.previous), (None, Some(1)));
        let unchanged = Verdict::plain(&subject(), VerdictKind::Unchanged, None);
        assert_eq!((unchanged.release, unchanged.previous), (Some(1), Some(1)));
        let back = Outcome::RolledBack { why: "gate".into(), nodes: vec![] };
        let back = Verdict::of(&subject(), "t1".parse().unwrap(), 2, back);
        assert_eq!((back.release, back.previous), (None, Some(1)));
        assert!(back.lines().contains("all nodes are on release 1 again"), "{}", back.lines());
        let there = Verdict::of(&subject(), "t1".parse().unwrap(), 2, Outcome::Committed { nodes: vec![] });
        assert_eq!((there.release, there.previous), (Some(2), Some(1)));
        assert!(there.lines().contains("release 2, lane lab-b"), "{}", there.lines());
    }
}
