//! Why a build failed.

use camino::Utf8PathBuf;

/// Why a build failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Not run by Nix, or without structured attributes.
    #[error("no attributes: neither NIX_ATTRS_JSON_FILE nor NIX_BUILD_TOP is set (this command is for Nix)")]
    NoAttrs,
    /// An attribute is missing or has another shape.
    #[error("attribute {name}: {what}")]
    Attr {
        /// The attribute.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: Utf8PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// JSON that is none.
    #[error("{path}: {source}")]
    Json {
        /// Where it came from.
        path: Utf8PathBuf,
        /// The parser's answer.
        source: serde_json::Error,
    },
    /// What was to be proved does not hold; one line each.
    #[error("{}", .0.join("\n"))]
    Failed(Vec<String>),
}
