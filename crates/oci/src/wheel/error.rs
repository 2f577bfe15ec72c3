//! What can be wrong with a wheel.

use camino::Utf8PathBuf;

/// A wheel that is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WheelError {
    /// A part of a wheel that breaks a rule.
    #[error("{wheel}: {part}: {why}")]
    Refused {
        /// The wheel's file name.
        wheel: String,
        /// Which part, e.g. `RECORD row 7`.
        part: String,
        /// What is wrong with it.
        why: String,
    },
    /// A lock that is not one.
    #[error("lock {path}: {why}")]
    Lock {
        /// The lock.
        path: Utf8PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A wheel that is not where it should be, or cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: Utf8PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A wheel file that is not the locked one.
    #[error("{path} is not the locked file: {why}; fetch it again")]
    NotLocked {
        /// The file.
        path: Utf8PathBuf,
        /// What differs.
        why: String,
    },
    /// Several wheels that do not go together.
    #[error("{first} and {second}: {why}")]
    Together {
        /// A wheel.
        first: String,
        /// The other.
        second: String,
        /// What is wrong.
        why: String,
    },
    /// A member that is not what the archive promises, or entries that make no layer.
    #[error(transparent)]
    Layer(#[from] crate::layer::LayerError),
}

impl WheelError {
    pub(crate) fn refused(wheel: &str, part: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Refused { wheel: wheel.to_owned(), part: part.into(), why: why.into() }
    }
}
