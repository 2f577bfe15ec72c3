//! The node transaction on real folders, with kills at every record and point: the process under test is a child that
//! kills itself (crates/host/src/crash.rs), what follows is the recovery of a new process or of the boot unit.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::json;
use sparklane_host::crash::CrashPoint;
use sparklane_host::journal::{self, FileJournal};
use sparklane_host::node::{Gates, Parts, RealNode};
use sparklane_host::profile::Mover;
use sparklane_host::units::{UnitStatus, Units};
use sparklane_host::{HostError, HostPaths, clock::BootClock, files, profile, releases, resolve, status, txns};
use sparklane_lane::generation::GateScope;
use sparklane_lane::{Generation, Release, StorePath};
use sparklane_txn::spec::Side;
use sparklane_txn::{Boot, Fault, Goal, Machine, Order, Part, Spec, State};

/// systemd as a file: the engine runs when it is there.
struct FileUnits(Utf8PathBuf);

impl Units for FileUnits {
    fn status(&self, _unit: &str) -> Result<UnitStatus, HostError> {
        let active = if self.0.exists() { "active" } else { "inactive" };
        Ok(UnitStatus { active: active.into(), sub: String::new(), active_since: 1, result: String::new(), text: String::new() })
    }
    fn start(&self, _unit: &str) -> Result<(), HostError> {
        files::write_atomic(&self.0, b"", 0o644)
    }
    fn stop(&self, _unit: &str, _secs: u64) -> Result<(), HostError> {
        files::remove(&self.0)
    }
    fn reload(&self) -> Result<(), HostError> {
        Ok(())
    }
    fn spawn(&self, _unit: &str, _description: &str, _argv: &[String]) -> Result<(), HostError> {
        Ok(())
    }
}

/// A profile without Nix: `<profile>-N-link` and a link to it, as nix-env makes them.
struct LinkMover(Utf8PathBuf);

impl Mover for LinkMover {
    fn set(&self, profile: &Utf8Path, path: &StorePath) -> Result<(), HostError> {
        let target = self.0.join(path.as_str().trim_start_matches('/'));
        let number = (1..).find(|n| !Utf8PathBuf::from(format!("{profile}-{n}-link")).exists()).unwrap();
        let entry = Utf8PathBuf::from(format!("{profile}-{number}-link"));
        files::link_atomic(&entry, target.as_str())?;
        files::link_atomic(profile, entry.as_str())
    }
}

struct FileGates(Utf8PathBuf);

impl Gates for FileGates {
    fn wait(
        &mut self,
        generation: &Generation,
        _scope: GateScope,
        _interrupted: &dyn Fn() -> Option<String>,
        _progress: &dyn Fn(String),
    ) -> Result<(), Fault> {
        let failing = std::fs::read_to_string(&self.0).unwrap_or_default();
        if failing.trim() == generation.lane.as_str() { Err(Fault::failed("gate tokens: none came")) } else { Ok(()) }
    }
}

fn parts(dir: &Utf8Path) -> Parts {
    Parts {
        units: Box::new(FileUnits(dir.join("engine"))),
        mover: Box::new(LinkMover(dir.join("store"))),
        gates: Box::new(FileGates(dir.join("gates-fail"))),
    }
}

fn side(letter: char) -> Side {
    let hash: String = std::iter::repeat_n(letter, 32).collect();
    let id: String = std::iter::repeat_n(letter, 64).collect();
    Side { path: format!("/nix/store/{hash}-generation").parse().unwrap(), generation: id.parse().unwrap() }
}

/// A closure with a drop-in both lanes have, one file of its own and one that differs.
fn closure(paths: &HostPaths, letter: char) {
    let dir = paths.in_store(&side(letter).path);
    let contents = [
        ("/etc/systemd/system/multi-user.target.d/50-sparklane.conf".to_owned(), "[Unit]\n".to_owned(), "unit"),
        ("/etc/shared.conf".to_owned(), format!("lane {letter}\n"), "plain"),
        (format!("/etc/own-{letter}/deep/own.conf"), "own\n".to_owned(), "plain"),
    ];
    let mut listed = serde_json::Map::new();
    for (path, text, kind) in contents {
        files::write_atomic(&dir.join(path.trim_start_matches('/')), text.as_bytes(), 0o444).unwrap();
        listed.insert(path, json!({ "mode": 420, "sha256": files::sha256(text.as_bytes()), "kind": kind }));
    }
    let generation = json!({
        "schema": 1, "cluster": "lab", "lane": format!("lane-{letter}"), "node": "head", "role": "head", "rank": 0,
        "system": "x86_64-linux", "peers": [], "weights": null, "gates": [], "keepReleases": 5, "files": listed,
        "image": { "reference": "x", "base": null, "manifest": null, "config": null, "pinWith": "" },
        "budgets": { "startSecs": 10, "confirmSecs": 10 },
        "engine": {
            "container": "c", "argv": [letter.to_string()], "env": {}, "mounts": [], "devices": [], "gpus": false,
            "capabilities": [], "ulimits": {}, "shmBytes": 0, "oomScoreAdj": null, "apiHost": "127.0.0.1",
            "apiPort": 8000, "servedModel": "m", "apiKeyFile": null, "stopSecs": 1, "cacheRoots": {}
        }
    });
    files::write_atomic(&dir.join("generation.json"), generation.to_string().as_bytes(), 0o444).unwrap();
    files::write_atomic(&dir.join("generation.id"), format!("{}\n", side(letter).generation).as_bytes(), 0o444).unwrap();
    let tool = dir.parent().unwrap().join(format!("{}-tool", "t".repeat(32)));
    files::write_atomic(&tool.join("bin/sparklane"), b"", 0o555).unwrap();
    files::link_atomic(&dir.join("bin/sparklane"), tool.join("bin/sparklane").as_str()).unwrap();
}

fn spec(from: Option<Side>, to: Side, number: u64) -> Spec {
    let release = Release {
        number,
        cluster: "lab".parse().unwrap(),
        lane: "lane".parse().unwrap(),
        nodes: Vec::new(),
        image: None,
        weights: None,
        txn: format!("t{number}").parse().unwrap(),
        rollback_of: None,
        time: "2026-01-01T00:00:00Z".into(),
        who: "me@here".into(),
    };
    Spec {
        txn: release.txn.clone(),
        node: "head".parse().unwrap(),
        role: sparklane_lane::Role::Head,
        goal: Goal::Switch,
        from,
        to,
        release: Some(release),
        owner: "me@here".into(),
        activation_secs: 100,
        confirm_secs: 100,
        restart_engine: true,
        replace_edited: false,
        takeover: false,
    }
}

/// A whole transaction in this process, ordered as the coordinator would; gives the last state.
fn transact(dir: &Utf8Path, spec: &Spec) -> (State, Option<String>) {
    let paths = HostPaths::below(dir);
    let folder = paths.txn(&spec.txn);
    files::make_dir(&folder).unwrap();
    let journal = FileJournal::open(&folder, CrashPoint::of(&paths)).unwrap();
    let (progress, _nobody) = std::sync::mpsc::channel();
    let node = RealNode::new(paths, parts(dir), spec.clone(), Box::new(|| None), progress);
    let mut machine = Machine::begin(node, journal, BootClock::new(), spec.clone()).unwrap();
    let orders = [
        Order::Prepare,
        Order::Run { part: Part::Stop },
        Order::Run { part: Part::Switch },
        Order::Run { part: Part::Start },
        Order::Gate { scope: GateScope::Node },
        Order::Gate { scope: GateScope::Cluster },
        Order::Vote,
        Order::Commit,
    ];
    let mut why = None;
    for order in orders {
        let reply = machine.handle(&order).unwrap();
        if !reply.done {
            why = reply.detail.clone();
            machine.handle(&Order::Abort { why: reply.detail.unwrap_or_default() }).unwrap();
            break;
        }
    }
    machine.journal_mut().effect_done();
    (machine.state(), why)
}

/// The folder of a node on lane `a`, release 1.
fn on_lane_a() -> (tempfile::TempDir, Utf8PathBuf) {
    let guard = tempfile::tempdir().unwrap();
    let dir = Utf8PathBuf::from_path_buf(guard.path().to_path_buf()).unwrap();
    let paths = HostPaths::below(&dir);
    closure(&paths, 'a');
    closure(&paths, 'b');
    assert_eq!(transact(&dir, &spec(None, side('a'), 1)), (State::Committed, None));
    (guard, dir)
}

/// Everything a switch may touch, as text.
fn snapshot(dir: &Utf8Path) -> String {
    let paths = HostPaths::below(dir);
    let mut lines = vec![format!("profile {:?}", profile::current_path(&paths).unwrap())];
    lines.push(format!("engine {}", dir.join("engine").exists()));
    let mut stack = vec![paths.root.join("etc")];
    while let Some(at) = stack.pop() {
        let Ok(entries) = at.read_dir_utf8() else { continue };
        for entry in entries.flatten() {
            let path = entry.path().to_owned();
            if path.is_dir() {
                lines.push(format!("dir {path}"));
                stack.push(path);
            } else {
                lines.push(format!("{path} {:?}", files::look(&path, 0).unwrap()));
            }
        }
    }
    lines.sort();
    lines.join("\n")
}

/// Not a test: the process that is killed.
#[test]
fn child() {
    if let Ok(dir) = std::env::var("SPARKLANE_FOLDER") {
        transact(Utf8Path::new(&dir), &spec(Some(side('a')), side('b'), 2));
    }
}

fn killed_child(dir: &Utf8Path, state: State, nth: usize, point: &str) -> bool {
    let paths = HostPaths::below(dir);
    files::write_atomic(&paths.run.join("crash-at"), format!("{state} {nth} {point}").as_bytes(), 0o600).unwrap();
    let me = std::env::current_exe().unwrap();
    let status = Command::new(me).args(["--exact", "child"]).env("SPARKLANE_FOLDER", dir).output().unwrap().status;
    files::remove(&paths.run.join("crash-at")).unwrap();
    status.signal() == Some(9)
}

#[test]
fn killed_at_every_record_and_point_on_real_folders() {
    let (_guard, new_dir) = on_lane_a();
    assert_eq!(transact(&new_dir, &spec(Some(side('a')), side('b'), 2)).0, State::Committed);
    let new = snapshot(&new_dir).replace(new_dir.as_str(), "");
    let mut covered = BTreeSet::new();
    // Workers' doubt and stuck nodes have their own tests: neither is on the way of a head.
    let states = State::ALL.into_iter().filter(|s| !matches!(s, State::InDoubt | State::Stuck));
    for state in states {
        let fails = matches!(state, State::RollingBack | State::RolledBack);
        let times = if matches!(state, State::Switching | State::RollingBack) { 8 } else { 1 };
        for (nth, point) in (0..times).flat_map(|n| ["before-fsync", "after-fsync", "after-effect"].map(|p| (n, p))) {
            let (_guard, dir) = on_lane_a();
            let old = snapshot(&dir).replace(dir.as_str(), "");
            if fails {
                std::fs::write(dir.join("gates-fail"), "lane-b").unwrap();
            }
            if !killed_child(&dir, state, nth, point) {
                continue;
            }
            covered.insert((state, point));
            let boot = if nth % 2 == 0 { Boot::Same } else { Boot::Early };
            let paths = HostPaths::below(&dir);
            resolve::resolve(&paths, boot, &|| parts(&dir)).unwrap();
            let now = snapshot(&dir).replace(dir.as_str(), "");
            let committed = txns::read(&paths, &"t2".parse().unwrap()).unwrap().state() == Some(State::Committed);
            assert_eq!(now, if committed { new.clone() } else { old }, "killed at {state} {nth} {point}");
            let listed = releases::list(&paths).unwrap().iter().map(|r| r.number).max();
            assert_eq!(listed, Some(if committed { 2 } else { 1 }), "killed at {state} {nth} {point}");
            assert!(txns::list(&paths).unwrap().iter().all(|t| !t.is_open()), "{state} {nth} {point}");
        }
    }
    for state in State::ALL.into_iter().filter(|s| !matches!(s, State::InDoubt | State::Stuck)) {
        for point in ["before-fsync", "after-fsync", "after-effect"] {
            assert!(covered.contains(&(state, point)), "no child was killed at {state} {point}");
        }
    }
}

#[test]
fn a_first_deployment_that_fails_leaves_nothing() {
    let guard = tempfile::tempdir().unwrap();
    let dir = Utf8PathBuf::from_path_buf(guard.path().to_path_buf()).unwrap();
    closure(&HostPaths::below(&dir), 'a');
    files::make_dir(&HostPaths::below(&dir).root.join("etc")).unwrap();
    let before = snapshot(&dir);
    std::fs::write(dir.join("gates-fail"), "lane-a").unwrap();
    let (state, why) = transact(&dir, &spec(None, side('a'), 1));
    assert_eq!(state, State::RolledBack);
    assert!(why.unwrap().contains("tokens"));
    assert_eq!(snapshot(&dir), before);
    assert!(!dir.join("profiles").join("sparklane-1-link").exists());
}

#[test]
fn every_file_in_the_way_is_named_at_once_and_taken_over_only_on_demand() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    files::write_atomic(&paths.managed("/etc/own-b/deep/own.conf"), b"theirs \xff", 0o640).unwrap();
    std::fs::write(paths.managed("/etc/shared.conf"), "edited").unwrap();
    let before = snapshot(&dir);
    let (state, why) = transact(&dir, &spec(Some(side('a')), side('b'), 2));
    let why = why.unwrap();
    assert_eq!(state, State::RolledBack);
    assert!(why.contains("/etc/own-b/deep/own.conf") && why.contains("--takeover"), "{why}");
    assert!(why.contains("/etc/shared.conf") && why.contains("--replace-edited"), "{why}");
    assert_eq!(snapshot(&dir), before);

    let forced = Spec { replace_edited: true, takeover: true, ..spec(Some(side('a')), side('b'), 3) };
    assert_eq!(transact(&dir, &forced), (State::Committed, None));
    let kept = std::fs::read_to_string(paths.kept(&forced.txn).join("etc/shared.conf")).unwrap();
    assert_eq!(kept, "edited");
    // Leaving lane b puts back what was not ours, bit for bit and with its mode.
    assert_eq!(transact(&dir, &spec(Some(side('b')), side('a'), 4)), (State::Committed, None));
    assert_eq!(std::fs::read(paths.managed("/etc/own-b/deep/own.conf")).unwrap(), b"theirs \xff");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(paths.managed("/etc/own-b/deep/own.conf")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o640);
}

#[test]
fn a_rollback_of_replaced_edits_puts_the_edit_back() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    std::fs::write(paths.managed("/etc/shared.conf"), "edited").unwrap();
    std::fs::write(dir.join("gates-fail"), "lane-b").unwrap();
    let before = snapshot(&dir);
    let forced = Spec { replace_edited: true, ..spec(Some(side('a')), side('b'), 2) };
    assert_eq!(transact(&dir, &forced).0, State::RolledBack);
    assert_eq!(snapshot(&dir), before);
}

#[test]
fn a_profile_that_someone_else_moved_is_not_touched_and_the_node_is_stuck() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    closure(&paths, 'c');
    assert!(killed_child(&dir, State::Gated, 0, "after-fsync"));
    LinkMover(paths.store.clone()).set(&paths.profile, &side('c').path).unwrap();
    let resolved = resolve::resolve(&paths, Boot::Same, &|| parts(&dir)).unwrap();
    assert_eq!(resolved[0].to, State::Stuck);
    assert!(resolved[0].why.as_deref().unwrap().contains("someone else moved it"), "{resolved:?}");
    assert_eq!(profile::current_path(&paths).unwrap(), Some(side('c').path));
    // A person puts the profile back; the retry proves the old generation.
    LinkMover(paths.store.clone()).set(&paths.profile, &side('a').path).unwrap();
    let resolved = resolve::resolve(&paths, Boot::Same, &|| parts(&dir)).unwrap();
    assert_eq!(resolved[0].to, State::RolledBack, "{resolved:?}");
}

#[test]
fn a_torn_journal_and_leftover_temp_files_do_not_stop_a_recovery() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    let old = snapshot(&dir);
    assert!(killed_child(&dir, State::Switching, 4, "after-effect"));
    let file = paths.txn(&"t2".parse().unwrap()).join("journal");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes.truncate(bytes.len() - 7);
    std::fs::write(&file, bytes).unwrap();
    std::fs::write(paths.managed("/etc/.shared.conf.sparklane-new"), "half").unwrap();
    assert!(journal::read(&file).unwrap().torn);
    let seen = status::read(&paths, &FileUnits(dir.join("engine")), "x").unwrap();
    assert!(seen.open[0].torn);
    // The torn record's step may have begun: its predecessor is the last known, so the plan's undo must cover it too.
    resolve::resolve(&paths, Boot::Same, &|| parts(&dir)).unwrap();
    files::remove(&paths.managed("/etc/.shared.conf.sparklane-new")).unwrap();
    assert_eq!(snapshot(&dir), old);
}

#[test]
fn status_shows_drift_and_does_not_guess() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    let units = FileUnits(dir.join("engine"));
    assert!(status::read(&paths, &units, "x").unwrap().drift.is_empty());
    std::fs::write(paths.managed("/etc/shared.conf"), "edited").unwrap();
    let seen = status::read(&paths, &units, "x").unwrap();
    assert_eq!(seen.drift, ["/etc/shared.conf"]);
    assert_eq!(seen.current, Some(side('a')));
    files::remove(&paths.profile).unwrap();
    std::os::unix::fs::symlink("/usr", &paths.profile).unwrap();
    let seen = status::read(&paths, &units, "x").unwrap();
    assert!(seen.current.is_none() && seen.foreign_profile.is_some(), "{seen:?}");
}
