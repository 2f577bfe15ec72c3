//! `sparklane build`: run by Nix, not by people.

use std::process::ExitCode;

use miette::{IntoDiagnostic as _, miette};
use sparklane_builder::{Attrs, What, build};

/// Build one derivation from its structured attributes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to build.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(What::ALL.map(|(name, _)| name)))]
    what: String,
}

/// Runs the command.
///
/// # Errors
/// When the derivation cannot be built.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let what = What::named(&args.what).ok_or_else(|| miette!("there is nothing named {} to build", args.what))?;
    let attrs = Attrs::from_env().into_diagnostic()?;
    match build(what, &attrs) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) => {
            // Nix shows the last lines of a log: plain lines, nothing folded or coloured.
            eprintln!("{e}");
            Ok(ExitCode::FAILURE)
        }
    }
}
