//! Whether this node's rank belongs to the engine that the head serves with.
//!
//! Tokens through the head prove that some rank answers it. When this rank's own log says that it still waits for the
//! others, the answering one belongs to another launch, or is gone since: then nothing is proved. A log that never names
//! the rendezvous (Ray's) says nothing either way.

use std::path::{Path, PathBuf};

use sparklane_lane::Role;
use sparklane_lane::generation::{Gate, GateKind, GateScope};

use crate::phase::Phase;
use crate::state::{self, State};
use crate::systemd::{UnitState, UnitStates};

/// Seconds in which the log must have told of the rendezvous once the head serves; lines come with some delay.
const BUDGET_SECS: u32 = 15;

/// The gate that a rank passes after the head's own: see the module.
#[must_use]
pub fn gate(role: Role, unit: &str) -> Option<Gate> {
    (role == Role::Worker).then(|| Gate {
        name: "ranks".into(),
        scope: GateScope::Cluster,
        budget_secs: BUDGET_SECS,
        interval_secs: 0,
        kind: GateKind::Unit { unit: unit.to_owned() },
    })
}

/// True when the supervisor's own word is enough: it runs, counts as started, and its rank has met the others. Asking
/// systemd as well would cost a process on a node that is busy starting an engine.
#[must_use]
pub fn has_joined(state_file: &Path) -> bool {
    let met = |e: &state::EngineState| {
        e.ready && (e.state == State::Serving || (Phase::LoadingModel..=Phase::Serving).contains(&e.phase))
    };
    state::read(state_file).is_some_and(|e| met(&e) && Path::new(&format!("/proc/{}", e.pid)).exists())
}

/// Units as they are, except that an engine which waits for its ranks is not active yet.
pub struct Joined<'a> {
    /// The units.
    pub units: &'a dyn UnitStates,
    /// The state file of the engine's supervisor.
    pub state_file: PathBuf,
}

impl UnitStates for Joined<'_> {
    fn state(&self, unit: &str) -> Result<UnitState, String> {
        let mut now = self.units.state(unit)?;
        let waits = state::read(&self.state_file).is_some_and(|e| e.waits_for_ranks());
        if now.active == "active" && waits {
            now.active = "activating".into();
            now.status_text = "this rank waits for the others, so it is not the one that the head serves with".into();
        }
        Ok(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Active;

    impl UnitStates for Active {
        fn state(&self, _: &str) -> Result<UnitState, String> {
            Ok(UnitState { active: "active".into(), ..UnitState::default() })
        }
    }

    #[test]
    fn a_rank_that_waits_is_not_the_one_that_serves() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("engine.json");
        let joined = Joined { units: &Active, state_file: file.clone() };
        assert_eq!(joined.state("e").unwrap().active, "active", "without a word there is nothing to hold against it");
        for (phase, active) in [
            (Phase::Starting, "active"),
            (Phase::WaitPeer, "activating"),
            (Phase::LoadingModel, "active"),
            (Phase::Loaded, "active"),
        ] {
            let now = crate::state::tests::state(phase);
            state::write(&file, &now);
            assert_eq!(has_joined(&file), phase > Phase::WaitPeer, "{phase:?}");
            assert_eq!(joined.state("e").unwrap().active, active, "{phase:?}");
        }
    }

    #[test]
    fn a_supervisor_that_is_gone_has_no_word() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("engine.json");
        assert!(!has_joined(&file));
        let text = |pid: u32| {
            format!(
                r#"{{"lane":"a","node":"b","role":"worker","container":"c","containerId":null,"phase":"LOADED","percent":null,
            "ready":true,"cause":null,"exitCode":null,"pid":{pid}}}"#
            )
        };
        std::fs::write(&file, text(std::process::id())).unwrap();
        assert!(has_joined(&file));
        // Beyond the kernel's largest number.
        std::fs::write(&file, text(4_194_305)).unwrap();
        assert!(!has_joined(&file));
    }

    #[test]
    fn the_head_is_proved_by_its_own_gates() {
        assert!(gate(Role::Head, "e").is_none());
        assert!(gate(Role::Worker, "e").is_some());
    }
}
