//! `sparklane image verify`.

use std::process::ExitCode;

use camino::Utf8Path;
use sparklane_oci::docker::SOCKET;
use sparklane_oci::fetch::fetch_image;
use sparklane_oci::registry::PullOptions;
use sparklane_oci::verify::{Extent, Report, Weight, verify};
use sparklane_oci::{Layout, OciError, Platform, Reference};

use super::adopt::from_docker;
use super::common::{Reach, answer, block_on, platform, progress};
use super::look::{Which, choose};

/// Prove an image of a layout folder: every size, digest and diff_id, the rules of layers, RECORDs in the merged tree.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image verify --layout /srv/images
  sparklane image verify vllm --layout result --ours-only
  sparklane image verify --registry 127.0.0.1:5000/team/vllm:1 --platform linux/amd64
  sudo sparklane image verify --docker my-vllm:fixed

An image of a registry or of docker's store is read into a folder below TMPDIR first, which goes afterwards.

Exit codes: 0 nothing is wrong (there may be notices about the base), 1 refused, 3 could not be read.")]
pub struct Args {
    /// Name or manifest digest of the image [default: the only one]
    image: Option<String>,
    #[command(flatten)]
    which: Which,
    /// Fetch the image of this reference instead, and prove what was served.
    #[arg(long, value_name = "REF", conflicts_with_all = ["image", "docker", "ours_only"])]
    registry: Option<String>,
    /// Which image of a multi-platform index of --registry.
    #[arg(long, value_name = "OS/ARCH", default_value = "linux/arm64", value_parser = platform, requires = "registry")]
    platform: Platform,
    #[command(flatten)]
    reach: Reach,
    /// Read the image of this name out of this node's docker instead.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["image", "ours_only"])]
    docker: Option<String>,
    /// Socket of docker.
    #[arg(long, value_name = "PATH", default_value = SOCKET, requires = "docker")]
    socket: String,
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
    let report = prove(&args);
    let refused = report.as_ref().is_ok_and(|r| !r.good());
    let code = answer(args.json, report, text);
    Ok(if refused { ExitCode::from(1) } else { code })
}

fn prove(args: &Args) -> Result<Report, OciError> {
    if args.registry.is_none() && args.docker.is_none() {
        let extent = if args.ours_only { Extent::OursOnly } else { Extent::Whole };
        let layout = args.which.open()?;
        return verify(&layout, &choose(&layout, args.image.as_deref())?, extent);
    }
    let folder = tempfile::tempdir().map_err(OciError::io("make a folder in", "TMPDIR"))?;
    let path = Utf8Path::from_path(folder.path()).ok_or_else(|| OciError::document("TMPDIR", "is not UTF-8"))?;
    let layout = Layout::open_or_create(path)?;
    let found = match (&args.registry, &args.docker) {
        (Some(reference), _) => {
            let reference: Reference = reference.parse()?;
            let options = PullOptions { progress: progress(args.json), ..PullOptions::default() };
            let registry = args.reach.registry()?;
            block_on(fetch_image(&registry, &reference, &args.platform, &layout, &options))?.0
        }
        (None, name) => {
            let name = name.as_deref().unwrap_or_default();
            let (_, _, found) = from_docker(&super::node::runtime()?, &args.socket, name, &layout)?;
            layout.write_blob(found.manifest.bytes())?;
            found
        }
    };
    verify(&layout, found.manifest.digest(), Extent::Whole)
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
