//! Ends what a crash or a power cut left: the boot unit, and `sparklane txn resolve` for people.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sparklane_lane::TxnId;
use sparklane_txn::{Boot, Machine, Record, State};

use crate::clock::BootClock;
use crate::crash::CrashPoint;
use crate::deploy_rs;
use crate::error::HostError;
use crate::journal::FileJournal;
use crate::lock;
use crate::node::{Parts, RealNode};
use crate::paths::HostPaths;
use crate::txns::{self, Txn};

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
