//! Pure transaction state machines: one node (`machine`), the whole cluster (`cluster`). No I/O.
//!
//! Effects sit behind three small traits ([`Node`], [`Journal`], [`Clock`]) and one for messages ([`Link`]). `fake`
//! implements all of them in memory with faults on demand; crates/host and crates/deploy implement them for real.
//! The rules are design.md sections 5 and 6.

pub mod cluster;
pub mod deploy_rs;
pub mod effects;
pub mod goal;
pub mod machine;
pub mod plan;
pub mod record;
pub mod spec;

#[cfg(any(test, feature = "fake"))]
pub mod fake;

pub use cluster::{Link, Outcome};
pub use effects::{Boot, Clock, Journal, Node, Order, Reply};
pub use goal::Goal;
pub use machine::Machine;
pub use plan::{Part, Step};
pub use record::{Record, State};
pub use spec::{Answer, Deadline, Fault, Instant, Spec};
