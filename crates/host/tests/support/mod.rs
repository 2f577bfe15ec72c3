//! A node in a folder: systemd, profile and gates as files, and closures to switch between.

#![allow(dead_code, clippy::unwrap_used)] // each test target uses a part of it

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::json;
use sparklane_host::crash::CrashPoint;
use sparklane_host::journal::FileJournal;
use sparklane_host::node::{Gates, Parts, RealNode};
use sparklane_host::profile::Mover;
use sparklane_host::units::{UnitStatus, Units};
use sparklane_host::{HostError, HostPaths, clock::BootClock, files, profile};
use sparklane_lane::generation::GateScope;
use sparklane_lane::{Generation, Release, StorePath};
use sparklane_txn::spec::Side;
use sparklane_txn::{Fault, Goal, Machine, Order, Part, Spec, State};

/// systemd as a file: the engine runs when it is there.
pub struct FileUnits(pub Utf8PathBuf);

impl Units for FileUnits {
    fn status(&self, _unit: &str) -> Result<UnitStatus, HostError> {
        let active = if self.0.exists() { "active" } else { "inactive" };
        Ok(UnitStatus {
            active: active.into(),
            sub: String::new(),
            active_since: 1,
            result: String::new(),
            text: String::new(),
            restarts: 0,
        })
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
pub struct LinkMover(pub Utf8PathBuf);

impl Mover for LinkMover {
    fn set(&self, profile: &Utf8Path, path: &StorePath) -> Result<(), HostError> {
        let target = self.0.join(path.as_str().trim_start_matches('/'));
        let number = (1..).find(|n| !Utf8PathBuf::from(format!("{profile}-{n}-link")).exists()).unwrap();
        let entry = Utf8PathBuf::from(format!("{profile}-{number}-link"));
        files::link_atomic(&entry, target.as_str())?;
        files::link_atomic(profile, entry.as_str())
    }
}

pub struct FileGates(pub Utf8PathBuf);

impl Gates for FileGates {
    fn wait(
        &mut self,
        generation: &Generation,
        _scope: GateScope,
        _interrupted: &dyn Fn() -> Option<String>,
        _progress: &dyn Fn(String),
    ) -> Result<(), Fault> {
        // A number: so many times more, whatever the lane.
        let failing = std::fs::read_to_string(&self.0).unwrap_or_default();
        if let Some(left) = failing.trim().parse::<u32>().ok().and_then(|n| n.checked_sub(1)) {
            std::fs::write(&self.0, left.to_string()).unwrap();
            return Err(Fault::failed("gate ready: sparklane-engine.service ended"));
        }
        if failing.trim() == generation.lane.as_str() { Err(Fault::failed("gate tokens: none came")) } else { Ok(()) }
    }
}

pub fn parts(dir: &Utf8Path) -> Parts {
    Parts {
        units: Box::new(FileUnits(dir.join("engine"))),
        mover: Box::new(LinkMover(dir.join("store"))),
        gates: Box::new(FileGates(dir.join("gates-fail"))),
    }
}

pub fn side(letter: char) -> Side {
    let hash: String = std::iter::repeat_n(letter, 32).collect();
    let id: String = std::iter::repeat_n(letter, 64).collect();
    Side { path: format!("/nix/store/{hash}-generation").parse().unwrap(), generation: id.parse().unwrap() }
}

/// A closure with a drop-in both lanes have, one file of its own and one that differs.
pub fn closure(paths: &HostPaths, letter: char) {
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
    files::write_atomic(&dir.join("generation.id"), format!("{}\n", side(letter).generation).as_bytes(), 0o444)
        .unwrap();
    let tool = dir.parent().unwrap().join(format!("{}-tool", "t".repeat(32)));
    files::write_atomic(&tool.join("bin/sparklane"), b"", 0o555).unwrap();
    files::link_atomic(&dir.join("bin/sparklane"), tool.join("bin/sparklane").as_str()).unwrap();
}

pub fn spec(from: Option<Side>, to: Side, number: u64) -> Spec {
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
pub fn transact(dir: &Utf8Path, spec: &Spec) -> (State, Option<String>) {
    try_transact(dir, spec).unwrap()
}

/// As [`transact`]; an error when it could not even be staged.
pub fn try_transact(dir: &Utf8Path, spec: &Spec) -> Result<(State, Option<String>), String> {
    try_orders(dir, spec, &WHOLE)
}

/// What the coordinator tells a node, in its order.
pub const WHOLE: [Order; 8] = [
    Order::Prepare,
    Order::Run { part: Part::Stop },
    Order::Run { part: Part::Switch },
    Order::Run { part: Part::Start },
    Order::Gate { scope: GateScope::Node },
    Order::Gate { scope: GateScope::Cluster },
    Order::Vote,
    Order::Commit,
];

/// A worker's transaction up to its vote; then its process is gone.
pub fn vote(dir: &Utf8Path, from: Side, to: Side) {
    let spec = Spec { role: sparklane_lane::Role::Worker, ..spec(Some(from), to, 2) };
    assert_eq!(try_orders(dir, &spec, &WHOLE[..7]).unwrap(), (State::Gated, None));
}

fn try_orders(dir: &Utf8Path, spec: &Spec, orders: &[Order]) -> Result<(State, Option<String>), String> {
    let paths = HostPaths::below(dir);
    let folder = paths.txn(&spec.txn);
    files::make_dir(&folder).map_err(|e| e.to_string())?;
    let journal = FileJournal::open(&folder, CrashPoint::of(&paths)).map_err(|e| e.to_string())?;
    let (progress, _nobody) = std::sync::mpsc::channel();
    let node = RealNode::new(paths, parts(dir), spec.clone(), Box::new(|| None), progress);
    let mut machine = Machine::begin(node, journal, BootClock::new(), spec.clone()).map_err(|e| e.to_string())?;
    let mut why = None;
    for order in orders {
        let reply = machine.handle(order).unwrap();
        if !reply.done {
            why = reply.detail.clone();
            machine.handle(&Order::abort(reply.detail.unwrap_or_default())).unwrap();
            break;
        }
    }
    machine.journal_mut().effect_done();
    Ok((machine.state(), why))
}

/// Everything a switch may touch, as text.
pub fn snapshot(dir: &Utf8Path) -> String {
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
