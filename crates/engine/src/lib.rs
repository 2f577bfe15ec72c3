//! The engine's container on one node, and the gates that judge it (design.md section 7).
//!
//! [`run::supervise`] is the inside of `sparklane-engine.service`: it makes the container from `generation.json`, follows
//! it and ends with its verdict. [`gate`] waits for declared checks. Everything that decides something (load phase,
//! container specification, verdict on an answer) is a pure function in its own module.

pub mod docker;
pub mod doctor;
pub mod entry;
pub mod error;
pub mod evidence;
pub mod gate;
pub mod gpus;
pub mod http;
pub mod judge;
pub mod key;
pub mod lines;
pub mod load;
pub mod memory;
pub mod notify;
pub mod pair;
pub mod phase;
pub mod probe;
pub mod ranks;
pub mod ray;
pub mod redact;
pub mod run;
pub mod spec;
pub mod state;
pub mod systemd;
pub mod warm;
pub mod watch;

pub use error::EngineError;
pub use gate::{GateContext, GateOutcome, GateResult, wait_gate};
pub use judge::{Verdict, judge_tokens};
pub use phase::{Phase, PhaseTracker};
pub use redact::{Redacted, Redactor};
