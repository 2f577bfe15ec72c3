//! Wheels: read strictly, checked against a lock, and turned into entries of a layer without pip and without an
//! interpreter (image-tools.md section 4, R11, R23 to R33).

pub mod entry_points;
mod error;
pub mod metadata;
pub mod name;
mod path;
pub mod record;
pub mod zip;

pub use error::WheelError;
pub use name::{Arch, Target};
