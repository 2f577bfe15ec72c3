//! What a receiver needs of a source: connections that answer in order. The rails are one source, HTTP is another.

use std::time::Duration;

use super::sched::Want;
use crate::buffer::Buffer;
use crate::error::WeightsError;
use crate::hash::Sha;

/// Why a connection gave no bytes.
#[derive(Debug)]
pub enum LineError {
    /// It is gone; a new one may do better, after `wait` when the source asked for it.
    Lost {
        /// Why.
        why: String,
        /// How long the source wants to be left alone.
        wait: Option<Duration>,
    },
    /// No connection will do better.
    Fatal(WeightsError),
}

impl LineError {
    /// Gone, for no time in particular.
    pub fn lost(why: impl Into<String>) -> Self {
        Self::Lost { why: why.into(), wait: None }
    }
}

/// One connection.
pub trait Line: Send {
    /// Asks for an extent; answers come in the order of the questions.
    ///
    /// # Errors
    /// As [`LineError`].
    fn ask(&mut self, want: &Want) -> Result<(), LineError>;

    /// Receives the next answer into a buffer, and says which extent it is. `unwanted` may end a slow one.
    ///
    /// # Errors
    /// As [`LineError`].
    fn take(&mut self, buffer: &mut Buffer, unwanted: &dyn Fn() -> bool) -> Result<Want, LineError>;

    /// The sha256 of each of `count` extents from `offset` on; `None` when the source cannot tell.
    ///
    /// # Errors
    /// As [`LineError`].
    fn hashes(&mut self, file: u32, offset: u64, count: u32) -> Result<Option<Vec<Sha>>, LineError>;

    /// Says that everything arrived.
    fn bye(&mut self) {}
}

/// A source with one or more ways to it.
pub trait Dial: Sync {
    /// Names of the ways, e.g. `rail1`.
    fn ways(&self) -> Vec<String>;

    /// Opens a connection on one way, and only there.
    ///
    /// # Errors
    /// As [`LineError`].
    fn dial(&self, way: usize) -> Result<Box<dyn Line>, LineError>;
}
