//! The whole way from one folder to another, over two rails of loopback, with everything that may go wrong on it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use sparklane_weights::proof::How;
use sparklane_weights::store::Presence;
use sparklane_weights::transfer::{Key, Progress, Pull, PullOptions};
use sparklane_weights::{Store, WeightsError};
use support::*;

#[test]
fn both_rails_bring_every_byte_and_the_sender_ends() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &SOME);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let store = Store::at(&to.path);
    assert_eq!(store.presence(&manifest).unwrap(), Presence::Absent);
    let receipt = pull(&store, &manifest, &sender.rails()).unwrap();
    assert_exact(&store.folder(&manifest), &manifest);
    assert_eq!(store.presence(&manifest).unwrap(), Presence::Proved(How::Stream));
    assert_eq!(receipt.fetched, receipt.bytes);
    assert_eq!(receipt.ways.iter().map(|w| w.bytes).sum::<u64>(), manifest.bytes());
    assert!(receipt.ways.iter().all(|w| w.bytes > 0), "{:?}", receipt.ways);
    assert!(!to.path.join(".partial").join(manifest.store_name()).exists());
    let mode = |p: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(store.folder(&manifest).join(p)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("config.json"), mode("encoding"), mode("")), (0o644, 0o755, 0o755));
    // A second receiver's good-bye is not waited for.
    let rails = sender.rails();
    let mut line = sparklane_weights::transfer::Dial::dial(&rails, 0).ok().unwrap();
    line.bye();
    assert_eq!(sender.end().bytes, manifest.bytes());
}

/// As behind a cut cable: a connection that proved itself and neither asks nor closes.
#[test]
fn a_sender_that_is_told_to_end_does_not_wait_for_a_silent_receiver() {
    let from = folder();
    let manifest = model(&from.path, &SOME);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let rails = sender.rails();
    let mut line = sparklane_weights::transfer::Dial::dial(&rails, 0).ok().unwrap();
    assert!(line.hashes(0, 0, 1).ok().unwrap().is_some());
    let begin = Instant::now();
    sender.end();
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert!(line.hashes(0, 0, 1).is_err());
}

#[test]
fn two_receivers_are_served_at_once() {
    let (from, one, two) = (folder(), folder(), folder());
    let manifest = model(&from.path, &SOME);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let rails = sender.rails();
    std::thread::scope(|scope| {
        for to in [&one, &two] {
            scope.spawn(|| pull(&Store::at(&to.path), &manifest, &rails).unwrap());
        }
    });
    assert_exact(&Store::at(&one.path).folder(&manifest), &manifest);
    assert_exact(&Store::at(&two.path).folder(&manifest), &manifest);
}

#[test]
fn without_the_key_there_is_nothing() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &SOME);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let mut rails = sender.rails();
    rails.key = Key::random().unwrap();
    let options = PullOptions { give_up: Duration::from_millis(500), ..quick() };
    let why = pull_with(&Store::at(&to.path), &manifest, &rails, options).unwrap_err().to_string();
    assert!(why.contains("wrong key"), "{why}");
    assert!(!Store::at(&to.path).folder(&manifest).exists());
    let served = sender.end();
    assert_eq!(served.bytes, 0);
    assert!(served.strangers > 0);
}

#[test]
fn another_set_is_refused_by_name() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &SOME);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let mut other = manifest.clone();
    other.files.truncate(2);
    let mut rails = sender.rails();
    rails.set = other.id().parse().unwrap();
    let error = pull(&Store::at(&to.path), &other, &rails).unwrap_err();
    assert!(matches!(&error, WeightsError::Peer(why) if why.contains(&manifest.id())), "{error}");
}

#[test]
fn strangers_and_slow_ones_do_not_disturb() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &SOME);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    // More than are let in at once; some are silent, some trickle, some talk nonsense.
    let mut strangers: Vec<TcpStream> = Vec::new();
    for n in 0..7u8 {
        let mut stream = TcpStream::connect(sender.addresses[0]).unwrap();
        if n % 2 == 0 {
            stream.write_all(&[0, 80, n]).unwrap();
        }
        strangers.push(stream);
    }
    let start = Instant::now();
    pull(&Store::at(&to.path), &manifest, &sender.rails()).unwrap();
    assert_exact(&Store::at(&to.path).folder(&manifest), &manifest);
    let mut nonsense = TcpStream::connect(sender.addresses[1]).unwrap();
    nonsense.write_all(&[0xff; 200]).unwrap();
    let mut answer = Vec::new();
    let _closed = nonsense.read_to_end(&mut answer);
    assert!(answer.is_empty(), "a stranger is told nothing");
    // The silent ones are gone after the handshake's time.
    for mut stranger in strangers {
        stranger.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(stranger.read(&mut [0; 1]).unwrap_or(0), 0);
    }
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_bit_flipped_on_the_way_is_found_and_only_its_range_comes_again() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &[("big", 12 * MIB + 99)]);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let mut rails = sender.rails();
    rails.rails.truncate(1);
    rails.rails[0].peer = proxy(sender.addresses[0], Harm { flips: vec![4_500_000], ..Harm::default() });
    let receipt = pull(&Store::at(&to.path), &manifest, &rails).unwrap();
    assert_exact(&Store::at(&to.path).folder(&manifest), &manifest);
    assert_eq!(receipt.repaired.len(), 1);
    assert_eq!((receipt.repaired[0].path.as_str(), receipt.repaired[0].bytes), ("big", MIB as u64));
    assert_eq!(receipt.fetched, manifest.bytes() + MIB as u64);
}

#[test]
fn sealed_bytes_that_were_changed_never_reach_the_file() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &[("big", 12 * MIB + 99)]);
    let sender = Sender::start(&from.path, &manifest, ServeOptionsSealed::options());
    let mut rails = sender.rails();
    rails.rails[0].peer = proxy(sender.addresses[0], Harm { flips: vec![1_500_000], ..Harm::default() });
    rails.rails.truncate(1);
    let receipt = pull(&Store::at(&to.path), &manifest, &rails).unwrap();
    assert_exact(&Store::at(&to.path).folder(&manifest), &manifest);
    assert!(receipt.repaired.is_empty());
    assert!(receipt.ways[0].last_error.as_ref().unwrap().contains("changed on its way"));
}

struct ServeOptionsSealed;
impl ServeOptionsSealed {
    fn options() -> sparklane_weights::transfer::serve::ServeOptions {
        sparklane_weights::transfer::serve::ServeOptions { seal: true, ..serve_options() }
    }
}

#[test]
fn a_dead_rail_and_one_that_is_cut_again_and_again_only_slow() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &[("a", 10 * MIB), ("b", 10 * MIB + 1)]);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let mut rails = sender.rails();
    let dead = Harm { dead_after: Some(3 * MIB as u64), ..Harm::default() };
    let cut = Harm { cut_after: Some(2 * MIB as u64 + 7), ..Harm::default() };
    rails.rails[0].peer = proxy(sender.addresses[0], dead);
    rails.rails[1].peer = proxy(sender.addresses[1], cut);
    for rail in &mut rails.rails {
        rail.source = loopback(1);
    }
    let receipt = pull(&Store::at(&to.path), &manifest, &rails).unwrap();
    assert_exact(&Store::at(&to.path).folder(&manifest), &manifest);
    assert!(receipt.ways[1].connections > 2, "{:?}", receipt.ways);
    assert!(receipt.longest_pause_millis < 5000, "{receipt:?}");
}

#[test]
fn both_rails_gone_fails_keeps_what_was_proved_and_goes_on_later() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &[("a", 20 * MIB + 5)]);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let mut rails = sender.rails();
    rails.rails.truncate(1);
    let dead = Harm { dead_after: Some(12 * MIB as u64), ..Harm::default() };
    rails.rails[0].peer = proxy(sender.addresses[0], dead);
    let store = Store::at(&to.path);
    let options = PullOptions { give_up: Duration::from_secs(1), ..quick() };
    let error = pull_with(&store, &manifest, &rails, options).unwrap_err();
    assert!(error.to_string().contains("rail1"), "{error}");
    assert_eq!(store.presence(&manifest).unwrap(), Presence::Partial);
    let receipt = pull(&store, &manifest, &sender.rails()).unwrap();
    assert!(receipt.had >= 8 * MIB as u64, "{receipt:?}");
    assert_eq!(receipt.had + receipt.fetched, manifest.bytes());
    assert_exact(&store.folder(&manifest), &manifest);
}

#[test]
fn a_bit_flipped_on_the_receivers_disk_is_found_named_and_mended() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &SOME);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let store = Store::at(&to.path);
    pull(&store, &manifest, &sender.rails()).unwrap();
    let big = &"model-00001-of-00002.safetensors".to_owned();
    let path = store.folder(&manifest).join(big);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[6 * MIB + 1] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    // The fast look sees that it was written to; the deep one sees what is wrong.
    assert!(matches!(store.presence(&manifest).unwrap(), Presence::Unproved(why) if why[0].contains(big)));
    let bad = store.verify(&manifest, 2, &|_| true).unwrap();
    assert_eq!(bad.len(), 1);
    assert!(bad[0].why.contains(big), "{}", bad[0].why);
    store.take_back(&manifest, &bad).unwrap();
    assert_eq!(store.presence(&manifest).unwrap(), Presence::Partial);
    let receipt = pull(&store, &manifest, &sender.rails()).unwrap();
    assert_eq!(receipt.repaired[0].offsets, [6 * MIB as u64]);
    assert_eq!(receipt.fetched, MIB as u64);
    assert_exact(&store.folder(&manifest), &manifest);
    assert_eq!(store.verify(&manifest, 2, &|_| true).unwrap(), []);
    assert_eq!(store.presence(&manifest).unwrap(), Presence::Proved(How::Deep));
}

#[test]
fn a_source_that_is_wrong_is_blamed_and_one_that_changes_is_refused() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &SOME);
    let path = from.path.join(&manifest.files[1].path);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[2 * MIB] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let store = Store::at(&to.path);
    let why = pull(&store, &manifest, &sender.rails()).unwrap_err().to_string();
    assert!(why.contains(&manifest.files[1].path) && why.contains("source's own bytes"), "{why}");
    assert!(!store.folder(&manifest).exists());
    bytes[2 * MIB] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let why = pull(&store, &manifest, &sender.rails()).unwrap_err().to_string();
    assert!(why.contains("changed during the transfer"), "{why}");
    drop(sender);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    pull(&store, &manifest, &sender.rails()).unwrap();
    assert_exact(&store.folder(&manifest), &manifest);
}

#[test]
fn links_in_the_source_are_not_followed() {
    let (from, secret) = (folder(), folder());
    let manifest = model(&from.path, &SOME);
    std::fs::write(secret.path.join("x"), std::fs::read(from.path.join("config.json")).unwrap()).unwrap();
    std::fs::remove_file(from.path.join("config.json")).unwrap();
    std::os::unix::fs::symlink(secret.path.join("x"), from.path.join("config.json")).unwrap();
    let set = sparklane_weights::BlobSet::of_manifest(&manifest).unwrap();
    let bound = sparklane_weights::transfer::serve::Server::bind(
        &from.path,
        &set,
        Key::random().unwrap(),
        &[],
        serve_options(),
    );
    assert!(bound.is_err());
}

#[test]
fn two_transfers_of_one_set_do_not_mix() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &SOME);
    let store = Store::at(&to.path);
    let _held = store.staging(&manifest, &|_| true).unwrap();
    assert!(matches!(store.staging(&manifest, &|_| true), Err(WeightsError::Busy(_))));
}

#[test]
fn a_stop_keeps_what_arrived() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &[("a", 30 * MIB)]);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let store = Store::at(&to.path);
    let staging = store.staging(&manifest, &|_| true).unwrap();
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let options = PullOptions { rate: Some(40 * MIB as u64), ..quick() };
    let rails = sender.rails();
    std::thread::scope(|scope| {
        let pulling = scope.spawn(|| Pull::new(&staging, &rails, options, &progress, &stop).run());
        while progress.done.load(std::sync::atomic::Ordering::Relaxed) < 5 * MIB as u64 {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(pulling.join().unwrap().is_err());
    });
    drop(staging);
    let receipt = pull(&store, &manifest, &rails).unwrap();
    assert!(receipt.had >= 4 * MIB as u64, "{receipt:?}");
    assert_exact(&store.folder(&manifest), &manifest);
}

#[test]
fn a_hundred_thousand_files_are_one_set_and_a_thousand_arrive() {
    let (from, to) = (folder(), folder());
    let names: Vec<String> = (0..1000).map(|n| format!("d{}/f{n}", n % 7)).collect();
    let sizes: Vec<(&str, usize)> = names.iter().enumerate().map(|(n, name)| (name.as_str(), n % 50)).collect();
    let manifest = model(&from.path, &sizes);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let store = Store::at(&to.path);
    pull(&store, &manifest, &sender.rails()).unwrap();
    assert_exact(&store.folder(&manifest), &manifest);
    let mut many = manifest;
    let one = many.files[0].clone();
    many.files =
        (0..100_000).map(|n| sparklane_lane::weights::WeightsFile { path: format!("f{n}"), ..one.clone() }).collect();
    assert_eq!(sparklane_weights::BlobSet::of_manifest(&many).unwrap().blobs().len(), 100_000);
}
