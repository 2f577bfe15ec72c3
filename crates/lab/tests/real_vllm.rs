//! Lanes with a real vLLM 0.32 on processors and a tiny random model: what the simulator says of its like, checked on the
//! thing itself. `cargo xtask test --real-vllm` makes the root file system and runs this.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test says what is wrong by failing")]

#[allow(dead_code, reason = "the scenarios use the rest")]
#[path = "scenarios/ray_faults.rs"]
mod ray_faults;
#[allow(dead_code, reason = "the scenarios use the rest")]
#[path = "scenarios/support.rs"]
mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ray_faults::{arguments_are_the_lanes, container, mark, said};
use serde_json::json;
use support::{NODES, Rig};

const IMAGE: &str = "lab-vllm";
const LANES: [(&str, &str); 2] = [
    ("lab-vllm", "env.PYTHONPATH = \"/opt/vllm/site\";"),
    (
        "lab-vllm-ray",
        "env = { PYTHONPATH = \"/opt/vllm/ray:/opt/vllm/site\"; RAY_worker_niceness = \"0\"; };\n  \
         executor = { kind = \"ray\"; port = 6379; joinSecs = 150; };",
    ),
];

/// Imports the root file system on the head and copies the image to the worker, as two imports would have two dates.
fn image(rig: &Rig) -> String {
    let root = std::env::var("SPARKLANE_REAL_VLLM").expect("cargo xtask test --real-vllm sets it");
    let folder = |node: &str| rig.lab.bound(node, "/var/lib/sparklane");
    let tar = folder("head").join("real-vllm.tar");
    let packed = Command::new("tar").args(["-C", &root, "-cf", tar.as_str(), "."]).stdout(Stdio::null()).status();
    assert!(packed.unwrap().success());
    let import = "cd /var/lib/sparklane && docker import -c 'ENV PATH=/usr/local/bin:/usr/bin:/bin' real-vllm.tar \
                  lab-vllm:real > /dev/null && docker save -o real-vllm.tar lab-vllm:real && \
                  docker image inspect -f '{{.Id}}' lab-vllm:real";
    let id = rig.sh("head", import).trim().to_owned();
    std::fs::rename(&tar, folder("worker").join("real-vllm.tar")).unwrap();
    rig.sh("worker", "cd /var/lib/sparklane && docker load -q -i real-vllm.tar && rm real-vllm.tar");
    id
}

/// Image and lanes in the control machine's flake. There is no compiler in the image, so nothing may want one.
fn publish(rig: &Rig, id: &str) {
    let flake = rig.lab.root("control").join("root/sparklane");
    let image = format!(
        "{{\n  name = \"{IMAGE}\";\n  description = \"vLLM on processors\";\n  reference = \"lab-vllm:real\";\n  \
         systems = [ \"x86_64-linux\" ];\n  vllm = \"0.32.0\";\n  pinWith = \"-\";\n  \
         serve = [ \"/usr/bin/python3\" \"/opt/vllm/site/bin/vllm\" \"serve\" ];\n  ray = \"/opt/vllm/site/bin/ray\";\n  \
         environment = {{ HOME = \"/root\"; PYTHONDONTWRITEBYTECODE = \"1\"; TRANSFORMERS_OFFLINE = \"1\"; \
         VLLM_NO_USAGE_STATS = \"1\"; DO_NOT_TRACK = \"1\"; OMP_NUM_THREADS = \"1\"; \
         VLLM_CPU_OMP_THREADS_BIND = \"nobind\"; TORCHDYNAMO_DISABLE = \"1\"; }};\n}}\n"
    );
    std::fs::write(flake.join(format!("images/{IMAGE}.nix")), image).unwrap();
    let pin = json!({ "manifest": id, "config": id });
    std::fs::write(flake.join(format!("images/{IMAGE}.pin.json")), pin.to_string()).unwrap();
    for (name, own) in LANES {
        let lane = format!(
            "import ./base/lab.nix {{\n  name = \"{name}\";\n  description = \"a real vLLM\";\n  image = \"{IMAGE}\";\n  \
             model.path = \"/models/tiny\";\n  serve = {{\n    maxModelLen = 2048;\n    kvCacheMemoryBytes = 67108864;\n    \
             asyncScheduling = true;\n    extraArgs = [ \"--enforce-eager\" \"--dtype\" \"float32\" ];\n  }};\n  \
             {own}\n  budgets = {{ startSecs = 600; stopSecs = 40; }};\n  \
             watchdog = {{ canarySecs = 10; canaryTimeoutSecs = 20; canaryFailures = 2; peerGraceSecs = 10; }};\n}}\n"
        );
        std::fs::write(flake.join(format!("nix/lanes/{name}.nix")), lane).unwrap();
    }
}

/// Waits until another container than before is warmed up and gives tokens; gives the seconds since `begin`.
#[track_caller]
fn serves(rig: &Rig, begin: Instant, before: &str) -> u64 {
    rig.until("both units are up with a new container", 420, || {
        std::thread::sleep(Duration::from_secs(1));
        container(rig, "head") != before
            && NODES.iter().all(|node| rig.try_sh(node, "systemctl is-active sparklane-engine"))
            && rig.tokens() > 0
    });
    begin.elapsed().as_secs()
}

/// Kills the first process with the words in its command line.
fn kill(rig: &Rig, node: &str, words: &str) -> Instant {
    rig.sh(node, &format!("kill -KILL $(pgrep -f '{words}' | head -1)"));
    Instant::now()
}

fn mp(rig: &Rig) {
    arguments_are_the_lanes(rig);
    // Whichever rank sees it first ends with 0.
    let (since, before) = (mark(rig, "worker"), container(rig, "head"));
    let begin = kill(rig, "worker", "^VLLM::Worker");
    said(rig, "worker", &since, "ended by itself with code 0, which counts as a failure", 60);
    let rank = serves(rig, begin, &before);

    let (since, before) = (mark(rig, "head"), container(rig, "head"));
    let begin = kill(rig, "head", "^/usr/bin/python3 /opt/vllm/site/bin/vllm serve");
    said(rig, "head", &since, "processes that were left", 30);
    said(rig, "head", &since, "the engine ended with code 137", 30);
    let api = serves(rig, begin, &before);
    eprintln!("real vLLM, mp: serving again {rank} s after rank 1's death, {api} s after the API server's");
}

fn ray(rig: &Rig) {
    arguments_are_the_lanes(rig);
    for node in NODES {
        let scores = "for p in $(pgrep -f 'ray::|raylet|VLLM|vllm/site'); do cat /proc/$p/oom_score_adj; done 2>/dev/null | sort -u";
        assert_eq!(rig.sh(node, scores).trim(), "0", "{node}: Ray gives its workers 1000");
    }
    let (since, before) = (mark(rig, "head"), container(rig, "head"));
    let begin = kill(rig, "worker", "^ray::RayWorkerProc");
    said(rig, "head", &since, "ended by itself with code 0, which counts as a failure", 60);
    let rank = serves(rig, begin, &before);
    eprintln!("real vLLM, Ray: serving again {rank} s after rank 1's death");
}

#[test]
#[ignore = "needs the lab and a root file system with vLLM (cargo xtask test --real-vllm)"]
fn real_vllm_is_deployed_and_heals() {
    let rig = Rig::on_a();
    let id = image(&rig);
    publish(&rig, &id);
    let rig = rig.rebuilt();
    for (lane, check) in [(LANES[0].0, mp as fn(&Rig)), (LANES[1].0, ray)] {
        let begin = Instant::now();
        rig.deploy(lane).is(0, "committed");
        eprintln!("{lane}: deployed in {} s", begin.elapsed().as_secs());
        rig.one_release(lane);
        check(&rig);
    }
    rig.deploy("lab-a").is(0, "committed");
    rig.sh("head", "docker image rm -f lab-vllm:real");
    rig.sh("worker", "docker image rm -f lab-vllm:real");
}
