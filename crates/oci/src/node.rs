//! An image onto this node: its blobs into the node's layout, from there into docker, and then the number is compared.

use std::fmt;
use std::fs::{self, File};
use std::io::copy;

use camino::Utf8PathBuf;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use crate::digest::Digest;
use crate::docker::{Docker, StoreKind, Stored, shared_layers};
use crate::error::OciError;
use crate::fetch;
use crate::layout::Layout;
use crate::manifest::{Config, Descriptor, Manifest, check_digest};
use crate::partial::check_space;
use crate::registry::{Event, Pulled};
use crate::serve::Server;
use crate::source::{BlobSource, Kind};

/// Where the node's registry listens while docker pulls; the name stays in docker's list, so it is always the same.
pub const PORT: u16 = 5177;
/// The repository under which docker knows our images.
pub const REPOSITORY: &str = "sparklane/image";
/// How many times a layer's bytes grow when it is unpacked; measured bases grow 2 to 3 times.
const UNPACKED: u64 = 3;

/// An image by its digests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wanted {
    /// Manifest digest.
    pub manifest: Digest,
    /// Config digest.
    pub config: Digest,
    /// Name for people and for the layout's list.
    pub reference: String,
    /// Folder of a layout with what the closure brings: documents and our own layers.
    pub delta: Option<Utf8PathBuf>,
}

/// What staging did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StagedImage {
    /// The store docker uses.
    pub store: StoreKind,
    /// What docker calls the image.
    pub id: Digest,
    /// Blobs that came.
    pub blobs: u64,
    /// Bytes that came from the source.
    pub bytes: u64,
    /// Blobs of the image that the node's layout had, or that came with the closure.
    pub present: u64,
    /// True when docker had it, and nothing was done.
    pub unchanged: bool,
}

/// Hears what happens.
pub trait Watch {
    /// A step in words.
    fn say(&self, text: &str);
    /// A blob on its way.
    fn blob(&self, event: Event);
}

/// An order to a node: the first line of what it reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Order {
    /// The image.
    pub wanted: Wanted,
    /// Where blobs come from.
    pub from: From,
    /// Bring the blobs into the layout even when docker has the image, as another node will ask for them.
    pub keep: bool,
    /// Most bytes per second, from the source and into docker; absent for no limit.
    pub rate: Option<u64>,
}

/// Where a node gets blobs from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum From {
    /// The registry of the image's reference.
    Registry {
        /// Registries to speak plain http to.
        plain_http: Vec<String>,
        /// File on the node with logins.
        auth_file: Option<Utf8PathBuf>,
    },
    /// Another node, over the rails.
    Rails {
        /// The transfer's key.
        key: TransferKey,
        /// Rails as `NAME=SOURCE[%DEVICE]=PEER:PORT`.
        rails: Vec<String>,
        /// What that node offers.
        blobs: Vec<Offered>,
    },
    /// Nowhere: closure and layout must have all.
    Here,
}

/// A blob that another node offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Offered {
    /// Its digest.
    pub digest: Digest,
    /// Its bytes.
    pub size: u64,
}

/// The one-time key of a transfer, 64 hex digits; it is never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TransferKey(pub String);

impl fmt::Debug for TransferKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransferKey(..)")
    }
}

/// A line that a node says while it carries out an [`Order`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// What is being done; empty as a sign of life.
    Event(String),
    /// The end.
    Staged(StagedImage),
    /// The other end.
    Failed(String),
}

/// Brings an image into docker, unless it is there under the right number. `runtime` is docker's connection's.
///
/// # Errors
/// No room, a source that fails or lies, docker's refusal, or a wrong number at the end.
pub fn stage(
    layout: &Layout,
    (docker, runtime): (&Docker, &Runtime),
    order: &Order,
    source: &mut dyn BlobSource,
    watch: &dyn Watch,
) -> Result<StagedImage, OciError> {
    let (wanted, keep) = (&order.wanted, order.keep);
    let there = runtime.block_on(docker.find(&wanted.manifest, &wanted.config))?;
    if let (Some(found), false) = (&there, keep) {
        return Ok(staged(docker, found, &Pulled::default(), true));
    }
    let _lock = lock(layout)?;
    let (manifest, config, pulled) = gather(layout, wanted, source, watch)?;
    if let Some(found) = &there {
        return Ok(staged(docker, found, &pulled, true));
    }
    let found = runtime.block_on(load(layout, docker, (&manifest, &config), order.rate, watch))?;
    Ok(staged(docker, &found, &pulled, false))
}

fn staged(docker: &Docker, found: &Stored, pulled: &Pulled, unchanged: bool) -> StagedImage {
    let Pulled { blobs, bytes, present } = *pulled;
    StagedImage { store: docker.kind, id: found.id.clone(), blobs, bytes, present, unchanged }
}

/// Excludes other stagings, which would fetch everything twice, and collection, until it is dropped.
///
/// # Errors
/// The system's.
pub fn lock(layout: &Layout) -> Result<File, OciError> {
    let path = layout.root().join(".staging");
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(OciError::io("open", &path))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(OciError::errno("lock", &path))?;
    Ok(file)
}

/// All blobs of an image into the layout: first from the closure, then from the source.
///
/// # Errors
/// As [`stage`].
pub fn gather(
    layout: &Layout,
    wanted: &Wanted,
    source: &mut dyn BlobSource,
    watch: &dyn Watch,
) -> Result<(Manifest, Config, Pulled), OciError> {
    let delta = wanted.delta.as_deref().filter(|d| d.join("oci-layout").exists()).map(Layout::open).transpose()?;
    let mut document = |kind: Kind, digest: &Digest| -> Result<Vec<u8>, OciError> {
        if layout.has(digest) {
            return layout.read_document(digest);
        }
        let bytes = match &delta {
            Some(delta) if delta.has(digest) => delta.read_document(digest)?,
            _ => source.document(kind, digest)?,
        };
        check_digest("document", digest, crate::digest::of(&bytes))?;
        layout.write_blob(&bytes)?;
        Ok(bytes)
    };
    let manifest = Manifest::parse(None, document(Kind::Manifest, &wanted.manifest)?)?;
    manifest.check_image()?;
    check_digest("the image's config", &wanted.config, manifest.config.digest.clone())?;
    let config = Config::parse(document(Kind::Blob, &wanted.config)?)?;
    config.check_against(&manifest)?;
    let blobs: Vec<Descriptor> = manifest.blobs().into_iter().cloned().collect();
    if let Some(delta) = &delta {
        for blob in layout.missing(&manifest).into_iter().filter(|d| delta.has(&d.digest)) {
            watch.say(&format!("{} comes with the closure", blob.digest));
            take(layout, delta, blob)?;
        }
    }
    let pulled = source.fetch(layout, &blobs, &|event| watch.blob(event))?;
    enter(layout, &manifest, &config, &wanted.reference)?;
    Ok((manifest, config, pulled))
}

/// Lists an image that is whole. An entry that is there stays, as it may say that the image was adopted; and an image made
/// on a base has the base's reference, which goes on to mean the base.
fn enter(layout: &Layout, manifest: &Manifest, config: &Config, reference: &str) -> Result<(), OciError> {
    let listed = layout.list()?;
    if listed.iter().any(|(_, d)| d.digest == *manifest.digest()) {
        return Ok(());
    }
    let taken = listed.iter().any(|(name, _)| name.as_deref() == Some(reference));
    let name = if taken { format!("{reference}@{}", manifest.digest()) } else { reference.to_owned() };
    fetch::list(layout, manifest, config, &name)
}

/// Copies a blob from one layout to another and proves it on the way.
fn take(layout: &Layout, from: &Layout, blob: &Descriptor) -> Result<(), OciError> {
    let (mut file, _) = from.open_blob(&blob.digest)?;
    let mut writer = layout.blob_writer()?;
    copy(&mut file, &mut writer).map_err(OciError::io("copy to", layout.root()))?;
    writer.finish_as(&format!("{}: blob {}", from.root(), blob.digest), blob)
}

/// Serves the layout on loopback, lets docker pull the image from it, and compares what docker made of it.
///
/// # Errors
/// As [`stage`].
pub async fn load(
    layout: &Layout,
    docker: &Docker,
    (manifest, config): (&Manifest, &Config),
    rate: Option<u64>,
    watch: &dyn Watch,
) -> Result<Stored, OciError> {
    check_room(docker, manifest, config).await?;
    let start = |port| Server::start_paced(layout.clone(), port, rate);
    let server = start(PORT).or_else(|_| start(0))?;
    let name = format!("{}/{REPOSITORY}", server.address());
    watch.say(&format!("docker takes {} from this node's layout", manifest.digest()));
    docker.pull(&name, manifest.digest(), &|text| watch.say(text)).await?;
    let found = prove(docker, manifest, config).await?;
    docker.tag(&found.id, &name, &tag_of(manifest.digest())).await?;
    Ok(found)
}

/// The tag that keeps an image from cleaners.
#[must_use]
pub fn tag_of(manifest: &Digest) -> String {
    manifest.hex().chars().take(24).collect()
}

/// Compares the number that is right for docker's store, and every layer.
///
/// # Errors
/// [`OciError::Docker`] with what was expected and found.
pub async fn prove(docker: &Docker, manifest: &Manifest, config: &Config) -> Result<Stored, OciError> {
    let wrong = |why: String| OciError::Docker { socket: docker.kind.to_string(), what: "prove the image", why };
    let Some(found) = docker.find(manifest.digest(), config.digest()).await? else {
        let id = docker.kind.id_of(manifest.digest(), config.digest());
        return Err(wrong(format!("the {} store does not have it as {id}", docker.kind)));
    };
    if found.diff_ids != config.diff_ids {
        return Err(wrong(format!("{} has other layers than its config says", found.id)));
    }
    Ok(found)
}

async fn check_room(docker: &Docker, manifest: &Manifest, config: &Config) -> Result<(), OciError> {
    let stored = docker.all().await?;
    let new = shared_layers(&config.diff_ids, &stored);
    let bytes: u64 = manifest.layers.iter().skip(new).map(|d| d.size).sum();
    // The containerd store keeps the packed layers too.
    let times = UNPACKED + u64::from(docker.kind == StoreKind::Containerd);
    check_space(&docker.root, bytes.saturating_mul(times))
}
