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
    // Something else that lies here is none of ours, and must not keep a lane from starting.
    let folders = entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    let mut ids: Vec<TxnId> = folders.filter_map(|e| e.file_name().to_str().and_then(|n| n.parse().ok())).collect();
    ids.sort();
    ids.iter().map(|id| read(paths, id)).collect()
}

/// One transaction; without records when the node does not know it.
///
/// # Errors
/// When its journal cannot be read.
pub fn read(paths: &HostPaths, id: &TxnId) -> Result<Txn, HostError> {
    let mut contents = journal::read(&paths.txn(id).join("journal"))?;
    // A damaged end cannot take back a commit whose release record is on file.
    if contents.torn
        && !contents.records.is_empty()
        && let Some(release) = crate::releases::list(paths)?.into_iter().find(|r| r.txn == *id)
    {
        contents.records.push(Record::Committed { release: Some(Box::new(release)) });
    }
    Ok(Txn { id: id.clone(), records: contents.records, torn: contents.torn })
}

/// What the head answers a worker.
///
/// # Errors
/// As [`read`].
pub fn decision(paths: &HostPaths, id: &TxnId) -> Result<Answer, HostError> {
    // What was written and not yet durable could still be lost with the power: not an answer to build on.
    journal::sync(&paths.txn(id).join("journal"))?;
    let txn = read(paths, id)?;
    if txn.torn && !matches!(txn.state(), Some(State::Committed)) {
        return Ok(Answer::Undecided);
    }
    Ok(record::decision(&txn.records))
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
