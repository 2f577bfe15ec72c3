//! What can be wrong with the entries of a layer.

/// A layer that cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// An entry that breaks a rule.
    #[error("{path}: {why}")]
    Entry {
        /// Its path in the image.
        path: String,
        /// Which rule, and who brings it.
        why: String,
    },
    /// Two that bring one path.
    #[error("{first} and {second} both bring {path}, {how}; leave one out")]
    Conflict {
        /// The path in the image.
        path: String,
        /// Who brings it, first in order.
        first: String,
        /// The other.
        second: String,
        /// In what they differ.
        how: String,
    },
    /// A body that is not what was promised.
    #[error("{from}: {path}: {why}")]
    Body {
        /// Who brings it.
        from: String,
        /// The path in the image.
        path: String,
        /// What differs.
        why: String,
    },
    /// A body that could not be read.
    #[error("cannot read {path} from {from}: {source}")]
    Read {
        /// Who brings it.
        from: String,
        /// The path in the image.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The layer could not be written.
    #[error("cannot write the layer: {0}")]
    Write(#[source] std::io::Error),
}

impl LayerError {
    pub(crate) fn entry(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Entry { path: path.into(), why: why.into() }
    }
}
