//! Death at any moment: of the client, of the transaction's process at every record, of machines.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{NODES, Rig};

const POINTS: [&str; 3] = ["before-fsync", "after-fsync", "after-effect"];

/// How a transaction is brought to the record at which its process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A deployment of lab-b that would pass.
    Good,
    /// One whose lane dies at once, so that it is rolled back.
    Failing,
}

/// (node, record, nth, point, way). In-doubt and stuck have tests of their own: see `IN_DOUBT` and `STUCK`.
const CASES: &[(&str, &str, usize, &str, Way)] = &[
    ("head", "staged", 0, "before-fsync", Way::Good),
    ("worker", "staged", 0, "after-fsync", Way::Good),
    ("head", "prepared", 0, "after-fsync", Way::Good),
    ("worker", "prepared", 0, "after-effect", Way::Good),
    ("worker", "prepared", 0, "before-fsync", Way::Good),
    ("head", "switching", 0, "after-effect", Way::Good),
    ("worker", "switching", 0, "before-fsync", Way::Good),
    ("worker", "switching", 1, "after-fsync", Way::Good),
    ("head", "switching", 1, "after-effect", Way::Good),
    ("head", "switching", 2, "after-fsync", Way::Good),
    ("worker", "switched", 0, "after-effect", Way::Good),
    ("head", "switched", 0, "before-fsync", Way::Good),
    ("worker", "gated", 0, "after-fsync", Way::Good),
    ("worker", "gated", 0, "after-effect", Way::Good),
    ("head", "gated", 0, "before-fsync", Way::Good),
    ("head", "committed", 0, "before-fsync", Way::Good),
    ("head", "committed", 0, "after-effect", Way::Good),
    ("worker", "committed", 0, "after-fsync", Way::Good),
    ("worker", "rolling-back", 0, "after-fsync", Way::Failing),
    ("head", "rolling-back", 1, "after-effect", Way::Failing),
    ("head", "rolling-back", 2, "before-fsync", Way::Failing),
    ("worker", "rolled-back", 0, "before-fsync", Way::Failing),
    ("head", "rolled-back", 0, "after-fsync", Way::Failing),
    ("worker", "rolled-back", 0, "after-effect", Way::Failing),
];
const IN_DOUBT: &[(&str, &str, usize, &str)] = &[("worker", "in-doubt", 0, "after-fsync")];
const STUCK: &[(&str, &str, usize, &str)] = &[("head", "stuck", 0, "after-fsync")];

#[test]
fn every_record_and_every_point_has_a_kill() {
    let cases = CASES.iter().map(|(_, state, _, point, _)| (*state, *point));
    let more = IN_DOUBT.iter().chain(STUCK).map(|(_, state, _, point)| (*state, *point));
    let all: Vec<(&str, &str)> = cases.chain(more).collect();
    let states: BTreeSet<&str> = all.iter().map(|(state, _)| *state).collect();
    assert_eq!(states, sparklane_txn::State::ALL.iter().map(|s| s.as_str()).collect(), "a record without a kill");
    let points: BTreeSet<&str> = all.iter().map(|(_, point)| *point).collect();
    assert_eq!(points, POINTS.into_iter().collect());
}

/// One kill: whatever the exit code, the nodes agree with it, and the boot unit finds nothing left to do.
fn killed_at(rig: &Rig, case: (&str, &str, usize, &str, Way)) {
    let (node, state, nth, point, way) = case;
    let before = rig.one_release("lab-a");
    rig.crash_at(node, &format!("{state} {nth} {point}"));
    let lane = if way == Way::Good { "lab-b" } else { "lab-crash" };
    let said = rig.app(&["deploy", lane, "--activation-timeout", "20", "--confirm-timeout", "10"]);
    assert!(rig.crashed(node), "{case:?}: was not killed\n{said:#?}\n{}", rig.story());
    let serving = match (said.code, said.text("verdict")) {
        (0, "committed") if way == Way::Good => lane,
        (1, "refused") | (3, "rolled-back") => "lab-a",
        _ => panic!("{case:?}: {said:#?}\n{}", rig.story()),
    };
    rig.quiet(30);
    // The boot unit, as after a reboot, without the lane's stop that `restart` would bring with it.
    for node in NODES {
        rig.sh(node, &format!("{} txn resolve --boot", crate::support::TOOL));
    }
    let after = rig.comes_to_one_release(serving, 30);
    assert_eq!(after == before, serving == "lab-a", "{case:?}: release {before} -> {after}");
    eprintln!("{node} {state} {nth} {point}: exit {}, {:.1} s, {serving}", said.code, said.took.as_secs_f32());
    if serving != "lab-a" {
        rig.deploy("lab-a").is(0, "committed");
    }
}

fn all_of(states: &[&str]) {
    let rig = Rig::on_a();
    for case in CASES.iter().filter(|c| states.contains(&c.1)) {
        killed_at(&rig, *case);
    }
}

#[test]
#[ignore = "needs the lab"]
fn killed_before_the_first_change_nothing_changes() {
    all_of(&["staged", "prepared"]);
}

#[test]
#[ignore = "needs the lab"]
fn killed_while_switching_is_undone_step_by_step_system_manager_541() {
    all_of(&["switching", "switched"]);
}

#[test]
#[ignore = "needs the lab"]
fn killed_around_vote_and_commit_both_nodes_agree() {
    all_of(&["gated", "committed"]);
}

#[test]
#[ignore = "needs the lab"]
fn killed_while_rolling_back_goes_on_rolling_back() {
    all_of(&["rolling-back", "rolled-back"]);
}

/// A deployment in its gates: the old lane is down, nothing is decided.
fn in_the_window(rig: &Rig, more: &[&str]) -> (crate::support::Client, u64) {
    let before = rig.one_release("lab-a");
    let seen = NODES.map(|n| rig.txns(n).len());
    let client = rig.client(&[&["deploy", "lab-hold"], more].concat());
    for (node, seen) in NODES.iter().zip(seen) {
        rig.reaches(node, seen, "switched", 30);
    }
    (client, before)
}

#[test]
#[ignore = "needs the lab"]
fn client_killed_in_the_window_brings_both_back_at_the_deadline_deploy_rs_153() {
    let rig = Rig::on_a();
    let (client, before) = in_the_window(&rig, &["--activation-timeout", "10"]);
    rig.kill_client_and_ssh(&client);
    client.wait();
    let status = rig.status();
    assert_eq!((status.code, status.text("state")), (1, "transaction open"), "{status:#?}");
    assert_eq!(rig.comes_to_one_release("lab-a", 40), before);
    for node in NODES {
        let records = rig.records(node);
        assert!(records.last().unwrap()["why"].as_str().unwrap().contains("deadline"), "{records:?}");
    }
    // The next one is not hindered by the dead one.
    rig.deploy("lab-b").is(0, "committed");
    rig.one_release("lab-b");
}

#[test]
#[ignore = "needs the lab"]
fn interrupt_in_the_window_brings_both_back_now_and_a_second_one_leaves_them_to_their_deadline() {
    let rig = Rig::on_a();
    let (client, before) = in_the_window(&rig, &[]);
    rig.signal(&client, "INT");
    let said = client.wait();
    said.is(3, "rolled-back").because(&["interrupted by the operator"]);
    assert!(said.took < Duration::from_secs(18), "the lane alone loads for 20 s: {:?}", said.took);
    assert_eq!(rig.one_release("lab-a"), before);
    let (client, _) = in_the_window(&rig, &["--activation-timeout", "12"]);
    // Nothing may answer the way back, so that the second one finds it under way.
    rig.lab.cut("control:mgmt").unwrap();
    rig.signal(&client, "INT");
    rig.signal(&client, "INT");
    assert_eq!(client.wait().code, 130);
    rig.lab.heal("control:mgmt").unwrap();
    assert_eq!(rig.comes_to_one_release("lab-a", 60), before);
}

#[test]
#[ignore = "needs the lab"]
fn ssh_killed_in_the_window_is_connected_again_deploy_rs_390() {
    let rig = Rig::on_a();
    let (client, before) = in_the_window(&rig, &[]);
    rig.sh("control", "for p in $(pgrep -x ssh); do kill -KILL $p; done; true");
    let said = client.wait();
    said.is(0, "committed");
    assert!(rig.one_release("lab-hold") > before);
}

#[test]
#[ignore = "needs the lab"]
fn a_transactions_process_cannot_be_stopped_by_hand_for_good() {
    let rig = Rig::on_a();
    let (client, before) = in_the_window(&rig, &[]);
    let unit = "$(systemctl list-units --quiet --plain --no-legend 'sparklane-txn@*' | cut -d' ' -f1)";
    for node in NODES {
        assert!(!rig.try_sh(node, &format!("systemctl stop {unit}")), "{node}: it was stopped");
        rig.sh(node, &format!("systemctl kill --signal=TERM {unit}"));
    }
    let said = client.wait();
    rig.quiet(60);
    match (said.code, said.text("verdict")) {
        (0, "committed") => assert!(rig.one_release("lab-hold") > before),
        (3, "rolled-back") => assert_eq!(rig.one_release("lab-a"), before),
        _ => panic!("{said:#?}\n{}", rig.story()),
    }
}

/// After power is back, the lane that starts is the old one, and it starts after the transaction was ended.
fn after_power(rig: &Rig, before: u64, cut: &[&str]) {
    assert_eq!(rig.comes_to_one_release("lab-a", 60), before);
    for node in cut {
        let states = rig.states(node);
        assert_eq!(states.last().map(String::as_str), Some("rolled-back"), "{node}: {states:?}");
        // The engine of this boot never ran the lane that was not committed.
        let log = rig.sh(node, "journalctl -b --no-pager -o cat -u sparklane-engine -u sparklane-resolve");
        assert!(!log.contains("lab-hold"), "{node}: {log}");
        let order = "systemctl show -p ExecMainStartTimestampMonotonic --value sparklane-engine; \
                     systemctl show -p ExecMainExitTimestampMonotonic --value sparklane-resolve";
        let times: Vec<u64> = rig.sh(node, order).lines().filter_map(|l| l.parse().ok()).collect();
        assert!(times.len() == 2 && times[0] >= times[1], "{node}: engine and boot unit at {times:?}");
    }
}

#[test]
#[ignore = "needs the lab"]
fn reboot_of_a_node_in_the_window_rolls_back_before_the_lane_starts_deploy_rs_211() {
    for node in NODES {
        let rig = Rig::on_a();
        let (client, before) = in_the_window(&rig, &["--activation-timeout", "15"]);
        rig.lab.reboot(node).unwrap();
        // It is back long before the client gives up, and says itself that it went back. A node that stays off is 4:
        // see `worker_that_goes_off_after_its_switch_brings_both_back`.
        client.wait().is(3, "rolled-back");
        after_power(&rig, before, &[node]);
        assert_eq!(rig.status().code, 0);
    }
}

#[test]
#[ignore = "needs the lab"]
fn power_cut_of_both_nodes_in_the_window_rolls_back_before_the_lane_starts() {
    let rig = Rig::on_a();
    let (client, before) = in_the_window(&rig, &[]);
    for node in NODES {
        rig.lab.kill(node).unwrap();
    }
    rig.kill_client_and_ssh(&client);
    client.wait();
    for node in NODES {
        rig.lab.start(node).unwrap();
    }
    after_power(&rig, before, &NODES);
}

/// What keeps the worker from its head on every network.
const APART: &str = "nft add table inet apart && nft 'add chain inet apart out { type filter hook output priority 0; }' \
    && nft 'add rule inet apart out ip daddr { 10.77.0.10, 10.77.1.10, 10.77.2.10 } reject'";

/// The head has committed, the client is dead, the worker has voted and cannot ask: its process died when the commit
/// came, before it was written down.
fn voted_and_apart(rig: &Rig) -> u64 {
    let before = rig.one_release("lab-a");
    let seen = rig.txns("head").len();
    rig.slow_restart("worker");
    rig.crash_at("worker", "gated 0 after-effect");
    let client = rig.client(&["deploy", "lab-b", "--confirm-timeout", "4"]);
    rig.reaches("head", seen, "committed", 60);
    rig.until("the worker is killed", 10, || rig.crashed("worker"));
    rig.sh("worker", APART);
    rig.signal(&client, "KILL");
    client.wait();
    assert_eq!(rig.state("worker").as_deref(), Some("gated"), "{}", rig.story());
    before
}

#[test]
#[ignore = "needs the lab"]
fn voted_worker_that_cannot_ask_stops_its_lane_and_says_in_doubt() {
    let rig = Rig::on_a();
    let (node, state, nth, point) = IN_DOUBT[0];
    let before = voted_and_apart(&rig);
    rig.crash_at(node, &format!("{state} {nth} {point}"));
    let seen = rig.txns("worker").len();
    rig.reaches("worker", seen - 1, "in-doubt", 40);
    rig.until("the kill in doubt", 20, || rig.crashed(node));
    rig.until("the lane is stopped", 40, || !rig.try_sh("worker", "systemctl is-active sparklane-engine"));
    let status = rig.status();
    assert_eq!((status.code, status.text("state")), (4, "in doubt"), "{status:#?}");
    assert!(status.text("next").contains("sparklane txn resolve"), "{status:#?}");
    // Nothing new begins on a doubt.
    assert_eq!(rig.deploy("lab-a").is(4, "in-doubt").code, 4);
    // The boot unit keeps the lane down too.
    assert!(!rig.try_sh("worker", &format!("{} txn resolve --boot", crate::support::TOOL)));
    rig.sh("worker", "nft delete table inet apart");
    assert!(rig.comes_to_one_release("lab-b", 60) > before);
    assert_eq!(rig.state("worker").as_deref(), Some("committed"));
}

#[test]
#[ignore = "needs the lab"]
fn rollback_that_cannot_be_proved_is_stuck_and_ends_with_resolve() {
    let rig = Rig::on_a();
    let (node, state, nth, point) = STUCK[0];
    let (client, before) = in_the_window(&rig, &[]);
    // Somebody moves the profile meanwhile: it is not overwritten.
    let theirs = rig.sh(node, "d=$(mktemp -d) && echo theirs > $d/x && nix-store --add $d").trim().to_owned();
    let ours = rig.sh(node, &format!("readlink -f {}", crate::support::PROFILE)).trim().to_owned();
    rig.sh(node, &format!("nix-env -p {} --set {theirs}", crate::support::PROFILE));
    rig.crash_at(node, &format!("{state} {nth} {point}"));
    // The head's, which loads for 20 s: a worker is READY at once, and may start again behind its passed gates.
    rig.sh("head", "until docker ps -q | grep -q .; do sleep 0.1; done; docker kill $(docker ps -q)");
    let said = client.wait();
    said.is(4, "in-doubt");
    assert!(said.text("next").contains("sparklane txn resolve"), "{said:#?}");
    assert!(rig.crashed(node), "{}", rig.story());
    assert_eq!(rig.sh(node, &format!("readlink -f {}", crate::support::PROFILE)).trim(), theirs, "is overwritten");
    // systemd starts the crashed process again: it may be at it.
    rig.until("it is stuck", 60, || rig.state(node).as_deref() == Some("stuck"));
    let status = rig.status();
    assert_eq!((status.code, status.text("state")), (4, "in doubt"), "{status:#?}");
    // Hands: put the profile back, then resolve.
    rig.sh(node, &format!("nix-env -p {} --set {ours}", crate::support::PROFILE));
    std::thread::sleep(Duration::from_secs(4));
    rig.sh(node, &format!("{} txn resolve", crate::support::TOOL));
    assert_eq!(rig.comes_to_one_release("lab-a", 60), before);
}

#[test]
#[ignore = "needs the lab"]
fn worker_in_doubt_without_its_head_follows_a_persons_word() {
    let rig = Rig::on_a();
    voted_and_apart(&rig);
    rig.until("the worker is in doubt", 60, || rig.state("worker").as_deref() == Some("in-doubt"));
    let txn = rig.txns("worker").pop().unwrap();
    let tool = crate::support::TOOL;
    // Words about something else are refused.
    assert!(!rig.try_sh("worker", &format!("{tool} txn decide 20200101-000000-abcdef aborted")));
    let said = rig.sh("worker", &format!("{tool} txn decide {txn} aborted"));
    assert!(said.contains("rolled-back, by your word"), "{said}");
    assert_eq!(rig.lane("worker"), "lab-a");
    assert!(rig.try_sh("worker", "systemctl is-active sparklane-engine"), "{}", rig.story());
    assert!(!rig.try_sh("worker", &format!("{tool} txn decide {txn} committed")), "it is decided");
    // The head comes back with another record: told, and mended by the next deployment.
    rig.sh("worker", "nft delete table inet apart");
    let status = rig.status();
    assert_eq!((status.code, status.text("state")), (4, "mixed"), "{status:#?}");
    rig.deploy("lab-a").is(0, "committed");
    rig.one_release("lab-a");
}
