//! Being driven by stock deploy-rs 1.0.0: its node-side command line, and a transaction of one node that its client
//! confirms by deleting a file. Pure; files and processes are behind [`Canary`] and [`Pace`].
//!
//! The stock node side reports success for a node that rolled back when its canary is stale or its confirmation late.
//! Here (1) the canary and our own ready mark are cleared before anything else, (2) the ready mark is made only after the
//! gates and names its transaction, and `wait` believes it only while that transaction waits for its commit, (3) the canary
//! is removed *before* going back, and whoever deletes it first decides, (4) all of it runs in the transaction's process.

mod call;

use serde::{Deserialize, Serialize};
use sparklane_lane::generation::GateScope;
use sparklane_lane::{Role, StorePath, TxnId};

use crate::effects::{Order, Reply};
use crate::goal::Goal;
use crate::plan::Part;
use crate::record::State;
use crate::spec::Fault;

pub use call::{Activate, Call, Profile, Usage, Wait, parse};

/// Seconds that the machine's own deadline lies behind the window in which a confirmation counts, so that a confirmation
/// at the last moment is still committed.
pub const GRACE_SECS: u64 = 15;
/// Seconds after which a cancel mark that was there before `wait` counts as this deployment's.
const STALE_CANCEL_SECS: u64 = 10;

/// What the transaction's process must know to be confirmed by deploy-rs; kept beside its journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Confirm {
    /// Folder of the canary.
    pub temp_path: String,
    /// The closure; its hash names the canary.
    pub closure: StorePath,
    /// Seconds in which the client must confirm; `None` when nobody confirms.
    pub window_secs: Option<u64>,
}

impl Confirm {
    /// The file that the client deletes to confirm, as deploy-rs 1.0.0 names it.
    #[must_use]
    pub fn canary(&self) -> String {
        self.file("deploy-rs-canary")
    }

    /// Our mark that the gates passed; holds the transaction's id.
    #[must_use]
    pub fn ready_mark(&self) -> String {
        self.file("sparklane-ready")
    }

    /// Our mark that the activation is over; holds the transaction's id.
    #[must_use]
    pub fn over_mark(&self) -> String {
        self.file("sparklane-over")
    }

    fn file(&self, prefix: &str) -> String {
        let hash = self.closure.base_name().split('-').next().unwrap_or_default();
        format!("{}/{prefix}-{hash}", self.temp_path.trim_end_matches('/'))
    }
}

/// Whether a removal found its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was there and is gone now: nobody confirmed, nobody can.
    Here,
    /// It was gone already: the client confirmed.
    Gone,
}

/// The files that speak with the client.
pub trait Canary {
    /// Removes whatever an earlier deployment of the closure left.
    ///
    /// # Errors
    /// When something stays.
    fn clear(&mut self) -> Result<(), String>;
    /// Makes the canary, then the ready mark.
    ///
    /// # Errors
    /// When one of them cannot be made.
    fn arm(&mut self, txn: &TxnId) -> Result<(), String>;
    /// True once our ready mark names this transaction.
    fn armed(&mut self, txn: &TxnId) -> bool;
    /// True while the canary is there.
    fn waits(&mut self) -> bool;
    /// Removes the canary.
    ///
    /// # Errors
    /// When it is there and stays.
    fn take(&mut self) -> Result<Taken, String>;
    /// Tells `wait` that nothing more will come.
    fn over(&mut self, txn: &TxnId);
}

/// Time of the confirm window, by `CLOCK_BOOTTIME`.
pub trait Pace {
    /// Milliseconds since some fixed moment.
    fn millis(&self) -> u64;
    /// Lets a little time pass.
    fn pause(&mut self);
}

/// What the driver works with.
pub struct Alone<'a> {
    /// Gives an order to the node's machine.
    pub order: &'a mut dyn FnMut(&Order) -> Result<Reply, Fault>,
    /// The client's files.
    pub canary: &'a mut dyn Canary,
    /// Time.
    pub pace: &'a mut dyn Pace,
    /// The transaction.
    pub txn: TxnId,
    /// The node's role; a head also waits for the cluster's gates.
    pub role: Role,
    /// The goal.
    pub goal: Goal,
}

/// Why a passed `--test` goes back; a reader of the journal knows success by it.
pub const TEST_PASSED: &str = "the test passed";

/// Drives a staged transaction of this node alone, with the client's confirmation in place of a cluster's commit.
///
/// # Errors
/// When the machine cannot be given orders; it then acts at its own deadline.
pub fn drive(alone: &mut Alone<'_>, window_secs: Option<u64>) -> Result<Reply, Fault> {
    if let Err(why) = alone.canary.clear() {
        return alone.back(&format!("a former deployment's files stay: {why}"));
    }
    for order in orders(alone.goal, alone.role) {
        let reply = (alone.order)(&order)?;
        if !reply.done {
            // Nobody was told ready yet, so there is no canary to race with.
            let why = reply.detail.clone().unwrap_or_else(|| format!("stopped in state {}", reply.state));
            return alone.back(&why);
        }
    }
    match window_secs {
        Some(secs) => alone.window(secs),
        None => alone.finish(),
    }
}

fn orders(goal: Goal, role: Role) -> Vec<Order> {
    let mut orders = vec![Order::Prepare];
    orders.extend([Part::Stop, Part::Switch, Part::Start].map(|part| Order::Run { part }));
    if goal.restarts_engine() {
        orders.push(Order::Gate { scope: GateScope::Node });
        if role.decides() {
            orders.push(Order::Gate { scope: GateScope::Cluster });
        }
    }
    orders.push(Order::Vote);
    orders
}

impl Alone<'_> {
    fn window(&mut self, secs: u64) -> Result<Reply, Fault> {
        if let Err(why) = self.canary.arm(&self.txn) {
            return self.back(&format!("the canary cannot be made: {why}"));
        }
        let end = self.pace.millis().saturating_add(secs.saturating_mul(1000));
        while self.canary.waits() {
            let now = (self.order)(&Order::Report)?;
            if now.state != State::Gated {
                // Someone else ended it, e.g. an abort by hand.
                let _taken = self.canary.take();
                self.canary.over(&self.txn);
                return Ok(now);
            }
            if self.pace.millis() >= end {
                return self.give_up(&format!("the client did not confirm within {secs} s"));
            }
            self.pace.pause();
        }
        self.finish()
    }

    /// The canary goes first: from then on no confirmation can succeed. One that came just before counts.
    fn give_up(&mut self, why: &str) -> Result<Reply, Fault> {
        match self.canary.take() {
            Ok(Taken::Gone) => self.finish(),
            Ok(Taken::Here) => self.back(why),
            Err(stays) => self.back(&format!("{why}; the canary stays: {stays}")),
        }
    }

    fn finish(&mut self) -> Result<Reply, Fault> {
        if !self.goal.commits() {
            return self.back(TEST_PASSED);
        }
        let reply = (self.order)(&Order::Commit)?;
        self.canary.over(&self.txn);
        Ok(reply)
    }

    fn back(&mut self, why: &str) -> Result<Reply, Fault> {
        let reply = (self.order)(&Order::abort(why))?;
        self.canary.over(&self.txn);
        Ok(reply)
    }
}

/// What a new process of the transaction does with an open vote, before the machine's own recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// The client had confirmed: commit.
    Commit,
    /// It had not, and cannot any more: recover as usual (which goes back).
    Back,
}

/// Decides after a kill -9. The ready mark proves that the window was open, so a missing canary then means a confirmation.
#[must_use]
pub fn recovery(state: State, goal: Goal, canary: &mut dyn Canary, txn: &TxnId) -> Recovery {
    let open = state == State::Gated && canary.armed(txn);
    let taken = canary.take();
    canary.over(txn);
    if open && taken == Ok(Taken::Gone) && goal.commits() { Recovery::Commit } else { Recovery::Back }
}

/// True when the end of a transaction is what the client asked for.
#[must_use]
pub fn succeeded(goal: Goal, state: State, detail: Option<&str>) -> bool {
    match state {
        State::Committed => true,
        State::RolledBack => goal == Goal::Test && detail.is_some_and(|d| d.ends_with(TEST_PASSED)),
        _ => false,
    }
}

/// What `wait` found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The gates passed and the node waits for the client's confirmation.
    Ready,
    /// Nothing will come any more.
    Over(String),
    /// Look again.
    NotYet,
}

/// The memory of one `wait`.
#[derive(Debug, Clone, Default)]
pub struct Waiter {
    first: Option<Option<TxnId>>,
}

impl Waiter {
    /// Judges the marks. `ready` and `over` are the transactions they name, `state` reads a transaction's journal.
    pub fn look(
        &mut self,
        ready: Option<&TxnId>,
        over: Option<&TxnId>,
        waited_secs: u64,
        state: &mut dyn FnMut(&TxnId) -> Option<State>,
    ) -> Seen {
        // What was there when we came may be of an earlier deployment that ours has not cleared away yet.
        let stale = self.first.get_or_insert_with(|| over.cloned()).clone();
        if let Some(txn) = ready
            && state(txn) == Some(State::Gated)
        {
            return Seen::Ready;
        }
        match over {
            Some(txn) if Some(txn) != stale.as_ref() || waited_secs >= STALE_CANCEL_SECS => {
                let end = state(txn).map_or_else(|| "unknown".to_owned(), |s| s.to_string());
                Seen::Over(format!("transaction {txn} is over: {end}"))
            }
            _ => Seen::NotYet,
        }
    }
}

#[cfg(test)]
#[path = "deploy_rs_tests.rs"]
mod tests;
