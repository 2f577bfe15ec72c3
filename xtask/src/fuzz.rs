//! `cargo xtask fuzz`: the targets of crates/fuzz in libFuzzer, one after the other.
//!
//! The stable compiler counts coverage by LLVM's own pass. libFuzzer itself is C++, so this needs `g++`.

use std::process::{Command, ExitCode};
use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};
use miette::{IntoDiagnostic, WrapErr as _, miette};
use xshell::{Shell, cmd};

use crate::workspace;

/// What to look for, and how long.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these targets; all without.
    targets: Vec<String>,
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Run this input once instead, e.g. the file of a crash.
    #[arg(long, value_name = "FILE")]
    input: Option<Utf8PathBuf>,
}

/// libFuzzer's counters and comparisons; `--target` keeps them out of build scripts.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

/// Builds, runs each target and says at the end what was found.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    let sh = Shell::new().into_diagnostic()?;
    sh.change_dir(workspace());
    let targets = chosen(&args.targets)?;
    let program = build(&sh)?;
    let mut found = Vec::new();
    for target in &targets {
        if let Some(input) = &args.input {
            let mut command = Command::new(&program);
            command.arg(input).env(VARIABLE, target);
            if !command.status().into_diagnostic()?.success() {
                found.push(format!("{target}: {input} breaks it"));
            }
            continue;
        }
        eprintln!("xtask: fuzz {target} for {} s", args.seconds);
        let start = Instant::now();
        let outcome = fuzz(&program, target, args.seconds)?;
        println!("{target}: {}, {:.0} s", outcome.words, start.elapsed().as_secs_f32());
        found.extend(
            outcome.crash.map(|file| format!("{target}: {file}\n  again: cargo xtask fuzz {target} --input {file}")),
        );
    }
    if found.is_empty() {
        println!("{} targets, nothing found", targets.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("{} of {} targets broke:\n{}", found.len(), targets.len(), found.join("\n"));
    Ok(ExitCode::FAILURE)
}

const VARIABLE: &str = "SPARKLANE_FUZZ_TARGET";

/// Each target has a folder of seeds.
fn chosen(named: &[String]) -> miette::Result<Vec<String>> {
    let seeds = workspace().join("fuzz/seeds");
    let mut known: Vec<String> = seeds
        .read_dir_utf8()
        .and_then(|entries| entries.map(|e| Ok(e?.file_name().to_owned())).collect())
        .into_diagnostic()
        .wrap_err_with(|| format!("{seeds} cannot be listed"))?;
    known.sort();
    match named.iter().find(|name| !known.contains(name)) {
        Some(other) => Err(miette!("{other:?} is no target; there are {}", known.join(", "))),
        None if named.is_empty() => Ok(known),
        None => Ok(named.to_vec()),
    }
}

/// The program with all targets.
fn build(sh: &Shell) -> miette::Result<Utf8PathBuf> {
    let version = cmd!(sh, "rustc --version --verbose").read().into_diagnostic()?;
    let host = version.lines().find_map(|l| l.strip_prefix("host: ")).ok_or_else(|| miette!("rustc names no host"))?;
    // One lock for both workspaces: what is fuzzed is what is shipped.
    sh.copy_file("Cargo.lock", "fuzz/Cargo.lock").into_diagnostic()?;
    let manifest = workspace().join("fuzz/Cargo.toml");
    let base = std::env::var("CARGO_TARGET_DIR").map_or_else(|_| workspace().join("target"), Utf8PathBuf::from);
    let base = base.join("fuzz");
    eprintln!("xtask: building the fuzz targets (some minutes the first time)");
    cmd!(sh, "cargo build --quiet --release --manifest-path {manifest} --target {host} --target-dir {base}")
        .env("RUSTFLAGS", FLAGS)
        .run()
        .into_diagnostic()
        .wrap_err("the fuzz targets do not build (libFuzzer needs g++)")?;
    Ok(base.join(host).join("release/sparklane-fuzz-runner"))
}

struct Outcome {
    words: String,
    crash: Option<Utf8PathBuf>,
}

/// One target. What it learns stays in `fuzz/corpus`, what breaks it in `fuzz/artifacts`.
fn fuzz(program: &Utf8Path, target: &str, seconds: u32) -> miette::Result<Outcome> {
    let root = workspace().join("fuzz");
    let [corpus, artifacts] = ["corpus", "artifacts"].map(|name| root.join(name).join(target));
    for folder in [&corpus, &artifacts] {
        std::fs::create_dir_all(folder).into_diagnostic()?;
    }
    let log = artifacts.join("log");
    let file = std::fs::File::create(&log).into_diagnostic()?;
    let mut command = Command::new(program);
    command.args([corpus.as_str(), root.join("seeds").join(target).as_str()]).env(VARIABLE, target);
    // Inputs are small by nature; what takes 10 s or a gigabyte of memory is a finding.
    command.args(["-max_len=16384", "-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"]);
    command.args([format!("-max_total_time={seconds}"), format!("-artifact_prefix={artifacts}/")]);
    let status =
        command.stderr(file).status().into_diagnostic().wrap_err_with(|| format!("{program} cannot be run"))?;
    let text = String::from_utf8_lossy(&std::fs::read(&log).into_diagnostic()?).into_owned();
    let number = |key: &str| text.lines().rev().find_map(|l| l.strip_prefix(key)).map_or("?", str::trim).to_owned();
    let words = format!(
        "{} executions, {} new inputs, at most {} MB",
        number("stat::number_of_executed_units:"),
        number("stat::new_units_added:"),
        number("stat::peak_rss_mb:")
    );
    if status.success() {
        return Ok(Outcome { words, crash: None });
    }
    let why = text.lines().find(|l| l.contains("panicked at") || l.starts_with("==") && l.contains("ERROR"));
    let crash = text.lines().find_map(|l| l.split_once("Test unit written to ")).map_or(log, |(_, file)| file.into());
    Ok(Outcome { words: format!("BROKE ({}), {words}", why.unwrap_or("see the log").trim()), crash: Some(crash) })
}
