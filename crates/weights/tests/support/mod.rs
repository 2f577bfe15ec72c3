//! A model made up for tests, two rails over loopback addresses, and a proxy that damages what passes.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_lane::WeightsManifest;
use sparklane_lane::weights::WeightsFile;
use sparklane_weights::proof::How;
use sparklane_weights::transfer::rail::{Rail, Rails};
use sparklane_weights::transfer::serve::{ServeOptions, Served, Server};
use sparklane_weights::transfer::{Key, Progress, Pull, PullOptions, Receipt};
use sparklane_weights::{BlobSet, Sha, Store, WeightsError};

pub const MIB: usize = 1024 * 1024;

pub struct Folder {
    _guard: tempfile::TempDir,
    pub path: Utf8PathBuf,
}

pub fn folder() -> Folder {
    let guard = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(guard.path().to_path_buf()).unwrap();
    Folder { _guard: guard, path }
}

/// Bytes that look random and are the same every time.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Writes files into a folder and gives their manifest.
pub fn model(dir: &Utf8Path, sizes: &[(&str, usize)]) -> WeightsManifest {
    let file = |(n, (path, size)): (usize, &(&str, usize))| {
        let bytes = noise(n as u64 + 1, *size);
        let full = dir.join(path);
        std::fs::create_dir_all(full.parent().unwrap()).unwrap();
        std::fs::write(&full, &bytes).unwrap();
        WeightsFile { path: (*path).to_owned(), size: *size as u64, sha256: Sha::of(&bytes).to_string() }
    };
    let files = sizes.iter().enumerate().map(file).collect();
    let manifest = WeightsManifest { model: "org/tiny".into(), revision: "a".repeat(40), files };
    assert_eq!(manifest.problems(), []);
    manifest
}

pub const SOME: [(&str, usize); 6] = [
    ("model-00001-of-00002.safetensors", 9 * MIB + 4321),
    ("model-00002-of-00002.safetensors", 5 * MIB),
    ("config.json", 1888),
    ("empty.txt", 0),
    ("encoding/deep/x.py", 77),
    ("encoding/y.py", 4096),
];

/// True when a folder holds exactly the manifest's bytes.
pub fn assert_exact(folder: &Utf8Path, manifest: &WeightsManifest) {
    for file in &manifest.files {
        let bytes = std::fs::read(folder.join(&file.path)).unwrap_or_else(|e| panic!("{}: {e}", file.path));
        assert_eq!(Sha::of(&bytes).to_string(), file.sha256, "{}", file.path);
    }
}

pub fn loopback(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, n))
}

pub fn serve_options() -> ServeOptions {
    ServeOptions { seal: false, receivers: 1, give_up: Duration::from_secs(20) }
}

/// A sender on two loopback addresses; it ends when its receiver is done, or with the guard.
pub struct Sender {
    pub addresses: Vec<SocketAddr>,
    pub key: Key,
    pub set: BlobSet,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<Served>>,
}

impl Sender {
    pub fn start(root: &Utf8Path, manifest: &WeightsManifest, options: ServeOptions) -> Self {
        let set = BlobSet::of_manifest(manifest).unwrap();
        let key = Key::random().unwrap();
        let listen = [SocketAddr::new(loopback(1), 0), SocketAddr::new(loopback(2), 0)];
        let server = Server::bind(root, &set, key.clone(), &listen, options).unwrap();
        let addresses = server.addresses().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let thread = Some(std::thread::spawn(move || server.run(&ended)));
        Self { addresses, key, set, stop, thread }
    }

    pub fn rails(&self) -> Rails {
        let rail = |(n, peer): (usize, &SocketAddr)| Rail {
            name: format!("rail{}", n + 1),
            source: loopback(n as u8 + 11),
            device: None,
            peer: *peer,
        };
        let rails = self.addresses.iter().enumerate().map(rail).collect();
        Rails { rails, key: self.key.clone(), set: self.set.id() }
    }

    pub fn end(mut self) -> Served {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

pub fn quick() -> PullOptions {
    PullOptions { connections: 2, rate: None, give_up: Duration::from_secs(8) }
}

/// Pulls into a store and publishes.
pub fn pull(store: &Store, manifest: &WeightsManifest, rails: &Rails) -> Result<Receipt, WeightsError> {
    pull_with(store, manifest, rails, quick())
}

pub fn pull_with(
    store: &Store,
    manifest: &WeightsManifest,
    rails: &Rails,
    options: PullOptions,
) -> Result<Receipt, WeightsError> {
    let staging = store.staging(manifest, &|_| true)?.with_checkpoint(MIB as u64);
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let receipt = Pull::new(&staging, rails, options, &progress, &stop).run()?;
    store.publish(manifest, staging, How::Stream)?;
    Ok(receipt)
}

/// What a proxy does to the bytes that go to the receiver.
#[derive(Debug, Clone, Default)]
pub struct Harm {
    /// Flips a bit at these places of all bytes that passed, connections together.
    pub flips: Vec<u64>,
    /// Closes a connection after so many of its bytes.
    pub cut_after: Option<u64>,
    /// Passes nothing on after so many bytes, connections together.
    pub dead_after: Option<u64>,
    /// Pause per 64 KiB.
    pub slow: Option<Duration>,
}

/// A TCP proxy in front of `to`; its threads end with the process.
pub fn proxy(to: SocketAddr, harm: Harm) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let passed = Arc::new(AtomicU64::new(0));
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(to) else { continue };
            let (harm, passed) = (harm.clone(), Arc::clone(&passed));
            let (mut near_in, mut far_out) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || {
                let _copied = std::io::copy(&mut near_in, &mut far_out);
                let _shut = far_out.shutdown(std::net::Shutdown::Both);
            });
            std::thread::spawn(move || damage(far, near, &harm, &passed));
        }
    });
    addr
}

fn damage(mut from: TcpStream, mut to: TcpStream, harm: &Harm, passed: &AtomicU64) {
    let (mut buffer, mut own) = (vec![0; 65536], 0_u64);
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 {
            break;
        }
        let at = passed.fetch_add(read as u64, Ordering::Relaxed);
        own += read as u64;
        for flip in &harm.flips {
            if let Some(byte) = flip.checked_sub(at).and_then(|i| buffer[..read].get_mut(i as usize)) {
                *byte ^= 4;
            }
        }
        if harm.dead_after.is_some_and(|n| at > n) {
            std::thread::sleep(Duration::from_secs(60));
        }
        if let Some(pause) = harm.slow {
            std::thread::sleep(pause);
        }
        if to.write_all(&buffer[..read]).is_err() || harm.cut_after.is_some_and(|n| own > n) {
            break;
        }
    }
    let _shut = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
}
