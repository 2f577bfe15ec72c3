//! Receivers and senders that die at any moment: exact bytes or nothing, and little fetched twice.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use proptest::prelude::*;
use sparklane_lane::WeightsManifest;
use sparklane_weights::buffer::{Buffer, EXTENT};
use sparklane_weights::hash::Midstate;
use sparklane_weights::proof::How;
use sparklane_weights::staging::Start;
use sparklane_weights::store::Presence;
use sparklane_weights::transfer::PullOptions;
use sparklane_weights::transfer::slot::{Delivered, Slot};
use sparklane_weights::{BlobSet, Sha, Staging, Store};
use support::*;

const CHILD: &str = "SPARKLANE_TEST_RECEIVER";

/// What the killed process runs: a whole reception, slowly enough to be hit.
#[test]
#[ignore = "run by the kill tests as their child process"]
fn child_receives() {
    let text = std::env::var(CHILD).unwrap();
    let words: Vec<&str> = text.split(' ').collect();
    let manifest = WeightsManifest::parse(&std::fs::read_to_string(words[1]).unwrap()).unwrap();
    let rails = sparklane_weights::transfer::rail::Rails {
        rails: words[3..].iter().map(|r| r.parse().unwrap()).collect(),
        key: words[2].parse().unwrap(),
        set: manifest.id().parse().unwrap(),
    };
    let options = PullOptions { rate: Some(60 * MIB as u64), ..quick() };
    pull_with(&Store::at(Utf8Path::new(words[0])), &manifest, &rails, options).unwrap();
}

fn spawn(store: &Utf8Path, manifest: &Utf8Path, sender: &Sender) -> std::process::Child {
    let rails = sender.rails();
    let rails: Vec<String> = rails.rails.iter().map(|r| format!("{}={}={}", r.name, r.source, r.peer)).collect();
    let words = format!("{store} {manifest} {} {}", sender.key.expose(), rails.join(" "));
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_receives", "--ignored", "--test-threads=1"])
        .env(CHILD, words)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills a receiver `rounds` times at different moments; it converges, and nothing wrong is ever visible.
fn kill_receivers(rounds: u64) {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &[("big", 24 * MIB + 17), ("small", 1000), ("mid", 6 * MIB)]);
    let file = from.path.join("manifest.json");
    std::fs::write(&file, manifest.to_text()).unwrap();
    let sender = Sender::start(
        &from.path,
        &manifest,
        sparklane_weights::transfer::serve::ServeOptions {
            receivers: usize::MAX,
            give_up: Duration::from_secs(60),
            ..serve_options()
        },
    );
    let store = Store::at(&to.path);
    let mut finished = 0;
    for round in 0..rounds {
        let mut child = spawn(&to.path, &file, &sender);
        std::thread::sleep(Duration::from_millis(20 + round * 7919 % 500));
        child.kill().unwrap();
        child.wait().unwrap();
        let folder = store.folder(&manifest);
        if folder.exists() {
            assert_exact(&folder, &manifest);
            assert_eq!(store.presence(&manifest).unwrap(), Presence::Proved(How::Stream));
            finished += 1;
            std::fs::remove_dir_all(&to.path).unwrap();
            std::fs::create_dir(&to.path).unwrap();
        }
    }
    let last = spawn(&to.path, &file, &sender).wait_with_output().unwrap();
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stdout));
    assert_exact(&store.folder(&manifest), &manifest);
    println!("{rounds} kills, {finished} transfers were complete before theirs");
    let served = sender.end();
    // A proof per MiB and file here: a kill costs what was under way, which is more on a busy machine.
    let most = (finished + 1) * manifest.bytes() + rounds * 16 * MIB as u64;
    assert!(served.bytes <= most, "{} bytes were sent, at most {most} may be", served.bytes);
}

#[test]
fn a_receiver_killed_twenty_times_converges() {
    kill_receivers(20);
}

#[test]
#[ignore = "minutes: cargo test -p sparklane-weights --test crash -- --ignored two_hundred"]
fn a_receiver_killed_two_hundred_times_converges() {
    kill_receivers(200);
}

#[test]
fn damage_to_the_journal_is_safe() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &[("a", 6 * MIB), ("b", 3 * MIB + 5), ("c", 10)]);
    let store = Store::at(&to.path);
    let sender = Sender::start(
        &from.path,
        &manifest,
        sparklane_weights::transfer::serve::ServeOptions { receivers: usize::MAX, ..serve_options() },
    );
    type Damage = fn(&mut Vec<u8>);
    let damages: [Damage; 4] =
        [|b| b.fill(0), |b| b.truncate(70), |b| b.iter_mut().for_each(|x| *x ^= 0x10), |b| b.clear()];
    for damage in damages {
        let set = Arc::new(BlobSet::of_manifest(&manifest).unwrap());
        let dir = to.path.join(".partial").join(manifest.store_name());
        fill(&Staging::open(&dir, &set, &|_| true).unwrap().with_checkpoint(MIB as u64), &from.path, 2 * MIB as u64);
        let journal = dir.join("journal");
        let mut bytes = std::fs::read(&journal).unwrap();
        assert!(!bytes.is_empty());
        damage(&mut bytes);
        std::fs::write(&journal, bytes).unwrap();
        pull(&store, &manifest, &sender.rails()).unwrap();
        assert_exact(&store.folder(&manifest), &manifest);
        std::fs::remove_dir_all(store.folder(&manifest)).unwrap();
    }
}

/// Receives the first `most` bytes of each file.
fn fill(staging: &Staging, from: &Utf8Path, most: u64) {
    for ((index, blob), start) in staging.set().iter().zip(staging.starts()) {
        let Start::Part(state) = start else { continue };
        let bytes = std::fs::read(from.join(&blob.path)).unwrap();
        let slot = Slot::new(staging.part(index, blob, state).unwrap());
        let mut at = state.len;
        while at < blob.size.min(most) {
            let mut buffer = Buffer::new();
            let len = (blob.size - at).min(EXTENT as u64) as usize;
            buffer.whole()[..len].copy_from_slice(&bytes[at as usize..at as usize + len]);
            buffer.set_len(len);
            if let Delivered::All(_, part) = slot.deliver(at, blob.size, buffer, staging.journal()).unwrap() {
                assert_eq!(staging.complete(index, blob, part).unwrap(), None);
            }
            at += len as u64;
        }
    }
}

#[test]
fn zeros_of_the_right_size_are_never_accepted() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &[("a", 2 * MIB), ("b", 3 * MIB + 5)]);
    let store = Store::at(&to.path);
    let dir = to.path.join(".partial").join(manifest.store_name());
    std::fs::create_dir_all(dir.join("data")).unwrap();
    std::fs::create_dir_all(dir.join("parts")).unwrap();
    std::fs::write(dir.join("data/a"), vec![0; 2 * MIB]).unwrap();
    std::fs::write(dir.join("parts/1"), vec![0; 3 * MIB + 5]).unwrap();
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let receipt = pull(&store, &manifest, &sender.rails()).unwrap();
    assert_eq!(receipt.had, 0);
    assert_exact(&store.folder(&manifest), &manifest);
    // And a folder under the final name that nobody proved is none.
    let other = folder();
    let fake = Store::at(&other.path);
    std::fs::create_dir_all(fake.folder(&manifest)).unwrap();
    assert!(matches!(fake.presence(&manifest).unwrap(), Presence::Unproved(_)));
    assert_eq!(fake.verify(&manifest, 1, &|_| true).unwrap().len(), 2);
}

/// A tmpfs of a chosen size over a folder, gone at the end. Needs root, which CI has.
struct Small(Utf8PathBuf);

impl Small {
    fn over(dir: &Utf8Path, size: &std::ffi::CStr) -> Self {
        rustix::mount::mount("tmpfs", dir.as_str(), "tmpfs", rustix::mount::MountFlags::empty(), size).unwrap();
        Self(dir.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        rustix::mount::unmount(self.0.as_str(), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_disk_that_fills_up_shows_nothing_and_room_lets_it_go_on() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &[("a", 10 * MIB), ("b", 3 * MIB), ("c", 9 * MIB)]);
    let small = Small::over(&to.path, c"size=20m,mode=755");
    let store = Store::at(&to.path);
    let sender = Sender::start(&from.path, &manifest, serve_options());
    let error = pull(&store, &manifest, &sender.rails()).unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(error.to_string().contains("/parts/"), "{error}");
    assert!(!store.folder(&manifest).exists());
    let set = BlobSet::of_manifest(&manifest).unwrap();
    let early = sparklane_weights::preflight::check(&to.path, &to.path.join("none"), &set, false).unwrap_err();
    assert_eq!(early.exit_code(), 1);
    rustix::mount::mount_remount(small.0.as_str(), rustix::mount::MountFlags::empty(), c"size=40m").unwrap();
    let receipt = pull(&store, &manifest, &sender.rails()).unwrap();
    assert!(receipt.fetched < manifest.bytes(), "nothing was kept: {receipt:?}");
    assert_exact(&store.folder(&manifest), &manifest);
}

#[derive(Debug, Clone)]
enum Act {
    /// Deliver one of the extents that are missing.
    Deliver(prop::sample::Index),
    /// Die and come back.
    Crash,
}

/// A reception as the puller does it, but one step at a time.
struct Reception {
    staging: Staging,
    slots: BTreeMap<u32, Slot>,
    missing: Vec<(u32, u64)>,
}

fn open(dir: &Utf8Path, set: &Arc<BlobSet>) -> Reception {
    let staging = Staging::open(dir, set, &|_| true).unwrap().with_checkpoint(EXTENT as u64);
    let (mut slots, mut missing) = (BTreeMap::new(), Vec::new());
    for ((index, blob), start) in set.iter().zip(staging.starts()) {
        let from = match start {
            Start::Done => continue,
            Start::Part(state) => *state,
            Start::Suspect => Midstate::start(),
        };
        let part = staging.part(index, blob, &from).unwrap();
        if from.len == blob.size {
            assert_eq!(staging.complete(index, blob, part).unwrap(), None);
            continue;
        }
        missing.extend((from.len..blob.size).step_by(EXTENT).map(|at| (index, at)));
        slots.insert(index, Slot::new(part));
    }
    Reception { staging, slots, missing }
}

impl Reception {
    fn deliver(&mut self, at: usize, bytes: &[Vec<u8>]) {
        let (file, offset) = self.missing.swap_remove(at);
        let blob = self.staging.set().get(file).unwrap().clone();
        let mut buffer = Buffer::new();
        let end = (offset as usize + EXTENT).min(blob.size as usize);
        let part = &bytes[file as usize][offset as usize..end];
        buffer.whole()[..part.len()].copy_from_slice(part);
        buffer.set_len(part.len());
        let delivered = self.slots[&file].deliver(offset, blob.size, buffer, self.staging.journal()).unwrap();
        if let Delivered::All(_, part) = delivered {
            self.slots.remove(&file);
            assert_eq!(self.staging.complete(file, &blob, part).unwrap(), None);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_interleaving_of_extents_crashes_and_resumes_gives_the_exact_bytes(
        sizes in proptest::collection::vec(0usize..4 * EXTENT, 1..4),
        acts in proptest::collection::vec(prop_oneof![
            5 => any::<prop::sample::Index>().prop_map(Act::Deliver), 1 => Just(Act::Crash)], 0..30),
    ) {
        let guard = folder();
        let dir = guard.path.join("staging");
        let bytes: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(n, size)| noise(n as u64 + 9, *size)).collect();
        let blob = |(n, b): (usize, &Vec<u8>)| sparklane_weights::Blob {
            path: format!("d/{n}"), size: b.len() as u64, sha256: Sha::of(b),
        };
        let set = Arc::new(BlobSet::new(bytes.iter().enumerate().map(blob).collect()).unwrap());
        let mut now = open(&dir, &set);
        for act in acts {
            match act {
                Act::Deliver(_) if now.missing.is_empty() => {}
                Act::Deliver(which) => now.deliver(which.index(now.missing.len()), &bytes),
                Act::Crash => {
                    drop(now);
                    now = open(&dir, &set);
                }
            }
        }
        drop(now);
        let mut now = open(&dir, &set);
        while !now.missing.is_empty() {
            now.deliver(0, &bytes);
        }
        prop_assert!(now.staging.stamps().unwrap().is_ok());
        for (n, wanted) in bytes.iter().enumerate() {
            prop_assert_eq!(&std::fs::read(now.staging.data().join(format!("d/{n}"))).unwrap(), wanted);
        }
    }
}
