//! The sparklane command.

mod build;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "sparklane", version, about)]
enum Cli {
    Build(build::Args),
}

fn main() -> miette::Result<ExitCode> {
    match Cli::parse() {
        Cli::Build(args) => build::run(args),
    }
}
