//! What a node is asked to do, and the times and answers of the protocol.

use serde::{Deserialize, Serialize};
use sparklane_lane::{GenerationId, NodeName, Release, Role, StorePath, TxnId};

use crate::goal::Goal;

/// A generation by path and by content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Side {
    /// Store path of the closure.
    pub path: StorePath,
    /// Identity of its content.
    pub generation: GenerationId,
}

/// One node's part of a transaction, fixed when it is staged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// The transaction.
    pub txn: TxnId,
    /// The node this part is for.
    pub node: NodeName,
    /// Its role; the head decides.
    pub role: Role,
    /// What the operator wants.
    pub goal: Goal,
    /// What the profile must be when the transaction starts (compare-and-swap); `None` for a first deployment.
    pub from: Option<Side>,
    /// Where to go.
    pub to: Side,
    /// The record to commit; `None` when stock deploy-rs drives the node and there is no cluster commit.
    pub release: Option<Release>,
    /// `user@host` of the operator.
    pub owner: String,
    /// Seconds from the first change to the vote.
    pub activation_secs: u64,
    /// Seconds from the vote to the commit.
    pub confirm_secs: u64,
    /// Some node of the cluster has to restart its engine, so all do: ranks of two launches never meet.
    pub restart_engine: bool,
    /// Overwrite managed files that someone edited, after keeping a copy.
    pub replace_edited: bool,
    /// Take over files that are not ours, after keeping a copy for the day we leave them.
    pub takeover: bool,
}

impl Spec {
    /// True when this node has to ask the head before it gives up a vote.
    #[must_use]
    pub fn asks_head(&self) -> bool {
        !self.role.decides() && self.release.is_some()
    }
}

/// A moment: milliseconds of `CLOCK_BOOTTIME` in one boot. The wall clock decides nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instant {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot: String,
    /// Milliseconds since that boot.
    pub millis: u64,
}

/// A moment after which an open transaction is given up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Deadline(pub Instant);

impl Deadline {
    /// The deadline `secs` seconds after `now`.
    #[must_use]
    pub fn after(now: &Instant, secs: u64) -> Self {
        Self(Instant { boot: now.boot.clone(), millis: now.millis.saturating_add(secs.saturating_mul(1000)) })
    }

    /// True when the deadline lies behind; in another boot an open deadline counts as passed.
    #[must_use]
    pub fn passed(&self, now: &Instant) -> bool {
        self.0.boot != now.boot || now.millis >= self.0.millis
    }

    /// Milliseconds left, 0 when passed.
    #[must_use]
    pub fn left_millis(&self, now: &Instant) -> u64 {
        if self.passed(now) { 0 } else { self.0.millis - now.millis }
    }
}

/// The head's answer to a worker that asks what became of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "decision")]
pub enum Answer {
    /// The commit record is durable on the head.
    Committed,
    /// The head gave the transaction up, or never heard of it.
    Aborted,
    /// The head has not decided yet.
    Undecided,
    /// The head could not be asked.
    Unreachable {
        /// What was tried.
        why: String,
    },
}

/// Why an effect failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The effect was refused or failed; the text says what, why and what to do.
    #[error("{0}")]
    Failed(String),
    /// The operator or the coordinator asked to stop waiting.
    #[error("interrupted: {0}")]
    Interrupted(String),
    /// The process is dead (fakes only: nothing more may happen in this life).
    #[error("killed")]
    Killed,
}

impl Fault {
    /// A failure with a text.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }
}
