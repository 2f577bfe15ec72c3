//! Running programs of this host.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::error::{LabError, Result, Try};
use crate::spec::Program;

/// Runs `argv` and gives back its standard output; a failure carries what it said.
pub fn run(argv: &[&str]) -> Result<String> {
    run_with_input(argv, None)
}

/// As [`run`], with text for standard input.
pub fn run_with_input(argv: &[&str], input: Option<&str>) -> Result<String> {
    let [program, args @ ..] = argv else {
        return Ok(String::new());
    };
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().trying(|| format!("start {program}"))?;
    if let (Some(text), Some(mut stdin)) = (input, child.stdin.take()) {
        // A program that ends early closes its end; its exit code says why.
        let _ = stdin.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().trying(|| format!("wait for {program}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(LabError::Command {
        command: argv.join(" "),
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Those of `programs` that are not on PATH.
#[must_use]
pub fn missing_programs(programs: &[Program]) -> Vec<Program> {
    let path = std::env::var("PATH").unwrap_or_default();
    // /usr/sbin is not on every user's PATH, yet holds `ip` and `mkfs.ext4`.
    let dirs: Vec<&str> = path.split(':').chain(["/usr/sbin", "/sbin"]).collect();
    let there = |p: &Program| dirs.iter().any(|d| std::path::Path::new(d).join(p.name).is_file());
    programs.iter().filter(|p| !there(p)).copied().collect()
}

/// Refuses with the names of the missing programs and their packages.
pub fn require(programs: &[Program]) -> Result<()> {
    let missing = missing_programs(programs);
    if missing.is_empty() {
        return Ok(());
    }
    let list = |f: fn(&Program) -> &'static str| {
        let mut names: Vec<&str> = missing.iter().map(f).collect();
        names.sort_unstable();
        names.dedup();
        names.join(" ")
    };
    Err(LabError::Missing { programs: list(|p| p.name), packages: list(|p| p.package) })
}
