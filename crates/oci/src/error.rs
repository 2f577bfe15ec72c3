//! What can go wrong with images.

use camino::{Utf8Path, Utf8PathBuf};

use crate::digest::Digest;

/// A failure around an image.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OciError {
    /// A file could not be read or written.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was tried, e.g. `read`.
        what: &'static str,
        /// The file.
        path: Utf8PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Bytes that are not what their digest promised.
    #[error("{what} has digest {found}, expected {expected}")]
    DigestMismatch {
        /// What was read, e.g. a path or `layer`.
        what: String,
        /// The digest asked for.
        expected: Digest,
        /// The digest of what came.
        found: Digest,
    },
    /// A number of bytes that a descriptor did not promise.
    #[error("{what} has {found} bytes, expected {expected}")]
    SizeMismatch {
        /// What was read.
        what: String,
        /// Bytes asked for.
        expected: u64,
        /// Bytes that came.
        found: u64,
    },
    /// A document (manifest, index, config, layout file) that breaks the image specification or our rules.
    #[error("{what}: {why}")]
    Document {
        /// Which document.
        what: String,
        /// Where and why.
        why: String,
    },
    /// A text that is no image reference.
    #[error("{text:?} is no image reference: {why}")]
    Reference {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A blob that is not here.
    #[error("{layout} has no blob {digest}")]
    BlobMissing {
        /// The layout.
        layout: Utf8PathBuf,
        /// The blob.
        digest: Digest,
    },
    /// No room for what is to come.
    #[error("{path} has {} MiB free, {} MiB are needed; make room (sparklane image gc)", .free >> 20, (.needed >> 20) + 1)]
    Space {
        /// The folder.
        path: Utf8PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A registry refused, failed or lied.
    #[error(transparent)]
    Registry(#[from] crate::registry::RegistryError),
    /// Entries that make no layer.
    #[error(transparent)]
    Layer(#[from] crate::layer::LayerError),
    /// A wheel that is not taken.
    #[error(transparent)]
    Wheel(#[from] crate::wheel::WheelError),
    /// docker could not be asked, refused, or has something else than it should.
    #[error("docker ({socket}) did not {what}: {why}")]
    Docker {
        /// Its socket or store.
        socket: String,
        /// What was asked.
        what: &'static str,
        /// Its words.
        why: String,
    },
    /// An index that offers no, or more than one, image for a platform.
    #[error("{what}: {why}")]
    Platform {
        /// The index.
        what: String,
        /// What it offers.
        why: String,
    },
}

impl From<sparklane_durable::DurableError> for OciError {
    fn from(error: sparklane_durable::DurableError) -> Self {
        Self::Io { what: error.what, path: error.path, source: error.source }
    }
}

impl OciError {
    /// Names the action and the file of an I/O error.
    pub fn io(what: &'static str, path: impl AsRef<Utf8Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io { what, path, source }
    }

    /// As [`OciError::io`], for the system calls of rustix.
    pub fn errno(what: &'static str, path: impl AsRef<Utf8Path>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io { what, path, source: source.into() }
    }

    /// A document that is not what it should be.
    pub fn document(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Document { what: what.into(), why: why.into() }
    }
}
