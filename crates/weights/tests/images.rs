//! Image blobs from one layout to another over two loopback rails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use camino::Utf8Path;
use serde_json::json;
use sparklane_oci::manifest::Descriptor;
use sparklane_oci::node::Offered;
use sparklane_oci::registry::{Event as Moved, Pulled};
use sparklane_oci::source::{BlobSource as _, Kind};
use sparklane_oci::{Digest, Layout, OciError, media};
use sparklane_weights::agent::Event;
use sparklane_weights::images::{ImageServeRequest, RailSource, serve};
use sparklane_weights::transfer::Key;
use support::*;

/// An image of a small config, and layers of these bytes.
fn image(dir: &Utf8Path, layers: &[Vec<u8>]) -> (Layout, Digest, Vec<Descriptor>) {
    let layout = Layout::open_or_create(dir).unwrap();
    let row = |kind: &str, bytes: &[u8]| {
        layout.write_blob(bytes).unwrap();
        Descriptor::of(kind, bytes)
    };
    let config = row(media::OCI_CONFIG, b"{\"architecture\":\"amd64\",\"os\":\"linux\"}");
    let layers: Vec<Descriptor> = layers.iter().map(|l| row(media::OCI_LAYER_TAR, l)).collect();
    let text = |d: &Descriptor| json!({"mediaType": d.media_type, "digest": d.digest.as_str(), "size": d.size});
    let rows: Vec<_> = layers.iter().map(text).collect();
    let manifest =
        json!({"schemaVersion": 2, "mediaType": media::OCI_MANIFEST, "config": text(&config), "layers": rows});
    let digest = layout.write_blob(manifest.to_string().as_bytes()).unwrap();
    (layout, digest, [vec![config], layers].concat())
}

/// A sender of an image that ends with the guard.
struct Sender {
    key: String,
    blobs: Vec<Offered>,
    rails: Vec<String>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Sender {
    fn start(layout: &Layout, manifest: &Digest) -> Self {
        let key = Key::random().unwrap().expose();
        let listen = vec![loopback(1), loopback(2)];
        let request = ImageServeRequest { key: key.clone(), manifest: manifest.clone(), listen, receivers: 1 };
        let (stop, layout) = (Arc::new(AtomicBool::new(false)), layout.clone());
        let (told, heard) = channel();
        let told = Mutex::new(told);
        let ended = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let say = |event: &Event| drop(told.lock().unwrap().send(event.clone()));
            serve(&layout, &request, &ended, &say).unwrap();
        });
        let Event::Offered(blobs) = heard.recv().unwrap() else { panic!("no offer") };
        let Event::Listening(at) = heard.recv().unwrap() else { panic!("no address") };
        let rail = |(n, peer): (usize, &SocketAddr)| format!("rail{}=127.0.0.{}={peer}", n + 1, n + 11);
        Self { key, blobs, rails: at.iter().enumerate().map(rail).collect(), stop, thread: Some(thread) }
    }

    fn source<'a>(&self, stop: &'a AtomicBool) -> RailSource<'a> {
        RailSource::new(&self.key, &self.rails, &self.blobs, None, stop).unwrap()
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ended = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn what_a_layout_lacks_comes_over_the_rails_and_nothing_else() {
    let (a, b) = (folder(), folder());
    let layers = [noise(1, 5 * MIB + 7), noise(2, 3 * MIB), noise(3, 100)];
    let (from, manifest, blobs) = image(&a.path, &layers);
    let to = Layout::open_or_create(&b.path).unwrap();
    to.write_blob(&layers[1]).unwrap();
    let sender = Sender::start(&from, &manifest);
    let go = AtomicBool::new(false);
    let mut source = sender.source(&go);
    assert_eq!(source.document(Kind::Manifest, &manifest).unwrap(), from.read_document(&manifest).unwrap());
    let moved = Mutex::new(0);
    let count = |event: Moved| {
        if let Moved::Bytes { count, .. } = event {
            *moved.lock().unwrap() += count;
        }
    };
    let pulled = source.fetch(&to, &blobs, &count).unwrap();
    let lacked = (5 * MIB + 7 + 100) as u64 + blobs[0].size;
    // The manifest is of the set too; the caller had it already or not.
    let bytes = lacked + from.read_document(&manifest).unwrap().len() as u64;
    assert_eq!(pulled, Pulled { blobs: 3, bytes, present: 1 });
    assert_eq!(*moved.lock().unwrap(), bytes);
    blobs.iter().for_each(|blob| to.prove_blob(blob).unwrap());
    assert!(!b.path.join(".receiving").read_dir_utf8().unwrap().any(|_| true));
    assert_eq!(source.fetch(&to, &blobs, &|_| ()).unwrap(), Pulled { blobs: 0, bytes: 0, present: 4 });
}

#[test]
fn a_stopped_reception_goes_on_where_it_was_and_strangers_blobs_are_not_asked_for() {
    let (a, b) = (folder(), folder());
    let layers = [noise(1, 9 * MIB), noise(2, 70 * MIB)];
    let (from, manifest, blobs) = image(&a.path, &layers);
    let to = Layout::open_or_create(&b.path).unwrap();
    let sender = Sender::start(&from, &manifest);
    let stop = AtomicBool::new(false);
    let late = |event: Moved| {
        if matches!(event, Moved::Bytes { count, .. } if count > 0) {
            stop.store(true, Ordering::Relaxed);
        }
    };
    // Slow enough that it is heard before the end.
    let slow = RailSource::new(&sender.key, &sender.rails, &sender.blobs, Some(20 << 20), &stop);
    let error = slow.unwrap().fetch(&to, &blobs, &late).unwrap_err().to_string();
    assert!(error.contains("kept"), "{error}");
    assert!(!to.has(&blobs[2].digest));
    let go = AtomicBool::new(false);
    let pulled = sender.source(&go).fetch(&to, &blobs, &|_| ()).unwrap();
    assert_eq!(pulled.blobs, 3);
    assert!(pulled.bytes < (79 * MIB) as u64, "{pulled:?}: nothing was kept");
    blobs.iter().for_each(|blob| to.prove_blob(blob).unwrap());
    let other = [Descriptor::of("x", b"of another image")];
    assert!(sender.source(&go).fetch(&to, &other, &|_| ()).unwrap_err().to_string().contains("does not offer"));
}

#[test]
fn damage_at_the_source_is_found_and_nothing_of_it_appears() {
    let (a, b) = (folder(), folder());
    let (from, manifest, blobs) = image(&a.path, &[noise(1, 2 * MIB)]);
    let to = Layout::open_or_create(&b.path).unwrap();
    let mut evil = noise(1, 2 * MIB);
    evil[MIB] ^= 1;
    std::fs::write(from.own_path(&blobs[1].digest), evil).unwrap();
    let sender = Sender::start(&from, &manifest);
    let go = AtomicBool::new(false);
    let error = sender.source(&go).fetch(&to, &blobs, &|_| ()).unwrap_err();
    assert!(error.to_string().contains("own bytes are wrong"), "{error}");
    assert!(!to.has(&blobs[1].digest));
    // A sender that is gone, and a key that is another.
    let (key, rails, blobs_) = (sender.key.clone(), sender.rails.clone(), sender.blobs.clone());
    drop(sender);
    let mut gone = RailSource::new(&key, &rails, &blobs_, None, &go).unwrap();
    let why = gone.document(Kind::Manifest, &manifest).unwrap_err().to_string();
    assert!(why.contains("rail2"), "{why}");
    let bad = RailSource::new("key", &rails, &blobs_, None, &go).err().map(|e: OciError| e.to_string());
    assert!(bad.is_some_and(|why| why.contains("hex digits")));
}
