//! `sparklane image …`: pins, pulls and serves images. Each subcommand is a file.

mod adopt;
mod build;
mod common;
mod diff;
mod gc;
mod inspect;
mod lock_wheels;
mod look;
pub mod node;
mod pin;
mod pull;
mod push;
mod scan;
mod serve;
mod status;
mod verify;

use std::process::ExitCode;

use clap::Subcommand;

pub use common::rate;

/// Pin, fetch, serve and send the images that lanes run.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 done, 1 refused or there is no such image, 2 usage, 3 failed on the way (what came is
kept; the same command goes on)."
)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an image of a pinned base and layers of ours; the same inputs give the same digest anywhere.
    Build(build::Args),
    /// Look up what a reference is now and write it down: digests, manifest and config as served.
    Pin(pin::Args),
    /// Resolve wheels for an image's python with pip, and write their lock.
    LockWheels(lock_wheels::Args),
    /// Bring an image from a registry into a layout folder; a broken download goes on where it was.
    Pull(pull::Args),
    /// Take an image that was built by hand out of this node's docker, with digests that stay.
    Adopt(adopt::Args),
    /// Remove from this node what no kept release names.
    Gc(gc::Args),
    /// Send an image of a layout folder to a registry.
    Push(push::Args),
    /// Show on every node which image the lane wants, docker has and the engine runs.
    Status(status::Args),
    /// Show an image of a layout folder: digests, config, layers and what made them.
    Inspect(inspect::Args),
    /// Show why two images have different digests: config, layers, files.
    Diff(diff::Args),
    /// Prove an image of a layout folder: sizes, digests, diff_ids, rules of layers, RECORDs.
    Verify(verify::Args),
    /// Serve a layout folder as a read-only registry on 127.0.0.1.
    Serve(serve::Args),
}

/// Runs the subcommand.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    match args.command {
        Command::Build(args) => build::run(args),
        Command::Adopt(args) => adopt::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Gc(args) => gc::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::LockWheels(args) => lock_wheels::run(args),
        Command::Pin(args) => pin::run(args),
        Command::Pull(args) => pull::run(args),
        Command::Push(args) => push::run(args),
        Command::Status(args) => status::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Verify(args) => verify::run(args),
    }
}
