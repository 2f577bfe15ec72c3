//! `deploy`, `rollback` and `lane` as programs, with an `ssh` that answers for the nodes from files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use sparklane_host::status::NodeStatus;
use sparklane_lane::Catalog;
use sparklane_lane::catalog::RawCatalog;
use sparklane_lane::render::render_all;

const SSH: &str = r#"#!/bin/sh
host=; for word; do last=$word; case "$before" in --) host=$word ;; esac; before=$word; done
echo "$host $last" >> "$NODES/log"
test -e "$NODES/$host.sudo" && { cat "$NODES/$host.sudo" >&2; exit 1; }
absent() { echo "sudo: $1/bin/sparklane: command not found" >&2; exit 1; }
case "$last" in
*gcroots/sparklane/tool/*) test ! -e "$NODES/$host.lost" || absent /nix/var/nix/gcroots/sparklane/tool ;;
*profiles/sparklane/bin/*) test ! -e "$NODES/$host.bare" || absent /nix/var/nix/profiles/sparklane ;;
esac
case "$last" in
*"readlink -- "*) cat "$NODES/$host.link" ;;
*"node status") sleep ${SLOW:-0}; cat "$NODES/$host.json" ;;
*generation.json) cat "$NODES/$host.generation" ;;
*) echo 'Cannot connect to the Docker daemon' >&2; exit 1 ;;
esac
"#;

struct Nodes {
    _guard: tempfile::TempDir,
    dir: Utf8PathBuf,
}

/// The shipped lanes, as an app has them beside it.
fn lanes() -> Vec<u8> {
    let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new("nix-instantiate");
    command.args(["--eval", "--strict", "--json", "--arg", "prebuilt", "null"]).arg(root.join("nix/catalog.nix"));
    let output = command.output().expect("nix-instantiate runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

impl Nodes {
    /// Both lab nodes on release 2 (lab-b) with release 1 (lab-a) before it.
    fn new(change: impl Fn(&str, &mut Value)) -> Self {
        let guard = tempfile::tempdir().unwrap();
        let dir = Utf8PathBuf::from_path_buf(guard.path().to_owned()).unwrap();
        let lanes = lanes();
        std::fs::write(dir.join("lanes.json"), &lanes).unwrap();
        std::fs::write(dir.join("flake.json"), json!({"flake": dir, "inputs": {}}).to_string()).unwrap();
        std::fs::create_dir(dir.join("bin")).unwrap();
        std::fs::write(dir.join("bin/ssh"), SSH).unwrap();
        std::fs::set_permissions(dir.join("bin/ssh"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let raw: RawCatalog = serde_json::from_slice(&lanes).unwrap();
        let (catalog, _) = Catalog::read(&raw);
        let generations = |lane: &str| render_all(catalog.input("lab", lane).unwrap()).unwrap();
        let path = |letter: &str| format!("/nix/store/{}-g", letter.repeat(32));
        let release = |number: u64, lane: &str, at: [&str; 2]| {
            let part = |(node, letter): (&str, &str)| json!({"node": node, "path": path(letter), "generation": letter.repeat(64)});
            let nodes: Vec<Value> = ["head", "worker"].into_iter().zip(at).map(part).collect();
            json!({"number": number, "cluster": "lab", "lane": lane, "nodes": nodes, "image": null, "weights": null, "txn": "t1",
                "rollbackOf": null, "time": "2026-01-01T00:00:00Z", "who": "a@b"})
        };
        for ((node, letter), place) in [("head", "c"), ("worker", "d")].into_iter().zip(0..) {
            let mut status = serde_json::to_value(NodeStatus::default()).unwrap();
            status["current"] = json!({"path": path(letter), "generation": letter.repeat(64)});
            status["generation"] = serde_json::to_value(&generations("lab-b")[place].generation).unwrap();
            status["releases"] = json!([release(1, "lab-a", ["a", "b"]), release(2, "lab-b", ["c", "d"])]);
            status["engine"] =
                json!({"active": "active", "sub": "running", "activeSince": 1, "result": "success", "text": ""});
            status["decisionKey"] = "ssh-ed25519 AAAA".into();
            change(node, &mut status);
            let host = catalog.clusters["lab"].nodes[&node.parse().unwrap()].host.clone();
            std::fs::write(dir.join(format!("{host}.json")), status.to_string()).unwrap();
            let mut generation = serde_json::to_value(&generations("lab-a")[place].generation).unwrap();
            for key in ["manifest", "config"] {
                generation["image"][key] = format!("sha256:{}", "0".repeat(64)).into();
            }
            std::fs::write(dir.join(format!("{host}.generation")), generation.to_string()).unwrap();
        }
        Self { _guard: guard, dir }
    }

    /// The name by which ssh reaches a node.
    fn host(&self, node: &str) -> String {
        let raw: RawCatalog = serde_json::from_slice(&std::fs::read(self.dir.join("lanes.json")).unwrap()).unwrap();
        let (catalog, _) = Catalog::read(&raw);
        catalog.clusters["lab"].nodes[&node.parse().unwrap()].host.clone()
    }

    fn run(&self, args: &[&str]) -> (i32, Value) {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sparklane"));
        command.args(args).args(["--cluster", "lab", "--json", "--share", self.dir.as_str()]).stdin(Stdio::null());
        command.env("PATH", format!("{}/bin:/usr/bin:/bin", self.dir)).env("NODES", &self.dir);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text:?}\n{output:?}"));
        (output.status.code().unwrap(), value)
    }
}

/// Exit code, verdict, and that the object says what it is about.
#[track_caller]
fn told(said: &(i32, Value), code: i32, verdict: &str, lane: Value) {
    let (got, object) = said;
    assert_eq!((*got, &object["verdict"], &object["exitCode"]), (code, &json!(verdict), &json!(code)), "{object:#}");
    assert_eq!((&object["cluster"], &object["lane"]), (&json!("lab"), &lane), "{object:#}");
    let nodes: Vec<&Value> = object["nodes"].as_array().unwrap().iter().map(|n| &n["node"]).collect();
    assert_eq!(nodes, ["head", "worker"], "{object:#}");
    assert!(object.as_object().unwrap().contains_key("txn"), "{object:#}");
}

#[test]
fn a_node_that_is_held_is_busy_though_its_docker_is_down() {
    let nodes = Nodes::new(|_, _| {});
    let said = nodes.run(&["rollback", "--to", "1"]);
    told(&said, 1, "refused", json!("lab-a"));
    assert!(said.1["why"].as_str().unwrap().contains("Docker"), "{:#}", said.1);
    assert_eq!((&said.1["release"], &said.1["previous"]), (&Value::Null, &json!(2)), "lab-a has no release in force");
    let nodes = Nodes::new(|node, status| {
        if node == "head" {
            status["lock"] = json!({"who": "ann@desk", "pid": 7, "since": {"boot": "b", "millis": 5}, "txn": "t9"});
        }
    });
    let said = nodes.run(&["rollback", "--to", "1"]);
    told(&said, 5, "busy", json!("lab-a"));
    let why = said.1["why"].as_str().unwrap();
    assert!(why.contains("head: ann@desk holds the node for transaction t9") && why.contains("Docker"), "{why}");
}

/// What `status` says of the cluster, and of the worker.
fn seen(nodes: &Nodes, expected: (i32, &str)) -> Value {
    let (code, status) = nodes.run(&["status"]);
    assert_eq!((code, status["state"].as_str().unwrap()), expected, "{status:#}");
    status["nodes"][1].clone()
}

#[test]
fn a_lost_tool_is_told_by_the_generations_own_and_is_not_nothing_deployed() {
    let lost = "/nix/var/nix/gcroots/sparklane/tool is missing";
    let nodes = Nodes::new(|node, status| {
        if node == "worker" {
            status["toolLost"] = lost.into();
        }
    });
    let worker = nodes.host("worker");
    let put = |what: &str, text: &str| std::fs::write(nodes.dir.join(format!("{worker}.{what}")), text).unwrap();
    put("lost", "");
    seen(&nodes, (1, &format!("release 2, tool of worker: {lost}")));
    // A deployment goes by the closures' own tools from then on, on all nodes.
    told(&nodes.run(&["rollback", "--to", "1"]), 1, "refused", json!("lab-a"));
    let log = std::fs::read_to_string(nodes.dir.join("log")).unwrap();
    let by = |letter: &str| format!("/nix/store/{}-g/bin/sparklane node status", letter.repeat(32));
    assert!(log.contains(&by("a")) && log.contains(&by("b")), "{log}");

    // No program at all: nothing was ever deployed, or what was is gone.
    put("bare", "");
    assert_eq!(seen(&nodes, (4, "mixed"))["error"], Value::Null);
    put("link", "sparklane-4-link\n");
    let row = seen(&nodes, (4, "no answer from worker"));
    let why = row["error"].as_str().unwrap();
    assert!(
        why.starts_with("worker: /nix/var/nix/profiles/sparklane leads to sparklane-4-link, and no program"),
        "{why}"
    );
    assert!(why.contains("nix-store --verify") && row["cause"] == "tool", "{row:#}");
}

#[test]
fn a_broken_sudo_is_not_a_broken_network() {
    let nodes = Nodes::new(|_, _| {});
    let file = nodes.dir.join(format!("{}.sudo", nodes.host("worker")));
    for (said, words) in [
        ("sudo: a password is required", "NOPASSWD: ALL"),
        ("sudo: sorry, you must have a tty to run sudo", "!requiretty"),
        (
            "sudo: unable to open /etc/sudoers: No such file or directory\nsudo: error initializing audit plugin sudoers_audit",
            "visudo -c",
        ),
    ] {
        std::fs::write(&file, said).unwrap();
        let row = seen(&nodes, (4, "no sudo on worker"));
        let why = row["error"].as_str().unwrap();
        assert!(why.starts_with("worker: sudo") && why.contains(words) && row["cause"] == "sudo", "{row:#}");
        let refused = nodes.run(&["rollback", "--to", "1"]);
        told(&refused, 1, "refused", Value::Null);
        assert!(refused.1["why"].as_str().unwrap().contains(words), "{:#}", refused.1);
    }
}

#[test]
fn what_was_not_understood_says_what_it_was_about() {
    let nodes = Nodes::new(|_, _| {});
    told(&nodes.run(&["deploy", "lab-x"]), 2, "usage", Value::Null);
    told(&nodes.run(&["deploy", "lab-a", "--targets", "third"]), 2, "usage", json!("lab-a"));
    told(&nodes.run(&["rollback", "--to", "99"]), 1, "refused", Value::Null);
    let bare = Nodes::new(|_, status| status["releases"] = json!([]));
    let said = bare.run(&["rollback"]);
    told(&said, 1, "refused", Value::Null);
    assert!(said.1["why"].as_str().unwrap().contains("deploy a lane first"), "{:#}", said.1);
    for bad in ["lane:", "lane:A b", "-1", "x"] {
        let (code, object) = nodes.run(&["rollback", "--to", bad]);
        assert_eq!((code, &object["verdict"]), (2, &json!("usage")), "{bad}: {object:#}");
        assert!(object.as_object().unwrap().contains_key("nodes"), "{object:#}");
    }
    assert!(
        !nodes.dir.join("log").exists() || !std::fs::read_to_string(nodes.dir.join("log")).unwrap().contains("stage")
    );
}

#[test]
fn names_that_the_flake_has_not_are_usage_in_every_command() {
    let nodes = Nodes::new(|_, _| {});
    let data = nodes.dir.join("lanes.json");
    let lane = |args: &[&str]| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sparklane"));
        let output = command.args(["lane", "--data", data.as_str()]).args(args).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    for args in [
        &["show", "lab-x"][..],
        &["show", "lab-a", "--cluster", "nowhere"],
        &["show", "lab-a", "--cluster", "lab", "--node", "third"],
        &["diff", "lab-a", "lab-x"],
        &["show", "ray-0731", "--cluster", "lab"],
        &["show", "lab-x", "--json"],
    ] {
        let (code, text) = lane(args);
        assert_eq!(code, 2, "{args:?}: {text}");
    }
    assert_eq!(lane(&["show", "lab-a", "--cluster", "lab"]).0, 0);
    assert!(lane(&["show", "lab-x", "--json"]).1.contains(r#""verdict":"usage""#));
}

#[test]
fn a_reader_that_goes_away_changes_nothing() {
    let nodes = Nodes::new(|_, _| {});
    let data = nodes.dir.join("lanes.json");
    let run = |args: &[&str]| {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sparklane"));
        command.args(args).env("PATH", format!("{}/bin:/usr/bin:/bin", nodes.dir)).env("NODES", &nodes.dir);
        // Pipes whose reading ends are gone: every write fails.
        let (out, err) = (std::io::pipe().unwrap().1, std::io::pipe().unwrap().1);
        let mut child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
        child.wait().unwrap().code()
    };
    let share = ["--cluster", "lab", "--share", nodes.dir.as_str()];
    assert_eq!(run(&["lane", "show", "lab-a", "--cluster", "lab", "--json", "--data", data.as_str()]), Some(0));
    assert_eq!(run(&[&["status"], &share[..]].concat()), Some(0));
    // Would ask for ever.
    assert_eq!(run(&[&["status", "--watch"], &share[..]].concat()), Some(0));
    assert_eq!(run(&[&["rollback", "--to", "1"], &share[..]].concat()), Some(1));
    assert_eq!(run(&[&["deploy", "lab-x"], &share[..]].concat()), Some(2));
}

/// Which release is the one before cannot be known then; a number can be named.
#[test]
fn a_way_back_beside_a_damaged_record_needs_a_number() {
    let nodes = Nodes::new(|_, status| status["damagedReleases"] = json!(["/r/3.json: EOF"]));
    let said = nodes.run(&["rollback"]);
    assert_eq!((said.0, &said.1["verdict"]), (1, &json!("refused")), "{:#}", said.1);
    assert!(said.1["why"].as_str().unwrap().contains("--to N"), "{:#}", said.1);
    let named = nodes.run(&["rollback", "--to", "1"]);
    assert!(named.1["why"].as_str().unwrap().contains("Docker"), "it went on to the nodes: {:#}", named.1);
}

#[test]
fn an_interrupt_before_anything_is_staged_ends_with_nothing_changed() {
    let nodes = Nodes::new(|_, _| {});
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sparklane"));
    command.args(["rollback", "--to", "1", "--cluster", "lab", "--json", "--share", nodes.dir.as_str()]);
    command.env("PATH", format!("{}/bin:/usr/bin:/bin", nodes.dir)).env("NODES", &nodes.dir).env("SLOW", "2");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !nodes.dir.join("log").exists() {
        assert!(std::time::Instant::now() < until, "it never asked a node");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let signal = |name: &str| Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(signal("-INT").success());
    let output = child.wait_with_output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    assert_eq!((output.status.code(), &object["verdict"]), (Some(1), &json!("refused")), "{object:#}");
    assert!(object["why"].as_str().unwrap().contains("interrupted"), "{object:#}");
    assert!(!std::fs::read_to_string(nodes.dir.join("log")).unwrap().contains("node stage"));
}
