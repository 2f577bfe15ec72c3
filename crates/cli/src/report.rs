//! What people and programs see: logs, verdicts, exit codes.

use std::io::IsTerminal as _;

use clap::ValueEnum;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line for people.
    Text,
    /// One JSON object.
    Json,
}

/// Starts logging to stderr; stdout is for answers. `RUST_LOG` chooses what is said.
pub fn start_log(format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let builder = builder.with_ansi(std::io::stderr().is_terminal());
    // What it says about a closed stderr goes there too, and would end the program.
    let builder = builder.log_internal_errors(false);
    match format {
        LogFormat::Text => builder.without_time().init(),
        LogFormat::Json => builder.json().init(),
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
