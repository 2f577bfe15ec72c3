//! `sparklane image push`.

use std::process::ExitCode;

use camino::Utf8PathBuf;
use serde::Serialize;
use sparklane_oci::registry::push::push;
use sparklane_oci::{Digest, OciError, Reference};

use super::common::{Reach, STORE, answer, block_on, short, size};
use super::look::{choose, open};

/// Send an image of a layout folder to a registry.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image push 127.0.0.1:5000/team/vllm:1 --layout result --image vllm
  sparklane image push 127.0.0.1:5000/team/vllm:1 --layout result --base /srv/images --mount-from team/base")]
pub struct Args {
    /// HOST/NAME:TAG to push to.
    reference: String,
    /// Layout folder.
    #[arg(long, value_name = "DIR", default_value = STORE)]
    layout: Utf8PathBuf,
    /// Further layout folder with blobs that the first has not, e.g. the base's.
    #[arg(long, value_name = "DIR")]
    base: Vec<Utf8PathBuf>,
    /// Which image of the layout: its name or its manifest digest [default: the only one]
    #[arg(long, value_name = "NAME|DIGEST")]
    image: Option<String>,
    /// Repository at the same registry that may have the base's blobs.
    #[arg(long, value_name = "NAME")]
    mount_from: Option<String>,
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
    manifest: Digest,
    blobs: u64,
    bytes: u64,
    mounted: u64,
    present: u64,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    Ok(answer(args.json, send(&args), |done: &Done| {
        format!(
            "{} is {}: {} blobs sent ({}), {} mounted, {} were there",
            done.reference,
            done.manifest,
            done.blobs,
            size(done.bytes),
            done.mounted,
            done.present
        )
    }))
}

fn send(args: &Args) -> Result<Done, OciError> {
    let reference: Reference = args.reference.parse()?;
    let registry = args.reach.registry()?;
    let layout = open(&args.layout, &args.base)?;
    let manifest = layout.manifest(&choose(&layout, args.image.as_deref())?)?;
    let repo = registry.repo_to_push(&reference, args.mount_from.as_deref())?;
    let quiet = args.json;
    let say = move |blob: &sparklane_oci::Descriptor, word: &str| {
        if !quiet {
            eprintln!("{} {} {word}", short(&blob.digest), size(blob.size));
        }
    };
    let pushed = block_on(push(&repo, &layout, &manifest, reference.tag(), args.mount_from.as_deref(), &say))?;
    Ok(Done {
        reference: reference.to_string(),
        manifest: manifest.digest().clone(),
        blobs: pushed.blobs,
        bytes: pushed.bytes,
        mounted: pushed.mounted,
        present: pushed.present,
    })
}
