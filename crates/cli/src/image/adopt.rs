//! `sparklane image adopt`, and its node's side.

use std::io::{Read, Write as _};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, sync_channel};

use bytes::Bytes;
use camino::Utf8PathBuf;
use serde_json::json;
use sparklane_oci::adopt::read_saved;
use sparklane_oci::docker::{Docker, SOCKET, Stored};
use sparklane_oci::gc::ADOPTED;
use sparklane_oci::partial::check_space;
use sparklane_oci::pin::Adopted;
use sparklane_oci::registry::{RegistryError, Resolved};
use sparklane_oci::{Layout, OciError, Pin, Platform, fetch, layout};

use super::common::{STORE, answer, size};
use super::scan::{Scan, write_scanned, write_unscanned};

/// Take an image that was built by hand out of this node's docker, with digests that stay.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo sparklane image adopt my-vllm:fixed
  sudo sparklane image adopt my-vllm:fixed --pins /root/images/pins --as stage-c-fi3615 --json
  sudo sparklane image adopt my-vllm:fixed --scan --keep /opt/env/lib/header.cuh

The image goes into the node's layout, so that it can be deployed to all nodes, and a pin with its digests and where it
came from is written. Copy the pin's folder to images/pins/ and, with --as, images/NAME.pin.json to your flake.")]
pub struct Args {
    /// What docker calls the image.
    name: String,
    /// Layout folder.
    #[arg(long, value_name = "DIR", default_value = STORE)]
    layout: Utf8PathBuf,
    /// Folder of the pins.
    #[arg(long, value_name = "DIR", default_value = "images/pins")]
    pins: Utf8PathBuf,
    /// Image of the flake that it is: writes NAME.pin.json beside the folder of the pins.
    #[arg(long = "as", value_name = "NAME")]
    image: Option<sparklane_lane::LaneName>,
    #[command(flatten)]
    scan: Scan,
    /// Socket of docker.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    docker: String,
    /// Print the pin as JSON on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    Ok(answer(args.json, adopt(&args), |pin: &Pin| {
        format!(
            "{} is {}\n  config   {}\n  layers   {}, {}\n  written  {}",
            args.name,
            pin.manifest,
            pin.config,
            pin.layers.len(),
            size(pin.layers.iter().map(|l| l.size).sum()),
            pin.folder(&args.pins)
        )
    }))
}

fn adopt(args: &Args) -> Result<Pin, OciError> {
    let layout = Layout::open_or_create(&args.layout)?;
    let runtime = super::node::runtime()?;
    let (docker, stored, found) = from_docker(&runtime, &args.docker, &args.name, &layout)?;
    let mut entry = fetch::entry(&found.manifest, &found.config, &args.name);
    entry.insert("annotations".into(), json!({ layout::REF_NAME: args.name, ADOPTED: stored.id.as_str() }));
    layout.write_blob(found.manifest.bytes())?;
    layout.put_entry(&entry)?;
    write(args, &docker, &stored, &layout, &found)
}

/// Reads an image out of docker's store into a layout, where nothing is listed yet.
pub(super) fn from_docker(
    runtime: &tokio::runtime::Runtime,
    socket: &str,
    name: &str,
    layout: &Layout,
) -> Result<(Docker, Stored, Resolved), OciError> {
    let (docker, stored) = runtime.block_on(async {
        let docker = Docker::connect(socket).await?;
        let stored = docker.inspect(name).await?;
        let missing = || OciError::document(name, "docker has no such image (see: docker image ls)");
        stored.map(|s| (docker, s)).ok_or_else(missing)
    })?;
    check_space(layout.root(), stored.size)?;
    let platform = this_platform();
    let (manifest, config) = std::thread::scope(|scope| {
        let (pieces, queue) = sync_channel(8);
        let reader = scope.spawn(|| read_saved(layout, docker.kind, &stored, Pieces::new(queue), &platform));
        // By id: the name may be given to another image meanwhile.
        let sent = runtime.block_on(docker.save(stored.id.as_str(), |piece| {
            pieces.send(piece).map_err(|_| OciError::document("what docker saved", "its reader has ended"))
        }));
        drop(pieces);
        let read = reader.join().unwrap_or_else(|_| Err(RegistryError::Setup("a reader died".into()).into()));
        // The reader's reason comes first: it is why the sender could not go on.
        read.and_then(|found| sent.map(|()| found))
    })?;
    Ok((docker, stored, Resolved { index: None, manifest, config }))
}

fn write(args: &Args, docker: &Docker, stored: &Stored, layout: &Layout, found: &Resolved) -> Result<Pin, OciError> {
    let mut pin = Pin::of(&args.name, found);
    pin.adopted = Some(Adopted {
        name: args.name.clone(),
        node: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        store: docker.kind.to_string(),
        id: stored.id.clone(),
    });
    let pin = match args.scan.scan {
        true => write_scanned(pin, found, layout, &args.pins, &args.scan.keep)?,
        false => write_unscanned(pin, found, &args.pins)?,
    };
    if let Some(image) = &args.image {
        let digests = json!({ "manifest": pin.manifest.as_str(), "config": pin.config.as_str() });
        let beside = args.pins.parent().map_or_else(|| Utf8PathBuf::from("."), Utf8PathBuf::from);
        layout::write_atomic(&beside.join(format!("{image}.pin.json")), format!("{digests:#}\n").as_bytes())?;
    }
    Ok(pin)
}

fn this_platform() -> Platform {
    Platform::linux(match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "x86_64" => "amd64",
        other => other,
    })
}

/// A stream of pieces as a reader.
struct Pieces {
    queue: Receiver<Bytes>,
    current: Bytes,
}

impl Pieces {
    fn new(queue: Receiver<Bytes>) -> Self {
        Self { queue, current: Bytes::new() }
    }
}

impl Read for Pieces {
    fn read(&mut self, mut buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.current.is_empty() {
            match self.queue.recv() {
                Ok(next) => self.current = next,
                Err(_) => return Ok(0),
            }
        }
        let count = buffer.len().min(self.current.len());
        let piece = self.current.split_to(count);
        buffer.write_all(&piece)?;
        Ok(count)
    }
}
