//! Steps of a switch from what a node has: which, in which order, and what is refused before anything changes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

use std::collections::BTreeMap;

use serde_json::json;
use sparklane_lane::Generation;
use sparklane_lane::generation::{FileKind, ManagedFile};
use sparklane_txn::plan::{Before, Direction, Found, Inventory, Refresh, Step, engine_changed, plan};
use sparklane_txn::spec::{Side, Spec};
use sparklane_txn::{Goal, Part};

fn generation(argv: &str, files: &[(&str, &str, FileKind)]) -> Generation {
    let listed: BTreeMap<String, ManagedFile> = files
        .iter()
        .map(|(path, sha, kind)| {
            ((*path).to_owned(), ManagedFile { mode: 0o644, sha256: (*sha).to_owned(), kind: *kind })
        })
        .collect();
    let mut generation: Generation = serde_json::from_value(json!({
        "schema": 1, "cluster": "lab", "lane": "lane-a", "node": "head", "role": "head", "rank": 0,
        "system": "x86_64-linux", "peers": [], "weights": null, "gates": [], "keepReleases": 5, "files": {},
        "image": { "reference": "x", "base": null, "manifest": null, "config": null, "pinWith": "" },
        "budgets": { "startSecs": 10, "confirmSecs": 10 },
        "engine": {
            "container": "c", "argv": [argv], "env": {}, "mounts": [], "devices": [], "gpus": false,
            "capabilities": [], "ulimits": {}, "shmBytes": 0, "oomScoreAdj": null, "apiHost": "127.0.0.1",
            "apiPort": 8000, "servedModel": "m", "apiKeyFile": null, "stopSecs": 1, "cacheRoots": {}
        }
    }))
    .unwrap();
    generation.files = listed;
    generation
}

fn side(letter: char) -> Side {
    let hash: String = std::iter::repeat_n(letter, 32).collect();
    let id: String = std::iter::repeat_n(letter, 64).collect();
    Side { path: format!("/nix/store/{hash}-g").parse().unwrap(), generation: id.parse().unwrap() }
}

fn spec(goal: Goal) -> Spec {
    Spec {
        txn: "t1".parse().unwrap(),
        node: "head".parse().unwrap(),
        role: sparklane_lane::Role::Head,
        goal,
        from: Some(side('a')),
        to: side('b'),
        release: None,
        owner: "me@here".into(),
        activation_secs: 1,
        confirm_secs: 1,
        restart_engine: false,
        replace_edited: false,
        takeover: false,
    }
}

fn file(sha: &str) -> Found {
    Found::Known(Before::File { sha256: sha.into(), mode: 0o644, uid: 0, gid: 0, copy: 0 })
}

fn inventory(found: &[(&str, Found)]) -> Inventory {
    let found = found.iter().map(|(p, f)| ((*p).to_owned(), f.clone())).collect();
    Inventory { found, engine_active: true, ..Inventory::default() }
}

const UNIT: &str = "/etc/systemd/system/sparklane-engine.service";

#[test]
fn one_changed_flag_is_stop_profile_start_and_no_daemon_reload() {
    let old = generation("--a", &[(UNIT, "u", FileKind::Unit)]);
    let new = generation("--b", &[(UNIT, "u", FileKind::Unit)]);
    let steps = plan(&spec(Goal::Switch), Some(&old), &new, &inventory(&[(UNIT, file("u"))])).unwrap();
    let parts: Vec<Part> = steps.iter().map(Step::part).collect();
    assert_eq!(parts, [Part::Stop, Part::Switch, Part::Start], "{steps:?}");
    assert!(matches!(steps[1], Step::Profile { .. }));
}

#[test]
fn changed_units_are_reloaded_after_they_are_new_and_after_they_are_old_again() {
    let old = generation("--a", &[(UNIT, "u", FileKind::Unit)]);
    let new = generation("--a", &[(UNIT, "v", FileKind::Unit)]);
    let steps = plan(&spec(Goal::Switch), Some(&old), &new, &inventory(&[(UNIT, file("u"))])).unwrap();
    let place = steps.iter().position(|s| matches!(s, Step::Place { .. })).unwrap();
    let reload = |direction| Step::Refresh { what: Refresh::Units, direction };
    // Undo runs backwards: what stands before the placing is undone after it.
    assert_eq!(steps.iter().position(|s| *s == reload(Direction::Backward)), Some(place - 1));
    assert_eq!(steps.iter().position(|s| *s == reload(Direction::Forward)), Some(place + 1));
    assert!(engine_changed(Some(&old), &new), "a new unit file needs a restart");
}

#[test]
fn gates_and_budgets_alone_leave_a_serving_engine_alone() {
    let old = generation("--a", &[]);
    let mut new = old.clone();
    new.budgets.start_secs = 99;
    let steps = plan(&spec(Goal::Switch), Some(&old), &new, &inventory(&[])).unwrap();
    assert!(matches!(steps[..], [Step::Profile { .. }]), "{steps:?}");
    let down = Inventory { engine_active: false, ..inventory(&[]) };
    let steps = plan(&spec(Goal::Switch), Some(&old), &new, &down).unwrap();
    assert_eq!(steps.len(), 3, "an engine that is down is started: {steps:?}");
    // Another rank restarts, so this one does.
    let with_peer = Spec { restart_engine: true, ..spec(Goal::Switch) };
    assert_eq!(plan(&with_peer, Some(&old), &new, &inventory(&[])).unwrap().len(), 3);
}

#[test]
fn a_boot_goal_touches_no_unit() {
    let (old, new) = (generation("--a", &[]), generation("--b", &[]));
    let steps = plan(&spec(Goal::Boot), Some(&old), &new, &inventory(&[])).unwrap();
    assert!(steps.iter().all(|s| s.part() == Part::Switch), "{steps:?}");
}

#[test]
fn a_boot_goal_leaves_the_running_engine_behind_its_own_table() {
    const TABLE: &str = "/etc/sparklane/firewall.nft";
    let (old, new) = (generation("--a", &[(TABLE, "t", FileKind::Firewall)]), generation("--b", &[]));
    let refreshes = |goal| {
        let steps = plan(&spec(goal), Some(&old), &new, &inventory(&[(TABLE, file("t"))])).unwrap();
        steps.iter().filter(|s| matches!(s, Step::Refresh { what: Refresh::Firewall, .. })).count()
    };
    assert_eq!((refreshes(Goal::Switch), refreshes(Goal::Boot)), (2, 0));
    // One that was flushed is loaded again though its file is as it was.
    let flushed = Inventory { astray: [Refresh::Firewall].into(), ..inventory(&[(TABLE, file("t"))]) };
    let steps = plan(&spec(Goal::Switch), Some(&old), &old, &flushed).unwrap();
    assert!(steps.contains(&Step::Refresh { what: Refresh::Firewall, direction: Direction::Forward }), "{steps:?}");
}

#[test]
fn everything_in_the_way_is_said_at_once() {
    let old = generation("--a", &[("/etc/ours", "o", FileKind::Plain), ("/etc/gone", "g", FileKind::Plain)]);
    let new = generation(
        "--a",
        &[
            ("/etc/ours", "o", FileKind::Plain),
            ("/etc/gone", "g", FileKind::Plain),
            ("/etc/theirs", "n", FileKind::Plain),
            ("/etc/dir", "n", FileKind::Plain),
            ("/etc/link", "n", FileKind::Plain),
            ("/etc/same", "n", FileKind::Plain),
        ],
    );
    let found = [
        ("/etc/ours", file("edited")),
        ("/etc/gone", Found::Known(Before::Absent { missing_parents: Vec::new() })),
        ("/etc/theirs", file("t")),
        ("/etc/dir", Found::Blocked("a folder".into())),
        ("/etc/link", Found::Known(Before::Link { target: "/nowhere".into() })),
        ("/etc/same", file("n")),
    ];
    let refused = plan(&spec(Goal::Switch), Some(&old), &new, &inventory(&found)).unwrap_err().0;
    assert_eq!(refused.len(), 5, "{refused:#?}");
    let forced = Spec { replace_edited: true, takeover: true, ..spec(Goal::Switch) };
    let refused = plan(&forced, Some(&old), &new, &inventory(&found)).unwrap_err().0;
    assert_eq!(refused.len(), 1, "a folder stays in the way: {refused:#?}");
}
