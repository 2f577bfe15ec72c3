//! `sparklane engine pause|resume|evidence`: what people have to do with the watchdog.

use std::path::Path;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use miette::{IntoDiagnostic as _, miette};
use serde_json::{Value, json};
use sparklane_engine::evidence;
use sparklane_engine::watch::PAUSE_FILE;

/// See `Command::Pause`.
#[derive(Debug, ClapArgs)]
#[command(
    after_help = "Examples:\n  sparklane engine pause --reason 'measuring until noon'\n  sparklane engine resume"
)]
pub struct Pause {
    /// Why, for whoever wonders.
    #[arg(long, default_value = "")]
    reason: String,
}

/// See `Command::Evidence`.
#[derive(Debug, ClapArgs)]
pub struct Evidence {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Pauses the watchdog.
///
/// # Errors
/// When the file cannot be written.
pub fn pause(args: &Pause) -> miette::Result<ExitCode> {
    let file = Path::new(PAUSE_FILE);
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(|error| as_root("pause", &error))?;
    }
    std::fs::write(file, &args.reason).map_err(|error| as_root("pause", &error))?;
    println!("the watchdog is paused on this node; it acts again after: sparklane engine resume");
    Ok(ExitCode::SUCCESS)
}

/// Lets the watchdog act again.
///
/// # Errors
/// When the file does not go.
pub fn resume() -> miette::Result<ExitCode> {
    match std::fs::remove_file(PAUSE_FILE) {
        Ok(()) => println!("the watchdog acts again on this node"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => println!("the watchdog was not paused"),
        Err(error) => return Err(as_root("resume", &error)),
    }
    Ok(ExitCode::SUCCESS)
}

fn as_root(what: &str, error: &std::io::Error) -> miette::Report {
    miette!(help = format!("run as root: sudo sparklane engine {what}"), "{PAUSE_FILE}: {error}")
}

/// Lists the kept failures, newest last.
///
/// # Errors
/// When the folder cannot be read.
pub fn evidence(args: &Evidence) -> miette::Result<ExitCode> {
    let all = evidence::list(Path::new(evidence::FOLDER)).map_err(|error| {
        miette!(help = "run as root: sudo sparklane engine evidence", "{}: {error}", evidence::FOLDER)
    })?;
    let row = |path: &std::path::PathBuf| {
        // A folder whose summary cannot be read is shown all the same: the rest of it may tell.
        let text = std::fs::read(path.join("failure.json")).unwrap_or_default();
        let summary = serde_json::from_slice::<Value>(&text).unwrap_or(Value::Null);
        json!({ "path": path.display().to_string(), "failure": summary })
    };
    let rows: Vec<Value> = all.iter().map(row).collect();
    if args.json {
        println!("{}", serde_json::to_string(&json!({ "evidence": rows })).into_diagnostic()?);
        return Ok(ExitCode::SUCCESS);
    }
    for row in &rows {
        let why = row["failure"]["why"].as_str().unwrap_or("(no summary)");
        println!("{}\n  {why}", row["path"].as_str().unwrap_or_default());
    }
    if rows.is_empty() {
        println!("no failure was kept on this node");
    }
    Ok(ExitCode::SUCCESS)
}
