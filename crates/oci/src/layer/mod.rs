//! Layers of our own: entries in, one gzip blob out whose bytes no compressor decides (image-tools.md section 4).

mod body;
mod directories;
pub mod entry;
mod error;
pub mod gzip;
mod order;
pub mod tar;
mod write;

pub(crate) use body::{contents, head};
pub use directories::directories;
pub use entry::{Body, Entry, Meta, Node, TreePath};
pub use error::LayerError;
pub use order::{EARLIEST, WHITEOUT};
pub use write::{Watch, Written, write_layer, write_watched};

#[cfg(test)]
mod tests;
