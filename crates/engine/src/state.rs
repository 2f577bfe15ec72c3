//! `/run/sparklane/engine.json`: what the engine's supervisor last knew, for `engine status` and other parts.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sparklane_lane::{Generation, LaneName, NodeName, Role};

use crate::pair::{AttemptId, Rank};
use crate::phase::Phase;
use crate::warm::Report;

/// Where the state is on a node.
pub const STATE_FILE: &str = "/run/sparklane/engine.json";

/// Where a node's engine is, in one word (issue 5, item 3). What it loads is in [`Phase`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// The supervisor checks and makes the container.
    #[default]
    Boot,
    /// All is ready here; the other ranks are not.
    WaitPeer,
    /// The rank runs and loads.
    Loading,
    /// The API answers; its first requests are ours.
    Warming,
    /// The head answers requests.
    Serving,
    /// It serves, or tries to, and something is wrong: see `reason`.
    Degraded,
    /// Asked to stop.
    Draining,
    /// Stopped as asked.
    Stopped,
    /// It ended: see `failure`. systemd starts it again, or a human is needed.
    Failed,
}

/// How another node was heard last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerView {
    /// The node.
    pub node: NodeName,
    /// True when nothing came for some seconds.
    pub silent: bool,
    /// True for each rail on which something came in the last seconds.
    pub rails: [bool; 2],
    /// Its attempt.
    pub attempt: Option<AttemptId>,
    /// What its rank does.
    pub rank: Rank,
    /// How far it has come.
    pub phase: Phase,
}

/// The canaries of the running engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CanaryView {
    /// Looks that found it serving.
    pub well: u64,
    /// Other looks.
    pub odd: u64,
    /// Milliseconds of the last canary.
    pub last_millis: u64,
}

/// Why the engine ended last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// In words.
    pub why: String,
    /// The attempt.
    pub attempt: Option<AttemptId>,
    /// Seconds since 1970 by the node's clock.
    pub at: u64,
    /// Exit code of the unit.
    pub code: u8,
    /// Folder with the evidence.
    pub evidence: Option<String>,
}

/// Content of the state file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EngineState {
    /// The lane.
    pub lane: LaneName,
    /// What was started ([`sparklane_lane::Generation::launch`]): the profile may have moved on since (`--boot`).
    #[serde(default)]
    pub launch: String,
    /// This node.
    pub node: NodeName,
    /// Its role.
    pub role: Role,
    /// Container name.
    pub container: String,
    /// Container id, once there is one.
    pub container_id: Option<String>,
    /// Where it is, in one word.
    #[serde(default)]
    pub state: State,
    /// Load phase.
    pub phase: Phase,
    /// Percent of the phase, where known.
    pub percent: Option<u8>,
    /// True once the unit counted as started.
    pub ready: bool,
    /// What it waits for, or what is wrong.
    #[serde(default)]
    pub reason: Option<String>,
    /// The start attempt, the same on all nodes.
    #[serde(default)]
    pub attempt: Option<AttemptId>,
    /// Supervisor runs since boot.
    #[serde(default)]
    pub starts: u64,
    /// The other nodes.
    #[serde(default)]
    pub peers: Vec<PeerView>,
    /// Canaries of a serving head.
    #[serde(default)]
    pub canary: Option<CanaryView>,
    /// What the warm-up sent; metrics can leave it out.
    #[serde(default)]
    pub warmup: Option<Report>,
    /// What is not as the lane means it and does not disturb it now, e.g. a rank that the kernel would kill first.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What the log says went wrong.
    pub cause: Option<String>,
    /// Why the engine ended last, since boot.
    #[serde(default)]
    pub failure: Option<Failure>,
    /// When this launch failed, in seconds since boot.
    #[serde(default)]
    pub failures: Vec<u64>,
    /// Exit code of the container after it ended.
    pub exit_code: Option<i64>,
    /// Process id of the supervisor.
    pub pid: u32,
}

impl EngineState {
    /// True while this node's rank waits for the others.
    #[must_use]
    pub fn waits_for_ranks(&self) -> bool {
        // A log may stop at the rendezvous though the rank went on; that the head serves with it is the better word.
        self.state == State::WaitPeer || self.phase == Phase::WaitPeer && self.state != State::Serving
    }

    /// The lane of what was started, when that is not what this generation launches. An older supervisor does not say.
    #[must_use]
    pub fn other_than(&self, generation: &Generation) -> Option<&LaneName> {
        let other = !self.launch.is_empty() && generation.launch().is_ok_and(|launch| launch != self.launch);
        other.then_some(&self.lane)
    }
}

/// Writes the state so that a reader sees the old or the new one. A failure is logged: the state is a courtesy.
pub fn write(path: &Path, state: &EngineState) {
    let next = path.with_extension("json.new");
    let written = serde_json::to_vec(state).map_err(std::io::Error::other).and_then(|bytes| {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&next, bytes)?;
        std::fs::rename(&next, path)
    });
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), %error, "the engine's state file could not be written");
    }
}

/// Reads the state file; `None` when there is none or it is not one.
#[must_use]
pub fn read(path: &Path) -> Option<EngineState> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::load::tests::sample;

    /// A state for tests.
    pub(crate) fn state(phase: Phase) -> EngineState {
        let text = format!(
            r#"{{"lane":"lab-a","node":"worker","role":"worker","container":"c","containerId":null,"phase":"PREPARING",
            "percent":null,"ready":true,"cause":null,"exitCode":null,"pid":{}}}"#,
            std::process::id()
        );
        EngineState { phase, ..serde_json::from_str(&text).unwrap() }
    }

    #[test]
    fn an_engine_of_another_launch_is_told_and_gates_do_not_make_one() {
        let started = sample("head");
        let mut engine = EngineState { launch: started.launch().unwrap(), ..state(Phase::WaitPeer) };
        assert!(engine.waits_for_ranks());
        let mut other = started.clone();
        other.gates.clear();
        assert_eq!(engine.other_than(&other), None);
        other.engine.argv.push("--max-num-seqs".into());
        assert_eq!(engine.other_than(&other), Some(&started.lane));
        engine.launch.clear();
        assert_eq!(engine.other_than(&other), None, "an older supervisor does not say");
    }
}
