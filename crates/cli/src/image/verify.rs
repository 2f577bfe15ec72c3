//! `sparklane image verify`.

use std::process::ExitCode;

use camino::Utf8PathBuf;
use sparklane_oci::verify::{Report, verify};
use sparklane_oci::{Digest, Layout, OciError};

use super::common::answer;

/// Check an image in a layout: sizes, digests, diff_ids, history, media types, tree rules, RECORDs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image verify result
  sparklane image verify result --base /var/lib/sparklane/images --json

Exit codes: 0 all holds, 1 something does not, 2 usage, 3 it could not be read.")]
pub struct Args {
    /// The layout folder.
    layout: Utf8PathBuf,
    /// Digest of the manifest; without, the layout must list one image.
    #[arg(long, value_name = "DIGEST")]
    manifest: Option<Digest>,
    /// Layout that holds the base's layers. Without them only what is ours is looked at.
    #[arg(long, value_name = "DIR")]
    base: Option<Utf8PathBuf>,
    /// Print the report as JSON on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let report = look(&args);
    let holds = report.as_ref().is_ok_and(|r| r.problems.is_empty());
    let shown = answer(args.json, report, text);
    Ok(if holds || shown != ExitCode::SUCCESS { shown } else { ExitCode::from(1) })
}

fn look(args: &Args) -> Result<Report, OciError> {
    let mut layout = Layout::open(args.layout.clone())?;
    if let Some(base) = &args.base {
        layout = layout.with_shared(base.clone());
    }
    let digest = match &args.manifest {
        Some(digest) => digest.clone(),
        None => only(&layout)?,
    };
    verify(&layout, &digest)
}

fn only(layout: &Layout) -> Result<Digest, OciError> {
    match layout.list()?.as_slice() {
        [(_, one)] => Ok(one.digest.clone()),
        all => {
            let why = format!("it lists {} images; name one with --manifest", all.len());
            Err(OciError::document(layout.root().as_str(), why))
        }
    }
}

fn text(report: &Report) -> String {
    let lines = |word: &'static str, of: &[String]| of.iter().map(move |l| format!("{word} {l}")).collect::<Vec<_>>();
    let all = [lines("ok     ", &report.proved), lines("note   ", &report.notes), lines("problem", &report.problems)];
    all.concat().join("\n")
}
