//! `sparklane weights …`: what a node has, whether it is right, and how it gets there.

mod ends;
mod fetch;
pub mod gate;
mod local;
mod nodes;
mod polite;
mod progress;
mod send;

use std::process::ExitCode;

use camino::{Utf8Path, Utf8PathBuf};
use clap::Subcommand;
use sparklane_lane::WeightsManifest;
use sparklane_weights::WeightsError;
use sparklane_weights::store::ROOT;

use crate::report::refused;

/// Weights: lock, fetch, verify, send between nodes, adopt, collect.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane weights lock deepseek-ai/DeepSeek-V4-Flash-0731@9e165c30e2704aec5d9d593cce3eebd58bbef1cb
  sudo sparklane weights fetch nix/weights/deepseek-v4-flash-0731.json
  sudo sparklane weights status
  sparklane weights status --cluster lab
  sudo sparklane weights adopt /models/0731 --manifest nix/weights/deepseek-v4-flash-0731.json
  sudo sparklane weights verify nix/weights/deepseek-v4-flash-0731.json --deep
  sparklane weights verify nix/weights/deepseek-v4-flash-0731.json --against worker --cluster sparks
  sparklane weights send nix/weights/deepseek-v4-flash-0731.json --cluster sparks --while-serving
  sudo sparklane weights gc

Exit codes: 0 done, 1 refused before any change, 2 usage, 3 failed or not proved (what was proved is kept), 5 busy.")]
pub struct Args {
    #[command(subcommand)]
    command: What,
}

/// The store that is meant.
#[derive(Debug, Clone, clap::Args)]
pub struct Place {
    /// Folder of the node's weights.
    #[arg(long, value_name = "DIR", default_value = ROOT)]
    store: Utf8PathBuf,
    /// Print one JSON value on stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a manifest of a revision from the hub: every file with size and sha256.
    Lock(fetch::LockArgs),
    /// Download a manifest's files from the hub or a mirror, prove them and make them visible.
    Fetch(fetch::FetchArgs),
    /// Show what is in this node's store and whether it is proved; with --cluster, on every node side by side.
    Status(local::StatusArgs),
    /// Prove a manifest's files: by record, size, time and inode, or with --deep by every byte.
    Verify(local::VerifyArgs),
    /// Take files that are on this node already: a folder, or a Hugging Face cache of either layout.
    Adopt(local::AdoptArgs),
    /// Make a Hugging Face view of a manifest's files, for engines that ask for a hub id.
    View {
        /// Manifest.
        manifest: Utf8PathBuf,
        #[command(flatten)]
        place: Place,
    },
    /// Show how many bytes each entry of the store takes.
    Du {
        #[command(flatten)]
        place: Place,
    },
    /// Remove what neither this node's generation nor its last releases name; asks first.
    Gc(local::GcArgs),
    /// Send a manifest's files from the node that has them to the others, over both rails.
    Send(send::SendArgs),
    /// One end of `send`: answer receivers (request on stdin).
    #[command(hide = true)]
    Serve,
    /// One end of `send`: receive (request on stdin).
    #[command(hide = true)]
    Pull,
}

/// Runs the subcommand.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let json = args.command.json();
    let done = match args.command {
        What::Lock(args) => fetch::lock(&args),
        What::Fetch(args) => fetch::fetch(&args),
        What::Status(args) if args.reach.cluster().is_some() => return Ok(nodes::status(&args)),
        What::Status(args) => local::status(&args),
        What::Verify(args) if args.against.is_some() => return Ok(nodes::compare(&args)),
        What::Verify(args) => local::verify(&args),
        What::Adopt(args) => local::adopt(&args),
        What::View { manifest, place } => local::view(&manifest, &place),
        What::Du { place } => local::du(&place),
        What::Gc(args) => local::gc(&args),
        What::Send(args) => return Ok(send::run(&args)),
        What::Serve => ends::serve(),
        What::Pull => ends::pull(),
    };
    Ok(done.unwrap_or_else(|error| refused(json, error.exit_code(), &error.to_string())))
}

impl What {
    /// Whether one JSON value is wanted on stdout, of a failure too.
    fn json(&self) -> bool {
        match self {
            Self::Fetch(args) => args.place.json,
            Self::Status(args) => args.reach.json(),
            Self::Verify(args) => args.reach.json(),
            Self::Adopt(args) => args.place.json,
            Self::View { place, .. } | Self::Du { place } => place.json,
            Self::Gc(args) => args.place.json,
            Self::Send(args) => args.reach.json(),
            Self::Lock(_) | Self::Serve | Self::Pull => false,
        }
    }
}

/// Reads a manifest file; `-` is stdin.
///
/// # Errors
/// All its problems, refused.
pub fn manifest(path: &Utf8Path) -> Result<WeightsManifest, WeightsError> {
    let text = if path == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
    let text = text.map_err(|e| WeightsError::Refused(format!("{path}: {e}")))?;
    WeightsManifest::parse(&text).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        WeightsError::Refused(format!("{path}: {}", lines.join("; ")))
    })
}

/// One JSON value on stdout.
///
/// # Errors
/// When it cannot be written.
pub fn print(value: &impl serde::Serialize) -> Result<(), WeightsError> {
    crate::node::print(value).map_err(|e| WeightsError::Failed(e.to_string()))
}

/// Bytes for people.
pub fn bytes(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let unit = units.get(unit).unwrap_or(&"B");
    if *unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_at_a_glance() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(166_886_535_336), "166.9 GB");
        assert_eq!(bytes(u64::MAX), "18446744.1 TB");
    }
}
