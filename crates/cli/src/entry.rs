//! `sparklane entry`: process 1 of the engine's container, bind-mounted into it. Not for people.

use std::path::PathBuf;
use std::process::ExitCode;

use miette::IntoDiagnostic as _;
use sparklane_engine::entry::{self, GIVES_UP, Job, SAYS};
use sparklane_engine::error::EXIT_CONFIG;
use sparklane_engine::key;
use sparklane_lane::generation::Ray;

/// Run an engine as process 1 of its container.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File with the API key, put in the engine's environment only.
    #[arg(long)]
    api_key_file: Option<PathBuf>,
    /// How Ray comes up around the engine, as JSON (`engine.ray` of the generation).
    #[arg(long, value_name = "JSON", value_parser = |text: &str| serde_json::from_str::<Ray>(text))]
    ray: Option<Ray>,
    /// Program and arguments of the engine.
    #[arg(required = true, last = true)]
    argv: Vec<String>,
}

/// Runs the engine to its end, or the end of its Ray; the exit code says what happened.
///
/// # Errors
/// When there is no event loop.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    // The engine's log and ours are one; a reader outside knows our lines by their beginning.
    let say = |line: &str| eprintln!("{SAYS}{line}");
    let key = match args.api_key_file.as_deref().map(key::read).transpose() {
        Ok(key) => key,
        Err(error) => {
            say(&format!("{GIVES_UP}{error}"));
            return Ok(ExitCode::from(EXIT_CONFIG));
        }
    };
    let job = Job { argv: args.argv, key, ray: args.ray };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().into_diagnostic()?;
    let code = runtime.block_on(entry::run(&job, &say));
    // A question to the dashboard may still wait for its answer.
    runtime.shutdown_background();
    Ok(ExitCode::from(code))
}
