//! The sparklane command.

mod engine;
mod lab;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "sparklane", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// This node's engine.
    Engine(engine::Args),
    /// Rehearsal machines on this host: control, head and worker.
    Lab(lab::Args),
}

fn main() -> miette::Result<std::process::ExitCode> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).without_time().with_target(false).init();
    match Cli::parse().command {
        Command::Engine(args) => engine::run(args),
        Command::Lab(args) => lab::run(args),
    }
}
