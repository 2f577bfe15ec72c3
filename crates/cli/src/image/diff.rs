//! `sparklane image diff`.

use std::process::ExitCode;

use camino::Utf8PathBuf;
use sparklane_oci::OciError;
use sparklane_oci::diff::{Difference, Side, diff};

use super::common::{STORE, answer};
use super::look::{choose, open};

/// Show why two images have different digests: config, layers, files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image diff old new --layout /srv/images
  sparklane image diff vllm vllm --layout result --other result-2")]
pub struct Args {
    /// Name or manifest digest of the first image.
    a: String,
    /// Name or manifest digest of the second image.
    b: String,
    /// Layout folder of the first image.
    #[arg(long, value_name = "DIR", default_value = STORE)]
    layout: Utf8PathBuf,
    /// Layout folder of the second image [default: the first's]
    #[arg(long, value_name = "DIR")]
    other: Option<Utf8PathBuf>,
    /// Further layout folder with blobs, e.g. the base's.
    #[arg(long, value_name = "DIR")]
    base: Vec<Utf8PathBuf>,
    /// Print one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs it. Images that differ are no failure.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let compare = || -> Result<Difference, OciError> {
        let first = open(&args.layout, &args.base)?;
        let second = open(args.other.as_ref().unwrap_or(&args.layout), &args.base)?;
        let (a, b) = (choose(&first, Some(&args.a))?, choose(&second, Some(&args.b))?);
        diff(Side { layout: &first, manifest: &a }, Side { layout: &second, manifest: &b })
    };
    Ok(answer(args.json, compare(), text))
}

fn text(found: &Difference) -> String {
    let [a, b] = &found.manifests;
    if found.none() {
        return format!("the same image: {a}");
    }
    let mut out = format!("a {a}\nb {b}\n{} layers in common\n", found.common);
    let or = |v: &Option<String>| v.clone().unwrap_or_else(|| "(none)".into());
    for value in &found.values {
        out += &format!("{}\n  a {}\n  b {}\n", value.at, or(&value.a), or(&value.b));
    }
    let digest = |d: &Option<sparklane_oci::Digest>| d.as_ref().map_or_else(|| "(none)".into(), ToString::to_string);
    for layer in &found.layers {
        out += &format!("layer {}\n  a {}\n  b {}\n", layer.layer, digest(&layer.a), digest(&layer.b));
        layer.files.iter().for_each(|file| out += &format!("  {file}\n"));
        if layer.more > 0 {
            out += &format!("  and {} more\n", layer.more);
        }
    }
    out.trim_end().to_owned()
}
