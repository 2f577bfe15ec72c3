//! What a node's machine needs of the world, what it is told, and what it answers.

use serde::{Deserialize, Serialize};
use sparklane_lane::generation::GateScope;

use crate::plan::{Part, Step};
use crate::record::{Record, State};
use crate::spec::{Answer, Deadline, Fault, Instant, Spec};

/// Where a recovery runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boot {
    /// In the boot that the transaction runs in: units can be waited for.
    Same,
    /// Before the lane, in the boot unit: starts are queued only, nothing can be waited for.
    Early,
}

/// Effects on one node. All are idempotent; an effect that finds its work done does nothing.
pub trait Node {
    /// Reads the node, copies what undo needs, and computes the steps.
    ///
    /// # Errors
    /// When something is in the way; nothing has changed then.
    fn plan(&mut self, spec: &Spec) -> Result<Vec<Step>, Fault>;
    /// Does a step.
    ///
    /// # Errors
    /// When the step could not be done or not be read back.
    fn apply(&mut self, step: &Step) -> Result<(), Fault>;
    /// Undoes a step, done or not.
    ///
    /// # Errors
    /// When what was there before could not be put back.
    fn undo(&mut self, step: &Step, boot: Boot) -> Result<(), Fault>;
    /// Proves by reading that the node is as before `plan`: profile, every file, units, the old gates.
    ///
    /// # Errors
    /// Everything that does not match.
    fn read_back(&mut self, spec: &Spec, plan: &[Step], boot: Boot) -> Result<(), Vec<String>>;
    /// Waits for the new generation's gates of a scope, at most until the deadline.
    ///
    /// # Errors
    /// The gate that failed and why; [`Fault::Interrupted`] when an abort came in between or the deadline passed.
    fn gates(&mut self, spec: &Spec, scope: GateScope, deadline: Option<&Deadline>) -> Result<(), Fault>;
    /// Stops the lane because nobody knows whether it may serve.
    ///
    /// # Errors
    /// When the unit does not stop.
    fn stop_lane(&mut self) -> Result<(), Fault>;
    /// Starts the lane again after a doubt was resolved for the new generation.
    ///
    /// # Errors
    /// When the start cannot be queued.
    fn start_lane(&mut self) -> Result<(), Fault>;
    /// Asks the head what became of the transaction.
    fn ask_head(&mut self, spec: &Spec) -> Answer;
    /// Keeps what a final state needs (release file, GC roots) and drops the rest. Runs again after a crash.
    ///
    /// # Errors
    /// When a record could not be written; it is tried again at the next recovery.
    fn settle(&mut self, spec: &Spec, outcome: &Record) -> Result<(), Fault>;
}

/// The append-only journal of one transaction.
pub trait Journal {
    /// Appends a record; it is durable when this returns.
    ///
    /// # Errors
    /// When it is not.
    fn append(&mut self, record: &Record) -> Result<(), Fault>;
}

/// Time that survives neither reboot nor suspend games: `CLOCK_BOOTTIME` and the boot id.
pub trait Clock {
    /// Now.
    fn now(&self) -> Instant;
}

/// What the coordinator tells a node. Every order may arrive late, twice, or after its work is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase", tag = "order")]
pub enum Order {
    /// Plan and arm the deadline.
    Prepare,
    /// Do one part of the switch.
    Run {
        /// Which.
        part: Part,
    },
    /// Wait for the gates of a scope. On the head the cluster's gates are the vote.
    Gate {
        /// Which.
        scope: GateScope,
    },
    /// Promise to commit when told, and to give up only when the head says so.
    Vote,
    /// The cluster committed (head: commit it now).
    Commit,
    /// Go back.
    Abort {
        /// Why, for the record.
        why: String,
        /// Some node may have stopped its engine, so every node must start its own anew: a rank that never stopped
        /// serves the launch that is gone, and the old lane's ranks would wait for it for ever.
        #[serde(default)]
        together: bool,
    },
    /// Say where you are.
    Report,
}

impl Order {
    /// Go back, each node by what it did itself.
    pub fn abort(why: impl Into<String>) -> Self {
        Self::Abort { why: why.into(), together: false }
    }
}

/// A node's answer to an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reply {
    /// The state after the order.
    pub state: State,
    /// True when the order's work is done (now or before).
    pub done: bool,
    /// Why not, or what happened.
    pub detail: Option<String>,
    /// In a final state: whether anything had changed on the way.
    pub changed: bool,
}
