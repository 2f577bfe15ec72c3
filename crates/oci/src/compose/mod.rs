//! Images of ours: a pinned base, layers of ours on top, a changed config.

pub mod config;
pub mod edits;
pub mod files;
pub mod patch;
pub mod raw;
pub mod spec;

pub use spec::Spec;
