//! `sparklane image pull`.

use std::process::ExitCode;

use camino::Utf8PathBuf;
use serde::Serialize;
use sparklane_oci::fetch::fetch_image;
use sparklane_oci::registry::PullOptions;
use sparklane_oci::{Digest, Layout, Manifest, OciError, Platform, Reference};

use super::common::{Reach, STORE, answer, block_on, platform, progress, rate, size};

/// Bring an image from a registry into a layout folder; a broken download goes on where it was.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image pull ghcr.io/anemll/dspark-vllm-gx10:0.1.1 --layout /srv/images
  sparklane image pull 127.0.0.1:5000/team/vllm:1 --platform linux/amd64 --limit-rate 50M")]
pub struct Args {
    /// HOST/NAME:TAG or HOST/NAME@sha256:DIGEST.
    reference: String,
    /// Layout folder; made when it does not exist.
    #[arg(long, value_name = "DIR", default_value = STORE)]
    layout: Utf8PathBuf,
    /// Which image of a multi-platform index.
    #[arg(long, value_name = "OS/ARCH", default_value = "linux/arm64", value_parser = platform)]
    platform: Platform,
    /// Blobs at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    parallel: u8,
    /// Most bytes per second, e.g. 50M.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    limit_rate: Option<u64>,
    /// Read what was there already, too, and fetch anew what is not what its name says.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    reach: Reach,
    /// Print one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    reference: String,
    layout: Utf8PathBuf,
    index: Option<Digest>,
    manifest: Digest,
    config: Digest,
    blobs: u64,
    bytes: u64,
    present: u64,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    Ok(answer(args.json, pull(&args), |done: &Done| {
        format!(
            "{} is {} in {}: {} blobs came ({}), {} were there",
            done.reference,
            done.manifest,
            done.layout,
            done.blobs,
            size(done.bytes),
            done.present
        )
    }))
}

fn pull(args: &Args) -> Result<Done, OciError> {
    let reference: Reference = args.reference.parse()?;
    let registry = args.reach.registry()?;
    let layout = Layout::open_or_create(&args.layout)?;
    let options = PullOptions { parallel: args.parallel.into(), rate: args.limit_rate, progress: progress(args.json) };
    let (mut found, mut pulled) = block_on(fetch_image(&registry, &reference, &args.platform, &layout, &options))?;
    if args.check && remove_wrong(&layout, &found.manifest)? {
        (found, pulled) = block_on(fetch_image(&registry, &reference, &args.platform, &layout, &options))?;
    }
    Ok(Done {
        reference: reference.to_string(),
        layout: args.layout.clone(),
        index: found.index.as_ref().map(|i| i.digest().clone()),
        manifest: found.manifest.digest().clone(),
        config: found.config.digest().clone(),
        blobs: pulled.blobs,
        bytes: pulled.bytes,
        present: pulled.present,
    })
}

/// Removes blobs of an image that are damaged; true when there were any.
fn remove_wrong(layout: &Layout, manifest: &Manifest) -> Result<bool, OciError> {
    let mut any = false;
    for blob in manifest.blobs() {
        match layout.prove_blob(blob) {
            Err(error @ (OciError::DigestMismatch { .. } | OciError::SizeMismatch { .. })) => {
                eprintln!("{error}; it is fetched anew");
                let path = layout.own_path(&blob.digest);
                std::fs::remove_file(&path).map_err(OciError::io("remove", &path))?;
                any = true;
            }
            proved => proved?,
        }
    }
    Ok(any)
}
