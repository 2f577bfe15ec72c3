//! `sparklane image pin`.

use std::process::ExitCode;

use camino::Utf8PathBuf;
use sparklane_oci::fetch::fetch_image;
use sparklane_oci::registry::PullOptions;
use sparklane_oci::{Layout, OciError, Pin, Platform, Reference};

use super::common::{Reach, STORE, answer, block_on, platform, progress};
use super::scan::{Scan, write_scanned, write_unscanned};

/// Look up what a reference is now and write it down: digests, manifest and config as served.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image pin ghcr.io/anemll/dspark-vllm-gx10:0.1.1
  sparklane image pin 127.0.0.1:5000/team/vllm:1 --platform linux/amd64
  sparklane image pin 127.0.0.1:5000/team/vllm:1 --scan --layout /srv/images

Writes images/pins/<digest>/{pin,manifest,config}.json; commit them. Digests are those of the bytes as the registry
serves them, of an index or of a manifest, whichever the reference names.")]
pub struct Args {
    /// HOST/NAME:TAG or HOST/NAME@sha256:DIGEST.
    reference: String,
    /// Folder of the pins.
    #[arg(long, value_name = "DIR", default_value = "images/pins")]
    pins: Utf8PathBuf,
    /// Which image of a multi-platform index.
    #[arg(long, value_name = "OS/ARCH", default_value = "linux/arm64", value_parser = platform)]
    platform: Platform,
    #[command(flatten)]
    scan: Scan,
    /// Layout folder that --scan fetches the image into; what is there is not fetched again.
    #[arg(long, value_name = "DIR", default_value = STORE)]
    layout: Utf8PathBuf,
    #[command(flatten)]
    reach: Reach,
    /// Print the pin as JSON on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    Ok(answer(args.json, pin(&args), |pin: &Pin| {
        format!(
            "{} is {} for {}\n  config   {}\n  layers   {}, {} bytes\n  written  {}",
            pin.reference,
            pin.manifest,
            pin.platform,
            pin.config,
            pin.layers.len(),
            pin.layers.iter().map(|l| l.size).sum::<u64>(),
            pin.folder(&args.pins)
        )
    }))
}

fn pin(args: &Args) -> Result<Pin, OciError> {
    let reference: Reference = args.reference.parse()?;
    let registry = args.reach.registry()?;
    if !args.scan.scan {
        let repo = registry.repo(&reference)?;
        let found = block_on(repo.resolve(reference.selector(), &args.platform))?;
        return write_unscanned(Pin::of(&reference.to_string(), &found), &found, &args.pins);
    }
    let layout = Layout::open_or_create(&args.layout)?;
    let options = PullOptions { progress: progress(args.json), ..PullOptions::default() };
    let (found, _) = block_on(fetch_image(&registry, &reference, &args.platform, &layout, &options))?;
    write_scanned(Pin::of(&reference.to_string(), &found), &found, &layout, &args.pins, &args.scan.keep)
}
