//! Ends what a crash or a power cut left: the boot unit, and `sparklane txn resolve` for people.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sparklane_lane::TxnId;
use sparklane_txn::plan::ENGINE_UNIT;
use sparklane_txn::{Boot, Machine, Record, State};

use crate::clock::BootClock;
use crate::crash::CrashPoint;
use crate::deploy_rs;
use crate::error::HostError;
use crate::install::RESOLVE_UNIT;
use crate::journal::FileJournal;
use crate::lock;
use crate::node::{Parts, RealNode};
use crate::paths::HostPaths;
use crate::profile;
use crate::txns::{self, Txn};
use crate::units::Units;

/// How one transaction was left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Resolved {
    /// The transaction.
    pub txn: TxnId,
    /// Where it was found.
    pub from: State,
    /// Where it is now.
    pub to: State,
    /// Why, for people.
    pub why: Option<String>,
}

/// Ends every open, stuck or unsettled transaction of this node.
///
/// # Errors
/// When the lock is held (a transaction is running), or a journal cannot be opened.
pub fn resolve(paths: &HostPaths, boot: Boot, parts: &dyn Fn() -> Parts) -> Result<Vec<Resolved>, HostError> {
    if todo(paths)?.is_empty() {
        return Ok(Vec::new());
    }
    let _lock = lock::take(paths, "sparklane txn resolve", None, Duration::ZERO)?;
    // Read anew: what was seen open may have committed while we waited for its lock, and must not be undone.
    todo(paths)?.iter().map(|txn| end(paths, txn, boot, parts())).collect()
}

/// Starts what a boot unit that failed kept down, once all that it failed at is ended: the unit itself, and the engine of
/// what is deployed, whose own start went with it. Gives what was started.
///
/// # Errors
/// When systemd cannot be asked or refuses.
pub fn wake(paths: &HostPaths, units: &dyn Units) -> Result<Vec<&'static str>, HostError> {
    if units.status(RESOLVE_UNIT)?.active != "failed" {
        return Ok(Vec::new());
    }
    let engine = profile::current(paths)?.is_some() && !units.status(ENGINE_UNIT)?.is_up();
    let all: Vec<&str> = std::iter::once(RESOLVE_UNIT).chain(engine.then_some(ENGINE_UNIT)).collect();
    all.iter().try_for_each(|unit| units.start(unit))?;
    Ok(all)
}

fn todo(paths: &HostPaths) -> Result<Vec<Txn>, HostError> {
    Ok(txns::list(paths)?.into_iter().filter(|t| needs_work(paths, t)).collect())
}

/// True for a transaction that is open, stuck, or decided and not yet settled.
pub(crate) fn needs_work(paths: &HostPaths, txn: &Txn) -> bool {
    match txn.state() {
        Some(State::Committed | State::RolledBack) => paths.txn(&txn.id).join("before").exists(),
        Some(_) => true,
        None => false,
    }
}

fn end(paths: &HostPaths, txn: &Txn, boot: Boot, parts: Parts) -> Result<Resolved, HostError> {
    let (Some(from), Some(spec)) = (txn.state(), txn.spec().cloned()) else {
        return Err(HostError::Refused(format!("transaction {} has no readable journal", txn.id)));
    };
    let journal = FileJournal::open(&paths.txn(&txn.id), CrashPoint::of(paths))?;
    let (progress, _nobody) = std::sync::mpsc::channel();
    let node = RealNode::new(paths.clone(), parts, spec, Box::new(|| None), progress);
    let Some(mut machine) = Machine::resume(node, journal, BootClock::new(), &txn.records) else {
        return Err(HostError::Refused(format!("transaction {} has no readable journal", txn.id)));
    };
    deploy_rs::take_up(paths, &mut machine).map_err(|fault| HostError::Refused(fault.to_string()))?;
    if machine.journal_mut().was_torn() {
        machine.distrust_end();
    }
    machine.recover(boot).map_err(|fault| HostError::Refused(fault.to_string()))?;
    machine.journal_mut().effect_done();
    let why = match machine.journal_mut().records().last() {
        Some(Record::RolledBack { why, .. } | Record::InDoubt { why }) => Some(why.clone()),
        Some(Record::Stuck { why, mismatches }) => Some(format!("{why}: {}", mismatches.join("; "))),
        _ => None,
    };
    Ok(Resolved { txn: txn.id.clone(), from, to: machine.state(), why })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::units::UnitStatus;

    /// The boot unit and the engine in given states; remembers what was started.
    struct After {
        boot: &'static str,
        engine: &'static str,
        started: RefCell<Vec<String>>,
    }

    impl Units for After {
        fn status(&self, unit: &str) -> Result<UnitStatus, HostError> {
            let active = if unit == ENGINE_UNIT { self.engine } else { self.boot };
            Ok(UnitStatus { active: active.into(), ..UnitStatus::default() })
        }
        fn start(&self, unit: &str) -> Result<(), HostError> {
            self.started.borrow_mut().push(unit.to_owned());
            Ok(())
        }
        fn stop(&self, _: &str, _: u64) -> Result<(), HostError> {
            Ok(())
        }
        fn reload(&self) -> Result<(), HostError> {
            Ok(())
        }
        fn spawn(&self, _: &str, _: &str, _: &[String]) -> Result<(), HostError> {
            Ok(())
        }
    }

    #[test]
    fn what_a_failed_boot_unit_kept_down_is_started_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let paths = HostPaths::below(camino::Utf8Path::from_path(dir.path()).unwrap());
        let woken = |boot, engine| {
            let units = After { boot, engine, started: RefCell::default() };
            let said = wake(&paths, &units).unwrap();
            assert_eq!(units.started.into_inner(), said);
            said
        };
        // Nothing is deployed, so no engine is missed.
        assert_eq!(woken("failed", "inactive"), [RESOLVE_UNIT]);
        let closure = paths.store.join(format!("nix/store/{}-generation", "a".repeat(32)));
        std::fs::create_dir_all(&closure).unwrap();
        std::fs::write(closure.join("generation.id"), "a".repeat(64)).unwrap();
        std::fs::create_dir_all(paths.profile.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&closure, &paths.profile).unwrap();
        assert_eq!(woken("failed", "inactive"), [RESOLVE_UNIT, ENGINE_UNIT]);
        assert_eq!(woken("failed", "activating"), [RESOLVE_UNIT]);
        // Somebody stopped it: that is theirs to end.
        assert_eq!(woken("active", "inactive"), [""; 0]);
    }
}
