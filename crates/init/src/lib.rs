//! `sparklane init`: machines become a cluster (issue 6, part 2).
//!
//! [`machine`] is what a node says of itself beyond `fabric`'s facts, [`propose`] makes a cluster file of what all nodes
//! say, [`plan`] what each of them lacks to pass a deployment's checks: all functions over data. [`apply`] carries a plan
//! out through two small traits, [`remote`] is the one of them that speaks ssh.

pub mod apply;
pub mod difference;
pub mod error;
pub mod hostkey;
pub mod key;
pub mod machine;
pub mod nix;
pub mod plan;
pub mod propose;
pub mod rails;
pub mod remote;
pub mod show;
pub mod subnet;

pub use error::InitError;
pub use machine::{Machine, Survey};
pub use plan::{Plan, plan};
pub use propose::{Finding, Level, Proposal, Wanted, Wishes, propose};
