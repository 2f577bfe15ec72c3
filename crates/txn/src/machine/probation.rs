//! A change of the network has to prove itself, as with `netplan try`: a node that hears nothing of its coordinator after it
//! takes the change back, long before the transaction's own deadline.

use super::Machine;
use crate::effects::{Clock, Journal, Node};
use crate::plan::{Direction, Refresh, Step};
use crate::spec::Deadline;

/// Seconds within which the coordinator must be heard after a change of the network. `netplan try` gives a person 120; a
/// coordinator's next order comes within a few.
const NETWORK_SECS: u64 = 60;

impl<N: Node, J: Journal, C: Clock> Machine<N, J, C> {
    /// Called with every order: whatever it says, it reached this node.
    pub(super) fn heard(&mut self) {
        if let Some(deadline) = self.unheard.take()
            && !self.state().is_final()
        {
            self.deadline = Some(deadline);
        }
    }

    /// Called after the steps from `begin` on were done.
    pub(super) fn watch_network(&mut self, begin: usize) {
        let changes = |s: &Step| matches!(s, Step::Refresh { what: Refresh::Network, direction: Direction::Forward });
        if !self.plan.iter().take(self.done).skip(begin).any(changes) {
            return;
        }
        let now = self.clock.now();
        if self.deadline.as_ref().is_some_and(|until| until.left_millis(&now) > NETWORK_SECS * 1000) {
            self.unheard = self.deadline.replace(Deadline::after(&now, NETWORK_SECS));
        }
    }

    /// Why a passed deadline ends the transaction.
    pub(super) fn why_late(&self) -> String {
        if self.unheard.is_none() {
            return "the deadline passed without a commit".into();
        }
        format!(
            "the coordinator was not heard within {NETWORK_SECS} s of the change of the network (netplan), which may have \
             cut this node off"
        )
    }
}
