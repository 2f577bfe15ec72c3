//! The control host's side of a deployment (design.md section 6): plan, copy, stage, drive, tell.
//!
//! `site` knows flake and cluster, `nix` builds, signs and copies, `ssh` reaches a node, `trouble` judges what it says when it does not, `node` asks it, `link` carries
//! the protocol of crates/txn, `flow` puts them in order, `verdict` is what a person or a program is told, `weights` moves weights between nodes.

pub mod answer;
pub mod cancel;
pub mod error;
pub mod flow;
pub mod link;
pub mod nix;
pub mod node;
pub mod plan;
pub mod progress;
pub mod quote;
pub mod site;
pub mod ssh;
pub mod survey;
pub mod trouble;
pub mod verdict;
pub mod weights;

pub use error::DeployError;
pub use flow::{DeployOptions, Flow, Target};
pub use site::Site;
pub use survey::ClusterStatus;
pub use verdict::{Subject, Verdict, VerdictKind};
