//! `sparklane image build` on the committed small image.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking
#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/image").canonicalize().unwrap()
}

fn command(fixture: &Path, out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sparklane"));
    command.args(["image", "build", "--json", "--out"]).arg(out);
    command.arg("--pins").arg(fixture.join("pins")).arg("--wheels").arg(fixture.join("wheels"));
    command.arg(fixture.join("spec.json")).stdout(std::process::Stdio::null());
    command
}

fn listing(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut todo) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else {
                found.push((path.strip_prefix(root).unwrap().to_owned(), std::fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// R1: zone, locale, umask, folder, times and modes of the inputs do not matter.
#[test]
fn two_builds_anywhere_are_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let first = dir.path().join("first");
    assert!(command(&fixture(), &first).env("TZ", "UTC").status().unwrap().success());

    let copy = dir.path().join("copied inputs");
    let copied = Command::new("cp").args(["-r", "--no-preserve=all"]).arg(fixture()).arg(&copy).status().unwrap();
    assert!(copied.success());
    let wheel = std::fs::read_dir(copy.join("wheels")).unwrap().next().unwrap().unwrap().path();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    std::fs::File::options().append(true).open(&wheel).unwrap().set_modified(old).unwrap();
    let second = dir.path().join("a").join("second");
    std::fs::create_dir_all(second.parent().unwrap()).unwrap();
    let inner = command(&copy, &second);
    let mut shell = Command::new("sh");
    shell.args(["-c", "umask 000; exec \"$@\"", "sh"]).arg(inner.get_program()).args(inner.get_args());
    let shell = shell.env("TZ", "Asia/Tokyo").env("LC_ALL", "tr_TR.UTF-8").env("HOME", "/nonexistent").current_dir("/");
    assert!(shell.status().unwrap().success());
    assert_eq!(listing(&first), listing(&second));
}

/// R39: wherever a build is killed, nothing is at its output, and the next one succeeds.
#[test]
fn a_killed_build_leaves_no_readable_layout() {
    let dir = tempfile::tempdir().unwrap();
    for delay in 0..25 {
        let out = dir.path().join(format!("out{delay}"));
        let mut child = command(&fixture(), &out).spawn().unwrap();
        // A spread of moments; none of them decides whether the test passes.
        std::thread::sleep(std::time::Duration::from_millis(delay));
        child.kill().unwrap();
        child.wait().unwrap();
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.join("oci-layout").exists() && path.join("index.json").exists() {
                let index = std::fs::read_to_string(path.join("index.json")).unwrap();
                let at = index.find("sha256:").unwrap() + 7;
                let manifest = std::fs::read_to_string(path.join("blobs/sha256").join(&index[at..at + 64])).unwrap();
                assert!(manifest.contains("layers"), "{}", path.display());
                assert!(path.join("image.json").exists(), "{}", path.display());
            }
        }
        if !out.exists() {
            assert!(command(&fixture(), &out).status().unwrap().success());
        }
    }
}

#[test]
fn a_refusal_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let done = command(&fixture(), &dir.path().join("out")).arg("--pins").arg("/none").output().unwrap();
    // clap takes an option once.
    assert_eq!(done.status.code(), Some(2));
    let mut command = Command::new(env!("CARGO_BIN_EXE_sparklane"));
    command.args(["image", "build", "--pins", "/none", "--out"]).arg(dir.path().join("out"));
    let done = command.arg(fixture().join("spec.json")).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    let text = String::from_utf8(done.stderr).unwrap();
    assert!(text.contains("sparklane image pin"), "{text}");
}
