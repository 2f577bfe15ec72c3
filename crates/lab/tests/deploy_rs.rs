//! Stock deploy-rs 1.0.0 drives the lab's nodes (issue 2, item 8; facts: finding 2 and b.7 of its study).
//!
//! The real `deploy` from the Rust registry runs on the control machine; `activate-rs` in the closures is ours. Needs the
//! lab, ./prebuilt and `deploy` in /var/cache/sparklane/deploy-rs/bin (or $SPARKLANE_DEPLOY_RS).

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)] // a test says what is wrong by failing

use std::time::{Duration, Instant};

use camino::Utf8Path;
use sparklane_lab::{ExecOutput, Lab, Paths, UpOptions};

const TOOL: &str = "/nix/var/nix/gcroots/sparklane/tool/bin/sparklane";
const PROFILE: &str = "/nix/var/nix/profiles/sparklane";

struct Bench {
    lab: Lab,
}

impl Bench {
    /// The lab, with the client on control and both nodes on lab-a.
    fn new() -> Self {
        let workspace = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap();
        let options =
            UpOptions { prebuilt: Some(workspace.join("prebuilt")), flake: Some(workspace), state_size_mib: None };
        let lab = Lab::up(Paths::from_env(), &options, &|text| eprintln!("{text}")).unwrap();
        let client = std::env::var("SPARKLANE_DEPLOY_RS")
            .unwrap_or_else(|_| "/var/cache/sparklane/deploy-rs/bin/deploy".to_owned());
        std::fs::copy(&client, lab.root("control").join("usr/local/bin/deploy"))
            .unwrap_or_else(|e| panic!("{client}: {e}; cargo install deploy-rs --version 1.0.0 --root DIR"));
        let bench = Self { lab };
        assert!(bench.lab.check("control", &["deploy", "--version"]).unwrap().contains("1.0.0"));
        if bench.lanes() != ["lab-a", "lab-a"] {
            bench.ok(&bench.deploy("lab-a", &["worker", "head"], &[]));
        }
        assert_eq!(bench.lanes(), ["lab-a", "lab-a"]);
        bench
    }

    fn argv(lane: &str, nodes: &[&str], more: &[&str]) -> Vec<String> {
        let targets = nodes.iter().map(|node| format!("path:/root/sparklane#lab-{lane}-{node}"));
        let mut argv = vec!["deploy".to_owned(), "--skip-checks".to_owned()];
        argv.extend(more.iter().map(|m| (*m).to_owned()));
        argv.push("--targets".to_owned());
        argv.extend(targets);
        argv.extend(["--", "--override-input", "prebuilt", "path:/root/prebuilt"].map(str::to_owned));
        argv
    }

    fn deploy(&self, lane: &str, nodes: &[&str], more: &[&str]) -> ExecOutput {
        let argv = Self::argv(lane, nodes, more);
        self.lab.exec("control", &argv.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
    }

    fn start(&self, lane: &str, nodes: &[&str], more: &[&str]) -> std::process::Child {
        let argv = Self::argv(lane, nodes, more);
        self.lab.spawn("control", &argv.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
    }

    fn ok(&self, output: &ExecOutput) {
        assert_eq!(output.code, Some(0), "{}\n{}\n{}", output.stdout, output.stderr, self.journals());
    }

    fn journals(&self) -> String {
        let argv = ["journalctl", "--no-pager", "-n", "60", "-o", "cat", "-u", "sparklane-*"];
        let of = |node| self.lab.exec(node, &argv).map_or_else(|e| e.to_string(), |o| o.stdout);
        format!("--- head\n{}\n--- worker\n{}", of("head"), of("worker"))
    }

    /// Lane of head and worker, by their profiles.
    fn lanes(&self) -> [String; 2] {
        ["head", "worker"].map(|node| {
            let file = format!("{PROFILE}/generation.json");
            let output = self.lab.exec(node, &["cat", &file]).unwrap();
            let text: serde_json::Value = serde_json::from_str(&output.stdout).unwrap_or_default();
            text["lane"].as_str().unwrap_or("none").to_owned()
        })
    }

    /// State of a node's newest transaction.
    fn state(&self, node: &str) -> String {
        let output = self.lab.exec(node, &[TOOL, "txn", "list"]).unwrap();
        output.stdout.lines().last().and_then(|l| l.split_whitespace().nth(1)).unwrap_or_default().to_owned()
    }

    fn transactions(&self, node: &str) -> usize {
        self.lab.exec(node, &[TOOL, "txn", "list"]).unwrap().stdout.lines().count()
    }

    fn until(&self, node: &str, than: usize, states: &[&str], limit: u64) -> String {
        let end = Instant::now() + Duration::from_secs(limit);
        loop {
            let (count, state) = (self.transactions(node), self.state(node));
            if count > than && states.contains(&state.as_str()) {
                return state;
            }
            assert!(Instant::now() < end, "{node} is {state}, not {states:?}\n{}", self.journals());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn signal_client(&self, signal: &str) {
        self.lab.check("control", &["pkill", signal, "-x", "deploy"]).unwrap();
    }

    fn canaries(&self, node: &str) -> String {
        self.lab.check(node, &["find", "/run", "-maxdepth", "1", "-name", "deploy-rs-canary-*"]).unwrap()
    }

    fn tokens(&self) -> bool {
        let script = "import json,urllib.request as u\n\
            g=json.load(open('/nix/var/nix/profiles/sparklane/generation.json'))['engine']\n\
            b=json.dumps({'model':g['servedModel'],'messages':[{'role':'user','content':'hi'}],'max_tokens':4})\n\
            h='127.0.0.1' if g['apiHost']=='0.0.0.0' else g['apiHost']\n\
            r=u.Request('http://%s:%d/v1/chat/completions'%(h,g['apiPort']),b.encode(),{'Content-Type':'application/json'})\n\
            print(json.load(u.urlopen(r,timeout=20))['usage']['completion_tokens'])";
        let output = self.lab.exec("head", &["python3", "-c", script]).unwrap();
        output.stdout.trim().parse::<u32>().is_ok_and(|n| n > 0)
    }

    /// Starts a deployment of lab-b to the worker whose client stops for good once the node works on it, and waits for the
    /// node's own ready mark.
    fn stopped_in_the_window(&self) -> std::process::Child {
        let before = self.transactions("worker");
        let child = self.start("lab-b", &["worker"], &["--confirm-timeout", "8"]);
        self.until("worker", before, &["prepared", "switching", "switched"], 120);
        // `activate` and `wait` run in ssh by now or soon; without the client nobody confirms.
        std::thread::sleep(Duration::from_millis(200));
        self.signal_client("-STOP");
        self.until("worker", before, &["gated"], 120);
        child
    }
}

#[test]
#[ignore = "needs the lab"]
fn success() {
    let bench = Bench::new();
    bench.ok(&bench.deploy("lab-b", &["worker", "head"], &[]));
    assert_eq!(bench.lanes(), ["lab-b", "lab-b"]);
    assert_eq!((bench.state("head"), bench.state("worker")), ("committed".into(), "committed".into()));
    assert!(bench.tokens(), "{}", bench.journals());
    assert_eq!(bench.canaries("head") + &bench.canaries("worker"), "");
}

#[test]
#[ignore = "needs the lab"]
fn a_failing_gate_fails_the_client_and_no_node_keeps_the_lane() {
    let bench = Bench::new();
    let output = bench.deploy("lab-broken", &["worker", "head"], &[]);
    assert_eq!(output.code, Some(1), "{}", output.stderr);
    assert_eq!(bench.state("head"), "rolled-back", "{}", bench.journals());
    // deploy-rs revokes the worker after the head failed.
    assert_eq!(bench.lanes(), ["lab-a", "lab-a"], "{}\n{}", output.stderr, bench.journals());
    let end = Instant::now() + Duration::from_secs(60);
    while !bench.tokens() {
        assert!(Instant::now() < end, "the old lane does not serve\n{}", bench.journals());
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
#[ignore = "needs the lab"]
fn scenario_1_a_client_killed_in_the_window_is_rolled_back() {
    let bench = Bench::new();
    let before = bench.transactions("worker");
    let mut child = bench.stopped_in_the_window();
    bench.signal_client("-KILL");
    // The host's side of it stopped along with the client.
    child.kill().unwrap();
    child.wait().unwrap();
    bench.until("worker", before, &["rolled-back"], 60);
    assert_eq!(bench.lanes()[1], "lab-a");
    assert_eq!(bench.canaries("worker"), "");
    // Finding 1's stale canary made the retry a false success; here the retry is a true one.
    bench.ok(&bench.deploy("lab-b", &["worker"], &[]));
    assert_eq!(bench.lanes()[1], "lab-b");
    bench.ok(&bench.deploy("lab-a", &["worker"], &[]));
}

#[test]
#[ignore = "needs the lab"]
fn scenario_3_a_late_confirmation_is_an_error_of_the_client() {
    let bench = Bench::new();
    let before = bench.transactions("worker");
    let child = bench.stopped_in_the_window();
    bench.until("worker", before, &["rolled-back"], 60);
    bench.signal_client("-CONT");
    // The host's side of it stopped along with the client.
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!said.contains("Deployment confirmed"), "{said}");
    assert_eq!(bench.lanes()[1], "lab-a");
}

fn lab_b_of_the_worker(bench: &Bench) -> String {
    let built = bench
        .lab
        .check(
            "control",
            &[
                "nix",
                "build",
                "--no-link",
                "--print-out-paths",
                "path:/root/sparklane#generation-lab-lab-b-worker",
                "--override-input",
                "prebuilt",
                "path:/root/prebuilt",
            ],
        )
        .unwrap();
    built.trim().to_owned()
}

#[test]
#[ignore = "needs the lab"]
fn scenario_4_a_stale_canary_confirms_nothing() {
    let bench = Bench::new();
    let path = lab_b_of_the_worker(&bench);
    let hash = path.trim().trim_start_matches("/nix/store/").split('-').next().unwrap().to_owned();
    bench.lab.check("worker", &["touch", &format!("/run/deploy-rs-canary-{hash}")]).unwrap();
    let before = bench.transactions("worker");
    let output = bench.deploy("lab-b", &["worker"], &[]);
    bench.ok(&output);
    assert_eq!((bench.transactions("worker"), bench.state("worker")), (before + 1, "committed".into()));
    assert_eq!(bench.lanes()[1], "lab-b");
    assert_eq!(bench.canaries("worker"), "");
    bench.ok(&bench.deploy("lab-a", &["worker"], &[]));
}

#[test]
#[ignore = "needs the lab"]
fn dry_activate_and_revoke_of_nothing() {
    let bench = Bench::new();
    let before = bench.transactions("worker");
    bench.ok(&bench.deploy("lab-b", &["worker"], &["--dry-activate"]));
    assert_eq!(bench.lanes()[1], "lab-a");
    assert_eq!(bench.transactions("worker"), before, "a dry run leaves no transaction");
    let output = bench.deploy("lab-b", &["worker"], &["--auto-rollback", "false"]);
    assert_eq!(output.code, Some(1));
    // The client does not always show what the node said; asked directly, it says why.
    let path = lab_b_of_the_worker(&bench);
    let activate = format!("{path}/activate-rs");
    let profile = "/nix/var/nix/profiles/sparklane";
    let argv = ["--profile-path", profile, "--temp-path", "/run", "--confirm-timeout", "30", "--magic-rollback"];
    let said = bench.lab.exec("worker", &[&[&*activate, "activate", &path][..], &argv].concat()).unwrap();
    assert!(said.code == Some(1) && said.stderr.contains("autoRollback"), "{said:?}");
    assert_eq!((bench.lanes()[1].as_str(), bench.transactions("worker")), ("lab-a", before));
}
