//! Pure model of lanes, clusters, generations and releases (design.md sections 1, 3, 4).
//!
//! Nothing here touches a file system, a clock or a network: parsing, validation and rendering are functions over
//! data, so the Nix builder, the node and the control host cannot disagree about what a lane means.

pub mod catalog;
pub mod clients;
pub mod cluster;
pub mod diff;
pub mod fabric;
pub mod formulas;
pub mod generation;
pub mod ids;
pub mod image;
pub mod ladder;
pub mod lane;
pub mod problem;
pub mod reader;
pub mod release;
pub mod render;
pub mod rules;
pub mod schema;
pub mod weights;

pub use catalog::Catalog;
pub use cluster::Cluster;
pub use generation::{Generation, Peer};
pub use ids::{BadId, ClusterName, Digest, GenerationId, LaneName, NodeName, Role, StorePath, System, TxnId};
pub use image::ImageSpec;
pub use lane::Lane;
pub use release::{Release, ReleaseNode};
pub use weights::WeightsManifest;

/// sha256 of bytes as hex.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
