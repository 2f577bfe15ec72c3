//! Layers of our own: entries in, one gzip blob out whose bytes no compressor decides (image-tools.md section 4).

pub mod entry;

pub use entry::{Body, Entry, Meta, Node};
