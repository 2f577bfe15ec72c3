//! The machines and the cable between them (issue 6): what a node is, what must be true of it, what differs between
//! nodes, who listens, and what NCCL's own words say about the transport that it really used.
//!
//! A node collects [`facts::NodeFacts`] from sysfs, procfs and netlink; no program is started for it. Everything that
//! judges is a function over facts, so a recorded tree of a machine is judged as the machine itself.

pub mod audit;
pub mod bench;
pub mod checks;
pub mod error;
pub mod facts;
pub mod nccl;
pub mod parity;
pub mod ping;
pub mod table;
pub mod verdict;

pub use checks::{Input, Outcome, Row, judge};
pub use error::FabricError;
pub use facts::NodeFacts;
