//! Images: documents and layouts as they are on disk and on the wire, a registry client, a loopback registry.
//!
//! One identity is compared everywhere: the digest of a manifest's bytes. Documents are kept as the bytes they came as and
//! are never made again from a parsed form (facts/image-tools.md, finding 2).

pub mod adopt;
pub mod base;
pub mod compose;
pub mod diff;
pub mod digest;
pub mod docker;
pub mod elf;
pub mod error;
pub mod fetch;
pub mod gc;
pub mod inspect;
pub mod layer;
pub mod layout;
pub mod manifest;
pub mod media;
pub mod node;
pub mod pace;
pub mod partial;
pub mod pin;
pub mod reference;
pub mod registry;
pub mod serve;
pub mod source;
mod tarball;
pub mod verify;
pub mod wheel;

pub use digest::Digest;
pub use error::OciError;
pub use layout::Layout;
pub use manifest::{Config, Descriptor, Document, Index, Manifest, Platform};
pub use pin::Pin;
pub use reference::Reference;
pub use source::BlobSource;
