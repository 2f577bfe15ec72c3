//! The registry client: manifests checked against what was asked, blobs fetched by digest, resumed by any process.

pub mod challenge;
pub mod credentials;
pub mod error;
pub mod http;
mod names;
pub mod pull;
pub mod push;
pub mod range;
pub mod repo;
pub mod retry;
mod source;

pub use credentials::Credentials;
pub use error::RegistryError;
pub use http::{Http, Timeouts};
pub use pull::{Event, PullOptions, Pulled, pull_blobs};
pub use repo::{Registry, Repo, Resolved};
pub use source::RepoSource;
