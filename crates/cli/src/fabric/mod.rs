//! `sparklane fabric …`: the machines and the cable between them.

mod bench;
pub mod gate;
mod judge;
pub mod node;
pub mod rank;
pub mod verify;

use std::process::ExitCode;

use clap::Subcommand;

/// The machines and the cable between them: verify, measure, judge measurements.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane fabric verify --cluster lab
  sparklane fabric bench --cluster sparks
  sparklane fabric judge all_reduce.log --devices rocep1s0f0,roceP2p1s0f0")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check both nodes, both rails, both directions, what differs between nodes, and who listens.
    Verify(verify::Args),
    /// Measure all-reduce between the nodes in the deployed lane's image and NCCL environment.
    Bench(bench::Args),
    /// Judge what a bandwidth test printed: the transport really used, and the likely cause of a low figure.
    Judge(judge::Args),
}

/// GB/s to pass.
fn gate(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|g| g.is_finite() && *g > 0.0).ok_or_else(|| "is no positive number".to_owned())
}

/// Runs the subcommand.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    match args.command {
        Command::Verify(args) => verify::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Judge(args) => judge::run(&args),
    }
}
