//! `lane clients`: what it writes fits, nobody's file is lost, and what does not fit ends with 1.

#![allow(clippy::unwrap_used)] // a helper that fails fails its test

use std::path::Path;

use assert_cmd::Command;

fn clients(args: &[&str]) -> (i32, String, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::cargo_bin("sparklane").unwrap();
    command.args(["lane", "clients", "ray-0731", "--data"]).arg(root).args(args);
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn what_is_written_fits_and_what_was_changed_is_kept_and_judged() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    assert_eq!(clients(&["--out", out]).0, 0);
    // Again: nothing differs.
    assert_eq!(clients(&["--out", out]).0, 0);
    let config = dir.path().join("codex/config.toml");
    let file = config.to_str().unwrap();
    let (code, said, _) = clients(&["--check", file]);
    assert_eq!((code, said.contains("fits ds-0731")), (0, true), "{said}");

    let theirs = std::fs::read_to_string(&config).unwrap().replace("\"responses\"", "\"chat\"");
    std::fs::write(&config, &theirs).unwrap();
    std::fs::remove_file(dir.path().join("codex/catalog.json")).unwrap();
    let (code, said, _) = clients(&["--check", file, "--json"]);
    assert_eq!(code, 1);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let gotchas: Vec<&str> = said["findings"].as_array().unwrap().iter().filter_map(|f| f["gotcha"].as_str()).collect();
    assert_eq!((said["fits"].as_bool(), gotchas), (Some(false), vec!["G9", "G10"]));

    let (code, _, why) = clients(&["--out", out]);
    assert!(code == 1 && why.contains("differs"), "{why}");
    assert_eq!(std::fs::read_to_string(&config).unwrap(), theirs, "somebody's file is lost");
    assert!(!dir.path().join("codex/catalog.json").exists(), "half was written");
    assert_eq!(clients(&["--out", out, "--replace"]).0, 0);
    assert_eq!(clients(&["--check", file]).0, 0);
}

#[test]
fn it_wants_one_thing_to_do() {
    for args in [&[][..], &["--out", "/tmp/a", "--check", "b"]] {
        assert_eq!(clients(args).0, 2);
    }
}
