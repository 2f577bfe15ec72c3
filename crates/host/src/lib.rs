//! Effects on one node: profile, managed files, systemd, journals, locks (design.md section 5).
//!
//! `node` implements the traits of crates/txn on the real parts; `serve` is the process of one transaction,
//! `stage` lets a new one in, `resolve` ends what a crash left, `status` reads and never guesses.

mod bus;
pub mod clock;
pub mod closure;
pub mod crash;
pub mod decide;
pub mod deploy_rs;
pub mod error;
pub mod files;
pub mod firewall;
pub mod foreign;
pub mod fwupd;
pub mod install;
pub mod journal;
pub mod lock;
pub mod network;
pub mod node;
pub mod paths;
pub mod peer;
pub mod peer_keys;
pub mod process;
pub mod profile;
pub mod releases;
pub mod resolve;
pub mod serve;
pub mod stage;
pub mod status;
pub mod talk;
pub mod txns;
pub mod units;
pub mod validate;

pub use error::HostError;
pub use paths::HostPaths;
