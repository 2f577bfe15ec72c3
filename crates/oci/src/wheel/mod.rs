//! Wheels: read strictly, checked against a lock, and turned into entries of a layer without pip and without an
//! interpreter (image-tools.md section 4, R11, R23 to R33).

pub mod entry_points;
mod error;
pub mod install;
pub mod lock;
pub mod metadata;
pub mod name;
mod open;
mod path;
pub mod record;
pub mod script;
pub mod zip;

pub use error::WheelError;
pub use install::{Distribution, Installed, Site, entries, install};
pub use lock::{Lock, Locked};
pub use name::{Arch, Target, glibc_version, python_minor};
pub use open::Wheel;
pub use script::Interpreter;

#[cfg(test)]
pub(crate) mod make;
#[cfg(test)]
mod tests;
