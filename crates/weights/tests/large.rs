//! One real file past 2^32 bytes, killed near its end. Sparse at the source, whole at the receiver.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_lane::WeightsManifest;
use sparklane_lane::weights::WeightsFile;
use sparklane_weights::Store;
use sparklane_weights::hash::Hasher;
use sparklane_weights::journal::{self, Claim};
use sparklane_weights::proof::How;
use sparklane_weights::transfer::rail::Rails;
use sparklane_weights::transfer::serve::ServeOptions;
use sparklane_weights::transfer::{Progress, Pull, PullOptions};
use support::*;

const CHILD: &str = "SPARKLANE_TEST_LARGE_RECEIVER";
const SIZE: u64 = (6 << 30) + 12_345;
/// Where there are bytes: at the ends, and around the numbers that 32 bits cannot hold.
const ISLANDS: [u64; 5] = [0, (1 << 31) - 77, (1 << 32) - 500_000, 5_000_000_000, SIZE - MIB as u64];

/// What the killed process runs: a reception with the checkpoints that are usual, and at its end the receipt.
#[test]
#[ignore = "run by the test below as its child process"]
fn child_receives_a_large_file() {
    let text = std::env::var(CHILD).unwrap();
    let words: Vec<&str> = text.split(' ').collect();
    let manifest = WeightsManifest::parse(&std::fs::read_to_string(words[1]).unwrap()).unwrap();
    let rails = Rails {
        rails: words[3..].iter().map(|r| r.parse().unwrap()).collect(),
        key: words[2].parse().unwrap(),
        set: manifest.id().parse().unwrap(),
    };
    let store = Store::at(Utf8Path::new(words[0]));
    let begin = Instant::now();
    let staging = store.staging(&manifest, &|_| true).unwrap();
    let opened = begin.elapsed().as_millis();
    let (progress, stop) = (Progress::default(), std::sync::atomic::AtomicBool::new(false));
    let receipt = Pull::new(&staging, &rails, PullOptions::default(), &progress, &stop).run().unwrap();
    store.publish(&manifest, staging, How::Stream).unwrap();
    let first = u128::from(receipt.first_byte_millis.unwrap());
    println!("\nRECEIPT {} {} {}", receipt.had, receipt.fetched, opened + first);
}

fn spawn(store: &Utf8Path, manifest: &Utf8Path, sender: &Sender) -> Child {
    let rails = sender.rails();
    let rails: Vec<String> = rails.rails.iter().map(|r| format!("{}={}={}", r.name, r.source, r.peer)).collect();
    let words = format!("{store} {manifest} {} {}", sender.key.expose(), rails.join(" "));
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_receives_a_large_file", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, words)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn make(dir: &Utf8Path) -> WeightsManifest {
    let path = dir.join("model.safetensors");
    let file = File::create_new(&path).unwrap();
    file.set_len(SIZE).unwrap();
    for (seed, at) in ISLANDS.iter().enumerate() {
        file.write_all_at(&noise(seed as u64 + 1, MIB), *at).unwrap();
    }
    let (mut file, mut hasher, mut piece) = (File::open(&path).unwrap(), Hasher::new(), vec![0; 4 * MIB]);
    while let Ok(read @ 1..) = file.read(&mut piece) {
        hasher.update(&piece[..read]);
    }
    let file = WeightsFile { path: "model.safetensors".into(), size: SIZE, sha256: hasher.finish().to_string() };
    WeightsManifest { model: "org/large".into(), revision: "a".repeat(40), files: vec![file] }
}

/// Bytes that the receiver's journal calls durable.
fn durable(store: &Utf8Path, manifest: &WeightsManifest) -> u64 {
    let journal = store.join(".partial").join(manifest.store_name()).join("journal");
    let claims = journal::parse(&std::fs::read(journal).unwrap_or_default(), &manifest.id().parse().unwrap());
    claims.get(&0).map_or(0, |claim| if let Claim::Part(state) = claim { state.len } else { 0 })
}

#[test]
#[ignore = "6 GB on the disk below /var/tmp, about a minute; cargo xtask test runs it"]
fn six_gigabytes_killed_at_ninety_percent_go_on_from_there_at_once() {
    // Not /tmp, which may be memory.
    let guard = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = Utf8PathBuf::from_path_buf(guard.path().to_owned()).unwrap();
    let (from, to, file) = (dir.join("from"), dir.join("to"), dir.join("manifest.json"));
    for folder in [&from, &to] {
        std::fs::create_dir(folder).unwrap();
    }
    let manifest = make(&from);
    std::fs::write(&file, manifest.to_text()).unwrap();
    let options = ServeOptions { receivers: usize::MAX, give_up: Duration::from_secs(60), ..serve_options() };
    let sender = Sender::start(&from, &manifest, options);
    let mut child = spawn(&to, &file, &sender);
    let until = Instant::now() + Duration::from_secs(600);
    while durable(&to, &manifest) < SIZE / 10 * 9 {
        assert!(Instant::now() < until && child.try_wait().unwrap().is_none(), "it was over too early, or never");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = durable(&to, &manifest);
    let store = Store::at(&to);
    assert!(!store.folder(&manifest).exists());
    let output = spawn(&to, &file, &sender).wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let numbers = said.lines().find_map(|l| l.strip_prefix("RECEIPT ")).unwrap();
    let numbers: Vec<u64> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
    let [had, fetched, first] = numbers[..] else { panic!("{said}") };
    let again = sender.end().bytes - SIZE;
    println!("{kept} bytes were kept, {again} came again, the first new byte came after {first} ms");
    assert_eq!(had, kept);
    // What a connection holds at the end is asked for on another, too.
    assert!((SIZE..SIZE + (64 << 20)).contains(&(had + fetched)), "{had} {fetched}");
    assert!(again <= 512 << 20, "{again}");
    // To read again what is there takes far longer, on any machine.
    assert!(first < 5000, "{first} ms to the first new byte");
    assert_eq!(store.verify(&manifest, 2, &|_| true).unwrap(), []);
}
