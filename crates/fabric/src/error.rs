//! What can go wrong while facts are collected.

use camino::Utf8PathBuf;

/// Why there are no facts.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// The kernel did not answer a netlink question.
    #[error("netlink, {what}: {source}")]
    Netlink {
        /// The question.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A recorded tree lacks the record of what no file tells, or it cannot be read.
    #[error("{path}: {why}")]
    Record {
        /// The file.
        path: Utf8PathBuf,
        /// What is wrong with it.
        why: String,
    },
}
