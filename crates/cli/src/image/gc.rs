//! `sparklane image gc`.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use camino::Utf8PathBuf;
use serde::Serialize;
use sparklane_host::{HostPaths, lock, releases};
use sparklane_oci::docker::{Docker, SOCKET};
use sparklane_oci::gc::{Plan, carry_out, plan};
use sparklane_oci::node::{PORT, REPOSITORY, tag_of};
use sparklane_oci::{Digest, Layout, OciError};

use super::common::{STORE, answer, size};

/// Remove from this node what no kept release names: images, blobs, dead downloads.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo sparklane image gc
  sudo sparklane image gc --yes --json

Kept are the images of the releases that the cluster keeps (keepReleases), of the current generation, and adopted ones.
Exit codes: 0 done or nothing to do, 1 refused or not confirmed, 5 a transaction is under way.")]
pub struct Args {
    /// Layout folder.
    #[arg(long, value_name = "DIR", default_value = STORE)]
    layout: Utf8PathBuf,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Only show.
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Remove adopted images that no release names, too: they cannot be fetched again.
    #[arg(long)]
    adopted: bool,
    /// Manifest digest to keep besides; repeat it for more.
    #[arg(long, value_name = "DIGEST")]
    keep: Vec<Digest>,
    /// Print one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    #[serde(flatten)]
    plan: Plan,
    bytes: u64,
    kept: Vec<Digest>,
    removed: bool,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let paths = HostPaths::system();
    // No transaction begins while its image may go.
    let held = match lock::take(&paths, "image gc", None, Duration::ZERO) {
        Ok(held) => held,
        Err(error) => {
            eprintln!("busy: {error}");
            return Ok(ExitCode::from(5));
        }
    };
    let done = collect(&args, &paths);
    drop(held);
    let unconfirmed = done.as_ref().is_ok_and(|d| !d.removed && !args.dry_run && !d.plan.is_empty());
    let code = answer(args.json, done, |done: &Done| lines(done, args.dry_run));
    Ok(if unconfirmed { ExitCode::from(1) } else { code })
}

fn collect(args: &Args, paths: &HostPaths) -> Result<Done, OciError> {
    let layout = Layout::open(&args.layout)?;
    let _staging = sparklane_oci::node::lock(&layout)?;
    let mut keep = in_use(paths)?;
    keep.extend(args.keep.iter().cloned());
    let plan = plan(&layout, &keep, args.adopted)?;
    let removed = !plan.is_empty() && !args.dry_run && (args.yes || confirmed(&plan));
    if removed {
        carry_out(&layout, &plan)?;
        untag(&plan);
    }
    Ok(Done { bytes: plan.bytes(), plan, kept: keep.into_iter().collect(), removed })
}

/// Manifests that releases, the current generation and open transactions name.
fn in_use(paths: &HostPaths) -> Result<BTreeSet<Digest>, OciError> {
    let (releases, generation) = releases::in_use(paths).map_err(|e| OciError::document("releases", e.to_string()))?;
    Ok(releases.into_iter().filter_map(|r| r.image).chain(generation.and_then(|g| g.image.manifest)).collect())
}

fn confirmed(plan: &Plan) -> bool {
    if !std::io::stdin().is_terminal() {
        eprintln!("nothing is removed: say --yes");
        return false;
    }
    let (images, blobs) = (plan.images.len(), plan.blobs.len());
    eprint!("remove {images} images, {blobs} blobs ({})? [y/N] ", size(plan.bytes()));
    let _shown = std::io::stderr().flush();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).is_ok() && matches!(line.trim(), "y" | "yes")
}

/// Takes our tags off docker's copies; docker keeps what a container uses.
fn untag(plan: &Plan) {
    let work = async {
        let docker = Docker::connect(SOCKET).await?;
        for (digest, _) in &plan.images {
            docker.remove(&format!("127.0.0.1:{PORT}/{REPOSITORY}:{}", tag_of(digest))).await?;
        }
        Ok(())
    };
    // The layout's room is freed already; docker's own `image prune` gets the rest.
    if let Err(error) = super::common::block_on(work) {
        eprintln!("docker's copies stay: {error}");
    }
}

fn lines(done: &Done, dry: bool) -> String {
    if done.plan.is_empty() {
        return "nothing to remove".into();
    }
    let name =
        |(digest, name): &(Digest, Option<String>)| format!("  {digest} {}", name.as_deref().unwrap_or("(no name)"));
    let images: Vec<String> = done.plan.images.iter().map(name).collect();
    let word = match (done.removed, dry) {
        (true, _) => "removed",
        (false, true) => "would be removed",
        (false, false) => "not removed",
    };
    let rest =
        format!("{} blobs, {} dead downloads, {}", done.plan.blobs.len(), done.plan.partial.len(), size(done.bytes));
    [images, vec![format!("{word}: {} images, {rest}", done.plan.images.len())]].concat().join("\n")
}
