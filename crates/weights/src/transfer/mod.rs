//! Moving a set of blobs between nodes over their rails. The receiver pulls: it knows what is missing and how fast its
//! disk is, and a rail that answers slower simply asks less often.
//!
//! `sched` decides who fetches what (pure), `wire` is what is said, `channel` proves who says it, `serve` answers,
//! `rail` connects, `pull` drives, `slot` puts arriving extents in order, `repair` finds wrong ranges, `receipt` is what
//! is told at the end.

pub mod channel;
pub mod limit;
pub mod line;
pub mod pull;
pub mod rail;
pub mod receipt;
pub mod repair;
pub mod sched;
pub mod serve;
pub mod slot;
pub mod wire;

pub use channel::Key;
pub use line::{Dial, Line, LineError};
pub use pull::{FileProgress, Progress, Pull, PullOptions};
pub use receipt::Receipt;
