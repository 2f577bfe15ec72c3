//! The records of a node's journal (design.md section 5).

use serde::{Deserialize, Serialize};
use sparklane_lane::Release;

use crate::plan::Step;
use crate::spec::{Answer, Deadline, Spec};

/// One fsynced record. Each is written before the effect that it names, with what undoes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase", tag = "state")]
pub enum Record {
    /// The node knows what it is asked; nothing changed.
    Staged {
        /// The request.
        spec: Box<Spec>,
        /// When a node that nobody orders anything gives up by itself.
        deadline: Deadline,
    },
    /// All steps with their undo are known, the deadline is armed; nothing changed.
    Prepared {
        /// Steps in order.
        plan: Vec<Step>,
        /// When the node gives up by itself.
        deadline: Deadline,
    },
    /// Step `step` is about to be done.
    Switching {
        /// Index into the plan.
        step: usize,
    },
    /// Every step is done.
    Switched,
    /// The gates passed: the vote. From here a worker may not give up alone.
    Gated {
        /// When the node asks, or gives up.
        deadline: Deadline,
    },
    /// A worker's vote ran out and the head could not be asked. The lane is stopped.
    InDoubt {
        /// Why the head could not be asked.
        why: String,
    },
    /// Final: the new generation. On the head this record is the commit of the whole cluster.
    Committed {
        /// The release, unless there is no cluster commit.
        release: Option<Box<Release>>,
    },
    /// Step `step` is about to be undone.
    RollingBack {
        /// Index into the plan.
        step: usize,
        /// Why the transaction is given up.
        why: String,
    },
    /// Final: the old generation, read back.
    RolledBack {
        /// Why the transaction was given up.
        why: String,
        /// True when something had changed before.
        changed: bool,
    },
    /// Final until someone acts: neither the old nor the new generation could be proved.
    Stuck {
        /// Why the transaction was given up.
        why: String,
        /// What does not match.
        mismatches: Vec<String>,
    },
}

/// The name of a record without its data; also the crash points of the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// See [`Record::Staged`].
    Staged,
    /// See [`Record::Prepared`].
    Prepared,
    /// See [`Record::Switching`].
    Switching,
    /// See [`Record::Switched`].
    Switched,
    /// See [`Record::Gated`].
    Gated,
    /// See [`Record::InDoubt`].
    InDoubt,
    /// See [`Record::Committed`].
    Committed,
    /// See [`Record::RollingBack`].
    RollingBack,
    /// See [`Record::RolledBack`].
    RolledBack,
    /// See [`Record::Stuck`].
    Stuck,
}

impl State {
    /// Every state; a test fails when its crash cases leave one out.
    pub const ALL: [Self; 10] = [
        Self::Staged,
        Self::Prepared,
        Self::Switching,
        Self::Switched,
        Self::Gated,
        Self::InDoubt,
        Self::Committed,
        Self::RollingBack,
        Self::RolledBack,
        Self::Stuck,
    ];

    /// True when the node has nothing left to decide.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Committed | Self::RolledBack | Self::Stuck)
    }

    /// The state's name as in the journal.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::Prepared => "prepared",
            Self::Switching => "switching",
            Self::Switched => "switched",
            Self::Gated => "gated",
            Self::InDoubt => "in-doubt",
            Self::Committed => "committed",
            Self::RollingBack => "rolling-back",
            Self::RolledBack => "rolled-back",
            Self::Stuck => "stuck",
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Record {
    /// The record's name.
    #[must_use]
    pub fn state(&self) -> State {
        match self {
            Self::Staged { .. } => State::Staged,
            Self::Prepared { .. } => State::Prepared,
            Self::Switching { .. } => State::Switching,
            Self::Switched => State::Switched,
            Self::Gated { .. } => State::Gated,
            Self::InDoubt { .. } => State::InDoubt,
            Self::Committed { .. } => State::Committed,
            Self::RollingBack { .. } => State::RollingBack,
            Self::RolledBack { .. } => State::RolledBack,
            Self::Stuck { .. } => State::Stuck,
        }
    }
}

/// The head's answer about a transaction, from its journal. No journal means the head never staged it.
#[must_use]
pub fn decision(journal: &[Record]) -> Answer {
    match journal.last().map(Record::state) {
        Some(State::Committed) => Answer::Committed,
        None | Some(State::RollingBack | State::RolledBack | State::Stuck) => Answer::Aborted,
        Some(_) => Answer::Undecided,
    }
}
