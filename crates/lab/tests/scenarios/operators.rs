//! Two operators, late ones, and the fixed order of nodes.

use std::time::Duration;

use crate::support::{NODES, Rig, TOOL};

#[test]
#[ignore = "needs the lab"]
fn second_operator_is_told_who_holds_the_nodes_and_since_when_nixinate_25() {
    let rig = Rig::on_a();
    let seen = rig.txns("head").len();
    let client = rig.client(&["deploy", "lab-hold", "--activation-timeout", "60"]);
    rig.reaches("head", seen, "switched", 30);
    let second = rig.deploy("lab-b");
    second.is(5, "busy").because(&["root@control", " s (process"]);
    assert!(second.took < Duration::from_secs(10), "{:?}", second.took);
    // Nor does anything that the lane at the gates may need go meanwhile.
    for part in ["weights", "image"] {
        let said = rig.lab.exec("head", &[TOOL, part, "gc", "--yes", "--json"]).unwrap();
        assert_eq!(said.code, Some(5), "{part}: {said:?}");
    }
    // The first one's process dies for good: nothing starts it again, as systemd would after a crash.
    rig.signal(&client, "KILL");
    client.wait();
    for node in NODES {
        let unit = format!("sparklane-txn@{}.service", rig.txns(node).pop().unwrap());
        let folder = format!("/run/systemd/system/{unit}.d");
        rig.sh(
            node,
            &format!(
                "mkdir -p {folder} && printf '[Service]\\nRestart=no\\n' > {folder}/x.conf && systemctl daemon-reload && \
                 systemctl kill -s KILL {unit}; rm -r {folder}"
            ),
        );
        rig.until("the process is gone", 10, || !rig.try_sh(node, &format!("systemctl is-active {unit}")));
    }
    // The lock is free; what the dead one left is ended first.
    rig.deploy("lab-b").is(0, "committed");
    rig.one_release("lab-b");
}

#[test]
#[ignore = "needs the lab"]
fn confirmation_after_the_deadline_is_refused_deploy_rs_214() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    // The worker's process dies once it has voted, so the client has to wait for it; there it is stopped.
    let seen = rig.txns("worker").len();
    rig.slow_restart("worker");
    rig.crash_at("worker", "gated 0 after-fsync");
    let client = rig.client(&["deploy", "lab-b", "--activation-timeout", "10", "--confirm-timeout", "2"]);
    rig.reaches("worker", seen, "gated", 60);
    rig.signal(&client, "STOP");
    rig.until("the head is back", 60, || {
        rig.state("head").as_deref() == Some("rolled-back") || rig.state("head").as_deref() == Some("committed")
    });
    std::thread::sleep(Duration::from_secs(4));
    rig.signal(&client, "CONT");
    let said = client.wait();
    said.is(3, "rolled-back");
    assert_eq!(rig.comes_to_one_release("lab-a", 40), before);
    // What an earlier transaction left confirms nothing: its token is its own id.
    let orders = "{\"order\":\"commit\"}";
    let old = rig.txns("head").pop().unwrap();
    let answer = rig.sh("head", &format!("echo '{orders}' | {} txn talk {old}", TOOL));
    assert!(answer.contains("rolled-back") && answer.contains("\"done\":false"), "{answer}");
    rig.deploy("lab-broken").is(3, "rolled-back");
    assert_eq!(rig.one_release("lab-a"), before);
}

/// Seconds that one journald may read a line later than another: two steps that follow at once are told apart by the
/// protocol suite, which needs no clock.
const READ: f64 = 0.1;

/// Moments of one kind of step in the nodes' logs of their newest transactions.
fn moments(rig: &Rig, node: &str) -> [f64; 3] {
    let txn = rig.txns(node).pop().unwrap();
    let log = rig.sh(node, &format!("journalctl --no-pager -o short-unix -u sparklane-txn@{txn}"));
    let at = |what: &str| -> f64 {
        let line =
            log.lines().find(|l| l.contains(what) && !l.contains("undo")).unwrap_or_else(|| panic!("{what}: {log}"));
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    [at("stop sparklane-engine"), at("profile ->"), at("start sparklane-engine")]
}

#[test]
#[ignore = "needs the lab"]
fn nodes_switch_in_one_fixed_order_deploy_rs_46() {
    let rig = Rig::on_a();
    for lane in ["lab-b", "lab-a", "lab-b", "lab-a", "lab-b"] {
        rig.deploy(lane).is(0, "committed");
        let ([hs, hp, hg], [ws, wp, wg]) = (moments(&rig, "head"), moments(&rig, "worker"));
        let order = [hs, ws, wp, hp, wg, hg];
        assert!(
            order.is_sorted_by(|a, b| *a <= b + READ),
            "stop head, stop worker, switch worker, switch head, start worker, start head: {order:?}"
        );
    }
}

#[test]
#[ignore = "needs the lab"]
fn two_deployments_at_the_same_moment_never_share_the_nodes() {
    let rig = Rig::on_a();
    let mut committed = 0;
    for round in 0..6 {
        let lanes = if round % 2 == 0 { ["lab-b", "lab-hold"] } else { ["lab-a", "lab-b"] };
        let start = |lane: &str| {
            let argv =
                [format!("{}/deploy", rig.bin), lane.to_owned(), "--cluster".into(), "lab".into(), "--json".into()];
            rig.lab.spawn("control", &argv.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
        };
        let both = lanes.map(start).map(|child| child.wait_with_output().unwrap());
        let codes: Vec<i32> = both.iter().map(|o| o.status.code().unwrap_or(-1)).collect();
        // One commits; the other is told that it came second. Nothing is rolled back or left in doubt.
        assert!(codes.iter().all(|c| [0, 1, 5].contains(c)), "round {round}: {codes:?} {both:?}\n{}", rig.story());
        assert!(codes.contains(&0), "round {round}: {codes:?} {both:?}");
        committed += codes.iter().filter(|c| **c == 0).count();
        let status = rig.status();
        assert_eq!(status.code, 0, "{status:#?}");
        rig.one_release(status.json["nodes"][0]["status"]["generation"]["lane"].as_str().unwrap());
    }
    assert!(committed >= 6);
}
