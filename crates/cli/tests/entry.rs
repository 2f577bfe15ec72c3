//! `sparklane entry` as process 1 is: real processes, real signals.

#![allow(clippy::unwrap_used)] // a test says what is wrong by failing

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

fn entry(before: &[&str], argv: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sparklane"));
    command.arg("entry").args(before).arg("--").args(argv);
    command
}

fn sh(script: &str) -> Command {
    entry(&[], &["/bin/sh", "-c", script])
}

/// Code and what was printed.
fn outcome(mut command: Command) -> (Option<i32>, String, String) {
    let out = command.output().unwrap();
    (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
}

/// Started, with the first line that it printed.
fn started(mut command: Command) -> (Child, BufReader<ChildStdout>, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (child, out, line.trim().to_owned())
}

fn tell(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn codes_are_kept_and_a_quiet_end_is_a_failure() {
    for (script, code) in [("exit 1", 1), ("exit 2", 2), ("exit 0", 70), ("kill -9 $$", 137)] {
        assert_eq!(outcome(sh(script)).0, Some(code), "{script}");
    }
    let (code, _, said) = outcome(sh("exit 0"));
    assert_eq!(code, Some(70));
    assert!(said.contains("sparklane entry: the engine ended by itself with code 0"), "{said}");
    let (code, _, said) = outcome(entry(&[], &["/nowhere/vllm", "serve"]));
    assert_eq!(code, Some(127));
    assert!(said.contains("/nowhere/vllm cannot be run"), "{said}");
    assert_eq!(outcome(entry(&[], &["/etc"])).0, Some(126));
    assert_eq!(outcome(entry(&[], &[])).0, Some(2));
}

#[test]
fn arguments_arrive_as_they_are() {
    let json = r#"{"method":"dspark","num_speculative_tokens":7}"#;
    let odd = ["sh", json, "", "a b", "$HOME `id` '\"", "--api-key-file", "--"];
    let argv = [&["/bin/sh", "-c", "tr '\\0' '\\n' < /proc/$$/cmdline"], &odd[..]].concat();
    let (_, printed, _) = outcome(entry(&[], &argv));
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines[3..], odd);
}

#[test]
fn the_key_is_in_the_engines_environment_only() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    std::fs::write(&file, "sk-secret-1\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let before = ["--api-key-file", file.to_str().unwrap()];
    let look = "echo \"own $VLLM_API_KEY\"; cat /proc/$PPID/environ /proc/$PPID/cmdline /proc/$$/cmdline";
    let (_, printed, said) = outcome(entry(&before, &["/bin/sh", "-c", look]));
    assert!(printed.starts_with("own sk-secret-1\n"), "{printed}");
    assert_eq!(printed.matches("sk-secret-1").count(), 1, "{printed}");
    assert!(!said.contains("sk-secret-1"), "{said}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, printed, said) = outcome(entry(&before, &["/bin/sh", "-c", look]));
    assert_eq!((code, printed.as_str()), (Some(78), ""));
    assert!(said.contains("must be 0600"), "{said}");
}

#[test]
fn signals_are_passed_on_the_second_too() {
    let script = "trap 'echo draining' TERM; trap 'exit 0' INT; echo up; while :; do sleep 0.05; done";
    let (mut child, mut out, line) = started(sh(script));
    assert_eq!(line, "up");
    tell(&child, Signal::TERM);
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "draining\n");
    assert!(child.try_wait().unwrap().is_none(), "it drains for as long as it wants");
    tell(&child, Signal::INT);
    // Asked for, so 0 is a success.
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // One that does not know the signal.
    let (mut child, _out, _) = started(sh("echo up; exec sleep 1000"));
    tell(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn a_signal_reaches_the_engine_and_not_its_children() {
    // A worker of the engine, in the engine's group, would end the engine's requests with it.
    // The engine's own trap comes first: the worker says `up` for both.
    let script = "trap 'kill -0 $! && echo drained; exit 0' TERM; \
                  sh -c 'trap \"echo worker; exit\" TERM; echo up; while :; do sleep 0.05; done' & \
                  while :; do sleep 0.05; done";
    let (mut child, mut out, line) = started(sh(script));
    assert_eq!(line, "up");
    tell(&child, Signal::TERM);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // The engine first; what it left is ended after it.
    assert_eq!(rest, "drained\nworker\n");
}

#[test]
fn orphans_are_reaped_while_the_engine_lives() {
    // A zombie would stay in /proc.
    let script = "p=$( (true > /dev/null & echo $!) ); while [ -e /proc/$p ]; do sleep 0.05; done; exit 3";
    assert_eq!(outcome(sh(script)).0, Some(3));
}

#[test]
fn orphans_are_ended() {
    // One that heeds SIGTERM, one that does not, in a session of its own; both outlive the engine, as vLLM's do.
    let dir = tempfile::tempdir().unwrap();
    let up = dir.path().join("up").display().to_string();
    let script = format!(
        "sleep 1000 & echo $!; setsid sh -c 'trap \"\" TERM; echo $$; : > {up}; exec sleep 1000' & \
         until [ -e {up} ]; do sleep 0.05; done; kill -9 $$"
    );
    let script = script.as_str();
    let (code, printed, said) = outcome(sh(script));
    assert_eq!(code, Some(137));
    let pids: Vec<i32> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2, "{printed}");
    for pid in pids {
        assert!(test_kill_process(Pid::from_raw(pid).unwrap()).is_err(), "{pid} lives");
    }
    assert!(said.contains("ended 2 processes that were left"), "{said}");
}
