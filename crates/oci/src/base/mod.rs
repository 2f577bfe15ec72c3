//! What is known of a base image: its merged tree, and how new paths lie in it.

pub mod facts;
pub mod index;
pub mod paths;
pub mod scan;
pub mod tree;

pub use index::TreeIndex;
pub use paths::Overlay;
