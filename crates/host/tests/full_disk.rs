//! A transaction on file systems that fill up or turn read-only at each write: exactly the old or the new generation.
//! Mounts small tmpfs, so it runs as root (CI does).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use sparklane_host::{HostPaths, resolve};
use sparklane_txn::{Boot, State};
use support::{closure, parts, side, snapshot, spec, try_transact};

/// A tmpfs over a folder, gone at the end.
struct Small(Utf8PathBuf);

impl Small {
    fn over(dir: Utf8PathBuf) -> Self {
        std::fs::create_dir_all(&dir).unwrap();
        let options = c"size=1m,mode=755";
        mount("tmpfs", dir.as_str(), "tmpfs", MountFlags::empty(), options).unwrap();
        Self(dir)
    }

    /// Leaves `free` KiB.
    fn fill(&self, free: usize) {
        let stat = rustix::fs::statvfs(self.0.as_str()).unwrap();
        let bytes = usize::try_from(stat.f_bavail * stat.f_frsize).unwrap();
        std::fs::write(self.0.join("ballast"), vec![0; bytes.saturating_sub(free * 1024)]).unwrap();
    }

    fn read_only(&self, on: bool) {
        let flags = if on { MountFlags::RDONLY } else { MountFlags::empty() };
        mount_remount(self.0.as_str(), flags, c"").unwrap();
    }

    fn relieve(&self) {
        std::fs::remove_file(self.0.join("ballast")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        unmount(self.0.as_str(), UnmountFlags::DETACH).unwrap();
    }
}

fn on_lane_a_over(what: &str) -> (tempfile::TempDir, Utf8PathBuf, Small) {
    let guard = tempfile::tempdir().unwrap();
    let dir = Utf8PathBuf::from_path_buf(guard.path().to_path_buf()).unwrap();
    let small = Small::over(dir.join(what));
    let paths = HostPaths::below(&dir);
    closure(&paths, 'a');
    closure(&paths, 'b');
    assert_eq!(try_transact(&dir, &spec(None, side('a'), 1)).unwrap().0, State::Committed);
    (guard, dir, small)
}

fn without_ballast(dir: &Utf8Path) -> String {
    snapshot(dir).lines().filter(|l| !l.contains("ballast")).collect::<Vec<_>>().join("\n").replace(dir.as_str(), "")
}

fn ends(what: &str, new: &str, break_it: impl Fn(&Small), mend: impl Fn(&Small)) -> State {
    let (_guard, dir, small) = on_lane_a_over(what);
    let old = without_ballast(&dir);
    break_it(&small);
    let said = try_transact(&dir, &spec(Some(side('a')), side('b'), 2)).map(|(state, _)| state);
    mend(&small);
    resolve::resolve(&HostPaths::below(&dir), Boot::Same, &|| parts(&dir)).unwrap();
    let now = without_ballast(&dir);
    let state = said.unwrap_or(State::RolledBack);
    match state {
        State::Committed => assert_eq!(now, new, "said committed"),
        // A node that could not write its files back says so, and is mended once there is room.
        State::RolledBack | State::Stuck => assert_eq!(now, old, "said {state}"),
        other => panic!("ended as {other}"),
    }
    state
}

#[test]
fn a_disk_that_fills_up_at_any_write_leaves_old_or_new() {
    for what in ["root", "state"] {
        let (_guard, dir, _small) = on_lane_a_over(what);
        try_transact(&dir, &spec(Some(side('a')), side('b'), 2)).unwrap();
        let new = without_ballast(&dir);
        let mut seen = std::collections::BTreeSet::new();
        for free in (0..=64).step_by(4) {
            seen.insert(ends(what, &new, |s| s.fill(free), Small::relieve).as_str());
        }
        assert!(seen.contains("rolled-back"), "{what}: no case failed: {seen:?}");
        assert!(seen.contains("committed"), "{what}: no case passed: {seen:?}");
    }
}

#[test]
fn a_read_only_file_system_changes_nothing() {
    for what in ["root", "state"] {
        let state = ends(what, "", |s| s.read_only(true), |s| s.read_only(false));
        assert_ne!(state, State::Committed, "{what}");
    }
}
