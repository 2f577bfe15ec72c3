//! Weights of a lane: one pinned manifest, from the hub to the head to the workers, never half visible.
//!
//! `blobs` is a set of named blobs with size and sha256, of which a weights manifest is one case; `staging` receives
//! such a set so that any crash leaves either provable bytes or nothing; `store` publishes, verifies, adopts and
//! collects; `transfer` moves a set between nodes over their rails; `hub` locks and fetches over HTTP;
//! `images` moves an image's blobs the same way.

pub mod adopt;
pub mod agent;
pub mod blobs;
pub mod buffer;
pub mod error;
pub mod hash;
pub mod hfview;
pub mod hub;
pub mod images;
pub mod journal;
pub mod part;
pub mod preflight;
pub mod proof;
pub mod read;
pub mod safetensors;
pub mod staging;
pub mod store;
pub mod transfer;

pub use blobs::{Blob, BlobSet};
pub use error::WeightsError;
pub use hash::Sha;
pub use staging::Staging;
pub use store::Store;
