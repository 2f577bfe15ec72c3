//! `sparklane image build`.

use std::process::ExitCode;

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_oci::base::TreeIndex;
use sparklane_oci::compose::{Built, Inputs, Place, Spec, build};
use sparklane_oci::layout::write_atomic;
use sparklane_oci::{Config, Manifest, OciError, Pin};

use super::common::{answer, size};

/// Make an image of a pinned base and layers of ours; the same inputs give the same digest anywhere.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image build image.json --out result
  sparklane image build image.json --wheels /srv/wheelhouse --out result --json
  sparklane image build image.json --out result --record images/my-image.pin.json

The base is taken from its pin (images/pins/<digest>/, see sparklane image pin); no layer of it is read. The output is a
layout that holds our layers, config and manifest only, and image.json, which says what was done and what could not be proved.")]
pub struct Args {
    /// The image's specification, JSON.
    spec: Utf8PathBuf,
    /// Folder to make; it must not exist.
    #[arg(long, value_name = "DIR")]
    out: Utf8PathBuf,
    /// Folder of the pins.
    #[arg(long, value_name = "DIR", default_value = "images/pins")]
    pins: Utf8PathBuf,
    /// Folder of the wheels that the lock names.
    #[arg(long, value_name = "DIR", default_value = "nix/wheelhouse")]
    wheels: Utf8PathBuf,
    /// Also write the digests to this file (images/NAME.pin.json): the lane's image, and what later builds must come to.
    #[arg(long, value_name = "FILE")]
    record: Option<Utf8PathBuf>,
    /// Print image.json on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    Ok(answer(args.json, made(&args), |built| text(built, &args.out)))
}

fn made(args: &Args) -> Result<Built, OciError> {
    let bytes = std::fs::read(&args.spec).map_err(OciError::io("read", &args.spec))?;
    let spec = Spec::parse(args.spec.as_str(), &bytes)?;
    let (dir, pin) = find_pin(&args.pins, &spec)?;
    let read = |name: &str| std::fs::read(dir.join(name)).map_err(OciError::io("read", dir.join(name)));
    let manifest = Manifest::parse(None, read("manifest.json")?)?;
    let config = Config::parse(read("config.json")?)?;
    let index = tree_index(&dir, &pin)?;
    let sources = args.spec.parent().unwrap_or(Utf8Path::new(""));
    let inputs = Inputs {
        spec: &spec,
        manifest: &manifest,
        config: &config,
        index: index.as_ref(),
        wheels: &args.wheels,
        sources,
    };
    let built = build(&inputs, &args.out, Place::Renamed)?;
    if let Some(file) = &args.record {
        let text = serde_json::to_string_pretty(&built.expected());
        let text = text.map_err(|e| OciError::document(file.as_str(), e.to_string()))?;
        write_atomic(file, format!("{text}\n").as_bytes())?;
    }
    Ok(built)
}

/// The pin of the spec's base; its folder is named by the digest of manifest or index.
fn find_pin(pins: &Utf8Path, spec: &Spec) -> Result<(Utf8PathBuf, Pin), OciError> {
    let direct = pins.join(spec.base.manifest.hex());
    if direct.join("pin.json").is_file() {
        return Ok((direct.clone(), Pin::read(&direct)?));
    }
    let entries = pins.read_dir_utf8().into_iter().flatten().flatten();
    let mut found = entries.filter_map(|e| Some((e.path().to_owned(), Pin::read(e.path()).ok()?)));
    found.find(|(_, pin)| pin.manifest == spec.base.manifest).ok_or_else(|| {
        let why = format!("there is no pin of it; run sparklane image pin {}", spec.base.reference);
        OciError::document(format!("base {}", spec.base.manifest), why)
    })
}

/// The tree index beside a pin, when the pin names one.
pub(super) fn tree_index(dir: &Utf8Path, pin: &Pin) -> Result<Option<TreeIndex>, OciError> {
    let Some(expected) = &pin.tree else { return Ok(None) };
    let path = dir.join(sparklane_oci::pin::TREE);
    let bytes = std::fs::read(&path).map_err(OciError::io("read", &path))?;
    sparklane_oci::manifest::check_digest(path.as_str(), expected, sparklane_oci::digest::of(&bytes))?;
    TreeIndex::parse(path.as_str(), &bytes).map(Some)
}

fn text(built: &Built, out: &Utf8Path) -> String {
    let mut lines = vec![format!("{} is {}", built.name, built.manifest), format!("  config   {}", built.config)];
    lines.extend(built.layers.iter().map(|l| format!("  layer    {} {} ({})", l.digest, l.title, size(l.size))));
    lines.push(format!("  written  {out}"));
    lines.extend(built.why.iter().map(|l| format!("  done     {l}")));
    lines.extend(built.warnings.iter().map(|l| format!("  warning  {l}")));
    lines.extend(built.unproved.iter().map(|l| format!("  unproved {l}")));
    lines.join("\n")
}
