//! The cluster protocol over the fake: kills at every record and point, every message fate, reboots, dead clients.
//! Property (issue 2): after recovery both nodes are on the same release, or a node says in doubt.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

use std::collections::BTreeSet;

use proptest::prelude::*;
use sparklane_lane::{Release, ReleaseNode, Role, StorePath};
use sparklane_txn::cluster::{Outcome, Stops, drive};
use sparklane_txn::fake::{FakeCluster, Fate, Kill, Point, World, role, sample_plan};
use sparklane_txn::spec::{Side, Spec};
use sparklane_txn::{Goal, State};

const NAMES: [&str; 3] = ["head", "worker", "worker2"];

fn side(letter: char) -> Side {
    let hash: String = std::iter::repeat_n(letter, 32).collect();
    let path: StorePath = format!("/nix/store/{hash}-generation").parse().unwrap();
    let hex = if letter == 'a' { 'a' } else { 'b' };
    Side { path, generation: std::iter::repeat_n(hex, 64).collect::<String>().parse().unwrap() }
}

fn spec(index: usize, from: Option<Side>, goal: Goal, nodes: usize) -> Spec {
    let release = Release {
        number: 2,
        cluster: "lab".parse().unwrap(),
        lane: "lab-b".parse().unwrap(),
        nodes: (0..nodes)
            .map(|i| ReleaseNode {
                node: NAMES[i].parse().unwrap(),
                path: side('b').path,
                generation: side('b').generation,
            })
            .collect(),
        image: None,
        weights: None,
        txn: "t1".parse().unwrap(),
        rollback_of: None,
        time: "2026-01-01T00:00:00Z".into(),
        who: "me@here".into(),
    };
    Spec {
        txn: "t1".parse().unwrap(),
        node: NAMES[index].parse().unwrap(),
        role: role(index),
        goal,
        from,
        to: side('b'),
        release: Some(release),
        owner: "me@here".into(),
        activation_secs: 120,
        confirm_secs: 30,
        restart_engine: true,
        replace_edited: false,
        takeover: false,
    }
}

fn world(from: Option<&Side>) -> World {
    let mut world = World {
        profile: from.cloned(),
        engine: from.is_some(),
        plan: sample_plan(from, &side('b')),
        ..World::default()
    };
    if from.is_some() {
        world.files.insert("/etc/systemd/system/sparklane-engine.service".into(), "old".into());
    }
    world
}

struct Case {
    nodes: usize,
    first: bool,
    goal: Goal,
    kills: Vec<(usize, Kill)>,
    fates: Vec<Fate>,
    client_dies_at: Option<usize>,
    gates_fail: bool,
    cut_worker: bool,
    reboot: bool,
    stops: Stops,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            nodes: 2,
            first: false,
            goal: Goal::Switch,
            kills: Vec::new(),
            fates: Vec::new(),
            client_dies_at: None,
            gates_fail: false,
            cut_worker: false,
            reboot: false,
            stops: Stops::InTurn,
        }
    }
}

/// Runs a case to its end: transaction, then time, then healing, then the boot unit.
fn run(case: &Case) -> (Outcome, FakeCluster) {
    let from = if case.first { None } else { Some(side('a')) };
    let specs: Vec<(Spec, World)> = (0..case.nodes)
        .map(|i| {
            let mut w = world(from.as_ref());
            w.kill = case.kills.iter().find(|(n, _)| *n == i).map(|(_, k)| *k);
            w.gates_fail = case.gates_fail && i == 0;
            w.cut = case.cut_worker && i > 0;
            (spec(i, from.clone(), case.goal, case.nodes), w)
        })
        .collect();
    let mut cluster = FakeCluster::new(&specs);
    cluster.fates.clone_from(&case.fates);
    cluster.client_dies_at = case.client_dies_at;
    let members = cluster.members();
    let outcome = drive(&mut cluster, &members, case.goal, case.stops);
    cluster.pass(1);
    if case.cut_worker {
        cluster.pass(300);
        cluster.pass(1);
        for node in &cluster.nodes[1..] {
            let world = node.world.borrow();
            let state = world.journal.last().map(|r| r.state());
            assert!(state != Some(State::InDoubt) || !world.engine, "a worker in doubt must not serve: {state:?}");
            drop(world);
            node.world.borrow_mut().cut = false;
        }
    }
    if case.reboot {
        cluster.reboot();
    }
    for _ in 0..12 {
        cluster.pass(60);
    }
    (outcome, cluster)
}

/// Both nodes old or both new, nothing half, engine running as it must.
fn assert_one_release(case: &Case, outcome: &Outcome, cluster: &FakeCluster) {
    assert!(cluster.settled(), "{outcome:?}: a node is undecided");
    let sides: BTreeSet<String> = cluster
        .nodes
        .iter()
        .map(|n| {
            let w = n.world.borrow();
            format!("{:?} {:?} engine={}", w.profile.as_ref().map(|s| s.path.to_string()), w.files, w.engine)
        })
        .collect();
    assert_eq!(sides.len(), 1, "{outcome:?}: the nodes differ: {sides:#?}");
    let world = cluster.nodes[0].world.borrow();
    let committed = world.journal.iter().any(|r| r.state() == State::Committed);
    let old = if case.first { None } else { Some(side('a')) };
    let want = if committed { Some(side('b')) } else { old };
    assert_eq!(world.profile, want, "{outcome:?}");
    match outcome {
        Outcome::Committed { .. } => assert!(committed, "said committed, is not"),
        Outcome::RolledBack { .. } | Outcome::Refused { .. } | Outcome::Tested { .. } => {
            assert!(!committed, "said rolled back, is committed");
        }
        Outcome::InDoubt { .. } => {}
    }
}

fn check(case: &Case) -> Outcome {
    let overlapping = Case { stops: Stops::Overlapping, kills: case.kills.clone(), fates: case.fates.clone(), ..*case };
    let (outcome, cluster) = run(&overlapping);
    assert_one_release(&overlapping, &outcome, &cluster);
    let (outcome, cluster) = run(case);
    assert_one_release(case, &outcome, &cluster);
    outcome
}

#[test]
fn a_switch_commits_both_and_a_test_returns_both() {
    for nodes in [1, 2, 3] {
        let outcome = check(&Case { nodes, ..Case::default() });
        assert_eq!(outcome.exit_code(), 0, "{outcome:?}");
        let outcome = check(&Case { nodes, goal: Goal::Test, ..Case::default() });
        assert!(matches!(outcome, Outcome::Tested { .. }), "{outcome:?}");
        let outcome = check(&Case { nodes, goal: Goal::Boot, ..Case::default() });
        assert!(matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
    }
}

#[test]
fn a_failing_cluster_gate_rolls_both_back_also_on_a_first_deployment() {
    for first in [false, true] {
        let outcome = check(&Case { gates_fail: true, first, ..Case::default() });
        assert!(matches!(&outcome, Outcome::RolledBack { why, .. } if why.contains("tokens")), "{outcome:?}");
    }
}

/// Every record kind × point × node, with and without a reboot. The list comes from the state machine itself.
#[test]
fn killed_at_every_record_and_point() {
    let mut covered = BTreeSet::new();
    for (reboot, stops) in [false, true].into_iter().flat_map(|r| [(r, Stops::InTurn), (r, Stops::Overlapping)]) {
        for node in [0, 1] {
            for state in State::ALL {
                for point in [Point::BeforeFsync, Point::AfterFsync, Point::AfterEffect] {
                    for nth in 0..6 {
                        let back = matches!(state, State::RollingBack | State::RolledBack);
                        let case = Case {
                            kills: vec![(node, Kill { state, nth, point })],
                            gates_fail: back,
                            cut_worker: state == State::InDoubt,
                            client_dies_at: (state == State::InDoubt).then_some(15),
                            reboot,
                            stops,
                            ..Case::default()
                        };
                        let (outcome, cluster) = run(&case);
                        let world = cluster.nodes[node].world.borrow();
                        if world.kill.is_none() {
                            covered.insert((state, point));
                        }
                        drop(world);
                        assert_one_release(&case, &outcome, &cluster);
                    }
                }
            }
        }
    }
    for state in State::ALL {
        for point in [Point::BeforeFsync, Point::AfterFsync, Point::AfterEffect] {
            // `staged` dies before the coordinator has anything to drive; `stuck` has its own test below.
            if state == State::Stuck {
                continue;
            }
            assert!(covered.contains(&(state, point)), "no case kills at {state} {point:?}");
        }
    }
}

#[test]
fn no_worker_stops_beside_a_head_that_has_not_begun_to() {
    // The third message is the head's stop: lost, no worker hears of one, in either order.
    for stops in [Stops::InTurn, Stops::Overlapping] {
        let fates = vec![Fate::Fine, Fate::Fine, Fate::Lost];
        let (outcome, cluster) = run(&Case { stops, fates, ..Case::default() });
        assert!(matches!(outcome, Outcome::RolledBack { .. } | Outcome::Refused { .. }), "{outcome:?}");
        let worker = cluster.nodes[1].world.borrow();
        let went_back = |r: &sparklane_txn::Record| r.state() == State::RollingBack;
        let first = worker.journal.iter().position(|r| r.state() == State::Switching);
        // Told to go back together it stops for that, and starts anew.
        assert!(
            first.is_none_or(|at| worker.journal.iter().skip(at + 1).all(|r| r.state().is_final() || went_back(r)))
        );
        drop(worker);
        assert_one_release(&Case::default(), &outcome, &cluster);
    }
}

#[test]
fn the_client_may_die_at_every_message() {
    for at in 0..25 {
        for reboot in [false, true] {
            check(&Case { client_dies_at: Some(at), reboot, ..Case::default() });
        }
    }
}

#[test]
fn a_voted_worker_that_cannot_ask_stops_its_lane_and_says_in_doubt() {
    // The client dies right after the head committed: the worker has voted and cannot reach anyone.
    let mut doubts = 0;
    for at in 8..20 {
        let case = Case { client_dies_at: Some(at), cut_worker: true, ..Case::default() };
        let (outcome, cluster) = run(&case);
        let journal = cluster.nodes[1].world.borrow().journal.clone();
        doubts += usize::from(journal.iter().any(|r| r.state() == State::InDoubt));
        assert_one_release(&case, &outcome, &cluster);
    }
    assert!(doubts > 0, "no case reached in doubt");
}

#[test]
fn a_step_that_fails_on_a_full_disk_rolls_both_back() {
    let steps = sample_plan(Some(&side('a')), &side('b'));
    for (node, step) in [0, 1].into_iter().flat_map(|n| steps.iter().map(move |s| (n, s))) {
        let from = Some(side('a'));
        let specs: Vec<(Spec, World)> = (0..2)
            .map(|i| {
                let mut w = world(from.as_ref());
                w.fail = (i == node).then(|| step.describe());
                (spec(i, from.clone(), Goal::Switch, 2), w)
            })
            .collect();
        let mut cluster = FakeCluster::new(&specs);
        let members = cluster.members();
        let outcome = drive(&mut cluster, &members, Goal::Switch, Stops::InTurn);
        assert!(
            matches!(&outcome, Outcome::RolledBack { why, .. } if why.contains("no space left") && why.contains(NAMES[node])),
            "{outcome:?}"
        );
        assert_one_release(&Case::default(), &outcome, &cluster);
    }
}

#[test]
fn what_several_nodes_refuse_is_said_of_each() {
    let from = Some(side('a'));
    let both = |node: usize| {
        let mut w = world(from.as_ref());
        w.kill = Some(Kill { state: State::Prepared, nth: 0, point: Point::BeforeFsync });
        (spec(node, from.clone(), Goal::Switch, 2), w)
    };
    let mut cluster = FakeCluster::new(&[both(0), both(1)]);
    let members = cluster.members();
    let outcome = drive(&mut cluster, &members, Goal::Switch, Stops::InTurn);
    let (Outcome::RolledBack { why, .. } | Outcome::Refused { why, .. } | Outcome::InDoubt { why, .. }) = &outcome
    else {
        panic!("{outcome:?}")
    };
    assert!(NAMES.iter().take(2).all(|name| why.contains(&format!("{name}:"))), "{why}");
}

#[test]
fn a_commit_that_comes_after_the_deadline_is_refused() {
    // The last four messages are the commits and the reports; hold the head's commit past the confirm window.
    let (clean, cluster) = run(&Case::default());
    assert_eq!(clean.exit_code(), 0);
    let total = cluster.sent;
    let commit_at = total - 4;
    let mut fates = vec![Fate::Fine; total];
    fates[commit_at] = Fate::Late(31);
    let outcome = check(&Case { fates, ..Case::default() });
    assert!(!matches!(outcome, Outcome::Committed { .. }), "{outcome:?}");
}

#[test]
fn stuck_is_said_and_left_by_a_retry() {
    let from = Some(side('a'));
    let mut bad = world(from.as_ref());
    // The world moves under us: someone else switches the profile while we roll back.
    bad.gates_fail = true;
    let specs = vec![(spec(0, Some(side('c')), Goal::Switch, 1), bad)];
    let mut cluster = FakeCluster::new(&specs);
    let members = cluster.members();
    let outcome = drive(&mut cluster, &members, Goal::Switch, Stops::InTurn);
    assert_eq!(outcome.exit_code(), 4, "{outcome:?}");
    let state = cluster.nodes[0].world.borrow().journal.last().map(|r| r.state());
    assert_eq!(state, Some(State::Stuck));
    {
        let mut world = cluster.nodes[0].world.borrow_mut();
        world.profile = Some(side('c'));
        world.plan.clear();
        world.dead = true;
    }
    cluster.nodes[0].revive(sparklane_txn::Boot::Same);
    let state = cluster.nodes[0].world.borrow().journal.last().map(|r| r.state());
    assert!(matches!(state, Some(State::RolledBack | State::Stuck)), "{state:?}");
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Fine),
        1 => Just(Fate::Lost),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::Doubled),
        1 => (1u64..200).prop_map(Fate::Late),
    ]
}

fn kill() -> impl Strategy<Value = Kill> {
    let state = proptest::sample::select(State::ALL.to_vec());
    let point = proptest::sample::select(vec![Point::BeforeFsync, Point::AfterFsync, Point::AfterEffect]);
    (state, 0usize..6, point).prop_map(|(state, nth, point)| Kill { state, nth, point })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_nodes_agree(
        nodes in 1usize..4,
        first: bool,
        gates_fail in proptest::bool::weighted(0.2),
        cut_worker: bool,
        reboot: bool,
        fates in proptest::collection::vec(fate(), 0..40),
        kills in proptest::collection::vec((0usize..3, kill()), 0..3),
        client_dies_at in proptest::option::of(0usize..30),
        goal in proptest::sample::select(vec![Goal::Switch, Goal::Test]),
    ) {
        check(&Case { nodes, first, goal, kills, fates, client_dies_at, gates_fail, cut_worker, reboot, stops: Stops::InTurn });
    }
}

#[test]
fn roles_are_by_rank() {
    assert_eq!((role(0), role(1)), (Role::Head, Role::Worker));
}
