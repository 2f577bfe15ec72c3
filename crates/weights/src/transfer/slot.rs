//! Extents of one file arrive in any order and are hashed and written in theirs. Whoever completes the frontier does it;
//! the others only leave their extent and go on receiving.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::buffer::Buffer;
use crate::error::WeightsError;
use crate::hash::Sha;
use crate::journal::Journal;
use crate::part::{Part, Policy};

/// One file of a running transfer.
#[derive(Debug)]
pub struct Slot {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    parked: BTreeMap<u64, Buffer>,
    /// The file; taken out by whoever writes.
    part: Option<Part>,
    frontier: u64,
}

/// What a delivery led to.
#[derive(Debug)]
pub enum Delivered {
    /// The extent waits, or it and some others are written.
    Some(usize),
    /// All bytes are written: the part is to be completed.
    All(usize, Part),
}

impl Slot {
    /// A slot for a part.
    #[must_use]
    pub fn new(part: Part) -> Self {
        let frontier = part.frontier();
        Self { inner: Mutex::new(Inner { parked: BTreeMap::new(), part: Some(part), frontier }) }
    }

    /// Takes an extent at `offset` of a file of `size` bytes. Says how many extents were written by this call.
    ///
    /// # Errors
    /// When they cannot be written; the slot is of no use then.
    pub fn deliver(
        &self,
        offset: u64,
        size: u64,
        buffer: Buffer,
        journal: &Mutex<Journal>,
    ) -> Result<Delivered, WeightsError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if offset >= inner.frontier {
            inner.parked.insert(offset, buffer);
        }
        let Some(mut part) = inner.part.take() else { return Ok(Delivered::Some(0)) };
        let mut written = 0;
        loop {
            let at = inner.frontier;
            let Some(mut ready) = inner.parked.remove(&at) else { break };
            inner.frontier += ready.used().len() as u64;
            drop(inner);
            part.append(&mut ready, Some(journal))?;
            written += 1;
            inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        }
        if inner.frontier >= size {
            return Ok(Delivered::All(written, part));
        }
        inner.part = Some(part);
        Ok(Delivered::Some(written))
    }

    /// Proves what is written, at an orderly end.
    ///
    /// # Errors
    /// When it cannot be made durable.
    pub fn prove(&self, journal: &Mutex<Journal>) -> Result<(), WeightsError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.part.as_mut().map_or(Ok(()), |part| part.prove(journal))
    }

    /// How the file is written.
    #[must_use]
    pub fn policy(&self) -> Option<Policy> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).part.as_ref().map(Part::policy)
    }
}

/// A file whose sha256 was wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// Number of the file.
    pub file: u32,
    /// What its bytes gave.
    pub got: Sha,
}
