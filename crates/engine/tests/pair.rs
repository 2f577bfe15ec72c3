//! Two supervisors that hear each other, each before a docker of its own; rails are loopback addresses.

#![allow(clippy::unwrap_used, clippy::panic)] // a test says what is wrong by failing

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use sparklane_engine::pair::beat::{self, Beat, RunId};
use sparklane_engine::pair::keys::Key;
use sparklane_engine::pair::{AttemptId, Pair, Rank, Saying};
use sparklane_engine::run::{EXIT_PEER, ending::End};
use sparklane_engine::state::State;

use support::Bench;

/// Each test has addresses of its own: they run at once.
static NEXT: AtomicU8 = AtomicU8::new(1);
const RUNS: &str = "STATUS=container runs, engine starts";

fn keys(dir: &Path, byte: u8) {
    std::fs::create_dir_all(dir).unwrap();
    let file = dir.join(format!("k{byte}"));
    std::fs::write(&file, [byte; 32]).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

struct Two {
    head: Bench,
    worker: Bench,
}

fn two() -> Two {
    let net = NEXT.fetch_add(1, Ordering::Relaxed);
    let make = |role: &str| {
        let mut bench = Bench::new(role);
        let generation = &mut bench.generation;
        generation.node = role.parse().unwrap();
        generation.rank = u32::from(role != "head");
        generation.serves = "same".into();
        generation.watchdog.peer_grace_secs = 6;
        for (n, peer) in generation.peers.iter_mut().enumerate() {
            peer.rail1 = format!("127.9.{net}.{}", n + 1);
            peer.rail2 = format!("127.10.{net}.{}", n + 1);
        }
        bench.keys = bench.dir.path().join("keys");
        keys(&bench.keys, 1);
        bench
    };
    Two { head: make("head"), worker: make("worker") }
}

async fn both_run(two: &Two) {
    two.head.until(RUNS).await;
    two.worker.until(RUNS).await;
    assert_eq!(two.head.state().attempt, two.worker.state().attempt);
}

#[tokio::test]
async fn ranks_start_together_in_one_attempt() {
    let two = two();
    let script = async {
        // The worker counts as started before there is a head; its container does not run yet.
        two.worker.until("READY=1").await;
        let waits = two.worker.state();
        assert_eq!(waits.state, State::WaitPeer);
        assert!(waits.reason.as_ref().unwrap().contains("no word from head, the head,"), "{waits:?}");
        assert!(!two.worker.fake.calls().iter().any(|c| c.starts_with("start")));
    };
    let head = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        two.head.run().await
    };
    let rest = async {
        script.await;
        both_run(&two).await;
        let peer = &two.head.state().peers[0];
        assert_eq!((peer.rank, peer.rails, peer.silent), (Rank::Running, [true, true], false));
        two.head.stop.notify_one();
        two.worker.stop.notify_one();
    };
    let (head, worker, ()) = tokio::join!(head, two.worker.run(), rest);
    assert_eq!((head.unwrap(), worker.unwrap()), (0, 0));
    assert_eq!((two.head.state().state, two.worker.state().state), (State::Stopped, State::Stopped));
}

#[tokio::test]
async fn a_dead_rank_ends_the_other_at_once_and_both_have_evidence_of_one_attempt() {
    let two = two();
    let script = async {
        both_run(&two).await;
        let began = Instant::now();
        two.worker.fake.say("(EngineCore pid=85) ERROR Worker proc VllmWorker-1 died unexpectedly (exit code: -9)");
        two.worker.fake.end(0);
        began
    };
    let head = async { (two.head.run().await, Instant::now()) };
    let ((head, at), worker, began) = tokio::join!(head, two.worker.run(), script);
    assert_eq!((head.unwrap(), worker.unwrap()), (EXIT_PEER, 1));
    assert!(at.duration_since(began) < Duration::from_secs(5));
    let (head, worker) = (two.head.state().failure.unwrap(), two.worker.state().failure.unwrap());
    assert!(head.why.contains("the rank on worker ended") && head.why.contains("a rank's process died"), "{head:?}");
    assert_eq!(head.attempt, worker.attempt);
    for failure in [head, worker] {
        let folder = failure.evidence.unwrap();
        for file in ["failure.json", "engine.log", "container.json", "peers.json"] {
            assert!(Path::new(&folder).join(file).exists(), "{folder}/{file}");
        }
    }
    assert!(two.head.fake.0.lock().unwrap().containers.is_empty());
}

#[tokio::test]
async fn a_head_that_begins_anew_takes_the_worker_along_without_a_failure_there() {
    let two = two();
    let script = async {
        {
            // As kill -9: no last word.
            let head = two.head.run();
            tokio::select! {
                _ = head => panic!("the head ended by itself"),
                () = both_run(&two) => {}
            }
        }
        two.head.heard.0.lock().unwrap().clear();
        two.worker.heard.0.lock().unwrap().clear();
        let first = two.worker.state().attempt;
        let again = async {
            both_run(&two).await;
            assert_ne!(two.worker.state().attempt, first);
            two.worker.stop.notify_one();
            two.head.stop.notify_one();
        };
        let (head, ()) = tokio::join!(two.head.run(), again);
        assert_eq!(head.unwrap(), 0);
    };
    let (worker, ()) = tokio::join!(two.worker.run(), script);
    assert_eq!(worker.unwrap(), 0, "the worker's unit did not fail");
    assert_eq!(two.worker.state().failure, None);
    let starts = two.worker.fake.calls().iter().filter(|c| c.starts_with("start")).count();
    assert_eq!(starts, 2);
}

#[tokio::test]
async fn silence_is_told_at_once_and_ends_the_rank_after_the_grace() {
    let two = two();
    let script = async {
        {
            let worker = two.worker.run();
            tokio::select! {
                _ = worker => panic!("the worker ended by itself"),
                () = both_run(&two) => {}
            }
        }
        let cut = Instant::now();
        while two.head.state().state != State::Degraded {
            assert!(cut.elapsed() < Duration::from_secs(10), "{:?}", two.head.state());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(two.head.state().reason.unwrap().contains("no word from worker"));
    };
    let (head, ()) = tokio::join!(two.head.run(), script);
    assert_eq!(head.unwrap(), EXIT_PEER);
}

#[tokio::test]
async fn nodes_without_a_common_key_do_not_hear_each_other_and_a_late_key_mends_it() {
    let two = two();
    std::fs::remove_dir_all(&two.worker.keys).unwrap();
    keys(&two.worker.keys, 2);
    let script = async {
        two.worker.until("READY=1").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let why = two.head.state().reason.unwrap();
        assert!(why.contains("no word from worker yet") && why.contains("no key of this node opens"), "{why}");
        // The next release's key, staged on both.
        keys(&two.head.keys, 3);
        keys(&two.worker.keys, 3);
        both_run(&two).await;
        two.head.stop.notify_one();
        two.worker.stop.notify_one();
    };
    let (head, worker, ()) = tokio::join!(two.head.run(), two.worker.run(), script);
    assert_eq!((head.unwrap(), worker.unwrap()), (0, 0));
}

#[tokio::test]
async fn beats_of_another_release_or_played_again_change_nothing() {
    let two = two();
    let generation = &two.worker.generation;
    let pair = Pair::open(generation, two.worker.keys.clone()).unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let socket = UdpSocket::bind((two.head.generation.peers[0].rail1.as_str(), 0)).unwrap();
    let to = (two.head.generation.peers[1].rail1.as_str(), generation.watchdog.port);
    let beat = Beat {
        cluster: generation.cluster.clone(),
        node: "head".parse().unwrap(),
        run: RunId::random().unwrap(),
        number: 1,
        heard: BTreeMap::new(),
        serves: "same".into(),
        says: Saying { attempt: Some(AttemptId::random().unwrap()), ..Saying::default() },
    };
    let key = Key::new(&[1; 32]);
    // Well sealed, but it does not name the receiver's run: it may be an old one.
    socket.send_to(&beat::seal(std::slice::from_ref(&key), &beat).unwrap(), to).unwrap();
    let mut forged = beat::seal(&[key], &beat).unwrap();
    *forged.last_mut().unwrap() ^= 1;
    socket.send_to(&forged, to).unwrap();
    socket.send_to(&[0; 3000], to).unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(pair.ears().is_empty(), "{:?}", pair.ears());
}

#[test]
fn an_end_that_was_asked_for_is_no_failure() {
    assert_eq!(sparklane_engine::run::ending::code(&Ok(End::Stopped)), 0);
}

#[tokio::test]
async fn a_worker_whose_log_tells_nothing_serves_when_its_head_does() {
    let two = two();
    let script = async {
        both_run(&two).await;
        assert_eq!(two.worker.state().state, State::Loading);
        two.head.serve_health();
        let began = Instant::now();
        while two.worker.state().state != State::Serving {
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", two.worker.state());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(two.worker.heard("STATUS=serving with the head"));
        two.head.stop.notify_one();
        two.worker.stop.notify_one();
    };
    let (head, worker, ()) = tokio::join!(two.head.run(), two.worker.run(), script);
    assert_eq!((head.unwrap(), worker.unwrap()), (0, 0));
}

/// A beat of a made-up head that knows the worker's run.
fn of_head(generation: &sparklane_lane::Generation, run: RunId, number: u64, knows: Option<RunId>) -> Beat {
    Beat {
        cluster: generation.cluster.clone(),
        node: "head".parse().unwrap(),
        run,
        number,
        heard: knows.into_iter().map(|run| ("worker".parse().unwrap(), BTreeSet::from([run]))).collect(),
        serves: "same".into(),
        says: Saying { attempt: Some(AttemptId::random().unwrap()), ..Saying::default() },
    }
}

/// The next beat that comes within half a second.
async fn hear(socket: &tokio::net::UdpSocket, key: &[Key]) -> Option<Beat> {
    let mut bytes = [0; 9000];
    let got = tokio::time::timeout(Duration::from_millis(500), socket.recv(&mut bytes)).await.ok()?;
    beat::open(key, &bytes[..got.unwrap()]).ok()
}

#[tokio::test]
async fn a_recorded_beat_neither_keeps_a_dead_head_alive_nor_displaces_a_living_one() {
    let two = two();
    let generation = &two.worker.generation;
    let pair = Pair::open(generation, two.worker.keys.clone()).unwrap().unwrap();
    let key = [Key::new(&[1; 32])];
    let at = |rail: &str| (rail.to_owned(), generation.watchdog.port);
    let socket = tokio::net::UdpSocket::bind(at(&generation.peers[0].rail1)).await.unwrap();
    let worker = at(&generation.peers[1].rail1);
    let say = async |bytes: &[u8]| {
        socket.send_to(bytes, &worker).await.unwrap();
    };
    let run = RunId::random().unwrap();
    let names = |beat: &Beat| beat.heard.values().any(|runs| runs.contains(&run));
    let said = loop {
        say(&beat::seal(&key, &of_head(generation, run, 1, None)).unwrap()).await;
        match hear(&socket, &key).await {
            Some(said) if names(&said) => break said,
            _ => {}
        }
    };
    let live = beat::seal(&key, &of_head(generation, run, 2, Some(said.run))).unwrap();
    say(&live).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ago = || pair.ears().values().next().map(|ear| ear.ago()).unwrap();
    assert!(ago() < Duration::from_secs(1), "a living head is heard");
    // Its last beat again and again, and one of an older run: the silence grows all the same.
    let old = beat::seal(&key, &of_head(generation, RunId::random().unwrap(), 9, None)).unwrap();
    for _ in 0..15 {
        say(&live).await;
        say(&old).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(ago() > Duration::from_millis(1400), "{:?}", ago());
    let mut last = None;
    for _ in 0..100 {
        match hear(&socket, &key).await {
            Some(beat) if last.as_ref().is_none_or(|l: &Beat| l.number < beat.number) => last = Some(beat),
            _ => break,
        }
    }
    assert!(last.as_ref().is_some_and(names), "the worker still names the head's run: {last:?}");
}

#[tokio::test]
async fn keys_that_cannot_be_used_are_refused_and_none_at_all_is_told() {
    let two = two();
    let file = two.worker.keys.join("k1");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let why = Pair::open(&two.worker.generation, two.worker.keys.clone()).unwrap_err().to_string();
    assert!(why.contains("chmod 600"), "{why}");
    std::fs::remove_file(&file).unwrap();
    let script = async {
        two.worker.until(RUNS).await;
        assert!(two.worker.state().notes[0].contains("no heartbeat key"), "{:?}", two.worker.state());
        two.worker.stop.notify_one();
    };
    let (worker, ()) = tokio::join!(two.worker.run(), script);
    assert_eq!(worker.unwrap(), 0);
}

#[tokio::test]
async fn a_port_that_someone_else_holds_is_named() {
    let two = two();
    let (rail, port) = (&two.worker.generation.peers[1].rail1, two.worker.generation.watchdog.port);
    let _held = UdpSocket::bind((rail.as_str(), port)).unwrap();
    let script = async {
        two.worker.until("READY=1").await;
        let words = format!("cannot listen for heartbeats on {rail}:{port}");
        for _ in 0..100 {
            if two.worker.state().reason.is_some_and(|r| r.contains(&words)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(two.worker.state().reason.unwrap().contains(&words), "{:?}", two.worker.state());
        two.worker.stop.notify_one();
    };
    let (worker, ()) = tokio::join!(two.worker.run(), script);
    assert_eq!(worker.unwrap(), 0);
}
