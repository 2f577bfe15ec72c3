//! A lane that serves: what dies comes up again without a hand, both ranks in one attempt (issue 5).

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{NODES, Rig};

/// Longest time in which the death of a process, a container or a node must have been noticed.
const NOTICED: Duration = Duration::from_secs(10);
/// Long enough for a start of the simulator, its warm-up and the pauses after a few failures.
const HEALED_SECS: u64 = 60;

pub fn engine(rig: &Rig, node: &str) -> Value {
    let output = rig.lab.exec(node, &["cat", "/run/sparklane/engine.json"]).unwrap();
    serde_json::from_str(&output.stdout).unwrap_or_default()
}

pub fn attempt(rig: &Rig, node: &str) -> String {
    engine(rig, node)["attempt"].as_str().unwrap_or_default().to_owned()
}

/// Both nodes serve in one attempt.
pub fn serves(rig: &Rig) -> bool {
    let [head, worker] = NODES.map(|node| engine(rig, node));
    head["state"] == "SERVING" && worker["state"] == "SERVING" && head["attempt"] == worker["attempt"]
}

/// A serving lane that was started on purpose: earlier tests' failures do not count.
pub fn serving() -> (Rig, String) {
    let rig = Rig::on_a();
    for node in NODES {
        rig.sh(node, "systemctl restart --no-block sparklane-engine");
    }
    std::thread::sleep(Duration::from_secs(2));
    rig.until("the lane serves", HEALED_SECS, || serves(&rig));
    let now = attempt(&rig, "head");
    (rig, now)
}

/// Does harm, and waits until both serve in a new attempt. Gives how long it took to notice and to heal.
pub fn harmed(rig: &Rig, before: &str, harm: impl FnOnce()) -> (Duration, Duration) {
    let began = Instant::now();
    harm();
    let still = || engine(rig, "head")["state"] == "SERVING" && attempt(rig, "head") == before;
    rig.until("the head notices", 30, || !still());
    let noticed = began.elapsed();
    rig.until("both serve again", HEALED_SECS, || serves(rig) && attempt(rig, "head") != before);
    let healed = began.elapsed();
    assert!(rig.tokens() > 0, "{}", rig.story());
    eprintln!("noticed after {:.1} s, healed after {:.1} s", noticed.as_secs_f64(), healed.as_secs_f64());
    (noticed, healed)
}

pub fn last_failure(rig: &Rig, node: &str) -> String {
    engine(rig, node)["failure"]["why"].as_str().unwrap_or_default().to_owned()
}

#[test]
#[ignore = "needs the lab"]
fn container_of_either_node_killed() {
    for node in NODES {
        let (rig, before) = serving();
        let (noticed, _) = harmed(&rig, &before, || drop(rig.sh(node, "docker kill $(docker ps -q)")));
        assert!(noticed < NOTICED, "{noticed:?}");
        assert!(last_failure(&rig, node).contains("code 137"), "{}", last_failure(&rig, node));
        // The head's part is kept under the attempt's name; a worker that was only taken along did not fail.
        let kept = |node: &str| rig.sh(node, "ls /var/lib/sparklane/evidence 2>/dev/null; true");
        assert!(kept("head").contains(&before), "{}", kept("head"));
        assert_eq!(kept("worker").contains(&before), node == "worker", "{}", kept("worker"));
        rig.one_release("lab-a");
    }
}

#[test]
#[ignore = "needs the lab"]
fn supervisor_of_either_node_killed() {
    for node in NODES {
        let (rig, before) = serving();
        let kill = "systemctl kill --kill-whom=main -s KILL sparklane-engine";
        let (noticed, _) = harmed(&rig, &before, || drop(rig.sh(node, kill)));
        assert!(noticed < NOTICED, "{noticed:?}");
        rig.one_release("lab-a");
    }
}

#[test]
#[ignore = "needs the lab"]
fn engine_that_ends_with_0_when_a_rank_dies() {
    let (rig, before) = serving();
    let (noticed, _) = harmed(&rig, &before, || fail(&rig, "worker", "peer-death"));
    assert!(noticed < NOTICED, "{noticed:?}");
    let why = last_failure(&rig, "worker");
    assert!(why.contains("by itself") && why.contains("a rank's process died"), "{why}");
    assert!(last_failure(&rig, "head").contains("the rank on worker ended"), "{}", last_failure(&rig, "head"));
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn engine_that_hangs_with_health_200() {
    let (rig, before) = serving();
    fail(&rig, "head", "hang");
    assert!(rig.try_sh("head", "curl -sf -m 5 http://127.0.0.1:8000/health"));
    // The container is made anew, and the file with it.
    harmed(&rig, &before, || ());
    let why = last_failure(&rig, "head");
    assert!(why.contains("no token in time"), "{why}");
    let failed = engine(&rig, "worker")["failure"]["attempt"].clone();
    assert_ne!(failed, before.as_str(), "the worker's unit did not fail: {}", last_failure(&rig, "worker"));
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn paused_watchdog_looks_and_does_not_act() {
    let (rig, before) = serving();
    rig.sh("head", &format!("{} engine pause --reason measuring", crate::support::TOOL));
    fail(&rig, "head", "hang");
    rig.until("it is told", 30, || {
        engine(&rig, "head")["reason"].as_str().is_some_and(|r| r.contains("paused (measuring)"))
    });
    assert_eq!(attempt(&rig, "head"), before);
    let status = rig.plain(&["status"]).stdout;
    assert!(status.contains("measuring"), "{status}");
    let doctor = rig.app(&["sparklane", "doctor"]);
    let hit = |h: &&Value| h["node"] == "head" && h["part"] == "engine" && h["gotcha"] == "T7" && h["past"] == false;
    assert!(doctor.code == 1 && doctor.json["hits"].as_array().unwrap().iter().any(|h| hit(&h)), "{doctor:#?}");
    harmed(&rig, &before, || drop(rig.sh("head", &format!("{} engine resume", crate::support::TOOL))));
    rig.one_release("lab-a");
    let doctor = rig.plain(&["sparklane", "doctor"]);
    assert!(doctor.code == 0 && doctor.stdout.contains("nothing is wrong"), "{doctor:#?}");
    assert!(doctor.stdout.contains("[T7] (over)"), "{doctor:#?}");
}

#[test]
#[ignore = "needs the lab"]
fn rails_cut_for_a_moment_and_for_good() {
    let (rig, before) = serving();
    // Within the grace: it is told, and nothing is ended.
    rig.lab.cut("rails").unwrap();
    let began = Instant::now();
    rig.until("both doubt", 20, || NODES.iter().all(|n| engine(&rig, n)["state"] == "DEGRADED"));
    assert!(began.elapsed() < NOTICED, "{:?}", began.elapsed());
    rig.lab.heal("rails").unwrap();
    rig.until("both serve", 30, || serves(&rig));
    // Beyond it both ranks end, and meet again once the cable is back.
    let before = if attempt(&rig, "head") == before { before } else { attempt(&rig, "head") };
    rig.lab.cut("rails").unwrap();
    rig.until("the head waits", 60, || engine(&rig, "head")["state"] == "WAIT_PEER");
    assert!(engine(&rig, "head")["reason"].as_str().unwrap_or_default().contains("worker"));
    rig.until("the worker waits", 60, || engine(&rig, "worker")["state"] == "WAIT_PEER");
    harmed(&rig, &before, || rig.lab.heal("rails").unwrap());
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn one_rail_cut_is_survived_by_the_heartbeats() {
    let (rig, before) = serving();
    rig.lab.cut("rail2").unwrap();
    std::thread::sleep(Duration::from_secs(6));
    let peer = engine(&rig, "head")["peers"][0].clone();
    rig.lab.heal("rail2").unwrap();
    assert_eq!(attempt(&rig, "head"), before);
    assert!(serves(&rig), "{peer}");
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn management_link_cut_and_daemon_reload_are_not_noticed() {
    let (rig, before) = serving();
    rig.lab.cut("control:mgmt").unwrap();
    for node in NODES {
        rig.sh(node, "systemctl daemon-reload");
    }
    std::thread::sleep(Duration::from_secs(6));
    rig.lab.heal("control:mgmt").unwrap();
    assert!(serves(&rig));
    assert_eq!(attempt(&rig, "head"), before);
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn docker_of_the_worker_restarted() {
    let (rig, before) = serving();
    harmed(&rig, &before, || drop(rig.sh("worker", "systemctl restart docker")));
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn nodes_rebooted_at_once_and_one_after_the_other() {
    let (rig, before) = serving();
    // A power cut of both: the head is back first, and waits for the worker.
    harmed(&rig, &before, || {
        NODES.iter().for_each(|node| rig.lab.kill(node).unwrap());
        NODES.iter().for_each(|node| rig.lab.start(node).unwrap());
    });
    let before = attempt(&rig, "head");
    harmed(&rig, &before, || {
        std::thread::scope(|scope| {
            for node in NODES {
                let rig = &rig;
                scope.spawn(move || rig.lab.reboot(node).unwrap());
            }
        });
    });
    for node in NODES {
        let before = attempt(&rig, "head");
        harmed(&rig, &before, || rig.lab.reboot(node).unwrap());
    }
    rig.one_release("lab-a");
}

/// Switches a failure mode of the simulator on, in its running container.
pub fn fail(rig: &Rig, node: &str, mode: &str) {
    let script = format!(
        "p=$(docker inspect -f '{{{{.State.Pid}}}}' $(docker ps -q)) && mkdir -p /proc/$p/root/sim && \
         echo {mode} > /proc/$p/root/sim/fail"
    );
    rig.sh(node, &script);
}
