//! Images of ours: a pinned base, layers of ours on top, a changed config.

pub mod binaries;
pub mod build;
pub mod config;
pub mod edits;
pub mod explain;
pub mod files;
pub mod patch;
pub mod raw;
pub mod spec;
pub mod upgrade;

pub use build::{Built, Inputs, Place, build};
pub use spec::Spec;
