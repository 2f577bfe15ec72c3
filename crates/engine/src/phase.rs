//! The load phase of an engine, derived from vLLM's log lines. Pure.
//!
//! Ranks log interleaved (Ray sends rank 1's lines to the head), so a phase only moves forward; a new container starts a
//! new [`PhaseTracker`].

use serde::{Deserialize, Serialize};
use sparklane_lane::Role;

use crate::entry::{GIVES_UP, SAYS};

/// How far an engine has come. Ordered: a later phase compares greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Phase {
    /// No container yet.
    Preparing,
    /// The container's process runs; nothing telling was logged.
    Starting,
    /// This rank is at the rendezvous (or waits for a Ray placement group) and needs its peers to go on.
    WaitPeer,
    /// All ranks met; the model is being built.
    LoadingModel,
    /// Weights are read.
    LoadingWeights,
    /// The drafter of speculative decoding is read.
    LoadingDrafter,
    /// Memory is profiled and the KV cache is made.
    KvCache,
    /// CUDA graphs are captured.
    Graphs,
    /// All is loaded. The last that a worker's log tells: from here it does what the head asks.
    Loaded,
    /// The API starts or warms up; no request is answered yet.
    StartingApi,
    /// `/health` answered 200 (head only: a worker has no API).
    Serving,
    /// Asked to stop, draining.
    Stopping,
    /// The container ended.
    Ended,
}

impl Phase {
    /// Words for a status line.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Preparing => "preparing the container",
            Self::Starting => "container runs, engine starts",
            Self::WaitPeer => "waiting for the other ranks",
            Self::LoadingModel => "building the model",
            Self::LoadingWeights => "loading weights",
            Self::LoadingDrafter => "loading the drafter",
            Self::KvCache => "making the KV cache",
            Self::Graphs => "capturing CUDA graphs",
            Self::Loaded => "loaded",
            Self::StartingApi => "starting the API",
            Self::Serving => "serving",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
        }
    }
}

/// `ray start`'s word that its node is in the session. On a worker it is the last: its rank's own lines go to the head.
const RAY_STARTED: &str = "Ray runtime started.";

/// A line's marker and the phase it proves.
const MARKS: &[(&str, Phase)] = &[
    ("Launching vLLM (v", Phase::WaitPeer), // headless rank: "... with head node address A:P"
    ("distributed_init_method=tcp://", Phase::WaitPeer),
    ("Waiting for creating a placement group", Phase::WaitPeer),
    (RAY_STARTED, Phase::WaitPeer),
    ("sparklane entry: waiting for", Phase::WaitPeer), // a worker for the head's GCS, a head for its Ray's nodes
    ("is assigned as DP rank", Phase::LoadingModel),   // the rendezvous is complete
    ("Starting to load model", Phase::LoadingModel),
    ("Filesystem type for checkpoints", Phase::LoadingWeights),
    ("Loading safetensors checkpoint shards:", Phase::LoadingWeights),
    ("Loading drafter model", Phase::LoadingDrafter),
    ("GiB for KV cache", Phase::KvCache),
    ("Available KV cache memory", Phase::KvCache),
    ("KV cache size:", Phase::KvCache),
    ("Capturing CUDA graph", Phase::Graphs),
    ("Graph capturing finished", Phase::Loaded),
    ("init engine (profile", Phase::StartingApi),
    ("Kernel JIT monitor activated", Phase::StartingApi),
    ("Starting vLLM server on", Phase::StartingApi),
    ("Application startup complete", Phase::StartingApi),
    ("Uvicorn running on", Phase::StartingApi),
];

/// A marker of a failure's cause and the words for it. Earlier rows explain more; the last ones only say that it failed.
const CAUSES: &[(&str, &str)] = &[
    ("vllm: error:", "vLLM refused its command line"),
    ("vllm serve: error:", "vLLM refused its command line"),
    ("is greater than the derived max_model_len", "max-model-len is larger than the model allows"),
    ("Repo id must be in the form", "the model folder is missing in the container"),
    ("is not a valid JSON file", "the model's config.json is broken"),
    ("Weight files referenced in index but missing", "a weight file is missing"),
    ("SafetensorError", "a weight file is damaged or cut short"),
    ("No available memory for the cache blocks", "no memory is left for the KV cache"),
    ("Address already in use", "the API's port is taken"),
    ("CUDA out of memory", "GPU memory ran out"),
    ("unhandled system error", "NCCL failed (memlock limit or link?)"),
    ("died unexpectedly", "a rank's process died"),
    ("Engine core initialization failed", "the engine core did not start"),
];

/// Follows one container's log.
#[derive(Debug, Clone)]
pub struct PhaseTracker {
    role: Role,
    phase: Phase,
    percent: Option<u8>,
    cause: Option<(usize, String)>,
}

impl PhaseTracker {
    /// A tracker for a container that is being made.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self { role, phase: Phase::Preparing, percent: None, cause: None }
    }

    /// The phase now.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Percent of the phase, where the engine tells it.
    #[must_use]
    pub fn percent(&self) -> Option<u8> {
        self.percent
    }

    /// What the log says went wrong, if anything.
    #[must_use]
    pub fn cause(&self) -> Option<&str> {
        self.cause.as_ref().map(|(_, words)| words.as_str())
    }

    /// Moves on to a phase that something else than the log proves. Never back.
    pub fn reach(&mut self, phase: Phase) -> bool {
        if phase <= self.phase {
            return false;
        }
        self.phase = phase;
        self.percent = None;
        true
    }

    /// Takes one log line; true when the status line changed.
    pub fn line(&mut self, line: &str) -> bool {
        self.note_cause(line);
        let Some(&(mark, phase)) = MARKS.iter().find(|(mark, _)| line.contains(mark)) else {
            return false;
        };
        // The drafter's shards are read by the same code; its lines carry the same words.
        let phase =
            if self.phase == Phase::LoadingDrafter && phase == Phase::LoadingWeights { self.phase } else { phase };
        let phase = if mark == RAY_STARTED && self.role == Role::Worker { Phase::Loaded } else { phase };
        let moved = self.reach(phase);
        let percent = percent_after(line, mark);
        if phase == self.phase && percent.is_some() && percent != self.percent {
            self.percent = percent;
            return true;
        }
        moved
    }

    fn note_cause(&mut self, line: &str) {
        // Nothing explains more than the entry's own words, which name nodes and addresses.
        if let Some((_, why)) = line.split_once(SAYS).and_then(|(_, said)| said.split_once(GIVES_UP)) {
            self.cause = Some((0, why.to_owned()));
            return;
        }
        let Some(rank) = CAUSES.iter().position(|(mark, _)| line.contains(mark)) else {
            return;
        };
        // The root cause is logged first by vLLM, yet a generic line may come before it: keep the row that explains most.
        if self.cause.as_ref().is_none_or(|(kept, _)| rank < *kept) {
            self.cause = Some((rank, CAUSES[rank].1.to_owned()));
        }
    }

    /// True when the unit counts as started: a head serves, a worker is at the rendezvous.
    #[must_use]
    pub fn ready(&self) -> bool {
        match self.role {
            Role::Head => self.phase == Phase::Serving,
            Role::Worker => (Phase::WaitPeer..=Phase::Serving).contains(&self.phase),
        }
    }

    /// One line for `systemctl status`.
    #[must_use]
    pub fn status_line(&self) -> String {
        let mut text = self.phase.words().to_owned();
        if self.phase == Phase::Loaded && self.role == Role::Worker {
            text.push_str(", ready to work for the head");
        }
        if let Some(percent) = self.percent {
            text.push_str(&format!(" {percent}%"));
        }
        if let Some(cause) = self.cause() {
            text.push_str(&format!(" (logged: {cause})"));
        }
        text
    }
}

/// The number before the first `%` that follows the mark.
fn percent_after(line: &str, mark: &str) -> Option<u8> {
    let rest = &line[line.find(mark)? + mark.len()..];
    let before = &rest[..rest.find('%')?];
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|p| *p <= 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = include_str!("../../../tests/fixtures/engine/mp2/mph.log");
    const WORKER: &str = include_str!("../../../tests/fixtures/engine/mp2/mpw.log");
    const RAY: &str = include_str!("../../../tests/fixtures/engine/ray/vllm-ray-2node-and-rank1-kill.log");
    const RAY_WAITS: &str = include_str!("../../../tests/fixtures/engine/ray/vllm-waits-for-worker.log");

    fn phases(role: Role, log: &str) -> (Vec<Phase>, PhaseTracker) {
        let mut tracker = PhaseTracker::new(role);
        let mut seen = vec![];
        for line in log.split(['\n', '\r']) {
            tracker.line(line);
            if seen.last() != Some(&tracker.phase()) {
                seen.push(tracker.phase());
            }
        }
        (seen, tracker)
    }

    #[test]
    fn the_entrys_words_are_the_cause() {
        let mut tracker = PhaseTracker::new(Role::Worker);
        assert!(tracker.line("sparklane entry: waiting for the head's GCS at 10.0.0.1:6379"));
        assert!(tracker.ready());
        tracker.line("ERROR Worker proc died unexpectedly");
        tracker.line("sparklane entry: gives up: node 10.0.0.2 is not ALIVE");
        assert_eq!(tracker.cause(), Some("node 10.0.0.2 is not ALIVE"));
        tracker.line("Ray runtime started.");
        assert_eq!(tracker.phase(), Phase::Loaded, "a worker's rank is in");
        let mut head = PhaseTracker::new(Role::Head);
        head.line("Ray runtime started.");
        assert_eq!(head.phase(), Phase::WaitPeer, "a head waits for the others");
    }

    #[test]
    fn real_head_of_two_nodes() {
        let (seen, tracker) = phases(Role::Head, HEAD);
        let want = [
            Phase::Preparing,
            Phase::WaitPeer,
            Phase::LoadingModel,
            Phase::LoadingWeights,
            Phase::KvCache,
            Phase::StartingApi,
        ];
        assert_eq!(seen, want);
        assert!(!tracker.ready(), "a log line never proves that the API answers");
    }

    #[test]
    fn real_worker_is_ready_at_the_rendezvous() {
        let mut tracker = PhaseTracker::new(Role::Worker);
        let at = WORKER.lines().position(|line| {
            tracker.line(line);
            tracker.ready()
        });
        let line = WORKER.lines().nth(at.unwrap()).unwrap();
        assert!(line.contains("headless multiproc executor"), "{line}");
        assert_eq!(phases(Role::Worker, WORKER).1.phase(), Phase::KvCache);
        assert_eq!(phases(Role::Worker, WORKER).1.cause(), Some("a rank's process died"));
    }

    #[test]
    fn ray_head_waits_for_the_placement_group() {
        let upto = RAY_WAITS.find("for 30 seconds").unwrap();
        assert_eq!(phases(Role::Head, &RAY_WAITS[..upto]).1.phase(), Phase::WaitPeer);
        assert_eq!(phases(Role::Head, RAY_WAITS).1.phase(), Phase::StartingApi);
        let (seen, tracker) = phases(Role::Head, RAY);
        assert_eq!(seen.last(), Some(&Phase::StartingApi));
        assert!(seen.is_sorted(), "{seen:?}");
        assert_eq!(tracker.cause(), Some("a rank's process died"));
    }

    #[test]
    fn every_real_failure_has_its_cause() {
        let cases = [
            (include_str!("../../../tests/fixtures/engine/exits/unknown-flag.log"), "vLLM refused its command line"),
            (include_str!("../../../tests/fixtures/engine/exits/bad-value.log"), "vLLM refused its command line"),
            (
                include_str!("../../../tests/fixtures/engine/exits/missing-model.log"),
                "the model folder is missing in the container",
            ),
            (include_str!("../../../tests/fixtures/engine/exits/bad-config.log"), "the model's config.json is broken"),
            (
                include_str!("../../../tests/fixtures/engine/exits/too-long.log"),
                "max-model-len is larger than the model allows",
            ),
            (
                include_str!("../../../tests/fixtures/engine/exits/corrupt-shard.log"),
                "a weight file is damaged or cut short",
            ),
            (include_str!("../../../tests/fixtures/engine/exits/missing-shard.log"), "a weight file is missing"),
            (include_str!("../../../tests/fixtures/engine/exits/port-in-use.log"), "the API's port is taken"),
            (
                include_str!("../../../tests/fixtures/engine/exits/kv-too-small.log"),
                "no memory is left for the KV cache",
            ),
        ];
        for (log, want) in cases {
            assert_eq!(phases(Role::Head, log).1.cause(), Some(want));
        }
    }

    #[test]
    fn percent_is_shown_and_drafter_is_kept() {
        let mut t = PhaseTracker::new(Role::Head);
        assert!(t.line("Loading safetensors checkpoint shards:  42% Completed | 20/48 [00:10<00:14,  2.00it/s]"));
        assert_eq!(t.status_line(), "loading weights 42%");
        assert!(t.line("(Worker_TP0 pid=1) INFO Loading drafter model..."));
        assert_eq!(t.status_line(), "loading the drafter");
        assert!(t.line("Loading safetensors checkpoint shards:  50% Completed | 1/2"));
        assert_eq!(t.status_line(), "loading the drafter 50%");
        assert!(t.line("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  45%|####    | 5/11"));
        assert_eq!((t.phase(), t.percent()), (Phase::Graphs, Some(45)));
        assert!(!t.line("Starting to load model again"), "never backwards");
    }

    #[test]
    fn a_worker_that_has_captured_its_graphs_is_ready_and_not_still_capturing() {
        let captured =
            "(Worker_TP1 pid=1) INFO [gpu_model_runner.py:5401] Graph capturing finished in 7 secs, took 1.20 GiB";
        for (role, line) in [(Role::Worker, "loaded, ready to work for the head"), (Role::Head, "loaded")] {
            let mut t = PhaseTracker::new(role);
            t.line("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|####| 11/11");
            assert!(t.line(captured));
            assert_eq!((t.phase(), t.status_line().as_str()), (Phase::Loaded, line));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_line_breaks_it_and_it_never_goes_back(lines in proptest::collection::vec(".{0,80}", 0..40)) {
            let mut t = PhaseTracker::new(Role::Head);
            let mut last = t.phase();
            for (i, line) in lines.iter().enumerate() {
                let mark = MARKS[i % MARKS.len()].0;
                t.line(&format!("{line}{mark}{line}"));
                proptest::prop_assert!(t.phase() >= last);
                last = t.phase();
            }
        }
    }
}
