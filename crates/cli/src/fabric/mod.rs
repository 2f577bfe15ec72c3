//! `sparklane fabric …`: the machines and the cable between them.

mod judge;
pub mod node;
pub mod verify;

use std::process::ExitCode;

use clap::Subcommand;

/// The machines and the cable between them: verify, judge measurements.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane fabric verify --cluster lab
  sparklane fabric judge all_reduce.log --devices rocep1s0f0,roceP2p1s0f0")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check both nodes, both rails, both directions, what differs between nodes, and who listens.
    Verify(verify::Args),
    /// Judge what a bandwidth test printed: the transport really used, and the likely cause of a low figure.
    Judge(judge::Args),
}

/// Runs the subcommand.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    match args.command {
        Command::Verify(args) => verify::run(&args),
        Command::Judge(args) => judge::run(&args),
    }
}
