//! A change of the network that cuts a node off is taken back by the node alone, and soon.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

use std::cell::RefCell;
use std::rc::Rc;

use sparklane_lane::Role;
use sparklane_lane::generation::{FileKind, GateScope, ManagedFile};
use sparklane_txn::fake::{Fake, World};
use sparklane_txn::plan::{Before, Direction, Part, Refresh, Step};
use sparklane_txn::spec::{Side, Spec};
use sparklane_txn::{Goal, Machine, Order, Record, State};

const FILE: &str = "/etc/netplan/60-sparklane-rails.yaml";

fn side(letter: char) -> Side {
    let hash: String = std::iter::repeat_n(letter, 32).collect();
    let generation = std::iter::repeat_n(letter, 64).collect::<String>().parse().unwrap();
    Side { path: format!("/nix/store/{hash}-generation").parse().unwrap(), generation }
}

/// A node on `a` whose switch to `b` changes a file of that kind.
fn switched(role: Role, what: Refresh, activation_secs: u64) -> (Machine<Fake, Fake, Fake>, Rc<RefCell<World>>) {
    let file = ManagedFile { mode: 0o600, sha256: "new".into(), kind: FileKind::Netplan };
    let before = Before::File { sha256: "old".into(), mode: 0o600, uid: 0, gid: 0, copy: 0 };
    let plan = vec![
        Step::Refresh { what, direction: Direction::Backward },
        Step::Place { path: FILE.into(), file, before },
        Step::Refresh { what, direction: Direction::Forward },
        Step::Profile { to: side('b'), from: Some(side('a')) },
        Step::StartUnit { unit: "sparklane-engine.service".into() },
    ];
    let mut world = World { profile: Some(side('a')), plan, ..World::default() };
    world.files.insert(FILE.into(), "old".into());
    let world = Rc::new(RefCell::new(world));
    let fake = Fake(world.clone());
    let spec = Spec {
        txn: "t1".parse().unwrap(),
        node: "n".parse().unwrap(),
        role,
        goal: Goal::Switch,
        from: Some(side('a')),
        to: side('b'),
        release: None,
        owner: "me@here".into(),
        activation_secs,
        confirm_secs: 30,
        restart_engine: false,
        replace_edited: false,
        takeover: false,
    };
    let mut machine = Machine::begin(fake.clone(), fake.clone(), fake, spec).unwrap();
    for order in [Order::Prepare, Order::Run { part: Part::Stop }, Order::Run { part: Part::Switch }] {
        assert!(machine.handle(&order).unwrap().done, "{order:?}");
    }
    (machine, world)
}

fn pass(machine: &mut Machine<Fake, Fake, Fake>, world: &Rc<RefCell<World>>, secs: u64) {
    world.borrow_mut().millis += secs * 1000;
    machine.tick().unwrap();
}

fn why(world: &Rc<RefCell<World>>) -> String {
    match world.borrow().journal.last() {
        Some(Record::RolledBack { why, .. }) => why.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_node_that_hears_nothing_after_it_goes_back_alone_within_a_minute() {
    for role in [Role::Head, Role::Worker] {
        let (mut machine, world) = switched(role, Refresh::Network, 2000);
        pass(&mut machine, &world, 59);
        assert_eq!(machine.state(), State::Switching);
        pass(&mut machine, &world, 1);
        assert_eq!(machine.state(), State::RolledBack);
        assert!(why(&world).contains("netplan"), "{}", why(&world));
        assert_eq!(world.borrow().profile, Some(side('a')));
        assert_eq!(world.borrow().files[FILE], "old");
    }
}

#[test]
fn whoever_is_heard_in_time_gives_the_whole_deadline_back() {
    let (mut machine, world) = switched(Role::Head, Refresh::Network, 2000);
    pass(&mut machine, &world, 59);
    assert!(machine.handle(&Order::Report).unwrap().done);
    pass(&mut machine, &world, 1900);
    assert_eq!(machine.state(), State::Switching);
    assert!(machine.handle(&Order::Run { part: Part::Start }).unwrap().done);
    world.borrow_mut().engine = true;
    for scope in [GateScope::Node, GateScope::Cluster] {
        assert!(machine.handle(&Order::Gate { scope }).unwrap().done);
    }
    for order in [Order::Vote, Order::Commit] {
        assert!(machine.handle(&order).unwrap().done, "{order:?}");
    }
    assert_eq!(machine.state(), State::Committed);
}

#[test]
fn a_deadline_that_is_nearer_stays_and_other_files_do_not_matter() {
    let (mut machine, world) = switched(Role::Head, Refresh::Network, 40);
    pass(&mut machine, &world, 39);
    assert_eq!(machine.state(), State::Switching);
    pass(&mut machine, &world, 1);
    assert_eq!(machine.state(), State::RolledBack);
    assert_eq!(why(&world), "the deadline passed without a commit");
    let (mut machine, world) = switched(Role::Head, Refresh::Sysctl, 2000);
    pass(&mut machine, &world, 1999);
    assert_eq!(machine.state(), State::Switching);
}
