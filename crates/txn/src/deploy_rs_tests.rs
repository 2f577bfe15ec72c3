use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;
use crate::fake::{Fake, World, sample_plan};
use crate::spec::{Side, Spec};
use crate::{Boot, Machine};

const CLOSURE: &str = "/nix/store/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb-generation-lab-b-head";

fn args(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn activate(more: &str) -> Result<Activate, Usage> {
    let text = format!("activate {CLOSURE} --profile-path /p --temp-path /run --confirm-timeout 30 {more}");
    parse(&args(&text)).map(|call| match call {
        Call::Activate(activate) => activate,
        other => panic!("{other:?}"),
    })
}

#[test]
fn the_client_s_own_command_lines_are_read() {
    let full = activate("--magic-rollback --auto-rollback").unwrap();
    assert_eq!(full.goal, Goal::Switch);
    assert_eq!((full.confirm_secs, full.magic_rollback, full.auto_rollback), (30, true, true));
    assert_eq!(full.profile, Profile::Path("/p".into()));
    let logs = format!("--debug-logs --log-dir /l wait {CLOSURE} --temp-path /run --activation-timeout 600");
    let Call::Wait(wait) = parse(&args(&logs)).unwrap() else { panic!() };
    assert_eq!(wait.activation_secs, Some(600));
    let revoke = parse(&args("revoke --profile-user root --profile-name sparklane")).unwrap();
    let named = Profile::Named { user: "root".into(), name: "sparklane".into() };
    assert_eq!(revoke, Call::Revoke { profile: named });
}

#[test]
fn scenario_32_every_switch_has_an_effect_or_is_refused() {
    assert_eq!(activate("--dry-activate").unwrap().goal, Goal::DryActivate);
    assert_eq!(activate("--boot").unwrap().goal, Goal::Boot);
    assert_eq!(activate("--test").unwrap().goal, Goal::Test);
    assert!(activate("--boot --test").is_err());
    assert_eq!(activate("").unwrap().confirm().window_secs, None);
    assert_eq!(activate("--magic-rollback").unwrap().confirm().window_secs, Some(30));
    assert_eq!(activate("--magic-rollback --boot").unwrap().confirm().window_secs, None);
    let root = Some((0, 0o755));
    assert!(activate("").unwrap().refusal("/p", root).unwrap().contains("autoRollback"));
    assert_eq!(activate("--auto-rollback").unwrap().refusal("/p", root), None);
    assert!(activate("--auto-rollback").unwrap().refusal("/other", root).unwrap().contains("profilePath"));
    for temp in [None, Some((0, 0o1777)), Some((1000, 0o755))] {
        assert!(activate("--auto-rollback").unwrap().refusal("/p", temp).unwrap().contains("tempPath"));
    }
}

#[test]
fn other_command_lines_are_refused() {
    for bad in [
        "",
        "activate",
        "activate /tmp/x --profile-path /p --temp-path /run --confirm-timeout 30",
        &format!("activate {CLOSURE} --profile-path /p --temp-path /run"),
        &format!("activate {CLOSURE} --profile-path /p --temp-path /run --confirm-timeout 70000"),
        &format!("activate {CLOSURE} --profile-path /p --profile-user u --temp-path /run --confirm-timeout 1"),
        &format!("activate {CLOSURE} --profile-path /p --temp-path /run --confirm-timeout 1 --new-flag"),
        &format!("activate {CLOSURE} extra --profile-path /p --temp-path /run --confirm-timeout 1"),
        &format!("wait {CLOSURE} --temp-path /run --boot"),
        &format!("wait {CLOSURE} --temp-path"),
        "revoke",
        "frobnicate",
    ] {
        assert!(parse(&args(bad)).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn no_command_line_breaks_the_reader(words in proptest::collection::vec("[ -~]{0,20}", 0..8)) {
        let _ = parse(&words);
    }
}

#[test]
fn the_canary_is_the_file_that_the_client_deletes() {
    let confirm = activate("--magic-rollback").unwrap().confirm();
    assert_eq!(confirm.canary(), "/run/deploy-rs-canary-bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb");
    assert_ne!(confirm.ready_mark(), confirm.over_mark());
}

/// The folder that client and node share, and what the client does.
#[derive(Default)]
struct Room {
    canary: bool,
    ready: Option<TxnId>,
    over: Option<TxnId>,
    /// The client deletes the canary at this moment, when it is there.
    confirms_at: Option<u64>,
    /// Answers of the client's `rm`.
    confirmed: Option<bool>,
    fail_arm: bool,
    fail_clear: bool,
    /// What the node's profile was when the canary was taken away.
    profile_at_take: Option<Option<Side>>,
}

#[derive(Clone)]
struct Node {
    room: Rc<RefCell<Room>>,
    world: Rc<RefCell<World>>,
}

impl Node {
    /// The client's `rm` at its time; like the real one it fails when there is nothing to delete.
    fn client(&self) {
        let now = self.world.borrow().millis;
        let mut room = self.room.borrow_mut();
        if room.confirms_at.is_some_and(|at| now >= at) && room.confirmed.is_none() {
            let deleted = std::mem::take(&mut room.canary);
            room.confirmed = Some(deleted);
        }
    }
}

impl Canary for Node {
    fn clear(&mut self) -> Result<(), String> {
        let mut room = self.room.borrow_mut();
        if room.fail_clear {
            return Err("read-only file system".into());
        }
        (room.canary, room.ready, room.over) = (false, None, None);
        Ok(())
    }
    fn arm(&mut self, txn: &TxnId) -> Result<(), String> {
        let mut room = self.room.borrow_mut();
        if room.fail_arm {
            return Err("no space left on device".into());
        }
        room.canary = true;
        room.ready = Some(txn.clone());
        Ok(())
    }
    fn armed(&mut self, txn: &TxnId) -> bool {
        self.room.borrow().ready.as_ref() == Some(txn)
    }
    fn waits(&mut self) -> bool {
        self.room.borrow().canary
    }
    fn take(&mut self) -> Result<Taken, String> {
        let mut room = self.room.borrow_mut();
        room.profile_at_take = Some(self.world.borrow().profile.clone());
        Ok(if std::mem::take(&mut room.canary) { Taken::Here } else { Taken::Gone })
    }
    fn over(&mut self, txn: &TxnId) {
        self.room.borrow_mut().over = Some(txn.clone());
    }
}

impl Pace for Node {
    fn millis(&self) -> u64 {
        self.world.borrow().millis
    }
    fn pause(&mut self) {
        self.world.borrow_mut().millis += 200;
        self.client();
    }
}

fn side(letter: char) -> Side {
    let hash: String = std::iter::repeat_n(letter, 32).collect();
    let path = format!("/nix/store/{hash}-generation").parse().unwrap();
    Side { path, generation: letter.to_string().repeat(64).parse().unwrap() }
}

struct Bench {
    node: Node,
    spec: Spec,
}

impl Bench {
    fn new(goal: Goal, role: Role) -> Self {
        let (from, to) = (side('a'), side('b'));
        let spec = Spec {
            txn: "d1".parse().unwrap(),
            node: "head".parse().unwrap(),
            role,
            goal,
            from: Some(from.clone()),
            to: to.clone(),
            release: None,
            owner: "me@here".into(),
            activation_secs: 120,
            confirm_secs: 30 + GRACE_SECS,
            restart_engine: true,
            replace_edited: false,
            takeover: false,
        };
        let world = World {
            profile: Some(from.clone()),
            engine: true,
            plan: sample_plan(Some(&from), &to),
            ..World::default()
        };
        let node = Node { room: Rc::default(), world: Rc::new(RefCell::new(world)) };
        node.world.borrow_mut().files.insert("/etc/systemd/system/sparklane-engine.service".into(), "old".into());
        Self { node, spec }
    }

    fn run(&self, window: Option<u64>) -> Reply {
        let fake = Fake(self.node.world.clone());
        let mut machine = Machine::begin(fake.clone(), fake.clone(), fake, self.spec.clone()).unwrap();
        let (mut canary, mut pace) = (self.node.clone(), self.node.clone());
        let mut alone = Alone {
            order: &mut |order| machine.handle(order),
            canary: &mut canary,
            pace: &mut pace,
            txn: self.spec.txn.clone(),
            role: self.spec.role,
            goal: self.spec.goal,
        };
        drive(&mut alone, window).unwrap()
    }

    fn is_new(&self) -> bool {
        self.node.world.borrow().profile == Some(side('b'))
    }

    fn is_old(&self) -> bool {
        let world = self.node.world.borrow();
        world.profile == Some(side('a')) && world.engine && world.files.values().all(|f| f == "old")
    }

    fn confirmed(&self) -> Option<bool> {
        self.node.room.borrow().confirmed
    }
}

#[test]
fn success() {
    for role in [Role::Head, Role::Worker] {
        let bench = Bench::new(Goal::Switch, role);
        bench.node.room.borrow_mut().confirms_at = Some(3_000);
        let reply = bench.run(Some(30));
        assert_eq!((reply.state, reply.done), (State::Committed, true));
        assert_eq!((bench.confirmed(), bench.is_new()), (Some(true), true));
        assert!(succeeded(Goal::Switch, reply.state, None));
    }
}

#[test]
fn a_failing_gate_never_makes_a_canary() {
    let bench = Bench::new(Goal::Switch, Role::Head);
    bench.node.world.borrow_mut().gates_fail = true;
    bench.node.room.borrow_mut().confirms_at = Some(0);
    let reply = bench.run(Some(30));
    assert_eq!(reply.state, State::RolledBack);
    assert!(reply.detail.unwrap().contains("200 without a token"));
    let room = bench.node.room.borrow();
    assert_eq!((room.canary, room.ready.clone(), room.over.is_some()), (false, None, true));
    assert!(bench.is_old());
}

#[test]
fn scenario_1_a_client_killed_in_the_window_is_rolled_back_at_the_deadline() {
    let bench = Bench::new(Goal::Switch, Role::Head);
    let reply = bench.run(Some(30));
    assert_eq!(reply.state, State::RolledBack);
    assert!(bench.is_old());
    let world = bench.node.world.borrow();
    let crate::Record::RolledBack { why, .. } = world.journal.last().unwrap() else { panic!() };
    assert!(why.contains("did not confirm within 30 s"), "{why}");
    assert!((30_000..31_000).contains(&world.millis), "{}", world.millis);
}

#[test]
fn scenario_3_a_late_confirmation_finds_nothing_to_delete() {
    let bench = Bench::new(Goal::Switch, Role::Head);
    bench.node.room.borrow_mut().confirms_at = Some(30_600);
    assert_eq!(bench.run(Some(30)).state, State::RolledBack);
    let room = bench.node.room.borrow();
    assert_eq!(room.profile_at_take, Some(Some(side('b'))), "the canary goes before anything goes back");
    drop(room);
    bench.node.world.borrow_mut().millis = 31_000;
    bench.node.client();
    assert_eq!(bench.confirmed(), Some(false), "the client's rm fails, so it reports an error");
    assert!(bench.is_old());
}

#[test]
fn scenario_4_a_stale_canary_confirms_nothing() {
    let bench = Bench::new(Goal::Switch, Role::Head);
    {
        let mut room = bench.node.room.borrow_mut();
        room.canary = true;
        room.ready = Some("d0".parse().unwrap());
        room.over = Some("d0".parse().unwrap());
    }
    // `wait` of the new deployment looks before its `activate` has cleared anything.
    let mut waiter = Waiter::default();
    let (ready, over) = (bench.node.room.borrow().ready.clone(), bench.node.room.borrow().over.clone());
    let seen = waiter.look(ready.as_ref(), over.as_ref(), 0, &mut |_| Some(State::RolledBack));
    assert_eq!(seen, Seen::NotYet);
    bench.node.room.borrow_mut().confirms_at = Some(2_000);
    assert_eq!(bench.run(Some(30)).state, State::Committed);
    assert_eq!(bench.confirmed(), Some(true));
}

#[test]
fn wait_believes_a_mark_only_while_its_transaction_waits() {
    let (old, new): (TxnId, TxnId) = ("d0".parse().unwrap(), "d1".parse().unwrap());
    for (state, seen) in [
        (Some(State::Gated), Seen::Ready),
        (Some(State::Switching), Seen::NotYet),
        (Some(State::RolledBack), Seen::NotYet),
        (Some(State::Committed), Seen::NotYet),
        (None, Seen::NotYet),
    ] {
        assert_eq!(Waiter::default().look(Some(&new), None, 0, &mut |_| state), seen, "{state:?}");
    }
    let mut waiter = Waiter::default();
    assert_eq!(waiter.look(None, Some(&old), 0, &mut |_| None), Seen::NotYet);
    assert_eq!(waiter.look(None, Some(&old), 9, &mut |_| None), Seen::NotYet);
    assert!(matches!(waiter.look(None, Some(&new), 9, &mut |_| Some(State::RolledBack)), Seen::Over(_)));
    let mut failed_before_we_came = Waiter::default();
    assert_eq!(failed_before_we_came.look(None, Some(&new), 0, &mut |_| None), Seen::NotYet);
    assert!(matches!(failed_before_we_came.look(None, Some(&new), 10, &mut |_| None), Seen::Over(_)));
}

#[test]
fn without_magic_rollback_the_gates_decide() {
    let bench = Bench::new(Goal::Switch, Role::Head);
    assert_eq!(bench.run(None).state, State::Committed);
    assert!(bench.node.room.borrow().ready.is_none());
}

#[test]
fn a_passed_test_goes_back_and_counts_as_success() {
    let bench = Bench::new(Goal::Test, Role::Worker);
    bench.node.room.borrow_mut().confirms_at = Some(1_000);
    let reply = bench.run(Some(30));
    assert_eq!(reply.state, State::RolledBack);
    assert!(bench.is_old());
    let world = bench.node.world.borrow();
    let crate::Record::RolledBack { why, .. } = world.journal.last().unwrap() else { panic!() };
    assert!(succeeded(Goal::Test, State::RolledBack, Some(why)));
    assert!(!succeeded(Goal::Switch, State::RolledBack, Some(why)));
    assert!(!succeeded(Goal::Test, State::RolledBack, Some("the client did not confirm within 30 s")));
}

#[test]
fn boot_changes_nothing_that_runs_and_commits() {
    let bench = Bench::new(Goal::Boot, Role::Head);
    bench.node.world.borrow_mut().gates_fail = true;
    assert_eq!(bench.run(None).state, State::Committed);
}

#[test]
fn files_that_cannot_be_made_or_cleared_end_it() {
    let bench = Bench::new(Goal::Switch, Role::Head);
    bench.node.room.borrow_mut().fail_arm = true;
    assert_eq!(bench.run(Some(30)).state, State::RolledBack);
    assert!(bench.is_old());
    let bench = Bench::new(Goal::Switch, Role::Head);
    bench.node.room.borrow_mut().fail_clear = true;
    let reply = bench.run(Some(30));
    assert_eq!((reply.state, reply.changed), (State::RolledBack, false));
}

#[test]
fn a_process_killed_in_the_window_keeps_what_the_client_was_told() {
    for (client_confirmed, rebooted) in [(true, false), (false, false), (false, true)] {
        let bench = Bench::new(Goal::Switch, Role::Head);
        let fake = Fake(bench.node.world.clone());
        let mut machine = Machine::begin(fake.clone(), fake.clone(), fake.clone(), bench.spec.clone()).unwrap();
        for order in orders(Goal::Switch, Role::Head) {
            assert!(machine.handle(&order).unwrap().done);
        }
        let mut canary = bench.node.clone();
        canary.arm(&bench.spec.txn).unwrap();
        drop(machine);
        if client_confirmed {
            bench.node.room.borrow_mut().canary = false;
        }
        if rebooted {
            // /run is empty after a boot.
            *bench.node.room.borrow_mut() = Room::default();
            bench.node.world.borrow_mut().boot += 1;
        }
        let records = bench.node.world.borrow().journal.clone();
        let mut machine = Machine::resume(fake.clone(), fake.clone(), fake, &records).unwrap();
        match recovery(machine.state(), Goal::Switch, &mut canary, &bench.spec.txn) {
            Recovery::Commit => assert!(machine.handle(&Order::Commit).unwrap().done),
            Recovery::Back => machine.recover(Boot::Same).unwrap(),
        }
        assert_eq!(machine.state() == State::Committed, client_confirmed);
        assert_eq!(bench.is_old(), !client_confirmed);
        assert!(!bench.node.room.borrow().canary, "nobody can confirm any more");
    }
}

proptest! {
    /// Whatever the client's moment: it is told success exactly when the node keeps the new generation.
    #[test]
    fn the_client_s_rm_and_the_node_agree(at in 0_u64..40_000, window in 1_u64..40) {
        let bench = Bench::new(Goal::Switch, Role::Head);
        bench.node.room.borrow_mut().confirms_at = Some(at);
        // A client deletes only after `wait` saw the ready mark, so not before the canary was made.
        bench.node.room.borrow_mut().confirmed = None;
        let reply = bench.run(Some(window));
        if bench.confirmed().is_none() {
            bench.node.world.borrow_mut().millis = at.max(60_000);
            bench.node.client();
        }
        prop_assert_eq!(bench.confirmed() == Some(true), bench.is_new());
        prop_assert_eq!(reply.state == State::Committed, bench.is_new());
    }
}
