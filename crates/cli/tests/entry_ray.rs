//! `sparklane entry` in a Ray lane, with a Ray that is a script: who waits for whom, until when, and what an end means.

#![allow(clippy::unwrap_used)] // a test says what is wrong by failing

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/engine/ray");

/// A Ray whose dashboard gives captured answers, in a folder of its own.
struct Ray {
    dir: tempfile::TempDir,
    dashboard: u16,
    gcs: u16,
}

/// A port that nobody has now.
fn free() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Ray {
    /// `state`: whose answers the dashboard gives.
    fn new(state: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let web = dir.path().join("web");
        std::fs::create_dir_all(web.join("api/v0")).unwrap();
        let fixtures = Path::new(FIXTURES).join(state);
        std::fs::copy(fixtures.join("api_version.json"), web.join("api/version")).unwrap();
        std::fs::copy(fixtures.join("api_v0_nodes.json"), web.join("api/v0/nodes")).unwrap();
        let version: Value = serde_json::from_slice(&std::fs::read(web.join("api/version")).unwrap()).unwrap();
        let session = version["session_name"].as_str().unwrap();
        std::fs::create_dir(dir.path().join("ray")).unwrap();
        std::os::unix::fs::symlink(format!("/x/{session}"), dir.path().join("ray/session_latest")).unwrap();
        Self { dir, dashboard: free(), gcs: free() }
    }

    fn plan(&self, start: &[&str], join_secs: u32) -> Value {
        let head = json!({ "start": start, "dashboardPort": self.dashboard, "nodes": ["10.0.0.1", "10.0.0.2"],
            "gpusPerNode": 1 });
        json!({ "gcs": format!("127.0.0.1:{}", self.gcs), "joinSecs": join_secs, "head": head })
    }

    fn serve(&self) -> String {
        let web = self.dir.path().join("web");
        format!(
            "python3 -m http.server --bind 127.0.0.1 --directory {} {} > /dev/null 2>&1",
            web.display(),
            self.dashboard
        )
    }

    fn entry(&self, plan: &Value, engine: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sparklane"));
        command.args(["entry", "--ray", &plan.to_string(), "--", "/bin/sh", "-c", engine]);
        command.env("RAY_TMPDIR", self.dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// As the head, with a Ray that stays.
    fn head(&self, join_secs: u32, engine: &str) -> Output {
        let serve = format!("exec {}", self.serve());
        self.entry(&self.plan(&["/bin/sh", "-c", &serve], join_secs), engine).output().unwrap()
    }
}

fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_engine_starts_when_all_nodes_are_in_and_ray_ends_with_it() {
    let ray = Ray::new("two-nodes");
    let out = ray.head(30, "echo \"engine $RAY_ADDRESS\"; exit 3");
    assert_eq!(out.status.code(), Some(3), "{}", said(&out));
    assert_eq!(printed(&out), format!("engine 127.0.0.1:{}\n", ray.gcs));
    assert!(said(&out).contains("Ray is complete: 10.0.0.1, 10.0.0.2; starting the engine"), "{}", said(&out));
    assert!(said(&out).contains("ended 1 processes that were left"), "{}", said(&out));
    // A quiet end is none of Ray's.
    assert_eq!(Ray::new("two-nodes").head(30, "exit 0").status.code(), Some(70));
}

#[test]
fn a_worker_that_is_not_in_ends_the_wait_with_its_name() {
    let out = Ray::new("waiting-for-worker").head(4, "echo never");
    assert_eq!(out.status.code(), Some(69), "{}", said(&out));
    assert_eq!(printed(&out), "");
    let why = "Ray is not complete after 4 s: node 10.0.0.2 is not ALIVE";
    assert!(said(&out).contains(why) && said(&out).contains("alive: 10.0.0.1"), "{}", said(&out));
}

#[test]
fn another_rays_session_is_no_session_of_ours() {
    let ray = Ray::new("two-nodes");
    let link = ray.dir.path().join("ray/session_latest");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("/x/session_other", &link).unwrap();
    let out = ray.head(4, "echo never");
    assert_eq!((out.status.code(), printed(&out).as_str()), (Some(69), ""));
    assert!(said(&out).contains("of another Ray"), "{}", said(&out));
}

#[test]
fn a_port_that_is_taken_is_said_at_once() {
    let ray = Ray::new("two-nodes");
    let _other = TcpListener::bind(("127.0.0.1", ray.dashboard)).unwrap();
    let out = ray.head(600, "echo never");
    assert_eq!(out.status.code(), Some(69));
    let why = format!("something already listens on 127.0.0.1:{}", ray.dashboard);
    assert!(said(&out).contains(&why), "{}", said(&out));
}

#[test]
fn the_end_of_ray_is_the_end_of_the_engine() {
    let ray = Ray::new("two-nodes");
    let (up, serve) = (ray.dir.path().join("up"), ray.serve());
    // As `ray start --block` ends when one of its processes did.
    let start = format!("{serve} & until [ -e {} ]; do sleep 0.05; done; exit 1", up.display());
    let engine = format!("echo engine; : > {}; exec sleep 1000", up.display());
    let out = ray.entry(&ray.plan(&["/bin/sh", "-c", &start], 30), &engine).output().unwrap();
    assert_eq!(out.status.code(), Some(73), "{}", said(&out));
    assert_eq!(printed(&out), "engine\n");
    assert!(said(&out).contains("Ray on this node ended with code 1 while the engine ran"), "{}", said(&out));
    // Before it was complete.
    let out = ray.entry(&ray.plan(&["/bin/sh", "-c", "exit 1"], 600), "echo never").output().unwrap();
    assert_eq!(out.status.code(), Some(73), "{}", said(&out));
    assert!(said(&out).contains("before it was complete"), "{}", said(&out));
    // Its command line is of the lane.
    assert_eq!(ray.entry(&ray.plan(&["/bin/sh", "-c", "exit 2"], 600), "").output().unwrap().status.code(), Some(2));
}

#[test]
fn a_node_that_leaves_ends_the_engine() {
    let ray = Ray::new("two-nodes");
    let gone = Path::new(FIXTURES).join("waiting-for-worker/api_v0_nodes.json");
    let nodes = ray.dir.path().join("web/api/v0/nodes");
    // As when the worker's raylet ended by SIGTERM, which `ray start --block` takes for well.
    let engine = format!("cp {} {}; exec sleep 1000", gone.display(), nodes.display());
    let out = ray.head(30, &engine);
    assert_eq!(out.status.code(), Some(73), "{}", said(&out));
    assert!(said(&out).contains("gives up: node 10.0.0.2 is no longer ALIVE while the engine ran"), "{}", said(&out));
}

/// The pid of what the first line on stdout names, and the entry.
fn started(mut command: Command) -> (Child, i32) {
    use std::io::BufRead as _;
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

#[test]
fn the_engine_drains_before_ray_is_ended() {
    let ray = Ray::new("two-nodes");
    let serve = format!("trap 'exit 0' TERM; {} & echo $! > {}/dashboard; wait", ray.serve(), ray.dir.path().display());
    let engine = "trap 'drained=1' TERM; echo $$; while [ -z \"$drained\" ]; do sleep 0.05; done; kill -0 $(cat $RAY_TMPDIR/dashboard)";
    let (mut child, _) = started(ray.entry(&ray.plan(&["/bin/sh", "-c", &serve], 30), engine));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "the engine saw Ray while it drained");
    let dashboard = std::fs::read_to_string(ray.dir.path().join("dashboard")).unwrap();
    let dashboard = Pid::from_raw(dashboard.trim().parse().unwrap()).unwrap();
    assert!(test_kill_process(dashboard).is_err(), "Ray lives");
}

#[test]
fn a_worker_waits_for_the_gcs_and_judges_its_raylet() {
    let ray = Ray::new("two-nodes");
    let plan = |join: u32| json!({ "gcs": format!("127.0.0.1:{}", ray.gcs), "joinSecs": join, "head": null });
    let out = ray.entry(&plan(1), "echo never").output().unwrap();
    assert_eq!((out.status.code(), printed(&out).as_str()), (Some(69), ""));
    let why = format!("the head's GCS at 127.0.0.1:{} does not answer after 1 s: Connection refused", ray.gcs);
    assert!(said(&out).contains(&why), "{}", said(&out));
    let _gcs = TcpListener::bind(("127.0.0.1", ray.gcs)).unwrap();
    for (script, code) in [("exit 1", 73), ("exit 0", 73), ("kill -9 $$", 73), ("exit 2", 2)] {
        assert_eq!(ray.entry(&plan(2), script).output().unwrap().status.code(), Some(code), "{script}");
    }
    // What ends before there is a raylet could not join yet; what had one is gone.
    let twice = format!("f={}/tried; if [ -e $f ]; then exit 2; fi; touch $f; exit 1", ray.dir.path().display());
    let out = ray.entry(&plan(30), &twice).output().unwrap();
    assert!(out.status.code() == Some(2) && said(&out).contains("could not join yet"), "{}", said(&out));
    let raylet = ray.dir.path().join("raylet");
    std::fs::copy("/bin/sleep", &raylet).unwrap();
    let begin = std::time::Instant::now();
    let out = ray.entry(&plan(300), &format!("{} 2; exit 1", raylet.display())).output().unwrap();
    assert!(out.status.code() == Some(73) && !said(&out).contains("join yet"), "{}", said(&out));
    assert!(begin.elapsed().as_secs() < 60);
    let (mut child, raylet) = started(ray.entry(&plan(30), "echo $$; exec sleep 1000"));
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "asked for");
    assert!(test_kill_process(Pid::from_raw(raylet).unwrap()).is_err());
}
