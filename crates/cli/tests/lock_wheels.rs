//! `sparklane image lock-wheels` with the real pip.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

use std::process::{Command, Output};

use sparklane_oci::wheel::Lock;

fn lock(dir: &std::path::Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sparklane"));
    command.args(["image", "lock-wheels"]).args(more).args(["--out", "lock.json", "--wheels", "wheels"]);
    command.current_dir(dir).output().unwrap()
}

/// click needs importlib-metadata before python 3.8 only: what runs pip here is newer, what the lock is for is not.
#[test]
#[ignore = "needs python's packages (cargo xtask test)"]
fn conditions_are_the_targets_and_the_lock_finds_its_wheels() {
    let dir = tempfile::tempdir().unwrap();
    let done = lock(dir.path(), &["click==8.1.7", "--python", "cp37"]);
    assert!(done.status.success(), "{done:?}");
    let text = std::fs::read_to_string(dir.path().join("lock.json")).unwrap();
    assert!(!text.contains("://"), "no addresses: {text}");
    let lock_file = Lock::parse(text.as_bytes()).unwrap();
    let names: Vec<&str> = lock_file.wheels.iter().map(|w| w.name.as_str()).collect();
    assert_eq!(names, ["click", "importlib-metadata", "typing-extensions", "zipp"]);
    assert_eq!(lock_file.wheels[0].sha256, "ae74fb96c20a0277a1d615f1e4d73c8414f5a98db8b799a7931d1582f3390c28");
    let folder = camino::Utf8PathBuf::from_path_buf(dir.path().join("wheels")).unwrap();
    assert_eq!(lock_file.open(&folder).unwrap().len(), 4);
    assert_eq!(folder.read_dir_utf8().unwrap().count(), 4, "nothing else stays there");

    let done = lock(dir.path(), &["click==8.1.7"]);
    assert!(done.status.success(), "{done:?}");
    let newer = Lock::parse(&std::fs::read(dir.path().join("lock.json")).unwrap()).unwrap();
    assert_eq!(newer.wheels.iter().map(|w| w.name.as_str()).collect::<Vec<_>>(), ["click"]);

    let done = lock(dir.path(), &["no-such-thing-as-this==1"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&done.stderr).contains("no-such-thing-as-this"), "{done:?}");
    assert_eq!(Lock::parse(&std::fs::read(dir.path().join("lock.json")).unwrap()), Ok(newer), "the old lock stays");
}
