//! The node transaction on real folders, with kills at every record and point: the process under test is a child that
//! kills itself (crates/host/src/crash.rs), what follows is the recovery of a new process or of the boot unit.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_host::crash::CrashPoint;
use sparklane_host::decide::{self, Word};
use sparklane_host::profile::Mover as _;
use sparklane_host::{HostPaths, files, journal, lock, profile, releases, resolve, status, txns};
use sparklane_txn::spec::Answer;
use sparklane_txn::{Boot, Journal as _, Record, Spec, State};
use support::{FileUnits, LinkMover, closure, parts, side, snapshot, spec, transact, vote};

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

/// On the way back a port may not be free yet: systemd tries again, and so does the proof.
#[test]
fn an_old_engine_that_comes_up_at_the_third_try_is_a_proved_rollback() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    closure(&paths, 'c');
    assert!(killed_child(&dir, State::Gated, 0, "after-fsync"));
    std::fs::write(dir.join("gates-fail"), "2").unwrap();
    let resolved = resolve::resolve(&paths, Boot::Same, &|| parts(&dir)).unwrap();
    assert_eq!(resolved[0].to, State::RolledBack, "{resolved:?}");
    assert_eq!(std::fs::read_to_string(dir.join("gates-fail")).unwrap(), "0");
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
fn status_shows_damaged_journals_and_whether_they_had_begun() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    let seen = || status::read(&paths, &FileUnits(dir.join("engine")), "x").unwrap();
    assert_eq!(seen().damaged, []);
    let garbage = |id: &str| {
        let folder = paths.txn(&id.parse().unwrap());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("journal"), b"\x00\xffnot a journal\n").unwrap();
        folder
    };
    std::fs::create_dir_all(garbage("t8").join("before")).unwrap();
    garbage("t9");
    // A folder that a staging has just made, or left empty, is no damage.
    std::fs::create_dir_all(paths.txn(&"t7".parse().unwrap())).unwrap();
    // An ended journal with noise behind it.
    let ended = paths.txn(&"t1".parse().unwrap()).join("journal");
    let mut bytes = std::fs::read(&ended).unwrap();
    bytes.extend(b"0123456789abcdef {");
    std::fs::write(&ended, bytes).unwrap();
    let shown: Vec<_> = seen().damaged.into_iter().map(|d| (d.txn.to_string(), d.state, d.unsettled)).collect();
    let want = [("t1", Some(State::Committed), false), ("t8", None, true), ("t9", None, false)];
    assert_eq!(shown, want.map(|(id, state, unsettled)| (id.to_owned(), state, unsettled)));
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
    files::remove(&paths.profile).unwrap();
    std::os::unix::fs::symlink("/nix/store/gone", &paths.profile).unwrap();
    let why = status::read(&paths, &units, "x").unwrap().foreign_profile.unwrap();
    assert!(why.contains("leads nowhere") && why.contains("sudo mv"), "{why}");
}

#[test]
fn a_staging_that_ended_before_its_transaction_began_keeps_no_closure() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    let begun = txns::list(&paths).unwrap().pop().unwrap().id;
    for txn in [begun.clone(), "no-such-1".parse().unwrap()] {
        files::link_atomic(&sparklane_host::install::txn_root(&paths, &txn), "/nix/store/x").unwrap();
    }
    sparklane_host::install::drop_stray_roots(&paths).unwrap();
    let names = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut left: Vec<String> = std::fs::read_dir(&paths.gcroots).unwrap().flatten().map(names).collect();
    left.retain(|name| name.starts_with("txn-"));
    assert_eq!(left, [format!("txn-{begun}")]);
}

#[test]
fn status_shows_a_tool_that_is_not_where_the_boot_unit_looks_and_a_transaction_to_the_same_puts_it_back() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    let lost = || status::read(&paths, &FileUnits(dir.join("engine")), "x").unwrap().tool_lost;
    assert_eq!(lost(), None);
    files::remove(&paths.tool()).unwrap();
    assert_eq!(lost(), Some(format!("{} is missing", paths.tool())));
    let gone = format!("/nix/store/{}-gone", "z".repeat(32));
    std::os::unix::fs::symlink(&gone, paths.tool()).unwrap();
    assert_eq!(lost(), Some(format!("{} leads to {gone}, which has no bin/sparklane", paths.tool())));
    files::remove(&paths.tool()).unwrap();
    std::fs::create_dir(paths.tool()).unwrap();
    assert!(lost().unwrap().contains("sudo mv"), "{:?}", lost());
    let closure = paths.in_store(&side('a').path);
    let refused = sparklane_host::install::tool(&paths, &closure).unwrap_err().to_string();
    assert!(refused.contains("sudo mv"), "{refused}");
    std::fs::remove_dir(paths.tool()).unwrap();
    sparklane_host::install::install(&paths, &closure, &FileUnits(dir.join("engine"))).unwrap();
    assert_eq!(lost(), None);
    // Where nothing is deployed, none is missed.
    files::remove(&paths.tool()).unwrap();
    files::remove(&paths.profile).unwrap();
    assert_eq!(lost(), None);
}

#[test]
fn what_is_no_transaction_does_not_keep_a_lane_from_starting() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    std::fs::write(paths.txns().join("notes"), "mine").unwrap();
    files::make_dir(&paths.txns().join("empty")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", paths.txns().join("empty/journal")).unwrap();
    assert_eq!(resolve::resolve(&paths, Boot::Early, &|| parts(&dir)).unwrap(), []);
    assert!(status::read(&paths, &FileUnits(dir.join("engine")), "x").unwrap().open.is_empty());
    assert_eq!(transact(&dir, &spec(Some(side('a')), side('b'), 2)).0, State::Committed);
}

#[test]
fn a_damaged_journal_takes_no_commit_back() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    assert_eq!(transact(&dir, &spec(Some(side('a')), side('b'), 2)).0, State::Committed);
    let id = "t2".parse().unwrap();
    let file = paths.txn(&id).join("journal");
    let whole = std::fs::read(&file).unwrap();
    let mut last = whole.clone();
    let end = last.len() - 5;
    last[end] ^= 1;
    std::fs::write(&file, &last).unwrap();
    assert_eq!(txns::read(&paths, &id).unwrap().state(), Some(State::Committed));
    assert_eq!(txns::decision(&paths, &id).unwrap(), sparklane_txn::Answer::Committed);
    // Nobody may take damage for a decision to go back.
    let mut first = whole;
    first[30] ^= 1;
    std::fs::write(&file, &first).unwrap();
    assert_eq!(txns::decision(&paths, &id).unwrap(), sparklane_txn::Answer::Undecided);
}

#[test]
fn a_commit_whose_record_could_not_be_written_keeps_its_number() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    // Settling fails: a folder stands where the record goes.
    files::make_dir(&paths.releases().join("2.json")).unwrap();
    assert_eq!(transact(&dir, &spec(Some(side('a')), side('b'), 2)).0, State::Committed);
    let numbers = |paths: &HostPaths| -> Vec<u64> {
        status::read(paths, &FileUnits(dir.join("engine")), "x").unwrap().releases.iter().map(|r| r.number).collect()
    };
    assert_eq!(numbers(&paths), [1, 2], "the journal is the commit");
    std::fs::remove_dir(paths.releases().join("2.json")).unwrap();
    resolve::resolve(&paths, Boot::Same, &|| parts(&dir)).unwrap();
    assert_eq!(releases::list(&paths).unwrap().len(), 2);
    // A record of another transaction is never written over.
    let other = Spec { txn: "t9".parse().unwrap(), ..spec(Some(side('b')), side('a'), 2) };
    let release = other.release.map(|r| sparklane_lane::Release { txn: other.txn, ..r }).unwrap();
    assert!(releases::add(&paths, &release, &side('a').path, 5).is_err());
}

#[test]
fn a_damaged_record_keeps_its_number_and_keeps_what_it_may_need() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    assert_eq!(transact(&dir, &spec(Some(side('a')), side('b'), 2)).0, State::Committed);
    let record = paths.releases().join("2.json");
    let whole = std::fs::read(&record).unwrap();
    let seen = || status::read(&paths, &FileUnits(dir.join("engine")), "x").unwrap();
    assert_eq!(
        (seen().last_number, seen().damaged_releases.len(), releases::complete(&paths).unwrap().len()),
        (2, 0, 2)
    );
    for damage in [Some(&whole[..20]), Some(b"".as_slice()), None] {
        match damage {
            Some(bytes) => std::fs::write(&record, bytes).unwrap(),
            None => std::fs::remove_file(&record).unwrap(),
        }
        assert_eq!((seen().last_number, seen().damaged_releases.len()), (2, 1), "{damage:?}");
        let error = releases::complete(&paths).unwrap_err().to_string();
        assert!(error.contains("2.json"), "{error}");
        let other = Spec { txn: "t9".parse().unwrap(), ..spec(Some(side('b')), side('a'), 2) };
        let release = other.release.map(|r| sparklane_lane::Release { txn: other.txn, ..r }).unwrap();
        // What cannot be read is never written over; the journal has the commit until someone mends it.
        assert_eq!(releases::add(&paths, &release, &side('a').path, 5).is_err(), damage.is_some());
    }
}

#[test]
fn a_worker_whose_head_is_gone_for_good_follows_a_persons_word() {
    for (word, ends, on) in [(Word::Aborted, State::RolledBack, 'a'), (Word::Committed, State::Committed, 'b')] {
        let (_guard, dir) = on_lane_a();
        let paths = HostPaths::below(&dir);
        let id = "t2".parse().unwrap();
        let gone = |_: &_| Answer::Unreachable { why: "no route".into() };
        assert!(decide::decide(&paths, &id, word, gone).unwrap_err().to_string().contains("unknown to this node"));
        vote(&dir, side('a'), side('b'));
        assert!(decide::decide(&paths, &id, word, gone).unwrap_err().to_string().contains("is gated"));
        // Nobody can be asked: the lane stops, and a second look does not change that.
        for _ in 0..2 {
            let left = resolve::resolve(&paths, Boot::Same, &|| parts(&dir)).unwrap();
            assert_eq!(left[0].to, State::InDoubt);
            assert!(!dir.join("engine").exists());
        }
        let there = decide::decide(&paths, &id, word, |_| Answer::Undecided).unwrap_err().to_string();
        assert!(there.contains("Its answer counts"), "{there}");
        assert_eq!(decide::word(&paths, &id), None);
        decide::decide(&paths, &id, word, gone).unwrap();
        assert_eq!(resolve::resolve(&paths, Boot::Same, &|| parts(&dir)).unwrap()[0].to, ends);
        assert!(dir.join("engine").exists());
        assert_eq!(profile::current(&paths).unwrap(), Some(side(on)));
        assert_eq!(decide::followed(&paths, &id, std::time::Duration::ZERO).unwrap(), Some(ends));
        // A second word finds nothing to decide.
        assert!(decide::decide(&paths, &id, Word::Aborted, gone).is_err());
    }
}

#[test]
fn a_damaged_release_file_is_told() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    std::fs::write(paths.releases().join("7.json"), "{\"number\": 7").unwrap();
    let seen = status::read(&paths, &FileUnits(dir.join("engine")), "0").unwrap();
    assert_eq!(seen.releases.len(), 1);
    assert!(seen.damaged_releases[0].contains("7.json"), "{:?}", seen.damaged_releases);
}

#[test]
fn a_commit_made_while_resolve_waits_for_the_lock_is_not_undone() {
    let (_guard, dir) = on_lane_a();
    let paths = HostPaths::below(&dir);
    vote(&dir, side('a'), side('b'));
    let lock = lock::take(&paths, "the transaction", None, std::time::Duration::ZERO).unwrap();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| resolve::resolve(&paths, Boot::Same, &|| parts(&dir)));
        // Inside the wait of a contender, which is 300 ms; a slower machine only makes this test weaker.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let folder = paths.txn(&"t2".parse().unwrap());
        let mut journal = journal::FileJournal::open(&folder, CrashPoint::of(&paths)).unwrap();
        let release = spec(Some(side('a')), side('b'), 2).release.map(Box::new);
        journal.append(&Record::Committed { release }).unwrap();
        drop(journal);
        drop(lock);
        let ended = late.join().unwrap();
        assert!(
            matches!(&ended, Ok(all) if all.iter().all(|r| r.to == State::Committed)) || ended.is_err(),
            "{ended:?}"
        );
    });
    assert_eq!(profile::current(&paths).unwrap(), Some(side('b')));
    assert!(dir.join("engine").exists());
    assert_eq!(txns::read(&paths, &"t2".parse().unwrap()).unwrap().state(), Some(State::Committed));
}
