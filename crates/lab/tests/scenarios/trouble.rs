//! What is no reason to start anew, and what no start mends (issue 5): told, and left to a human.

use std::time::Duration;

use crate::heal::{attempt, engine, fail, harmed, last_failure, serves, serving};
use crate::support::{NODES, Rig};

/// Twice as many clients as the lane has seats, each with the longest answer there is, again and again.
const BUSY: &str = "for i in $(seq 24); do systemd-run --quiet --collect --unit sl-busy-$i sh -c 'while :; do \
    curl -s -o /dev/null -H \"content-type: application/json\" http://127.0.0.1:8000/v1/completions -d \
    \"{\\\"model\\\":\\\"lab\\\",\\\"prompt\\\":\\\"x\\\",\\\"ignore_eos\\\":true,\\\"max_tokens\\\":2048}\"; done'; done";
const IDLE: &str = "for i in $(seq 24); do systemctl stop sl-busy-$i 2>/dev/null; done; true";

fn reason(rig: &Rig, node: &str) -> String {
    engine(rig, node)["reason"].as_str().unwrap_or_default().to_owned()
}

fn unit_state(rig: &Rig, node: &str) -> String {
    rig.sh(node, "systemctl show -P ActiveState sparklane-engine").trim().to_owned()
}

/// Watches the head for longer than any bounce needs.
#[track_caller]
fn is_left_alone(rig: &Rig, before: &str, told: &str) {
    rig.until("it is told", 30, || reason(rig, "head").contains(told));
    let looks = |rig: &Rig| engine(rig, "head")["canary"]["odd"].as_u64().unwrap_or(0);
    let first = looks(rig);
    rig.until("five more looks", 60, || looks(rig) >= first + 5);
    assert_eq!(attempt(rig, "head"), before, "{}", rig.story());
}

#[test]
#[ignore = "needs the lab"]
fn canary_that_the_api_refuses_with_400_bounces_nothing() {
    let (rig, before) = serving();
    fail(&rig, "head", "refuse");
    is_left_alone(&rig, &before, "HTTP 400");
    assert_eq!(engine(&rig, "head")["state"], "DEGRADED");
    assert!(rig.plain(&["status"]).stdout.contains("HTTP 400"));
    fail(&rig, "head", "''");
    rig.until("it serves", 20, || serves(&rig));
    assert_eq!(attempt(&rig, "head"), before);
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn all_seats_busy_with_long_answers_bounce_nothing_and_a_full_cache_beside_them_does() {
    let rig = Rig::on_a();
    rig.deploy("lab-seats").is(0, "committed");
    let before = attempt(&rig, "head");
    rig.sh("head", BUSY);
    is_left_alone(&rig, &before, "12 requests run");
    // The same, and nobody can get in: three looks are livelock.
    fail(&rig, "head", "full");
    rig.until("livelock is told", 60, || last_failure(&rig, "head").contains("livelock: 12 requests run"));
    rig.sh("head", IDLE);
    rig.until("it serves", 60, || serves(&rig) && attempt(&rig, "head") != before);
    rig.one_release("lab-seats");
}

#[test]
#[ignore = "needs the lab"]
fn port_that_is_taken_is_named_and_the_lane_serves_once_it_is_free() {
    let (rig, before) = serving();
    rig.sh(
        "head",
        "systemctl stop sparklane-engine && systemd-run --quiet --collect --unit sl-squat \
        systemd-socket-activate --accept -l 127.0.0.1:8000 cat && systemctl start --no-block sparklane-engine",
    );
    rig.until("it is told", 30, || last_failure(&rig, "head").contains("already listens on 127.0.0.1:8000"));
    let status = rig.plain(&["status"]);
    assert!(status.code != 0 && status.stdout.contains("already listens on 127.0.0.1:8000"), "{status:#?}");
    rig.sh("head", "systemctl stop sl-squat");
    rig.until("it serves", 60, || serves(&rig) && attempt(&rig, "head") != before);
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn image_that_is_gone_keeps_the_node_down_and_the_node_is_named() {
    let (rig, before) = serving();
    let image = "docker inspect -f '{{.Image}}' sparklane-engine";
    let script = format!(
        "id=$({image}) && docker save -o /var/lib/sparklane/kept.tar $id && systemctl stop sparklane-engine && \
         docker rmi -f $id && systemctl start --no-block sparklane-engine; true"
    );
    rig.sh("worker", &script);
    rig.until("the worker stays down", 30, || unit_state(&rig, "worker") == "failed");
    assert!(last_failure(&rig, "worker").contains("image"), "{}", last_failure(&rig, "worker"));
    rig.until("the head waits for it", 30, || reason(&rig, "head").contains("worker"));
    let status = rig.plain(&["status"]);
    assert!(status.code != 0 && status.stdout.contains("on worker"), "{status:#?}");
    rig.sh(
        "worker",
        "docker load -q -i /var/lib/sparklane/kept.tar && rm /var/lib/sparklane/kept.tar && \
        systemctl start --no-block sparklane-engine",
    );
    rig.until("it serves", 60, || serves(&rig) && attempt(&rig, "head") != before);
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn flag_that_the_engine_does_not_know_is_a_refusal_and_no_loop() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let said = rig.deploy("lab-argv");
    // Whichever node's end is seen first: a rank that left because of the other's says why.
    said.is(3, "rolled-back").because(&["sparklane-engine.service", "refused its command line"]);
    assert!(said.took < Duration::from_secs(30), "{:?}", said.took);
    let log = |node: &str| rig.sh(node, "journalctl -q -o cat -u sparklane-engine -n 300");
    let told = |node: &str| log(node).contains("refused its command line (code 2)");
    assert!(NODES.iter().any(|node| told(node)), "{}", rig.story());
    assert_eq!(rig.one_release("lab-a"), before);
}

#[test]
#[ignore = "needs the lab"]
fn tenth_failure_of_an_hour_leaves_it_to_a_human_who_starts_it_again() {
    let (rig, before) = serving();
    // Nine failures, a while ago, as if they had been lived through: a stopped supervisor does not write over them.
    rig.sh("head", "u=$(cut -d. -f1 /proc/uptime); pid=$(systemctl show -P MainPID sparklane-engine); \
        kill -STOP $pid; f=/run/sparklane/engine.json; nine=$(for i in 9 8 7 6 5 4 3 2 1; do printf '%s,' $((u - 70 - i)); done); \
        sed -i \"s/\\\"failures\\\":\\[[0-9,]*\\]/\\\"failures\\\":[${nine%,}]/\" $f; kill -KILL $pid");
    rig.until("it serves", 60, || serves(&rig) && attempt(&rig, "head") != before);
    rig.until("the head stays down", 60, || {
        // One that is just being made cannot be killed.
        let _tried = rig.try_sh("head", "docker kill sparklane-engine");
        unit_state(&rig, "head") == "failed"
    });
    assert_eq!(rig.sh("head", "systemctl show -P ExecMainStatus sparklane-engine").trim(), "79");
    let status = rig.plain(&["status"]);
    assert!(status.code != 0 && status.stdout.contains("human"), "{status:#?}");
    rig.sh("head", "systemctl start --no-block sparklane-engine");
    rig.until("it serves", 60, || serves(&rig));
    assert_eq!(engine(&rig, "head")["failures"].as_array().map(Vec::len), Some(0));
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn journal_that_is_full_keeps_nothing_from_healing() {
    let (rig, before) = serving();
    let line = "sparklane-engine.service";
    for node in NODES {
        // Neither of journald's folders has room for as much as one journal.
        rig.sh(
            node,
            "for d in /var/log/journal /run/log/journal; do mkdir -p $d; mount -t tmpfs -o size=64k tmpfs $d; done; \
            systemctl restart systemd-journald; logger full; ! journalctl -q -n 1 | grep .",
        );
    }
    let healed = harmed(&rig, &before, || drop(rig.sh("worker", "docker kill sparklane-engine")));
    eprintln!("{healed:?}");
    let failure = engine(&rig, "worker")["failure"].clone();
    assert!(failure["why"].as_str().is_some_and(|why| why.contains("code 137")), "{failure}");
    let folder = failure["evidence"].as_str().unwrap_or_default().to_owned();
    // The engine's last lines are the supervisor's own; the journal's are missing.
    assert!(rig.try_sh("worker", &format!("test -s {folder}/engine.log")), "{failure}");
    let deployed = rig.deploy("lab-b");
    let mend = "umount /var/log/journal /run/log/journal; systemctl reset-failed 'systemd-journald*'; \
        systemctl restart systemd-journald; true";
    NODES.iter().for_each(|node| drop(rig.sh(node, mend)));
    // A journald that just ended may be refused a start for a moment.
    let writes = "systemctl start systemd-journald; logger it writes again; journalctl -q -o cat -n 50 | grep -q 'it writes again'";
    rig.until("journald writes again", 60, || NODES.iter().all(|node| rig.try_sh(node, writes)));
    deployed.is(0, "committed");
    rig.deploy("lab-a").is(0, "committed");
    assert!(rig.sh("worker", "journalctl -q -o cat -n 50").contains(line));
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn supervisor_that_hangs_is_ended_by_systemd_and_the_lane_heals() {
    let rig = Rig::on_a();
    let folder = "/run/systemd/system/sparklane-engine.service.d";
    assert_eq!(rig.sh("worker", "systemctl show -P WatchdogUSec sparklane-engine").trim(), "5min");
    let soon = "printf '[Service]\\nWatchdogSec=6\\n'";
    rig.sh("worker", &format!("mkdir -p {folder} && {soon} > {folder}/soon.conf && systemctl daemon-reload"));
    drop(rig);
    let (rig, before) = serving();
    // The start asked for more time, which counts here too until the next word.
    let heard = || rig.sh("worker", "systemctl show -P WatchdogTimestampMonotonic sparklane-engine");
    let first = heard();
    rig.until("systemd hears of it again", 20, || heard() != first);
    harmed(&rig, &before, || drop(rig.sh("worker", "kill -STOP $(systemctl show -P MainPID sparklane-engine)")));
    rig.sh("worker", &format!("rm -r {folder} && systemctl daemon-reload"));
    rig.one_release("lab-a");
}
