//! The supervisors of a cluster's nodes as one: heartbeats over the rails, and what follows from them.
//!
//! Real vLLM does not watch across nodes: with a rank dead and no traffic the head's `/health` stays 200, and a headless
//! rank never notices a dead head (`engine-real.md`, section 6). So each node's supervisor tells the others every second
//! what its rank does. [`rules`] holds the protocol: the head begins a *start attempt* with an id of its own, a worker
//! starts its rank once for it, and when one rank of an attempt is gone, all others end theirs and the head begins anew.

pub mod beat;
pub mod keys;
pub mod link;
pub mod rules;

pub use beat::{AttemptId, Beat, Rank, Saying};
pub use link::Pair;
pub use rules::Advice;
