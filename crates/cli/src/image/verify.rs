//! `sparklane image verify`.

use std::process::ExitCode;

use sparklane_oci::OciError;
use sparklane_oci::verify::{Extent, Report, Weight, verify};

use super::common::answer;
use super::look::{Which, choose};

/// Prove an image of a layout folder: every size, digest and diff_id, the rules of layers, RECORDs in the merged tree.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image verify --layout /srv/images
  sparklane image verify vllm --layout result --ours-only

Exit codes: 0 nothing is wrong (there may be notices about the base), 1 refused, 3 could not be read.")]
pub struct Args {
    /// Name or manifest digest of the image [default: the only one]
    image: Option<String>,
    #[command(flatten)]
    which: Which,
    /// The base's layers may be elsewhere; what needs them is not judged.
    #[arg(long)]
    ours_only: bool,
    /// Print one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let extent = if args.ours_only { Extent::OursOnly } else { Extent::Whole };
    let prove = || -> Result<Report, OciError> {
        let layout = args.which.open()?;
        verify(&layout, &choose(&layout, args.image.as_deref())?, extent)
    };
    let report = prove();
    let refused = report.as_ref().is_ok_and(|r| !r.good());
    let code = answer(args.json, report, text);
    Ok(if refused { ExitCode::from(1) } else { code })
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    for finding in &report.findings {
        let word = if finding.weight == Weight::Problem { "PROBLEM" } else { "notice " };
        out += &format!("{word} {}: {}\n", finding.at, finding.what);
    }
    let verdict = if report.good() { "good" } else { "refused" };
    out += &format!(
        "{verdict}: {} ({} of {} layers read, {} of them ours, {} entries)",
        report.manifest, report.read, report.layers, report.ours, report.entries
    );
    out
}
