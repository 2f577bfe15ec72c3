//! `sparklane image pin`.

use std::process::ExitCode;

use camino::Utf8PathBuf;
use sparklane_oci::{OciError, Pin, Platform, Reference};

use super::common::{Reach, answer, block_on, platform};

/// Look up what a reference is now and write it down: digests, manifest and config as served.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image pin ghcr.io/anemll/dspark-vllm-gx10:0.1.1
  sparklane image pin 127.0.0.1:5000/team/vllm:1 --platform linux/amd64

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
    let repo = registry.repo(&reference)?;
    let found = block_on(repo.resolve(reference.selector(), &args.platform))?;
    let mut pin = Pin::of(&reference.to_string(), &found);
    // A pin that is there already keeps the tree index that was made for these very layers.
    if let Ok(old) = Pin::read(&pin.folder(&args.pins))
        && old.manifest == pin.manifest
    {
        pin.tree = old.tree;
    }
    pin.write(&args.pins, &found)?;
    Ok(pin)
}
