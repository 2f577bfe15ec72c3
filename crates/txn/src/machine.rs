//! One node's transaction: orders in, records and effects out (design.md section 5).
//!
//! The only durable truth is the journal. A process that dies forgets nothing that matters: [`Machine::recover`] reads
//! the last record and goes to exactly the old or exactly the new generation, or, for a worker that has voted, asks the head.

mod probation;

use crate::effects::{Boot, Clock, Journal, Node, Order, Reply};
use crate::plan::{Part, Step};
use crate::record::{Record, State};
use crate::spec::{Answer, Deadline, Fault, Spec};
use sparklane_lane::generation::GateScope;

/// A node's transaction in this process.
pub struct Machine<N, J, C> {
    node: N,
    journal: J,
    clock: C,
    spec: Spec,
    last: Record,
    plan: Vec<Step>,
    deadline: Option<Deadline>,
    /// Steps known done in this process; a new process never goes forward, so it needs no memory of it.
    done: usize,
    /// Scopes whose gates passed in this process.
    passed: Vec<GateScope>,
    /// Steps that may have been started, from the journal.
    started: usize,
    /// Why the way forward is closed. The node waits a little for the coordinator's abort, so that all nodes go back
    /// together: the old lane's gates need every rank.
    failed: Option<String>,
    /// The deadline that counts again once the coordinator is heard after a change of the network.
    unheard: Option<Deadline>,
}

/// Seconds a node that failed waits for the coordinator before it goes back alone.
const FAILED_SECS: u64 = 10;

impl<N: Node, J: Journal, C: Clock> Machine<N, J, C> {
    /// Begins a transaction: the `staged` record.
    ///
    /// # Errors
    /// When the record cannot be made durable.
    pub fn begin(node: N, mut journal: J, clock: C, spec: Spec) -> Result<Self, Fault> {
        let deadline = Deadline::after(&clock.now(), spec.activation_secs);
        let record = Record::Staged { spec: Box::new(spec.clone()), deadline: deadline.clone() };
        journal.append(&record)?;
        let mut machine = Self::new(node, journal, clock, spec, record);
        machine.deadline = Some(deadline);
        Ok(machine)
    }

    fn new(node: N, journal: J, clock: C, spec: Spec, last: Record) -> Self {
        let plan = Vec::new();
        Self {
            node,
            journal,
            clock,
            spec,
            last,
            plan,
            deadline: None,
            done: 0,
            passed: Vec::new(),
            started: 0,
            failed: None,
            unheard: None,
        }
    }

    /// Takes up a transaction from its journal; `None` when the journal holds no `staged` record.
    #[must_use]
    pub fn resume(node: N, journal: J, clock: C, records: &[Record]) -> Option<Self> {
        let Some(Record::Staged { spec, deadline }) = records.first() else {
            return None;
        };
        let last = records.last()?.clone();
        let mut machine = Self::new(node, journal, clock, (**spec).clone(), last);
        machine.deadline = Some(deadline.clone());
        for record in records {
            match record {
                Record::Prepared { plan, deadline } => {
                    machine.plan.clone_from(plan);
                    machine.deadline = Some(deadline.clone());
                }
                Record::Switching { step } => machine.started = machine.started.max(step + 1),
                Record::Gated { deadline } => machine.deadline = Some(deadline.clone()),
                _ => {}
            }
        }
        Some(machine)
    }

    /// Says that the journal's end was damaged: a record may be missing whose step was begun, so one more is undone.
    pub fn distrust_end(&mut self) {
        if self.plan.len() > self.started {
            self.started += 1;
        }
    }

    /// The last record's state.
    #[must_use]
    pub fn state(&self) -> State {
        self.last.state()
    }

    /// The request.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// When the node acts by itself.
    #[must_use]
    pub fn deadline(&self) -> Option<&Deadline> {
        self.deadline.as_ref()
    }

    /// The journal, for what is not the machine's business.
    pub fn journal_mut(&mut self) -> &mut J {
        &mut self.journal
    }

    /// Carries out an order.
    ///
    /// # Errors
    /// Only [`Fault::Killed`]; every other failure is an answer.
    pub fn handle(&mut self, order: &Order) -> Result<Reply, Fault> {
        if !self.state().is_final() && self.is_late() {
            self.tick()?;
        }
        self.heard();
        match order {
            Order::Report => Ok(self.reply(true, None)),
            Order::Abort { why, together } => self.abort(why, *together),
            Order::Commit => self.commit(),
            _ if self.failed.is_some()
                || self.state().is_final()
                || matches!(self.state(), State::InDoubt | State::RollingBack) =>
            {
                Ok(self.reply(false, Some(self.why_over())))
            }
            Order::Prepare => self.prepare(),
            Order::Run { part } => self.run(*part),
            Order::Gate { scope } => self.gate(*scope),
            Order::Vote => self.vote(),
        }
    }

    /// Acts on a passed deadline; call it whenever the deadline may have passed.
    ///
    /// # Errors
    /// As [`Machine::handle`].
    pub fn tick(&mut self) -> Result<(), Fault> {
        if self.state().is_final() || !self.is_late() {
            return Ok(());
        }
        match self.state() {
            State::Gated | State::InDoubt if self.spec.asks_head() => self.ask(Boot::Same),
            _ => {
                let why = self.failed.clone().unwrap_or_else(|| self.why_late());
                // The head stops first: one that did not has no worker that did. A worker cannot know.
                if self.spec.asks_head() {
                    self.catch_up()?;
                }
                self.roll_back(&why, Boot::Same)
            }
        }
    }

    /// Takes up a transaction whose process died in the same boot, when the coordinator may still be there: it stays as
    /// it is, closed, and goes back with the other nodes, at the latest after a few seconds. A node that went back alone
    /// would wait for ranks that nobody has told. False when [`Machine::recover`] is needed instead.
    pub fn wait_for_abort(&mut self) -> bool {
        let waits = match self.state() {
            State::Prepared | State::Switching | State::Switched => true,
            State::Gated => !self.spec.asks_head(),
            _ => false,
        };
        if waits {
            self.failed = Some("the transaction's process died before the commit".into());
            self.deadline = Some(Deadline::after(&self.clock.now(), FAILED_SECS));
        }
        waits
    }

    /// Takes a dead transaction to its end: after kill -9, power loss, or in the boot unit.
    ///
    /// # Errors
    /// As [`Machine::handle`].
    pub fn recover(&mut self, boot: Boot) -> Result<(), Fault> {
        match self.last.clone() {
            Record::Committed { .. } | Record::RolledBack { .. } => self.settle(),
            Record::Stuck { why, .. } => self.unstick(why, boot),
            Record::RollingBack { why, .. } => self.roll_back(&why, boot),
            Record::Gated { .. } | Record::InDoubt { .. } if self.spec.asks_head() => self.ask(boot),
            _ => self.roll_back("the transaction was interrupted before its commit", boot),
        }
    }

    /// What kept the node stuck may be gone: a proof is tried before everything is undone, and the engine started, again.
    fn unstick(&mut self, why: String, boot: Boot) -> Result<(), Fault> {
        let plan = self.plan.clone();
        if boot == Boot::Early || self.node.read_back(&self.spec, &plan, boot).is_err() {
            return self.roll_back(&why, boot);
        }
        let changed = self.started > 0;
        match self.append(Record::RolledBack { why, changed }) {
            Ok(()) => self.settle(),
            Err(fault) => Err(fault),
        }
    }

    fn is_late(&self) -> bool {
        let waits = matches!(self.state(), State::InDoubt);
        waits || self.deadline.as_ref().is_some_and(|d| d.passed(&self.clock.now()))
    }

    fn append(&mut self, record: Record) -> Result<(), Fault> {
        self.journal.append(&record)?;
        self.last = record;
        Ok(())
    }

    fn reply(&self, done: bool, detail: Option<String>) -> Reply {
        let changed = match &self.last {
            Record::RolledBack { changed, .. } => *changed,
            Record::Staged { .. } | Record::Prepared { .. } => false,
            _ => true,
        };
        Reply { state: self.state(), done, detail, changed }
    }

    fn why_over(&self) -> String {
        if let (Some(why), false) = (&self.failed, self.state().is_final()) {
            return why.clone();
        }
        match &self.last {
            Record::RolledBack { why, .. } | Record::RollingBack { why, .. } => {
                format!("already rolled back: {why}")
            }
            Record::Stuck { why, mismatches } => {
                format!("stuck after: {why}: {}", mismatches.join("; "))
            }
            Record::InDoubt { why } => format!("in doubt: {why}"),
            Record::Committed { .. } => "already committed".into(),
            _ => format!("in state {}", self.state()),
        }
    }

    /// Any failure on the way forward closes it. Where nothing changed yet the transaction ends at once.
    fn fail(&mut self, fault: Fault) -> Result<Reply, Fault> {
        if fault == Fault::Killed {
            return Err(fault);
        }
        let why = fault.to_string();
        if self.started == 0 {
            self.roll_back(&why, Boot::Same)?;
        } else {
            self.deadline = Some(Deadline::after(&self.clock.now(), FAILED_SECS));
            self.failed = Some(why.clone());
        }
        Ok(self.reply(false, Some(why)))
    }

    fn prepare(&mut self) -> Result<Reply, Fault> {
        if self.state() != State::Staged {
            return Ok(self.reply(true, None));
        }
        let plan = match self.node.plan(&self.spec) {
            Ok(plan) => plan,
            Err(fault) => return self.fail(fault),
        };
        let deadline = Deadline::after(&self.clock.now(), self.spec.activation_secs);
        self.plan.clone_from(&plan);
        self.deadline = Some(deadline.clone());
        match self.append(Record::Prepared { plan, deadline }) {
            Ok(()) => Ok(self.reply(true, None)),
            Err(fault) => self.fail(fault),
        }
    }

    fn run(&mut self, part: Part) -> Result<Reply, Fault> {
        if matches!(self.state(), State::Staged) {
            return Ok(self.reply(false, Some("not prepared".into())));
        }
        let begin = self.done;
        while let Some(step) = self.plan.get(self.done).filter(|s| s.part() <= part).cloned() {
            self.started = self.started.max(self.done + 1);
            if let Err(fault) = self.append(Record::Switching { step: self.done }) {
                return self.fail(fault);
            }
            if let Err(fault) = self.node.apply(&step) {
                return self.fail(fault);
            }
            self.done += 1;
        }
        let switching = matches!(self.state(), State::Prepared | State::Switching);
        if self.done == self.plan.len()
            && part == Part::Start
            && switching
            && let Err(fault) = self.append(Record::Switched)
        {
            return self.fail(fault);
        }
        self.watch_network(begin);
        Ok(self.reply(true, None))
    }

    fn gate(&mut self, scope: GateScope) -> Result<Reply, Fault> {
        if self.passed.contains(&scope) {
            return Ok(self.reply(true, None));
        }
        if self.state() != State::Switched {
            return Ok(self.reply(false, Some(format!("not switched (state {})", self.state()))));
        }
        match self.node.gates(&self.spec, scope, self.deadline.as_ref()) {
            Ok(()) => {
                self.passed.push(scope);
                Ok(self.reply(true, None))
            }
            // Nobody is to be waited for any more: all nodes go back at the same time.
            Err(fault) if fault != Fault::Killed && self.is_late() => {
                self.tick()?;
                Ok(self.reply(false, Some(self.why_over())))
            }
            Err(fault) => self.fail(fault),
        }
    }

    /// The vote needs the node's own gates, and on the head those of the cluster.
    fn vote(&mut self) -> Result<Reply, Fault> {
        if self.state() == State::Gated {
            return Ok(self.reply(true, None));
        }
        let needed: &[GateScope] = match (self.spec.goal.restarts_engine(), self.spec.role.decides()) {
            (false, _) => &[],
            (true, true) => &[GateScope::Node, GateScope::Cluster],
            (true, false) => &[GateScope::Node],
        };
        if self.state() != State::Switched || !needed.iter().all(|s| self.passed.contains(s)) {
            return Ok(self.reply(false, Some("its gates have not passed".into())));
        }
        let deadline = Deadline::after(&self.clock.now(), self.spec.confirm_secs);
        self.deadline = Some(deadline.clone());
        match self.append(Record::Gated { deadline }) {
            Ok(()) => Ok(self.reply(true, None)),
            Err(fault) => self.fail(fault),
        }
    }

    fn commit(&mut self) -> Result<Reply, Fault> {
        match self.state() {
            State::Committed => Ok(self.reply(true, None)),
            State::Gated if self.failed.is_none() => {
                let release = self.spec.release.clone().map(Box::new);
                if let Err(fault) = self.append(Record::Committed { release }) {
                    return self.fail(fault);
                }
                self.settle()?;
                Ok(self.reply(true, None))
            }
            _ => Ok(self.reply(false, Some(self.why_over()))),
        }
    }

    fn abort(&mut self, why: &str, together: bool) -> Result<Reply, Fault> {
        match self.state() {
            State::Committed => Ok(self.reply(false, Some("already committed".into()))),
            State::RolledBack => Ok(self.reply(true, Some(self.why_over()))),
            State::Stuck => Ok(self.reply(false, Some(self.why_over()))),
            // The coordinator's word is not enough to break a vote: only the head knows.
            State::Gated | State::InDoubt if self.spec.asks_head() => {
                match self.node.ask_head(&self.spec) {
                    Answer::Aborted => self.roll_back(why, Boot::Same)?,
                    Answer::Committed => return self.commit_now(),
                    Answer::Undecided | Answer::Unreachable { .. } => {
                        return Ok(self.reply(false, Some("voted; the head has not given up".into())));
                    }
                }
                Ok(self.reply(self.state() == State::RolledBack, None))
            }
            _ => {
                if together {
                    self.catch_up()?;
                }
                self.roll_back(why, Boot::Same)?;
                Ok(self.reply(self.state() == State::RolledBack, Some(why.to_owned())))
            }
        }
    }

    fn commit_now(&mut self) -> Result<Reply, Fault> {
        self.commit_after_doubt()?;
        Ok(self.reply(true, Some("the head had committed".into())))
    }

    fn commit_after_doubt(&mut self) -> Result<(), Fault> {
        let doubted = self.state() == State::InDoubt;
        let release = self.spec.release.clone().map(Box::new);
        self.append(Record::Committed { release })?;
        if doubted {
            self.node.start_lane()?;
        }
        self.settle()
    }

    /// A voted worker follows the head. An undecided head is asked again later; without a head the lane stops.
    fn ask(&mut self, boot: Boot) -> Result<(), Fault> {
        match self.node.ask_head(&self.spec) {
            Answer::Committed => self.commit_after_doubt(),
            Answer::Aborted => self.roll_back("the head did not commit", boot),
            Answer::Undecided => {
                let again = Deadline::after(&self.clock.now(), 1);
                self.deadline = Some(again);
                Ok(())
            }
            Answer::Unreachable { why } => {
                if self.state() != State::InDoubt {
                    self.append(Record::InDoubt { why })?;
                }
                self.node.stop_lane()
            }
        }
    }

    /// Stops an engine that the transaction was to stop and did not yet, so that its undo starts it anew.
    fn catch_up(&mut self) -> Result<(), Fault> {
        let Some(step @ Step::StopUnit { was_active: true, .. }) = self.plan.first().cloned() else { return Ok(()) };
        if self.state() != State::Prepared || self.started > 0 {
            return Ok(());
        }
        self.started = 1;
        // What fails here is found when the undo is read back.
        if self.append(Record::Switching { step: 0 }) == Err(Fault::Killed)
            || self.node.apply(&step) == Err(Fault::Killed)
        {
            return Err(Fault::Killed);
        }
        Ok(())
    }

    /// Undoes every step that may have begun, last first, then proves it. A step whose undo fails does not keep the
    /// others from being undone, and a journal that cannot be written does not either: undo is idempotent.
    fn roll_back(&mut self, why: &str, boot: Boot) -> Result<(), Fault> {
        let mut mismatches = Vec::new();
        for index in (0..self.started.min(self.plan.len())).rev() {
            let record = Record::RollingBack { step: index, why: why.to_owned() };
            if self.append(record) == Err(Fault::Killed) {
                return Err(Fault::Killed);
            }
            let step = self.plan[index].clone();
            match self.node.undo(&step, boot) {
                Ok(()) => {}
                Err(Fault::Killed) => return Err(Fault::Killed),
                Err(fault) => mismatches.push(format!("{}: {fault}", step.describe())),
            }
        }
        let changed = self.started > 0;
        if changed && mismatches.is_empty() {
            let plan = self.plan.clone();
            if let Err(found) = self.node.read_back(&self.spec, &plan, boot) {
                mismatches.extend(found);
            }
        }
        let why = why.to_owned();
        let outcome =
            if mismatches.is_empty() { Record::RolledBack { why, changed } } else { Record::Stuck { why, mismatches } };
        match self.append(outcome.clone()) {
            Err(Fault::Killed) => return Err(Fault::Killed),
            // The node is as it was but could not say so durably; the next recovery proves it again.
            Err(_) => self.last = outcome,
            Ok(()) => {}
        }
        self.settle()
    }

    fn settle(&mut self) -> Result<(), Fault> {
        match self.node.settle(&self.spec, &self.last) {
            Err(Fault::Killed) => Err(Fault::Killed),
            // Settling is bookkeeping of a decision already durable; it is done again at the next recovery.
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
