//! `/run/sparklane/engine.json`: what the engine's supervisor last knew, for `engine status` and other parts.

use std::path::Path;

use serde::{Deserialize, Serialize};
use sparklane_lane::{Generation, LaneName, NodeName, Role};

use crate::phase::Phase;

/// Where the state is on a node.
pub const STATE_FILE: &str = "/run/sparklane/engine.json";

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
    /// Load phase.
    pub phase: Phase,
    /// Percent of the phase, where known.
    pub percent: Option<u8>,
    /// True once the unit counted as started.
    pub ready: bool,
    /// What the log says went wrong.
    pub cause: Option<String>,
    /// Exit code of the container after it ended.
    pub exit_code: Option<i64>,
    /// Process id of the supervisor.
    pub pid: u32,
}

impl EngineState {
    /// True while this node's rank waits for the others.
    #[must_use]
    pub fn waits_for_ranks(&self) -> bool {
        self.phase == Phase::WaitPeer
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
mod tests {
    use super::*;
    use crate::load::tests::sample;

    #[test]
    fn an_engine_of_another_launch_is_told_and_gates_do_not_make_one() {
        let started = sample("head");
        let mut engine = EngineState {
            lane: started.lane.clone(),
            launch: started.launch().unwrap(),
            node: started.node.clone(),
            role: started.role,
            container: "c".into(),
            container_id: None,
            phase: Phase::WaitPeer,
            percent: None,
            ready: false,
            cause: None,
            exit_code: None,
            pid: 1,
        };
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
