//! In-memory cluster with faults on demand: kills at every record and point, lost, late and doubled messages.
//!
//! The fakes keep the contract of the real parts: effects are idempotent, a killed process does nothing more, a new
//! process knows only what the journal holds.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use sparklane_lane::generation::GateScope;
use sparklane_lane::{NodeName, Role};

use crate::cluster::{Link, Member};
use crate::effects::{Boot, Clock, Journal, Node, Order, Reply};
use crate::machine::Machine;
use crate::plan::{ENGINE_UNIT, Step};
use crate::record::{Record, State};
use crate::spec::{Answer, Deadline, Fault, Instant, Side, Spec};

/// Where around a record a process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// The record never became durable.
    BeforeFsync,
    /// The record is durable, its effect has not begun.
    AfterFsync,
    /// The effect that follows the record is done.
    AfterEffect,
}

/// Kill the process of a node at the `nth` record of a kind (from 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kill {
    /// Kind of record.
    pub state: State,
    /// Which of them.
    pub nth: usize,
    /// Where.
    pub point: Point,
}

/// What a message suffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Arrives once, is answered.
    Fine,
    /// Never arrives.
    Lost,
    /// Arrives, the answer is lost.
    AnswerLost,
    /// Arrives twice.
    Doubled,
    /// Arrives this many seconds late.
    Late(u64),
}

/// One node's durable and visible state.
#[derive(Debug, Default)]
pub struct World {
    /// The profile's target.
    pub profile: Option<Side>,
    /// Managed files: path to content hash.
    pub files: BTreeMap<String, String>,
    /// Whether the engine runs.
    pub engine: bool,
    /// The journal.
    pub journal: Vec<Record>,
    /// Current boot.
    pub boot: u64,
    /// Milliseconds since that boot.
    pub millis: u64,
    /// Steps that `plan` answers.
    pub plan: Vec<Step>,
    /// A pending kill.
    pub kill: Option<Kill>,
    /// The kill's point `AfterEffect` was reached; the next effect is the last.
    pub dying: bool,
    /// The process is dead until restarted.
    pub dead: bool,
    /// Effects that fail once, by description.
    pub fail: Option<String>,
    /// True when gates fail.
    pub gates_fail: bool,
    /// What a worker hears from the head.
    pub head: Option<Rc<RefCell<World>>>,
    /// The head cannot be reached.
    pub cut: bool,
    /// Every (state, point) at which a record passed, for coverage.
    pub seen: Vec<State>,
}

/// Handle on a node's world; implements node, journal and clock.
#[derive(Debug, Clone)]
pub struct Fake(pub Rc<RefCell<World>>);

impl Fake {
    fn effect<T>(&self, act: impl FnOnce(&mut World) -> Result<T, Fault>) -> Result<T, Fault> {
        let mut world = self.0.borrow_mut();
        if world.dead {
            return Err(Fault::Killed);
        }
        let done = act(&mut world);
        if world.dying {
            world.dead = true;
            return Err(Fault::Killed);
        }
        done
    }
}

impl World {
    fn put(&mut self, path: &str, content: Option<String>) {
        match content {
            Some(content) => self.files.insert(path.to_owned(), content),
            None => self.files.remove(path),
        };
    }

    fn failing(&mut self, step: &Step) -> Result<(), Fault> {
        match self.fail.take_if(|f| *f == step.describe()) {
            Some(what) => Err(Fault::failed(format!("{what}: no space left on device"))),
            None => Ok(()),
        }
    }

    /// The content that was at a step's path before.
    fn before(step: &Step) -> Option<String> {
        use crate::plan::Before;
        match step {
            Step::Place { before: Before::File { sha256, .. }, .. }
            | Step::Remove { before: Before::File { sha256, .. }, .. } => Some(sha256.clone()),
            _ => None,
        }
    }
}

impl Node for Fake {
    fn plan(&mut self, _spec: &Spec) -> Result<Vec<Step>, Fault> {
        self.effect(|w| Ok(w.plan.clone()))
    }

    fn apply(&mut self, step: &Step) -> Result<(), Fault> {
        self.effect(|w| {
            w.failing(step)?;
            match step {
                Step::StopUnit { .. } => w.engine = false,
                Step::StartUnit { .. } => w.engine = true,
                Step::Place { path, file, .. } => w.put(path, Some(file.sha256.clone())),
                Step::Remove { path, .. } => w.put(path, None),
                Step::Profile { to, .. } => w.profile = Some(to.clone()),
                Step::Refresh { .. } => {}
            }
            Ok(())
        })
    }

    fn undo(&mut self, step: &Step, _boot: Boot) -> Result<(), Fault> {
        self.effect(|w| {
            match step {
                Step::StopUnit { was_active, .. } => w.engine = *was_active,
                Step::StartUnit { .. } => w.engine = false,
                Step::Place { path, .. } | Step::Remove { path, .. } => w.put(path, World::before(step)),
                Step::Profile { from, .. } => w.profile.clone_from(from),
                Step::Refresh { .. } => {}
            }
            Ok(())
        })
    }

    fn read_back(&mut self, spec: &Spec, _plan: &[Step], _boot: Boot) -> Result<(), Vec<String>> {
        let world = self.0.borrow();
        if world.profile == spec.from { Ok(()) } else { Err(vec!["profile".into()]) }
    }

    fn gates(&mut self, _spec: &Spec, scope: GateScope, _deadline: Option<&Deadline>) -> Result<(), Fault> {
        self.effect(|w| {
            if w.gates_fail && scope == GateScope::Cluster || !w.engine {
                return Err(Fault::failed("gate tokens: answered 200 without a token"));
            }
            Ok(())
        })
    }

    fn stop_lane(&mut self) -> Result<(), Fault> {
        self.effect(|w| {
            w.engine = false;
            Ok(())
        })
    }

    fn start_lane(&mut self) -> Result<(), Fault> {
        self.effect(|w| {
            w.engine = true;
            Ok(())
        })
    }

    fn ask_head(&mut self, _spec: &Spec) -> Answer {
        let world = self.0.borrow();
        if world.cut {
            return Answer::Unreachable { why: "rail1, rail2 and management are down".into() };
        }
        world.head.as_ref().map_or(Answer::Aborted, |h| decision(&h.borrow().journal))
    }

    fn settle(&mut self, _spec: &Spec, _outcome: &Record) -> Result<(), Fault> {
        self.effect(|_| Ok(()))
    }
}

/// The head's answer from its journal. The host crate answers real workers by the same function.
#[must_use]
pub fn decision(journal: &[Record]) -> Answer {
    crate::record::decision(journal)
}

impl Journal for Fake {
    fn append(&mut self, record: &Record) -> Result<(), Fault> {
        let mut world = self.0.borrow_mut();
        if world.dead {
            return Err(Fault::Killed);
        }
        if world.dying {
            // The record had no effect of its own: the process dies where the next thing would begin.
            world.dead = true;
            return Err(Fault::Killed);
        }
        let state = record.state();
        let nth = world.journal.iter().filter(|r| r.state() == state).count();
        let hit = world.kill.filter(|k| k.state == state && k.nth == nth);
        world.seen.push(state);
        if let Some(kill) = hit {
            world.kill = None;
            match kill.point {
                Point::BeforeFsync => {
                    world.dead = true;
                    return Err(Fault::Killed);
                }
                Point::AfterFsync => {
                    world.journal.push(record.clone());
                    world.dead = true;
                    return Err(Fault::Killed);
                }
                Point::AfterEffect => world.dying = true,
            }
        }
        world.journal.push(record.clone());
        Ok(())
    }
}

impl Clock for Fake {
    fn now(&self) -> Instant {
        let world = self.0.borrow();
        Instant { boot: world.boot.to_string(), millis: world.millis }
    }
}

type FakeMachine = Machine<Fake, Fake, Fake>;

/// One node of a fake cluster: its durable world and, while its process lives, the machine.
pub struct FakeNode {
    /// Name and role.
    pub member: Member,
    /// Durable state.
    pub world: Rc<RefCell<World>>,
    machine: Option<FakeMachine>,
}

/// A cluster whose messages go through fates.
pub struct FakeCluster {
    /// Head first.
    pub nodes: Vec<FakeNode>,
    /// Fate of each message by its number; `Fine` beyond.
    pub fates: Vec<Fate>,
    /// Messages sent.
    pub sent: usize,
    /// The client dies at this message.
    pub client_dies_at: Option<usize>,
    pauses: usize,
}

impl FakeCluster {
    /// A cluster with a staged transaction on each node.
    ///
    /// # Errors
    /// When a kill was planned for the `staged` record.
    #[must_use]
    pub fn new(specs: &[(Spec, World)]) -> Self
    where
        World: Clone,
    {
        let mut nodes: Vec<FakeNode> = Vec::new();
        for (spec, world) in specs {
            let world = Rc::new(RefCell::new(world.clone()));
            let head = nodes.first().map(|n| n.world.clone());
            world.borrow_mut().head = head;
            let fake = Fake(world.clone());
            let machine = Machine::begin(fake.clone(), fake.clone(), fake, spec.clone()).ok();
            let member = Member { node: spec.node.clone(), role: spec.role };
            nodes.push(FakeNode { member, world, machine });
        }
        Self { nodes, fates: Vec::new(), sent: 0, client_dies_at: None, pauses: 0 }
    }

    /// Name and role of each node.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.nodes.iter().map(|n| n.member.clone()).collect()
    }

    /// Lets `secs` pass on every node; live processes act on their deadlines, dead ones are restarted by systemd.
    pub fn pass(&mut self, secs: u64) {
        for node in &mut self.nodes {
            node.world.borrow_mut().millis += secs * 1000;
            node.revive(Boot::Same);
            node.tick();
        }
    }

    /// Every node loses power and boots again.
    pub fn reboot(&mut self) {
        for node in &mut self.nodes {
            {
                let mut world = node.world.borrow_mut();
                world.dead = true;
                world.boot += 1;
                world.millis = 0;
                world.engine = false;
            }
            node.machine = None;
            node.revive(Boot::Early);
            // The lane is ordered after the boot unit and does not start when that says in doubt.
            let mut world = node.world.borrow_mut();
            let doubt = world.journal.last().is_some_and(|r| r.state() == State::InDoubt);
            world.engine = world.profile.is_some() && !doubt;
        }
    }

    /// Whether the decision for every node has fallen.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.nodes.iter().all(|n| n.world.borrow().journal.last().is_none_or(|r| r.state().is_final()))
    }
}

impl Clone for World {
    fn clone(&self) -> Self {
        Self {
            profile: self.profile.clone(),
            files: self.files.clone(),
            engine: self.engine,
            journal: self.journal.clone(),
            plan: self.plan.clone(),
            kill: self.kill,
            fail: self.fail.clone(),
            gates_fail: self.gates_fail,
            cut: self.cut,
            ..Self::default()
        }
    }
}

impl FakeNode {
    fn tick(&mut self) {
        if let Some(machine) = &mut self.machine
            && machine.tick().is_err()
        {
            self.machine = None;
        }
    }

    /// Starts a new process when the old one is dead: it knows only the journal.
    pub fn revive(&mut self, boot: Boot) {
        if !self.world.borrow().dead {
            return;
        }
        {
            let mut world = self.world.borrow_mut();
            world.dead = false;
            world.dying = false;
        }
        let fake = Fake(self.world.clone());
        let records = self.world.borrow().journal.clone();
        self.machine = Machine::resume(fake.clone(), fake.clone(), fake, &records);
        if let Some(machine) = &mut self.machine
            && machine.recover(boot).is_err()
        {
            self.machine = None;
            // Killed again during recovery; the next revival goes on.
            self.world.borrow_mut().dead = true;
        }
    }

    fn deliver(&mut self, order: &Order) -> Result<Reply, String> {
        let Some(machine) = &mut self.machine else {
            return Err("connection refused".into());
        };
        match machine.handle(order) {
            Ok(reply) => Ok(reply),
            Err(fault) => {
                self.machine = None;
                Err(format!("connection closed: {fault}"))
            }
        }
    }
}

impl Link for FakeCluster {
    fn order(&mut self, node: &NodeName, order: &Order) -> Result<Reply, String> {
        let number = self.sent;
        self.sent += 1;
        if self.client_dies_at.is_some_and(|at| number >= at) {
            return Err("the client is dead".into());
        }
        let fate = self.fates.get(number).copied().unwrap_or(Fate::Fine);
        if let Fate::Late(secs) = fate {
            self.pass(secs);
        }
        let Some(target) = self.nodes.iter_mut().find(|n| n.member.node == *node) else {
            return Err("no such node".into());
        };
        match fate {
            Fate::Lost => Err("timed out".into()),
            Fate::AnswerLost => {
                let _unseen = target.deliver(order);
                Err("timed out".into())
            }
            Fate::Doubled => {
                let _first = target.deliver(order);
                target.deliver(order)
            }
            Fate::Fine | Fate::Late(_) => target.deliver(order),
        }
    }

    /// The others hear of it once the first has the record, whatever became of it then.
    fn order_behind(&mut self, first: &NodeName, others: &[NodeName], order: &Order) -> Vec<Result<Reply, String>> {
        let mut answers = vec![self.order(first, order)];
        let begun = |n: &FakeNode| n.world.borrow().journal.iter().any(|r| r.state() == State::Switching);
        if self.nodes.iter().any(|n| n.member.node == *first && begun(n)) {
            answers.extend(others.iter().map(|node| self.order(node, order)));
        }
        answers
    }

    fn pause(&mut self) -> bool {
        self.pauses += 1;
        self.pass(5);
        self.pauses < 60 && self.client_dies_at.is_none()
    }
}

/// The engine unit's steps and one file, as a node would plan them.
#[must_use]
pub fn sample_plan(from: Option<&Side>, to: &Side) -> Vec<Step> {
    use crate::plan::{Before, Direction, Refresh};
    use sparklane_lane::generation::{FileKind, ManagedFile};
    let before = match from {
        Some(_) => Before::File { sha256: "old".into(), mode: 0o644, uid: 0, gid: 0, copy: 0 },
        None => Before::Absent { missing_parents: Vec::new() },
    };
    let file = ManagedFile { mode: 0o644, sha256: "new".into(), kind: FileKind::Unit };
    vec![
        Step::StopUnit { unit: ENGINE_UNIT.into(), was_active: from.is_some() },
        Step::Refresh { what: Refresh::Units, direction: Direction::Backward },
        Step::Place { path: "/etc/systemd/system/sparklane-engine.service".into(), file, before },
        Step::Refresh { what: Refresh::Units, direction: Direction::Forward },
        Step::Profile { to: to.clone(), from: from.cloned() },
        Step::StartUnit { unit: ENGINE_UNIT.into() },
    ]
}

/// Role by index: the first node is the head.
#[must_use]
pub fn role(index: usize) -> Role {
    if index == 0 { Role::Head } else { Role::Worker }
}
