//! Pure model of lanes, clusters, generations and releases (design.md sections 1, 3, 4).
//!
//! Nothing here touches a file system, a clock or a network: parsing, validation and rendering are functions over
//! data, so the Nix builder, the node and the control host cannot disagree about what a lane means.

pub mod generation;
pub mod ids;
pub mod release;

pub use generation::{Generation, Peer};
pub use ids::{
    BadId, ClusterName, Digest, GenerationId, LaneName, NodeName, Role, StorePath, System, TxnId,
};
pub use release::{Release, ReleaseNode};
