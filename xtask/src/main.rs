//! Developer tasks: `cargo xtask prebuilt | rehearse | test | bench | fuzz`.

mod bench;
mod cross;
mod fuzz;
mod hf_client;
mod packages;
mod prebuilt;
mod real_vllm;
mod rehearse;
mod test;
mod wheelhouse;

use std::process::ExitCode;

use camino::{Utf8Path, Utf8PathBuf};
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Developer tasks of sparklane")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Build the static programs into ./prebuilt: the sparklane binary per system, and the simulator's image.
    Prebuilt(prebuilt::Args),
    /// The main job on the lab: build, start three machines, deploy a lane, deploy another, roll back.
    Rehearse(rehearse::Args),
    /// Every check: formatting, lints, unit tests, flake check and the end-to-end tests in the lab.
    Test(test::Args),
    /// Figures beside those of other tools. No part of `test`.
    Bench(bench::Args),
    /// Look for inputs that break a parser, by libFuzzer (needs g++). `test` only runs the known ones.
    Fuzz(fuzz::Args),
    /// Fill a folder with the wheels of a lock, by pip; every file's hash is checked.
    Wheelhouse(wheelhouse::Args),
}

fn main() -> miette::Result<ExitCode> {
    match Cli::parse().task {
        Task::Prebuilt(args) => prebuilt::run(&args).map(|()| ExitCode::SUCCESS),
        Task::Rehearse(args) => rehearse::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Wheelhouse(args) => wheelhouse::run(&args).map(|()| ExitCode::SUCCESS),
    }
}

/// The checkout that this program was built from.
fn workspace() -> &'static Utf8Path {
    let here = Utf8Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Where `name` lies in the machine-wide cache, which outlives checkouts. `SPARKLANE_CACHE` overrides the usual place.
fn cache(name: &str) -> Utf8PathBuf {
    let base = std::env::var("SPARKLANE_CACHE").ok().filter(|v| !v.is_empty());
    Utf8PathBuf::from(base.unwrap_or_else(|| "/var/cache/sparklane".to_owned())).join(name)
}
