//! Image blobs from one node's layout to others', over the rails (design.md section 10): the same sender, receiver and
//! journal that move weights, with the layout's blobs as the set.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use camino::Utf8Path;
use serde::{Deserialize, Serialize};
use sparklane_oci::manifest::{DOCUMENT_MAX, Descriptor, check_digest, check_size};
use sparklane_oci::node::Offered;
use sparklane_oci::partial::{check_space, still_needed};
use sparklane_oci::registry::{Event as Moved, Pulled};
use sparklane_oci::source::{BlobSource, Kind};
use sparklane_oci::{Digest, Layout, OciError};

use crate::agent::{Event, Say};
use crate::blobs::{Blob, BlobSet};
use crate::buffer::{Buffer, EXTENT};
use crate::error::WeightsError;
use crate::hash::Sha;
use crate::read::stamp_of;
use crate::staging::Staging;
use crate::transfer::rail::{Rail, Rails};
use crate::transfer::sched::Want;
use crate::transfer::serve::{ServeOptions, Server};
use crate::transfer::{Dial as _, LineError, Progress, Pull, PullOptions};

/// Where blobs lie below a layout's folder.
const BLOBS: &str = "blobs/sha256";
/// A sender that nobody comes to ends after this: a receiver first takes what came with the closure. The end of its stdin
/// ends it at once.
const IDLE: Duration = Duration::from_secs(900);
const TICK: Duration = Duration::from_millis(200);

/// What a sender of an image is told.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageServeRequest {
    /// The transfer's key, 64 hex digits.
    pub key: String,
    /// The image's manifest.
    pub manifest: Digest,
    /// Own addresses of the rails, and nothing else.
    pub listen: Vec<IpAddr>,
    /// Receivers to wait for.
    pub receivers: usize,
}

/// Sends the blobs of an image in a layout to receivers.
///
/// # Errors
/// When a blob is not there, or an address cannot be listened on.
pub fn serve(
    layout: &Layout,
    request: &ImageServeRequest,
    stop: &AtomicBool,
    say: &Say<'_>,
) -> Result<(), WeightsError> {
    let manifest = layout.manifest(&request.manifest).map_err(|e| WeightsError::Refused(e.to_string()))?;
    let mut blobs = vec![Offered { digest: request.manifest.clone(), size: manifest.bytes().len() as u64 }];
    blobs.extend(manifest.blobs().into_iter().map(|d| Offered { digest: d.digest.clone(), size: d.size }));
    let set = set_of(&blobs)?;
    let listen: Vec<SocketAddr> = request.listen.iter().map(|ip| SocketAddr::new(*ip, 0)).collect();
    let options = ServeOptions { seal: false, receivers: request.receivers.max(1), give_up: IDLE };
    let server = Server::bind(layout.root(), &set, request.key.parse()?, &listen, options)?;
    say(&Event::Offered(blobs));
    say(&Event::Listening(server.addresses()?));
    let served = server.run(stop);
    let peak_bytes = crate::transfer::receipt::peak_bytes();
    say(&Event::Served { bytes: served.bytes, finished: served.finished, strangers: served.strangers, peak_bytes });
    Ok(())
}

fn set_of(blobs: &[Offered]) -> Result<BlobSet, WeightsError> {
    let blob =
        |b: &Offered| Ok(Blob { path: format!("{BLOBS}/{}", b.digest.hex()), size: b.size, sha256: sha(&b.digest)? });
    BlobSet::new(blobs.iter().map(blob).collect::<Result<_, WeightsError>>()?)
}

fn sha(digest: &Digest) -> Result<Sha, WeightsError> {
    digest.hex().parse().map_err(|e| WeightsError::Refused(format!("blob {digest}: {e}")))
}

/// Another node's layout as a source of blobs, reached over the rails.
pub struct RailSource<'a> {
    rails: Rails,
    set: Arc<BlobSet>,
    options: PullOptions,
    stop: &'a AtomicBool,
}

impl<'a> RailSource<'a> {
    /// A source of what a sender offered. `stop` ends a transfer; what was proved is kept.
    ///
    /// # Errors
    /// When key, rails or blobs are none.
    pub fn new(
        key: &str,
        rails: &[String],
        blobs: &[Offered],
        rate: Option<u64>,
        stop: &'a AtomicBool,
    ) -> Result<Self, OciError> {
        let set = set_of(blobs).map_err(oci)?;
        let rails: Vec<Rail> = rails.iter().map(|r| r.parse()).collect::<Result<_, _>>().map_err(oci)?;
        let rails = Rails { rails, key: key.parse().map_err(oci)?, set: set.id() };
        let options = PullOptions { rate, ..PullOptions::default() };
        Ok(Self { rails, set: Arc::new(set), options, stop })
    }

    fn find(&self, digest: &Digest) -> Result<(u32, u64), OciError> {
        let found = self.set.iter().find(|(_, blob)| blob.path.ends_with(digest.hex()));
        let found = found.map(|(index, blob)| (index, blob.size));
        found.ok_or_else(|| OciError::document(format!("blob {digest}"), "the sending node does not offer it"))
    }

    /// A small blob, over the first rail that answers.
    fn read(&self, index: u32, size: u64) -> Result<Vec<u8>, WeightsError> {
        let mut why = WeightsError::Failed("there is no rail".into());
        for way in 0..self.rails.rails.len() {
            match self.read_over(way, index, size) {
                Ok(bytes) => return Ok(bytes),
                Err(LineError::Fatal(error)) => return Err(error),
                Err(LineError::Lost { why: lost, .. }) => why = WeightsError::Failed(lost),
            }
        }
        Err(why)
    }

    fn read_over(&self, way: usize, file: u32, size: u64) -> Result<Vec<u8>, LineError> {
        let mut line = self.rails.dial(way)?;
        let (mut bytes, mut buffer) = (Vec::new(), Buffer::new());
        while let Some(left) = size.checked_sub(bytes.len() as u64).filter(|left| *left > 0) {
            let len = u32::try_from(left.min(EXTENT as u64)).unwrap_or(0);
            let want = Want { file, offset: bytes.len() as u64, len };
            line.ask(&want)?;
            if line.take(&mut buffer, &|| false)? != want || buffer.used().len() != len as usize {
                return Err(LineError::Fatal(WeightsError::Peer("the sender answered another question".into())));
            }
            bytes.extend(buffer.used());
        }
        Ok(bytes)
    }

    /// The place of this set's reception, with what the layout has already. Others' leftovers go: the caller excludes
    /// other stagings of the layout.
    fn staging(&self, layout: &Layout) -> Result<Staging, WeightsError> {
        let all = layout.receiving_dir();
        let name = crate::store::short(&self.set.id());
        if let Ok(entries) = all.read_dir_utf8() {
            for old in entries.flatten().filter(|e| e.file_name() != name) {
                fs::remove_dir_all(old.path()).map_err(WeightsError::file("remove", old.path()))?;
            }
        }
        let mut staging = Staging::open(&all.join(name), &self.set, &|_| true)?;
        for (index, blob) in self.set.iter() {
            let here = layout.root().join(&blob.path);
            if fs::symlink_metadata(&here).is_ok_and(|m| m.is_file() && m.size() == blob.size) {
                staging.take_in(index, &here)?;
            }
        }
        Ok(staging)
    }

    fn run(&self, staging: &Staging, progress: &dyn Fn(u64)) -> Result<u64, WeightsError> {
        let (counts, ended) = (Progress::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let pulling = scope.spawn(|| {
                let done = Pull::new(staging, &self.rails, self.options.clone(), &counts, self.stop).run();
                ended.store(true, Ordering::Release);
                done
            });
            let mut told = 0;
            loop {
                let over = ended.load(Ordering::Acquire) || pulling.is_finished();
                let fetched = counts.fetched.load(Ordering::Relaxed);
                progress(fetched - told);
                told = fetched;
                if over {
                    break;
                }
                std::thread::sleep(TICK);
            }
            let died = |_| Err(WeightsError::Failed("the receiving thread died".into()));
            pulling.join().unwrap_or_else(died).map(|receipt| receipt.fetched)
        })
    }
}

impl BlobSource for RailSource<'_> {
    fn document(&mut self, _: Kind, digest: &Digest) -> Result<Vec<u8>, OciError> {
        let (index, size) = self.find(digest)?;
        if size > DOCUMENT_MAX {
            let why = format!("{size} bytes are too many for a document");
            return Err(OciError::document(format!("blob {digest}"), why));
        }
        let bytes = self.read(index, size).map_err(oci)?;
        check_digest(&format!("blob {digest}"), digest, sparklane_oci::digest::of(&bytes))?;
        Ok(bytes)
    }

    fn fetch(&mut self, layout: &Layout, wanted: &[Descriptor], progress: &dyn Fn(Moved)) -> Result<Pulled, OciError> {
        let here = |d: &&Descriptor| layout.open_blob(&d.digest).is_ok_and(|(_, size)| size == d.size);
        let missing: Vec<&Descriptor> = wanted.iter().filter(|d| !here(d)).collect();
        let mut sum = Pulled { present: (wanted.len() - missing.len()) as u64, ..Pulled::default() };
        let Some(first) = missing.first() else { return Ok(sum) };
        for blob in &missing {
            let (_, size) = self.find(&blob.digest)?;
            check_size(&format!("blob {} of the sender", blob.digest), blob.size, size)?;
        }
        let staging = self.staging(layout).map_err(oci)?;
        check_space(layout.root(), still_needed(layout, missing.iter().copied()).saturating_sub(staged(&staging)))?;
        for blob in &missing {
            progress(Moved::Begin { digest: blob.digest.clone(), size: blob.size, have: 0 });
        }
        // Bytes of all blobs come at once; whose they are matters to nobody who listens.
        let told = |count| progress(Moved::Bytes { digest: first.digest.clone(), count });
        sum.bytes = self.run(&staging, &told).map_err(oci)?;
        sum.blobs = missing.len() as u64;
        publish(layout, staging, &missing).map_err(oci)?;
        missing.iter().for_each(|blob| progress(Moved::Done { digest: blob.digest.clone() }));
        Ok(sum)
    }
}

/// Bytes on the disk of parts that an earlier run left.
fn staged(staging: &Staging) -> u64 {
    let parts = staging.set().iter().map(|(index, _)| fs::metadata(staging.part_path(index)));
    parts.flatten().map(|m| m.blocks() * 512).sum()
}

/// Proved files become blobs of the layout: durable first, then named, then the rest goes.
fn publish(layout: &Layout, staging: Staging, wanted: &[&Descriptor]) -> Result<(), WeightsError> {
    staging.stamps()?.map_err(|path| WeightsError::Failed(format!("{path} is not there yet")))?;
    for blob in wanted {
        let from = staging.data().join(BLOBS).join(blob.digest.hex());
        let to = layout.own_path(&blob.digest);
        fs::rename(&from, &to).map_err(WeightsError::file("rename", &from))?;
    }
    let dir = layout.blob_dir();
    File::open(&dir).and_then(|d| d.sync_all()).map_err(WeightsError::file("sync", &dir))?;
    let rest = staging.dir().to_owned();
    fs::remove_dir_all(&rest).map_err(WeightsError::file("remove", &rest))
}

impl Staging {
    /// Takes a file that is proved already under a further name into the staging, as finished.
    ///
    /// # Errors
    /// When it cannot be linked.
    fn take_in(&mut self, index: u32, from: &Utf8Path) -> Result<(), WeightsError> {
        let Some(blob) = self.set().get(index) else { return Ok(()) };
        let to = self.data().join(&blob.path);
        if let Some(parent) = to.parent() {
            crate::staging::make_dirs(parent)?;
        }
        match fs::remove_file(&to) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(WeightsError::file("remove", &to)(error));
            }
            _ => {}
        }
        fs::hard_link(from, &to).map_err(WeightsError::file("link", &to))?;
        let meta = fs::metadata(&to).map_err(WeightsError::file("look at", &to))?;
        self.finished_before(index, stamp_of(&meta));
        Ok(())
    }
}

fn oci(error: WeightsError) -> OciError {
    OciError::document("the rails", error.to_string())
}
