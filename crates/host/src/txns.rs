//! All transactions of a node, from their journals.

use sparklane_lane::TxnId;
use sparklane_txn::spec::{Answer, Deadline, Spec};
use sparklane_txn::{Record, State, record};

use crate::error::HostError;
use crate::journal;
use crate::paths::HostPaths;

/// Finished transactions kept for `status` and for workers that ask late.
const KEEP: usize = 50;

/// A transaction as its journal tells it.
#[derive(Debug, Clone)]
pub struct Txn {
    /// Its id.
    pub id: TxnId,
    /// Its records.
    pub records: Vec<Record>,
    /// True when the end of the journal was torn and dropped.
    pub torn: bool,
}

impl Txn {
    /// The last record; a folder without a good record is none of ours.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        self.records.last().map(Record::state)
    }

    /// True when the node still has to end it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state().is_some_and(|s| !s.is_final())
    }

    /// The request.
    #[must_use]
    pub fn spec(&self) -> Option<&Spec> {
        match self.records.first() {
            Some(Record::Staged { spec, .. }) => Some(spec),
            _ => None,
        }
    }

    /// The deadline in force.
    #[must_use]
    pub fn deadline(&self) -> Option<&Deadline> {
        self.records.iter().rev().find_map(|r| match r {
            Record::Staged { deadline, .. } | Record::Prepared { deadline, .. } | Record::Gated { deadline } => {
                Some(deadline)
            }
            _ => None,
        })
    }
}

/// Every transaction of the node, by id (ids sort by time).
///
/// # Errors
/// When the folder exists and cannot be read.
pub fn list(paths: &HostPaths) -> Result<Vec<Txn>, HostError> {
    let dir = paths.txns();
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(HostError::file("list", dir)(error)),
    };
    let mut ids: Vec<TxnId> =
        entries.flatten().filter_map(|e| e.file_name().to_str().and_then(|n| n.parse().ok())).collect();
    ids.sort();
    ids.iter().map(|id| read(paths, id)).collect()
}

/// One transaction; without records when the node does not know it.
///
/// # Errors
/// When its journal cannot be read.
pub fn read(paths: &HostPaths, id: &TxnId) -> Result<Txn, HostError> {
    let contents = journal::read(&paths.txn(id).join("journal"))?;
    Ok(Txn { id: id.clone(), records: contents.records, torn: contents.torn })
}

/// What the head answers a worker.
///
/// # Errors
/// As [`read`].
pub fn decision(paths: &HostPaths, id: &TxnId) -> Result<Answer, HostError> {
    Ok(record::decision(&read(paths, id)?.records))
}

/// Drops the oldest ended transactions beyond the number kept. Stuck ones stay.
///
/// # Errors
/// As [`list`]; folders that do not go are left for the next time.
pub fn forget_old(paths: &HostPaths) -> Result<(), HostError> {
    let all = list(paths)?;
    let ended: Vec<&Txn> =
        all.iter().filter(|t| matches!(t.state(), Some(State::Committed | State::RolledBack) | None)).collect();
    for txn in ended.iter().take(ended.len().saturating_sub(KEEP)) {
        let _gone = std::fs::remove_dir_all(paths.txn(&txn.id));
    }
    Ok(())
}
