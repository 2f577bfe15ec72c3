//! The `sparklane` command.

mod lab;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "sparklane", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Rehearsal machines on this host: control, head and worker.
    Lab(lab::Args),
}

fn main() -> miette::Result<ExitCode> {
    match Cli::parse().command {
        Command::Lab(args) => lab::run(args),
    }
}
