//! A person's word in place of the head's, for a voted worker whose head is gone for good (docs/operations.md).
//!
//! The word lies beside the journal. It counts only while the head does not answer, so it can never contradict a head
//! that is there; whoever asks next, the process in doubt or the boot unit, finds it.

use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sparklane_lane::TxnId;
use sparklane_txn::State;
use sparklane_txn::spec::Answer;

use crate::error::HostError;
use crate::files;
use crate::paths::HostPaths;
use crate::txns;

/// What a person decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// The new generation stays.
    Committed,
    /// The node goes back to the old one.
    Aborted,
}

impl Word {
    /// Both words.
    pub const ALL: [Self; 2] = [Self::Committed, Self::Aborted];

    /// As people write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Aborted => "aborted",
        }
    }

    /// What follows from it, for people.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Committed => "The new lane stays",
            Self::Aborted => "Back to the old lane",
        }
    }
}

impl FromStr for Word {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        let known = || HostError::Refused(format!("{text:?} is neither committed nor aborted"));
        Self::ALL.into_iter().find(|word| word.as_str() == text).ok_or_else(known)
    }
}

impl From<Word> for Answer {
    fn from(word: Word) -> Self {
        match word {
            Word::Committed => Self::Committed,
            Word::Aborted => Self::Aborted,
        }
    }
}

fn file(paths: &HostPaths, id: &TxnId) -> camino::Utf8PathBuf {
    paths.txn(id).join("decided")
}

/// The word of a transaction, if one was given.
#[must_use]
pub fn word(paths: &HostPaths, id: &TxnId) -> Option<Word> {
    serde_json::from_slice(&std::fs::read(file(paths, id)).ok()?).ok()
}

/// Gives the word, durably. `ask` asks the head once more.
///
/// # Errors
/// When the transaction is not in doubt here, or its head answers: then the head's answer counts.
pub fn decide(paths: &HostPaths, id: &TxnId, word: Word, ask: impl Fn(&TxnId) -> Answer) -> Result<(), HostError> {
    let state = txns::read(paths, id)?.state();
    if state != Some(State::InDoubt) {
        let is = state.map_or("unknown to this node", State::as_str);
        return Err(HostError::Refused(format!("transaction {id} is {is}; only one in doubt needs a word")));
    }
    match ask(id) {
        Answer::Unreachable { .. } => {}
        answer => {
            return Err(HostError::Refused(format!(
                "the head answers: {answer:?}. Its answer counts, and this node follows it by itself"
            )));
        }
    }
    let bytes = serde_json::to_vec(&word).map_err(|e| HostError::Refused(e.to_string()))?;
    files::write_atomic(&file(paths, id), &bytes, 0o600)
}

/// Waits until whoever holds the transaction has acted on a word; the last state seen.
///
/// # Errors
/// When the journal cannot be read.
pub fn followed(paths: &HostPaths, id: &TxnId, wait: Duration) -> Result<Option<State>, HostError> {
    let until = Instant::now() + wait;
    loop {
        let state = txns::read(paths, id)?.state();
        if state.is_none_or(State::is_final) || Instant::now() >= until {
            return Ok(state);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
