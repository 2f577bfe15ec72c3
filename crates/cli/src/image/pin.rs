//! `sparklane image pin`.

use std::process::ExitCode;

use camino::Utf8PathBuf;
use sparklane_oci::base::scan::{self, Keep};
use sparklane_oci::base::tree;
use sparklane_oci::compose::spec;
use sparklane_oci::layout::write_atomic;
use sparklane_oci::registry::{PullOptions, Repo, Resolved, pull_blobs};
use sparklane_oci::{Layout, OciError, Pin, Platform, Reference};

use super::common::{Reach, answer, block_on, platform, progress};

/// Look up what a reference is now and write it down: digests, manifest and config as served.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image pin ghcr.io/anemll/dspark-vllm-gx10:0.1.1
  sparklane image pin 127.0.0.1:5000/team/vllm:1 --platform linux/amd64

  sparklane image pin ghcr.io/anemll/dspark-vllm-gx10:0.1.0 --index \\
    --keep /usr/local/lib/python3.12/dist-packages/vllm/config/cache.py

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
    /// Read the layers too and write tree.json, which edits and upgrades need. Those that --store lacks are downloaded into it.
    #[arg(long)]
    index: bool,
    /// File of the base whose text is kept in tree.json, for an edit; absolute. Repeat it for more.
    #[arg(long, value_name = "PATH", requires = "index")]
    keep: Vec<String>,
    /// Layout folder that the layers are read from and downloaded to.
    #[arg(long, value_name = "DIR", default_value = super::common::STORE, requires = "index")]
    store: Utf8PathBuf,
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
    if args.index {
        let bytes = index(args, &repo, &found)?;
        pin.tree = Some(sparklane_oci::digest::of(&bytes));
        let dir = pin.folder(&args.pins);
        std::fs::create_dir_all(&dir).map_err(OciError::io("make", &dir))?;
        write_atomic(&dir.join("tree.json"), &bytes)?;
    }
    pin.write(&args.pins, &found)?;
    Ok(pin)
}

/// Brings the layers and reads them; scans are kept beside the store by the layers' digests.
fn index(args: &Args, repo: &Repo, found: &Resolved) -> Result<Vec<u8>, OciError> {
    let layout = Layout::open_or_create(&args.store)?;
    layout.write_blob(found.config.bytes())?;
    let layers = found.manifest.layers.clone();
    let options = PullOptions { progress: progress(args.json), ..PullOptions::default() };
    block_on(pull_blobs(repo, &layout, &layers, &options))?;
    let plain = |path: &String| spec::absolute(path).map(|p| p.as_str().to_owned());
    let keep: Result<Keep, String> = args.keep.iter().map(plain).collect();
    let keep = keep.map_err(|why| OciError::document("--keep", why))?;
    let scans = scan::layers(&layout, &found.manifest, &keep, Some(&layout.root().join("scans")))?;
    let digests = layers.iter().map(|l| l.digest.clone()).collect();
    let index = tree::merge(digests, scans, &keep).map_err(|why| OciError::document(args.reference.as_str(), why))?;
    let missing: Vec<&String> = keep.iter().filter(|p| !index.kept.contains_key(*p)).collect();
    match missing.first() {
        Some(path) => Err(OciError::document("--keep", format!("the base has no text /{path}"))),
        None => index.to_bytes(),
    }
}
