//! `sparklane image pin`.

use std::process::ExitCode;

use camino::Utf8PathBuf;
use sparklane_oci::base::{TreeIndex, scan, tree};
use sparklane_oci::fetch::fetch_image;
use sparklane_oci::layout::write_atomic;
use sparklane_oci::pin::TREE;
use sparklane_oci::registry::PullOptions;
use sparklane_oci::{Layout, Manifest, OciError, Pin, Platform, Reference};

use super::common::{Reach, STORE, answer, block_on, platform, progress};

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
    /// Also fetch the image and index its tree (paths, distributions, python, libraries), which layers on top of it need.
    #[arg(long)]
    scan: bool,
    /// Layout folder that --scan fetches into; what is there is not fetched again.
    #[arg(long, value_name = "DIR", default_value = STORE)]
    layout: Utf8PathBuf,
    /// File of the image whose text --scan keeps, because an edit changes it; repeat it for more.
    #[arg(long, value_name = "PATH", requires = "scan")]
    keep: Vec<String>,
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
    if !args.scan {
        let repo = registry.repo(&reference)?;
        let found = block_on(repo.resolve(reference.selector(), &args.platform))?;
        let mut pin = Pin::of(&reference.to_string(), &found);
        // A pin that is there already keeps the tree index that was made of these very layers.
        if let Ok(old) = Pin::read(&pin.folder(&args.pins))
            && old.manifest == pin.manifest
        {
            pin.tree = old.tree;
        }
        pin.write(&args.pins, &found)?;
        return Ok(pin);
    }
    let layout = Layout::open_or_create(&args.layout)?;
    let options = PullOptions { progress: progress(args.json), ..PullOptions::default() };
    let (found, _) = block_on(fetch_image(&registry, &reference, &args.platform, &layout, &options))?;
    let mut pin = Pin::of(&reference.to_string(), &found);
    let index = index(&layout, &found.manifest, &args.keep)?;
    pin.tree = Some(index.digest()?);
    let dir = pin.folder(&args.pins);
    std::fs::create_dir_all(&dir).map_err(OciError::io("make", &dir))?;
    write_atomic(&dir.join(TREE), &index.to_bytes()?)?;
    pin.write(&args.pins, &found)?;
    Ok(pin)
}

/// The merged tree of an image whose blobs are here; scans of layers are kept beside the layout's blobs.
fn index(layout: &Layout, manifest: &Manifest, keep: &[String]) -> Result<TreeIndex, OciError> {
    let keep = keep.iter().map(|path| path.trim_start_matches('/').to_owned()).collect();
    let cache = layout.root().join("scans");
    std::fs::create_dir_all(&cache).map_err(OciError::io("make", &cache))?;
    let scans = scan::layers(layout, manifest, &keep, Some(&cache))?;
    let layers = manifest.layers.iter().map(|d| d.digest.clone()).collect();
    tree::merge(layers, scans, &keep).map_err(|why| OciError::document(format!("image {}", manifest.digest()), why))
}
