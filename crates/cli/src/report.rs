//! What people and programs see: logs, verdicts, exit codes.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::ValueEnum;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line for people.
    Text,
    /// One JSON object.
    Json,
}

/// Starts logging to stderr; stdout is for answers. `RUST_LOG` chooses what is said, by level and module: a filter of
/// fields too would bring a regular expression engine, a fiftieth of the program.
pub fn start_log(format: LogFormat) {
    let wished = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = wished.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    // What it says about a closed stderr goes there too, and would end the program.
    let lines = lines.with_ansi(std::io::stderr().is_terminal()).log_internal_errors(false);
    let all = tracing_subscriber::registry();
    match format {
        LogFormat::Text => all.with(lines.without_time().with_filter(filter)).init(),
        LogFormat::Json => all.with(lines.json().with_filter(filter)).init(),
    }
}

/// Asked for something that does not exist or makes no sense: exit code 2 in every command.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

impl miette::Diagnostic for Usage {}

/// What a command says that nothing came of, where it has no answer of a shape of its own.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure<'a> {
    /// By the exit code.
    pub verdict: &'static str,
    /// As in every command: 1 refused, 2 usage, 3 failed, 5 busy.
    pub exit_code: u8,
    /// Why.
    pub why: &'a str,
}

impl<'a> Failure<'a> {
    /// The failure of an exit code.
    pub fn of(exit_code: u8, why: &'a str) -> Self {
        let verdict = match exit_code {
            2 => "usage",
            3 => "failed",
            5 => "busy",
            _ => "refused",
        };
        Self { verdict, exit_code, why }
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Says why nothing came of it, to people and to programs, and gives the exit code.
pub fn refused(json: bool, code: u8, why: &str) -> ExitCode {
    eprintln!("{why}");
    if json {
        println!("{}", Failure::of(code, why).json());
    }
    ExitCode::from(code)
}
