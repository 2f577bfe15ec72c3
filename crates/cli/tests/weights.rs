//! `weights send` with both ends as processes in network namespaces of their own: two veth rails, shaped by tc, cut and
//! healed. Runs as root, as CI does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

#[path = "../../weights/tests/support/noise.rs"]
mod noise;

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use noise::noise;
use sparklane_deploy::weights::{End, EndRail, SendOptions, Shell, send};
use sparklane_lane::WeightsManifest;
use sparklane_lane::weights::WeightsFile;
use sparklane_weights::agent::Event;
use sparklane_weights::store::Presence;
use sparklane_weights::transfer::Receipt;
use sparklane_weights::{Sha, Store};

const TOOL: &str = env!("CARGO_BIN_EXE_sparklane");
const MB: usize = 1_000_000;

fn run(argv: &[&str]) {
    let output = Command::new(argv[0]).args(&argv[1..]).output().unwrap_or_else(|e| panic!("{}: {e}", argv[0]));
    assert!(output.status.success(), "{argv:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A node: a network namespace and a store.
struct Node {
    name: String,
    space: String,
    dir: tempfile::TempDir,
}

impl Shell for Node {
    fn name(&self) -> &str {
        &self.name
    }

    fn command(&self, argv: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space]).args(argv);
        command
    }
}

impl Node {
    fn store(&self) -> Utf8PathBuf {
        Utf8PathBuf::from_path_buf(self.dir.path().to_path_buf()).unwrap()
    }

    fn end(&self, host: u8) -> End<'_> {
        let rail = |n: u8| EndRail {
            name: format!("rail{n}"),
            address: format!("10.99.{n}.{host}").parse().unwrap(),
            device: Some(format!("rail{n}")),
        };
        End { shell: self, tool: TOOL.to_owned(), store: self.store(), rails: vec![rail(1), rail(2)] }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _gone = Command::new("ip").args(["netns", "del", &self.space]).status();
    }
}

/// Two nodes, two rails of so many megabits per second each way.
fn pair(tag: &str, mbits: [u32; 2]) -> (Node, Node) {
    let node = |name: &str| {
        let space = format!("slw-{tag}-{name}-{}", std::process::id());
        run(&["ip", "netns", "add", &space]);
        run(&["ip", "-n", &space, "link", "set", "lo", "up"]);
        Node { name: name.into(), space, dir: tempfile::tempdir().unwrap() }
    };
    let (head, worker) = (node("head"), node("worker"));
    for (n, rate) in [(1, mbits[0]), (2, mbits[1])] {
        let rail = format!("rail{n}");
        run(&[
            "ip",
            "-n",
            &head.space,
            "link",
            "add",
            &rail,
            "type",
            "veth",
            "peer",
            "name",
            &rail,
            "netns",
            &worker.space,
        ]);
        for (node, host) in [(&head, 10), (&worker, 11)] {
            run(&["ip", "-n", &node.space, "addr", "add", &format!("10.99.{n}.{host}/24"), "dev", &rail]);
            run(&["ip", "-n", &node.space, "link", "set", &rail, "mtu", "9000", "up"]);
            let rate = format!("{rate}mbit");
            run(&[
                "ip",
                "netns",
                "exec",
                &node.space,
                "tc",
                "qdisc",
                "add",
                "dev",
                &rail,
                "root",
                "tbf",
                "rate",
                &rate,
                "burst",
                "256kb",
                "latency",
                "50ms",
            ]);
        }
    }
    (head, worker)
}

/// Puts a model into a node's store by the command that people use.
fn model_on(node: &Node, sizes: &[(&str, usize)]) -> WeightsManifest {
    let source = tempfile::tempdir_in(node.dir.path()).unwrap();
    let dir = Utf8Path::from_path(source.path()).unwrap();
    let file = |(n, (path, size)): (usize, &(&str, usize))| {
        let bytes = noise(n as u64 + 1, *size);
        std::fs::write(dir.join(path), &bytes).unwrap();
        WeightsFile { path: (*path).to_owned(), size: *size as u64, sha256: Sha::of(&bytes).to_string() }
    };
    let files = sizes.iter().enumerate().map(file).collect();
    let manifest = WeightsManifest { model: "org/tiny".into(), revision: "a".repeat(40), files };
    let path = node.dir.path().join("manifest.json");
    std::fs::write(&path, manifest.to_text()).unwrap();
    let (path, store) = (path.to_str().unwrap(), node.store());
    run(&[TOOL, "weights", "adopt", dir.as_str(), "--manifest", path, "--store", store.as_str()]);
    run(&[TOOL, "weights", "verify", path, "--store", store.as_str(), "--deep"]);
    manifest
}

fn go(
    head: &Node,
    worker: &Node,
    manifest: &WeightsManifest,
    options: &SendOptions,
    say: &(dyn Fn(&Event) + Sync),
) -> Receipt {
    let told = |_: &str, event: &Event| say(event);
    let mut receipts = send(manifest, &head.end(10), &[worker.end(11)], options, &told).unwrap();
    let store = Store::at(&worker.store());
    assert!(matches!(store.presence(manifest).unwrap(), Presence::Proved(_)));
    assert_eq!(store.verify(manifest, 2, &|_| true).unwrap(), []);
    receipts.remove(0).1
}

#[test]
fn unequal_rails_share_by_what_they_can_and_the_sum_is_used() {
    let (head, worker) = pair("share", [160, 20]);
    let manifest = model_on(&head, &[("one-huge-file", 45 * MB), ("config.json", 700)]);
    let receipt = go(&head, &worker, &manifest, &SendOptions::default(), &|_| {});
    let share = receipt.ways[1].bytes as f64 / receipt.bytes as f64;
    assert!((0.06..0.18).contains(&share), "{receipt:?}");
    let best = receipt.bytes as f64 / (180.0e6 / 8.0);
    assert!(receipt.millis as f64 / 1000.0 < best * 2.0, "{receipt:?}");
    let probes: Vec<u64> = receipt.ways.iter().map(|w| w.probe.as_ref().unwrap().bytes_per_second).collect();
    assert!(probes[0] > 2 * probes[1], "{probes:?}");
}

#[test]
fn a_rail_cut_at_forty_percent_and_healed_only_slows() {
    let (head, worker) = pair("cut", [160, 160]);
    let manifest = model_on(&head, &[("a", 60 * MB), ("b", 40 * MB)]);
    let (cut, started) = (AtomicBool::new(false), Instant::now());
    let healed = Mutex::new(None);
    let receipt = go(&head, &worker, &manifest, &SendOptions::default(), &|event| {
        let Event::Progress { done, total, .. } = event else { return };
        if done * 10 > total * 4 && !cut.swap(true, Ordering::Relaxed) {
            run(&["ip", "-n", &head.space, "link", "set", "rail1", "down"]);
            *healed.lock().unwrap() = Some(started.elapsed());
        } else if let Some(at) = *healed.lock().unwrap()
            && started.elapsed() > at + Duration::from_secs(2)
        {
            run(&["ip", "-n", &head.space, "link", "set", "rail1", "up"]);
        }
    });
    assert!(cut.load(Ordering::Relaxed), "the transfer was too quick to cut a rail");
    assert!(receipt.ways[0].bytes < receipt.ways[1].bytes, "{receipt:?}");
    assert!(receipt.longest_pause_millis < 5000, "{receipt:?}");
}

#[test]
fn a_sender_that_dies_is_named_and_the_next_run_goes_on() {
    let (head, worker) = pair("dies", [200, 200]);
    let manifest = model_on(&head, &[("a", 150 * MB)]);
    let killed = AtomicBool::new(false);
    let told = |_: &str, event: &Event| {
        let Event::Progress { done, total, .. } = event else { return };
        if done * 10 > total * 6 && !killed.swap(true, Ordering::Relaxed) {
            let pids = Command::new("ip").args(["netns", "pids", &head.space]).output().unwrap().stdout;
            for pid in String::from_utf8(pids).unwrap().split_whitespace() {
                let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
                let _killed = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    };
    let patient = SendOptions { give_up_secs: Some(3), ..SendOptions::default() };
    let error = send(&manifest, &head.end(10), &[worker.end(11)], &patient, &told).unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
    assert!(error.to_string().contains("worker") && error.to_string().contains("kept"), "{error}");
    let receipt = go(&head, &worker, &manifest, &SendOptions { seal: true, ..SendOptions::default() }, &|_| {});
    assert!(receipt.had >= 64 * 1024 * 1024, "{receipt:?}");
    assert_eq!(receipt.had + receipt.fetched, receipt.bytes);
}

#[test]
fn the_commands_judge_a_store() {
    let (head, _worker) = pair("judge", [100, 100]);
    let manifest = model_on(&head, &[("a", 3 * MB), ("empty", 0)]);
    let (store, file) = (head.store(), head.dir.path().join("manifest.json"));
    let file = file.to_str().unwrap();
    let ask = |words: &[&str]| {
        let out = Command::new(TOOL).arg("weights").args(words).args(["--store", store.as_str()]).output().unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap())
    };
    let (code, said) = ask(&["verify", file, "--json"]);
    assert!(code == 0 && said.contains(r#""state":"proved""#), "{said}");
    let (code, said) = ask(&["status", "--json"]);
    assert!(code == 0 && said.contains(&manifest.store_name()) && said.contains(&manifest.id()), "{said}");
    let (code, said) = ask(&["view", file]);
    assert!(code == 0 && said.contains("HF_HUB_CACHE"), "{said}");
    let (code, said) = ask(&["du"]);
    assert!(code == 0 && said.contains("in all"), "{said}");
    // What is not of the manifest would be read by an engine all the same.
    let folder = Store::at(&store).folder(&manifest);
    std::fs::create_dir(folder.join("more")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", folder.join("tokenizer.json")).unwrap();
    for words in [&["verify", file][..], &["verify", file, "--deep"]] {
        let (code, said) = ask(words);
        assert!(code == 3 && said.contains("tokenizer.json: is not of") && said.contains("more: is not of"), "{said}");
    }
    let (code, said) = ask(&["fetch", file]);
    assert!(code == 1 && said.contains("move it away"), "{said}");
    std::fs::remove_dir(folder.join("more")).unwrap();
    std::fs::remove_file(folder.join("tokenizer.json")).unwrap();
    let (code, said) = ask(&["verify", file]);
    assert!(code == 0, "{said}");
    let path = folder.join("a");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[MB] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (code, said) = ask(&["verify", file]);
    assert!(code == 3 && said.contains("was written to"), "{said}");
    let (code, said) = ask(&["verify", file, "--deep"]);
    assert!(code == 3 && said.contains("sha256 is"), "{said}");
    let (code, said) = ask(&["gc"]);
    assert!(code == 1 && said.contains("--yes"), "{said}");
    let (code, said) = ask(&["gc", "--yes", "--keep", file]);
    assert!(code == 0 && said.contains("nothing"), "{said}");
    let (code, said) = ask(&["gc", "--yes"]);
    assert!(code == 0 && said.contains("removed"), "{said}");
    let out = Command::new(TOOL).args(["weights", "verify", "/nonexistent.json", "--json"]).output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&told["verdict"], &told["exitCode"]), (&"refused".into(), &1.into()), "{told:#}");
    let (code, said) = ask(&["verify", "/nonexistent.json"]);
    assert!(code == 1 && said.contains("nonexistent"), "{said}");
}
