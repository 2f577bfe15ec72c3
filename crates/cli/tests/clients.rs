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

#[test]
fn nothing_is_written_when_a_part_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().to_str().unwrap();
    std::fs::create_dir(dir.path().join("claude-code.env")).unwrap();
    let (code, said, why) = clients(&["--out", out, "--replace", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, said["verdict"].as_str()), (1, Some("refused")), "{why}");
    assert!(!dir.path().join("codex").exists());
}

/// What somebody sent may name anything, and its words reach a terminal.
#[test]
fn a_strangers_file_neither_blocks_nor_paints() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, config) = (dir.path().join("pipe"), dir.path().join("config.toml"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for odd in [pipe.as_path(), Path::new("/dev/zero"), dir.path()] {
        assert_eq!(clients(&["--check", odd.to_str().unwrap()]).0, 1, "{odd:?}");
    }
    let theirs = "model_provider = \"a\\u001b[2J\\nb\"\nmodel_catalog_json = \"PIPE\"\nmodel = \"\\u001b]0;x\\u0007\"\n\
                  [model_providers.\"a\\u001b[2J\\nb\"]\nwire_api = \"c\"\n";
    std::fs::write(&config, theirs.replace("PIPE", pipe.to_str().unwrap())).unwrap();
    let (code, said, _) = clients(&["--check", config.to_str().unwrap()]);
    assert!(code == 1 && said.contains("G9") && said.contains("no regular file"), "{said}");
    std::fs::write(&config, format!("x = \u{1b}[2J{}", "[".repeat(400_000))).unwrap();
    let (code, _, why) = clients(&["--check", config.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(why.len() < 4000, "{} bytes", why.len());
    let harmless = |text: &str| text.chars().all(|c| c == '\n' || !c.is_control());
    assert!(harmless(&said) && harmless(&why), "{said:?} {why:?}");
}
