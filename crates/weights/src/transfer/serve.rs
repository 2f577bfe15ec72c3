//! The sender: listens on the rails' own addresses for one transfer, answers who has the key, and ends.

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;

use super::channel::{Channel, ChannelError, Key};
use super::sched::Want;
use super::wire::{Answer, Request};
use crate::blobs::BlobSet;
use crate::buffer::{Buffer, EXTENT};
use crate::error::WeightsError;
use crate::hash::Sha;
use crate::journal::Stamp;
use crate::read::{Reader, drop_pages};

/// Connections that have not proved the key yet.
const MAX_STRANGERS: usize = 8;
/// Connections of receivers.
const MAX_CONNECTIONS: usize = 64;
/// A receiver that asks nothing for so long is gone.
const IDLE: Duration = Duration::from_secs(120);
/// A receiver that takes no byte for so long is gone.
const STUCK: Duration = Duration::from_secs(10);
/// Bytes behind the current extent whose pages are given back with it.
const BEHIND: u64 = 8 * EXTENT as u64;
/// Files a connection keeps open.
const OPEN_FILES: usize = 8;

/// What a sender offers, and to how many.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Extents travel sealed (AES-128-GCM).
    pub seal: bool,
    /// Receivers after whose good-byes the sender ends.
    pub receivers: usize,
    /// Time without any proved connection after which it ends.
    pub give_up: Duration,
}

/// What a sender did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Bytes of extents that were sent.
    pub bytes: u64,
    /// Receivers that said good-bye.
    pub finished: usize,
    /// Connections that did not prove the key.
    pub strangers: u64,
}

/// A sender of one set from one folder.
#[derive(Debug)]
pub struct Server {
    root: Utf8PathBuf,
    set: BlobSet,
    /// The files as they were at the start; a file that is another later is refused.
    stamps: BTreeMap<u32, Stamp>,
    key: Key,
    options: ServeOptions,
    listeners: Vec<TcpListener>,
    bytes: AtomicU64,
    strangers: AtomicU64,
    accepted: AtomicU64,
    pending: AtomicUsize,
    connections: AtomicUsize,
    finished: AtomicUsize,
    /// Second handles of all connections, to end those that wait for a peer that is gone.
    open: Mutex<BTreeMap<u64, TcpStream>>,
}

impl Server {
    /// Binds to the addresses and looks at every file.
    ///
    /// # Errors
    /// When a file is missing or has another size than the set says, or an address cannot be bound.
    pub fn bind(
        root: &Utf8Path,
        set: &BlobSet,
        key: Key,
        listen: &[SocketAddr],
        options: ServeOptions,
    ) -> Result<Self, WeightsError> {
        let mut stamps = BTreeMap::new();
        for (index, blob) in set.iter() {
            let stamp = Reader::beneath(root, &blob.path)?.stamp()?;
            if stamp.size != blob.size {
                let why = format!("has {} bytes, the manifest says {}", stamp.size, blob.size);
                return Err(WeightsError::Content { path: root.join(&blob.path), why });
            }
            stamps.insert(index, stamp);
        }
        let bind = |addr: &SocketAddr| {
            let listener = TcpListener::bind(addr).and_then(|l| l.set_nonblocking(true).map(|()| l));
            listener.map_err(|e| WeightsError::Refused(format!("cannot listen on {addr}: {e}")))
        };
        let listeners = listen.iter().map(bind).collect::<Result<_, _>>()?;
        Ok(Self {
            root: root.to_owned(),
            set: set.clone(),
            stamps,
            key,
            options,
            listeners,
            bytes: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            pending: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            open: Mutex::default(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>, WeightsError> {
        let of = |l: &TcpListener| l.local_addr().map_err(|e| WeightsError::Failed(format!("address: {e}")));
        self.listeners.iter().map(of).collect()
    }

    /// Serves until all receivers said good-bye, `stop` is set, or nobody came for too long.
    pub fn run(&self, stop: &AtomicBool) -> Served {
        let mut seen = Instant::now();
        std::thread::scope(|scope| {
            while !stop.load(Ordering::Relaxed) && self.finished.load(Ordering::Relaxed) < self.options.receivers {
                let mut idle = true;
                for listener in &self.listeners {
                    if let Ok((stream, _)) = listener.accept() {
                        idle = false;
                        self.admit(scope, stream, stop);
                    }
                }
                if self.connections.load(Ordering::Relaxed) > 0 {
                    seen = Instant::now();
                } else if seen.elapsed() > self.options.give_up {
                    break;
                }
                if idle {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            // Behind a cut cable nobody closes a connection, and its thread would wait until it is idle for too long.
            for stream in self.open().values() {
                let _closed = stream.shutdown(Shutdown::Both);
            }
        });
        Served {
            bytes: self.bytes.load(Ordering::Relaxed),
            finished: self.finished.load(Ordering::Relaxed),
            strangers: self.strangers.load(Ordering::Relaxed),
        }
    }

    fn admit<'scope>(
        &'scope self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        stream: TcpStream,
        stop: &'scope AtomicBool,
    ) {
        let crowded = self.pending.load(Ordering::Relaxed) >= MAX_STRANGERS
            || self.connections.load(Ordering::Relaxed) >= MAX_CONNECTIONS;
        if crowded {
            self.strangers.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Ok(handle) = stream.try_clone() else { return };
        let number = self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open().insert(number, handle);
        self.pending.fetch_add(1, Ordering::Relaxed);
        let named = std::thread::Builder::new().name("sender".into());
        let started = named.spawn_scoped(scope, move || {
            let channel = self.prove(stream);
            self.pending.fetch_sub(1, Ordering::Relaxed);
            match channel {
                Ok((channel, first)) => {
                    self.connections.fetch_add(1, Ordering::Relaxed);
                    if let Err(why) = self.answer_all(channel, first, stop) {
                        tracing::debug!("connection ended: {why}");
                    }
                    self.connections.fetch_sub(1, Ordering::Relaxed);
                }
                Err(why) => {
                    self.strangers.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!("connection refused: {why}");
                }
            }
            self.open().remove(&number);
        });
        if started.is_err() {
            self.open().remove(&number);
            self.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handshake and the first request: only the latter shows that the peer is no replay.
    fn prove(&self, stream: TcpStream) -> Result<(Channel, Request), ChannelError> {
        let lost = |e: std::io::Error| ChannelError::Lost(e.to_string());
        stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)).map_err(lost)?;
        stream.set_write_timeout(Some(STUCK)).map_err(lost)?;
        stream.set_read_timeout(Some(STUCK / 2)).map_err(lost)?;
        let mut channel = Channel::accept(stream, &self.key, self.set.id(), self.options.seal)?;
        let first = request(&mut channel)?;
        Ok((channel, first))
    }

    fn answer_all(&self, mut channel: Channel, first: Request, stop: &AtomicBool) -> Result<(), ChannelError> {
        channel.stream().set_read_timeout(Some(IDLE)).map_err(|e| ChannelError::Lost(e.to_string()))?;
        let mut files = Files { open: BTreeMap::new() };
        let mut next = first;
        while !stop.load(Ordering::Relaxed) {
            match next {
                Request::Bye => {
                    self.finished.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                Request::Get(want) => self.send(&mut channel, &mut files, &want)?,
                Request::Hashes { file, offset, count } => {
                    let answer = self
                        .hashes(file, offset, count)
                        .map_or_else(|e| Answer::Refused(e.to_string()), Answer::Hashes);
                    channel.send(&answer.encode())?;
                }
                Request::Probe { len } => {
                    channel.send(&Answer::Probe { len }.encode())?;
                    let want = Want { file: u32::MAX, offset: 0, len };
                    channel.send_bytes(&want, &mut vec![0; len as usize])?;
                }
            }
            next = request(&mut channel)?;
        }
        Ok(())
    }

    fn send(&self, channel: &mut Channel, files: &mut Files, want: &Want) -> Result<(), ChannelError> {
        let mut buffer = channel.is_sealed().then(Buffer::new);
        // Whatever may fail is tried before the answer says that bytes follow.
        let ready = self.file(files, want).and_then(|reader| match &mut buffer {
            None => Ok(()),
            Some(buffer) => reader.read(want.offset, buffer),
        });
        if let Err(error) = ready {
            return channel.send(&Answer::Refused(error.to_string()).encode());
        }
        channel.send(&Answer::Data(*want).encode())?;
        match &mut buffer {
            Some(buffer) => {
                let bytes = buffer.whole().get_mut(..want.len as usize).unwrap_or_default();
                channel.send_bytes(want, bytes)?;
            }
            None => {
                let Some(reader) = files.open.get(&want.file) else { return Ok(()) };
                send_file(channel.stream(), reader, want)?;
            }
        }
        self.bytes.fetch_add(u64::from(want.len), Ordering::Relaxed);
        Ok(())
    }

    fn file<'f>(&self, files: &'f mut Files, want: &Want) -> Result<&'f mut Reader, WeightsError> {
        let blob =
            self.set.get(want.file).ok_or_else(|| WeightsError::Peer(format!("there is no file {}", want.file)))?;
        if want.offset.checked_add(u64::from(want.len)).is_none_or(|end| end > blob.size) {
            return Err(WeightsError::Peer(format!("{} ends before byte {}", blob.path, want.offset)));
        }
        if !files.open.contains_key(&want.file) {
            if files.open.len() >= OPEN_FILES {
                files.open.pop_first().iter().for_each(|(_, reader)| give_back(reader));
            }
            let open = if self.options.seal { Reader::beneath } else { Reader::cached_beneath };
            let reader = open(&self.root, &blob.path)?;
            if !reader.is_direct() {
                let _advised = fadvise(reader.file(), 0, None, Advice::Sequential);
            }
            files.open.insert(want.file, reader);
        }
        let Some(reader) = files.open.get_mut(&want.file) else {
            return Err(WeightsError::Failed(format!("{} was closed", blob.path)));
        };
        if self.stamps.get(&want.file) != Some(&reader.stamp()?) {
            let path = self.root.join(&blob.path);
            return Err(WeightsError::Content {
                path,
                why: "changed during the transfer; verify it and send again".into(),
            });
        }
        Ok(reader)
    }

    fn hashes(&self, file: u32, offset: u64, count: u32) -> Result<Vec<Sha>, WeightsError> {
        let blob = self.set.get(file).ok_or_else(|| WeightsError::Peer(format!("there is no file {file}")))?;
        let mut reader = Reader::beneath(&self.root, &blob.path)?;
        let mut buffer = Buffer::new();
        let mut hashes = Vec::new();
        for n in 0..u64::from(count) {
            let Some(at) = offset.checked_add(n * EXTENT as u64).filter(|at| *at < blob.size) else { break };
            reader.read(at, &mut buffer)?;
            hashes.push(Sha::of(buffer.used()));
        }
        Ok(hashes)
    }
}

/// Files of one connection.
struct Files {
    open: BTreeMap<u32, Reader>,
}

impl Drop for Files {
    fn drop(&mut self) {
        self.open.values().for_each(give_back);
    }
}

/// Gives all pages of a file back: those on their way could not be given back behind the sender, as the socket held them.
fn give_back(reader: &Reader) {
    if !reader.is_direct() {
        drop_pages(reader.file(), 0, 0);
    }
}

fn request(channel: &mut Channel) -> Result<Request, ChannelError> {
    let bytes = channel.receive()?;
    Request::decode(&bytes).ok_or_else(|| ChannelError::Wrong("not a request of this protocol".into()))
}

/// Plain bytes go from the file to the socket without passing through us; their pages are given back behind.
fn send_file(stream: &TcpStream, reader: &Reader, want: &Want) -> Result<(), ChannelError> {
    let (mut at, mut left) = (want.offset, want.len as usize);
    while left > 0 {
        match rustix::fs::sendfile(stream, reader.file(), Some(&mut at), left) {
            // Shorter than it was a moment ago: the connection cannot be kept in step.
            Ok(0) => return Err(ChannelError::Lost("the file became shorter".into())),
            Ok(sent) => left -= sent,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(ChannelError::Lost(format!("send: {}", std::io::Error::from(errno)))),
        }
    }
    // The last of it is still held by the socket; what went before is not.
    let behind = want.offset.saturating_sub(BEHIND);
    drop_pages(reader.file(), behind, BEHIND);
    Ok(())
}
