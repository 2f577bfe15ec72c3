//! The two ends as processes: a request as one JSON line on stdin (so that the key is in no argument vector and no file),
//! events as JSON lines on stdout. The end of stdin is the end of the process: when ssh dies, so does the transfer, and
//! what was proved is kept.

use std::io::{BufRead, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};
use sparklane_lane::WeightsManifest;

use crate::blobs::BlobSet;
use crate::error::WeightsError;
use crate::preflight;
use crate::proof::How;
use crate::store::{Presence, Store};
use crate::transfer::rail::{Probe, Rail, Rails};
use crate::transfer::serve::{ServeOptions, Server};
use crate::transfer::{FileProgress, Key, LineError, Progress, Pull, PullOptions, Receipt};

/// Largest request: a manifest of 2 * 10^5 files.
const MAX_REQUEST: u64 = 64 * 1024 * 1024;
/// A sender that nobody comes back to ends after this; a receiver whose rails are all gone ends earlier.
const SERVE_IDLE: Duration = Duration::from_secs(90);
const TICK: Duration = Duration::from_millis(500);

/// What a sender is told.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServeRequest {
    /// The transfer's key, 64 hex digits.
    pub key: String,
    /// The weights.
    pub manifest: WeightsManifest,
    /// The store that has them.
    pub store: Utf8PathBuf,
    /// Own addresses of the rails, and nothing else.
    pub listen: Vec<IpAddr>,
    /// Seal extents.
    pub seal: bool,
    /// Receivers to wait for.
    pub receivers: usize,
}

/// What a receiver is told.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullRequest {
    /// The transfer's key, 64 hex digits.
    pub key: String,
    /// The weights.
    pub manifest: WeightsManifest,
    /// The store that gets them.
    pub store: Utf8PathBuf,
    /// Rails as `NAME=SOURCE[%DEVICE]=PEER:PORT`.
    pub rails: Vec<String>,
    /// Most bytes per second.
    pub rate: Option<u64>,
    /// Connections per rail.
    pub connections: Option<usize>,
    /// Seconds without any byte after which it fails.
    pub give_up_secs: Option<u64>,
    /// Read everything back from the disk before it becomes visible to a preflight as proved.
    pub readback: bool,
}

/// What the processes say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Event {
    /// The sender of an image tells its blobs: the set that receivers name.
    Offered(Vec<sparklane_oci::node::Offered>),
    /// The sender is ready, at these addresses in the order of the request.
    Listening(Vec<SocketAddr>),
    /// The sender is done.
    Served {
        /// Bytes of extents.
        bytes: u64,
        /// Receivers that have everything.
        finished: usize,
        /// Connections that did not prove the key.
        strangers: u64,
        /// Most memory that the sender had, bytes.
        peak_bytes: u64,
    },
    /// How far the receiver is.
    Progress {
        /// Bytes that are here.
        done: u64,
        /// Bytes in all.
        total: u64,
        /// Bytes that arrived in this run.
        #[serde(default)]
        fetched: u64,
        /// Files that are complete.
        files: u64,
        /// Bytes per second lately.
        rate: u64,
        /// Files on their way.
        #[serde(default)]
        open: Vec<FileProgress>,
    },
    /// Something that a person should know.
    Note(String),
    /// The receiver is done; the folder is visible.
    Receipt(Box<Receipt>),
}

/// Where events go.
pub type Say<'a> = dyn Fn(&Event) + Sync + 'a;

/// Writes events as lines to stdout.
pub fn to_stdout(event: &Event) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        // Whoever listened may be gone; the end of stdin tells us.
        let _said = out.write_all(&line).and_then(|()| out.flush());
    }
}

/// Reads the request and from then on watches stdin: the flag is set at its end.
///
/// # Errors
/// When the first line is no request.
pub fn request<T: serde::de::DeserializeOwned>() -> Result<(T, Arc<AtomicBool>), WeightsError> {
    let mut line = String::new();
    let mut stdin = std::io::stdin().lock();
    std::io::Read::take(&mut stdin, MAX_REQUEST).read_line(&mut line).map_err(WeightsError::file("read", "-"))?;
    drop(stdin);
    // The text holds a key: an error must not repeat it.
    let request = serde_json::from_str(&line)
        .map_err(|e| WeightsError::Refused(format!("not a request of this tool's version (column {})", e.column())))?;
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    std::thread::spawn(move || {
        let mut rest = String::new();
        while std::io::stdin().read_line(&mut rest).is_ok_and(|read| read > 0) {
            rest.clear();
        }
        ended.store(true, Ordering::Relaxed);
    });
    Ok((request, stop))
}

/// Sends a published folder to receivers.
///
/// # Errors
/// When the folder is not proved, or an address cannot be listened on.
pub fn serve(request: &ServeRequest, stop: &AtomicBool, say: &Say<'_>) -> Result<(), WeightsError> {
    let store = Store::at(&request.store);
    let folder = store.folder(&request.manifest);
    match store.presence(&request.manifest)? {
        Presence::Proved(_) => {}
        Presence::Unproved(why) => {
            let why = why.first().cloned().unwrap_or_default();
            return Err(WeightsError::Refused(format!(
                "{why}; prove it there: sparklane weights verify --deep {}",
                store.manifest_file(&request.manifest)
            )));
        }
        Presence::Partial | Presence::Absent => {
            return Err(WeightsError::Refused(format!("{folder} is not there; fetch or adopt it first")));
        }
    }
    let set = BlobSet::of_manifest(&request.manifest)?;
    let listen: Vec<SocketAddr> = request.listen.iter().map(|ip| SocketAddr::new(*ip, 0)).collect();
    let options = ServeOptions { seal: request.seal, receivers: request.receivers.max(1), give_up: SERVE_IDLE };
    let server = Server::bind(&folder, &set, request.key.parse()?, &listen, options)?;
    say(&Event::Listening(server.addresses()?));
    let served = server.run(stop);
    let peak_bytes = crate::transfer::receipt::peak_bytes();
    say(&Event::Served { bytes: served.bytes, finished: served.finished, strangers: served.strangers, peak_bytes });
    Ok(())
}

/// Receives a folder, proves it and makes it visible.
///
/// # Errors
/// When there is no room, the transfer fails or is stopped; what was proved is kept.
pub fn pull(request: &PullRequest, stop: &AtomicBool, say: &Say<'_>) -> Result<Receipt, WeightsError> {
    let store = Store::at(&request.store);
    let set = BlobSet::of_manifest(&request.manifest)?;
    let rails: Vec<Rail> = request.rails.iter().map(|r| r.parse()).collect::<Result<_, _>>()?;
    if rails.is_empty() {
        return Err(WeightsError::Refused("there is no rail to receive over".into()));
    }
    let key: Key = request.key.parse()?;
    let going = |_| !stop.load(Ordering::Relaxed);
    prepare(&store, &request.manifest, &set, &going, say)?;
    let rails = Rails { rails, key, set: set.id() };
    let probes = probe(&rails, say)?;
    let staging = store.staging(&request.manifest, &going)?;
    let mut options = PullOptions { rate: request.rate, ..PullOptions::default() };
    options.connections = request.connections.unwrap_or(options.connections).clamp(1, 8);
    options.give_up = request.give_up_secs.map_or(options.give_up, Duration::from_secs);
    let progress = Progress::default();
    let ended = AtomicBool::new(false);
    let pulled = std::thread::scope(|scope| {
        scope.spawn(|| tell(&progress, &set, &ended, say));
        let pulled = Pull::new(&staging, &rails, options, &progress, stop).run();
        ended.store(true, Ordering::Relaxed);
        pulled
    });
    let mut receipt = pulled?;
    for (way, probe) in receipt.ways.iter_mut().zip(probes) {
        way.probe = probe;
    }
    store.publish(&request.manifest, staging, How::Stream)?;
    if request.readback {
        read_back(&store, &request.manifest, &going, say)?;
    }
    good_bye(&rails);
    Ok(receipt)
}

/// What is there already decides: nothing to do, wrong ranges to mend, or room to be found.
fn prepare(
    store: &Store,
    manifest: &WeightsManifest,
    set: &BlobSet,
    going: &(dyn Fn(u64) -> bool + Sync),
    say: &Say<'_>,
) -> Result<(), WeightsError> {
    match store.presence(manifest)? {
        Presence::Proved(_) => Err(WeightsError::Refused(format!("{} is there and proved", store.folder(manifest)))),
        Presence::Unproved(why) => {
            let why = why.first().cloned().unwrap_or_default();
            say(&Event::Note(format!("{why}; every byte is read")));
            let bad = store.verify(manifest, threads(), going)?;
            bad.iter().for_each(|b| say(&Event::Note(b.why.clone())));
            store.take_back(manifest, &bad)
        }
        Presence::Partial | Presence::Absent => {
            preflight::check(store.root(), &store.partial(&manifest.store_name()), set, false)
        }
    }
}

fn probe(rails: &Rails, say: &Say<'_>) -> Result<Vec<Option<Probe>>, WeightsError> {
    let mut probes = Vec::new();
    for (way, rail) in rails.rails.iter().enumerate() {
        probes.push(match rails.probe(way) {
            Ok(probe) => {
                let (rate, segment) = (probe.bytes_per_second / 1_000_000, probe.segment);
                say(&Event::Note(format!("{}: {rate} MB/s on one connection, segments of {segment} bytes", rail.name)));
                Some(probe)
            }
            Err(LineError::Lost { why, .. }) => {
                say(&Event::Note(format!("{why}; the other rails carry it all")));
                None
            }
            Err(LineError::Fatal(error)) => return Err(error),
        });
    }
    Ok(probes)
}

/// Says twice a second how far a reception is, until `ended` is set.
pub fn tell(progress: &Progress, set: &BlobSet, ended: &AtomicBool, say: &Say<'_>) {
    let (mut last, mut at) = (0, Instant::now());
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
        if at.elapsed() < TICK {
            continue;
        }
        let fetched = progress.fetched.load(Ordering::Relaxed);
        let nanos = at.elapsed().as_nanos().max(1);
        let rate = u128::from(fetched.saturating_sub(last)) * 1_000_000_000 / nanos;
        (last, at) = (fetched, Instant::now());
        let (done, files) = (progress.done.load(Ordering::Relaxed), progress.files.load(Ordering::Relaxed));
        let (rate, open) = (u64::try_from(rate).unwrap_or(u64::MAX), progress.on_their_way(set));
        say(&Event::Progress { done, total: set.bytes(), fetched, files, rate, open });
    }
}

fn read_back(
    store: &Store,
    manifest: &WeightsManifest,
    going: &(dyn Fn(u64) -> bool + Sync),
    say: &Say<'_>,
) -> Result<(), WeightsError> {
    say(&Event::Note("reading everything back".into()));
    let bad = store.verify(manifest, threads(), going)?;
    match bad.first() {
        None => Ok(()),
        Some(first) => Err(WeightsError::Failed(format!(
            "{}: what was written is not what is read; the disk or the memory is bad, run it again to mend it",
            first.why
        ))),
    }
}

fn good_bye(rails: &Rails) {
    for way in 0..rails.rails.len() {
        if let Ok(mut line) = crate::transfer::Dial::dial(rails, way) {
            line.bye();
            return;
        }
    }
}

/// Threads that hash: a core waits for the disk about as long as it works.
#[must_use]
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from) * 2
}
