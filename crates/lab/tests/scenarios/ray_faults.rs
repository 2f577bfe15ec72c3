//! A lane whose ranks meet through a real Ray: it comes up with exactly its nodes, and heals from what kills it. The engine
//! is the simulator, which knows nothing of Ray: what is seen here is the entry's and the supervisor's work.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{NODES, PROFILE, Rig};

/// Keys of the lane. Ray needs up to half a minute on a busy machine of two processors.
pub const EXECUTOR: &str = "executor = { kind = \"ray\"; port = 6379; joinSecs = 75; };\n  budgets.startSecs = 170;";

/// What the head's dashboard says: the session, and the living nodes' addresses.
fn session(rig: &Rig) -> Option<(String, Vec<String>)> {
    let ask = |path: &str| -> Value {
        let curl = format!("curl -s -m 5 http://127.0.0.1:8265{path} || true");
        serde_json::from_str(&rig.sh("head", &curl)).unwrap_or_default()
    };
    let name = ask("/api/version")["session_name"].as_str()?.to_owned();
    let nodes = ask("/api/v0/nodes");
    let nodes = nodes["data"]["result"]["result"].as_array()?;
    let alive = nodes.iter().filter(|n| n["state"] == "ALIVE").filter_map(|n| n["node_ip"].as_str());
    let mut alive: Vec<String> = alive.map(str::to_owned).collect();
    alive.sort();
    Some((name, alive))
}

/// Waits until both nodes are in a session and tokens come; gives the session.
#[track_caller]
fn serves(rig: &Rig, secs: u64) -> String {
    let mut name = String::new();
    rig.until("both nodes are in Ray and tokens come", secs, || {
        std::thread::sleep(Duration::from_millis(300));
        let Some((session, alive)) = session(rig) else { return false };
        name = session;
        alive == ["10.77.1.10", "10.77.1.11"] && rig.tokens() > 0
    });
    name
}

/// What a node's unit logged from now on.
pub fn mark(rig: &Rig, node: &str) -> String {
    rig.sh(node, "journalctl --sync; journalctl -n 0 --show-cursor -q | sed -n 's/^-- cursor: //p'").trim().to_owned()
}

#[track_caller]
pub fn said(rig: &Rig, node: &str, since: &str, words: &str, secs: u64) {
    let script = format!("journalctl -q -o cat -u sparklane-engine --after-cursor='{since}'");
    rig.until(&format!("{node} says {words:?}"), secs, || {
        std::thread::sleep(Duration::from_millis(200));
        rig.sh(node, &script).contains(words)
    });
}

/// Kills the one process of that name; the lane's container is the only one that has it.
fn kill(rig: &Rig, node: &str, name: &str) {
    rig.sh(node, &format!("kill -KILL $(pgrep -x {name})"));
}

pub fn container(rig: &Rig, node: &str) -> String {
    rig.sh(node, "docker ps -q --no-trunc --filter label=dev.sparklane.role=engine").trim().to_owned()
}

/// The entry is process 1, and the engine's arguments are the lane's to the byte.
pub fn arguments_are_the_lanes(rig: &Rig) {
    for node in NODES {
        let generation: Value = serde_json::from_str(&rig.sh(node, &format!("cat {PROFILE}/generation.json"))).unwrap();
        let argv: Vec<&str> =
            generation["engine"]["argv"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let pid = rig.sh(node, "docker inspect -f '{{.State.Pid}}' sparklane-engine");
        let pid = pid.trim();
        let of = |pid: &str| -> Vec<String> {
            let text = rig.sh(node, &format!("tr '\\0' '\\n' < /proc/{pid}/cmdline"));
            text.lines().map(str::to_owned).collect()
        };
        assert_eq!(of(pid)[..2], ["/run/sparklane/tool", "entry"], "{node}");
        let children = rig.sh(node, &format!("cat /proc/{pid}/task/{pid}/children"));
        // A script has its interpreter before its own name.
        let is = |line: &Vec<String>| line.ends_with(&argv.iter().map(|a| (*a).to_owned()).collect::<Vec<_>>());
        let lines: Vec<Vec<String>> = children.split_whitespace().map(of).collect();
        assert!(lines.iter().any(is), "{node}: {argv:?} is not in {lines:#?}");
    }
}

/// Ray offers its workers to the kernel as first victims, and ours does not.
fn oom_scores(rig: &Rig, image: &str) {
    let task = "import ray; ray.init({}); print(ray.get(ray.remote(num_cpus=0)(lambda: open('/proc/self/oom_score_adj').read())\
                .remote()).strip())";
    let quiet = "include_dashboard=False, object_store_memory=80000000, log_to_driver=False";
    let own = task.replace("{}", quiet);
    let alone = format!("docker run --rm --shm-size 256m --entrypoint python3 {image} -c \"{own}\"");
    assert_eq!(rig.sh("worker", &alone).trim(), "1000", "Ray's own");
    let lane = task.replace("{}", "address='10.77.1.10:6379', log_to_driver=False");
    let inside = format!("docker exec sparklane-engine python3 -c \"{lane}\"");
    assert_eq!(rig.sh("head", &inside).trim(), "0", "the lane's");
}

/// Only the GCS and the raylets' own ports are on the rail; nothing of the dashboard is.
fn ports(rig: &Rig) {
    let listens = rig.sh("head", "ss -Htln 'sport = :8265' | awk '{print $4}'");
    assert_eq!(listens.trim(), "127.0.0.1:8265");
}

/// Neither rank is of use without the other: both start anew, in a new session.
fn worker_raylet_killed(rig: &Rig, before: &str) -> Duration {
    let (since, begin) = (mark(rig, "worker"), Instant::now());
    kill(rig, "worker", "raylet");
    said(rig, "worker", &since, "sparklane entry: gives up: Ray on this node ended by itself with code 1", 20);
    said(rig, "worker", &since, "the engine ended with its Ray (code 73)", 20);
    assert_ne!(serves(rig, 150), before, "a new session");
    begin.elapsed()
}

fn head_raylet_killed(rig: &Rig, before: &str) -> Duration {
    let (since, begin) = (mark(rig, "head"), Instant::now());
    kill(rig, "head", "raylet");
    said(rig, "head", &since, "gives up: Ray on this node ended with code 1 while the engine ran", 20);
    assert_ne!(serves(rig, 150), before, "a new session");
    begin.elapsed()
}

/// The worker's raylet is left in a session that is no more (the kit's gotcha 11).
fn head_container_killed(rig: &Rig, before: &str) -> Duration {
    let (raylet, begin) = (container(rig, "worker"), Instant::now());
    rig.sh("head", "docker kill sparklane-engine");
    assert_ne!(serves(rig, 180), before, "a new session");
    assert_ne!(container(rig, "worker"), raylet, "the worker left the dead session");
    begin.elapsed()
}

/// The supervisors hear each other, and the worker's Ray does not get through.
fn gcs_out_of_reach(rig: &Rig) {
    let since = NODES.map(|node| mark(rig, node));
    let drop = "nft add table inet gcs && nft 'add chain inet gcs out { type filter hook output priority 0; }' && \
                nft add rule inet gcs out tcp dport 6379 drop";
    rig.sh("worker", drop);
    rig.sh("head", "docker kill sparklane-engine");
    said(rig, "head", &since[0], "waiting for Ray: node 10.77.1.11 is not ALIVE; alive: 10.77.1.10", 120);
    let why = "gives up: the head's GCS at 10.77.1.10:6379 does not answer after 75 s: no answer";
    said(rig, "worker", &since[1], why, 160);
    said(rig, "worker", &since[1], "the engine was not started: the other nodes were not there in time (code 69)", 20);
    rig.sh("worker", "nft delete table inet gcs");
    serves(rig, 200);
}

/// All of it, on a lab that serves the lane.
pub fn all(rig: &Rig, image: &str) {
    let first = serves(rig, 60);
    arguments_are_the_lanes(rig);
    ports(rig);
    oom_scores(rig, image);
    let raylet = worker_raylet_killed(rig, &first);
    let head = head_raylet_killed(rig, &serves(rig, 60));
    let gone = head_container_killed(rig, &serves(rig, 60));
    gcs_out_of_reach(rig);
    let secs = |took: Duration| took.as_secs();
    let found = json!({ "workerRaylet": secs(raylet), "headRaylet": secs(head), "headContainer": secs(gone) });
    eprintln!("seconds from death to serving, Ray: {found}");
}
