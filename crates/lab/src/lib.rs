//! Rehearsal machines on this host, and the image of the engine simulator that runs in them.
//!
//! [`Lab::up`] makes three systemd-nspawn machines (`control`, `head`, `worker`) with a management network and two
//! rails; tests take a running lab with [`Lab::attach`] and use [`Lab::exec`], [`Lab::cut`], [`Lab::heal`],
//! [`Lab::reboot`] and [`Lab::kill`].

mod base;
mod cgroup;
mod clean;
mod error;
mod keys;
mod lab;
mod machine;
mod net;
pub mod owner;
mod paths;
mod process;
mod provision;
mod run;
pub mod sim_image;
mod spec;
mod state;

pub use error::LabError;
pub use lab::{Lab, NodeStatus, Status, UpOptions};
pub use machine::ExecOutput;
pub use paths::Paths;
pub use run::missing_programs;
pub use spec::{HOST_ADDRESS, LinkEnd, Network, NodeSpec, PROGRAMS, Program, nodes, parse_link};
