//! What can go wrong with weights. Each text says which file, where in it, why, and what to do.

use camino::Utf8PathBuf;

use crate::hash::Sha;

/// Why something about weights failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// A file operation failed.
    #[error("{what} {path}: {source}")]
    File {
        /// What was tried, e.g. "write".
        what: &'static str,
        /// The file.
        path: Utf8PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file of ours does not hold what it should.
    #[error("{path}: {why}")]
    Content {
        /// The file.
        path: Utf8PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Bytes are not those of the manifest.
    #[error("{path}: sha256 is {got}, the manifest says {wanted}")]
    Mismatch {
        /// The file.
        path: String,
        /// What the manifest says.
        wanted: Sha,
        /// What the bytes give.
        got: Sha,
    },
    /// The other end of a transfer said or did something that is not in the protocol, or is not who it should be.
    #[error("{0}")]
    Peer(String),
    /// Refused before anything changed.
    #[error("{0}")]
    Refused(String),
    /// Started and not finished; what was proved is kept.
    #[error("{0}")]
    Failed(String),
    /// Someone else works on the same weights.
    #[error("busy: {0}")]
    Busy(String),
}

impl From<sparklane_durable::DurableError> for WeightsError {
    fn from(error: sparklane_durable::DurableError) -> Self {
        Self::File { what: error.what, path: error.path, source: error.source }
    }
}

impl WeightsError {
    /// Wraps an I/O error with its file.
    pub fn file(what: &'static str, path: impl Into<Utf8PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    /// Wraps a system call's error with its file.
    pub fn errno(what: &'static str, path: impl Into<Utf8PathBuf>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.into();
        move |errno| Self::File { what, path, source: errno.into() }
    }

    /// The exit code: 1 refused before any change, 3 failed, 5 busy.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            Self::Busy(_) => 5,
            _ => 3,
        }
    }

    /// True when the disk is full, which no retry mends.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == std::io::ErrorKind::StorageFull)
    }
}
