//! What a run shows: the state file, systemd's status line, and what the other nodes hear.

use sparklane_lane::Role;

use super::Run;
use crate::pair::{Saying, rules};
use crate::phase::Phase;
use crate::state::{self, EngineState, PeerView, State};

impl Run<'_> {
    /// Tells systemd, the state file and the other nodes where we are.
    pub(super) fn publish(&self) {
        self.say();
        let state = self.state();
        self.shown.set(state);
        self.setup.notify.status(&self.line(state));
        let Some(path) = &self.setup.state_file else {
            return;
        };
        let generation = self.setup.generation;
        let now = EngineState {
            lane: generation.lane.clone(),
            launch: generation.launch().unwrap_or_default(),
            node: generation.node.clone(),
            role: generation.role,
            container: generation.engine.container.clone(),
            container_id: self.container_id.clone(),
            state,
            phase: self.tracker.phase(),
            percent: self.tracker.percent(),
            ready: self.ready,
            reason: self.reason().map(str::to_owned),
            attempt: self.attempt,
            starts: self.starts,
            peers: self.peers(),
            canary: self.canary.clone(),
            warmup: self.warmup.clone(),
            notes: self.notes.clone(),
            cause: self.tracker.cause().map(str::to_owned),
            failure: self.failure.clone(),
            failures: self.failures.clone(),
            exit_code: self.exit_code,
            pid: std::process::id(),
        };
        state::write(path, &now);
    }

    /// Tells the other nodes; nothing when there is no news.
    pub(super) fn say(&self) {
        if let Some(pair) = &self.setup.pair {
            pair.say(self.saying(None));
        }
    }

    pub(super) fn saying(&self, reason: Option<String>) -> Saying {
        Saying {
            attempt: self.attempt,
            rank: self.rank,
            spent: self.spent,
            phase: self.tracker.phase(),
            serving: self.serves(),
            reason,
        }
    }

    /// True for a head that answers requests and a worker that has loaded.
    fn serves(&self) -> bool {
        match self.role() {
            Role::Head => self.ready && self.tracker.phase() == Phase::Serving,
            Role::Worker => self.tracker.phase() == Phase::Loaded,
        }
    }

    fn reason(&self) -> Option<&str> {
        self.waits.as_deref().or(self.doubt.as_deref()).or(self.odd.as_deref()).or(self.swaps.as_deref())
    }

    pub(super) fn state(&self) -> State {
        let wrong = self.doubt.is_some() || self.odd.is_some() || self.swaps.is_some();
        let good = |state| if wrong { State::Degraded } else { state };
        match self.tracker.phase() {
            Phase::Preparing if self.waits.is_some() && self.container_id.is_some() => State::WaitPeer,
            Phase::Preparing => State::Boot,
            Phase::WaitPeer if self.setup.pair.is_none() => State::WaitPeer,
            Phase::Stopping => State::Draining,
            Phase::Ended if self.asked_to_stop => State::Stopped,
            Phase::Ended => State::Failed,
            Phase::Serving if self.ready => good(State::Serving),
            Phase::Serving => State::Warming,
            // A worker serves when its head does, however little its own log tells: a raylet's tells nothing.
            phase if (Phase::Starting..=Phase::Loaded).contains(&phase) && self.head_serves() => good(State::Serving),
            _ => good(State::Loading),
        }
    }

    /// True for a worker whose head answers requests in the same attempt; one that starts by itself knows when it loaded.
    fn head_serves(&self) -> bool {
        let loaded = || self.tracker.phase() == Phase::Loaded;
        self.role() == Role::Worker
            && self.setup.pair.as_ref().map_or_else(loaded, |pair| pair.head_serves(self.attempt))
    }

    fn line(&self, state: State) -> String {
        let text = match (state, self.reason()) {
            (State::Boot, Some(why)) => return why.to_owned(),
            (State::WaitPeer, Some(why)) => return format!("waiting for the other ranks: {why}"),
            (State::Warming, _) => "warming up".to_owned(),
            (State::Serving, _) if self.role() == Role::Worker => "serving with the head".to_owned(),
            _ => self.tracker.status_line(),
        };
        match self.reason() {
            Some(why) => format!("{text} (degraded: {why})"),
            None => text,
        }
    }

    pub(super) fn peers(&self) -> Vec<PeerView> {
        let ears = self.setup.pair.as_ref().map(crate::pair::Pair::ears).unwrap_or_default();
        let fresh = |at: Option<tokio::time::Instant>| at.is_some_and(|at| at.elapsed() <= rules::SILENT);
        let view = |(node, ear): (sparklane_lane::NodeName, crate::pair::link::Ear)| PeerView {
            node,
            silent: ear.ago() > rules::SILENT,
            rails: ear.rails.map(fresh),
            attempt: ear.beat.says.attempt,
            rank: ear.beat.says.rank,
            phase: ear.beat.says.phase,
        };
        ears.into_iter().map(view).collect()
    }
}
