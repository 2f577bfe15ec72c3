//! What can go wrong on a node.

use camino::Utf8PathBuf;

/// An effect on the node failed. Each text says what, why and, where a person can act, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
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
    /// A program failed.
    #[error("{program} failed ({status}): {stderr}")]
    Program {
        /// Program and arguments.
        program: String,
        /// Exit status or signal.
        status: String,
        /// The end of its error output.
        stderr: String,
    },
    /// A program is not installed where it may be.
    #[error(
        "{0} was not found in any of /nix/var/nix/profiles/default/bin, /usr/local/bin, /usr/bin, /bin, /usr/sbin, /sbin; install it"
    )]
    Missing(String),
    /// A file of ours does not hold what it should.
    #[error("{path}: {why}")]
    Content {
        /// The file.
        path: Utf8PathBuf,
        /// What is wrong.
        why: String,
    },
    /// systemd could not be asked or refused.
    #[error("systemd: {0}")]
    Systemd(String),
    /// Someone else holds the node.
    #[error("busy: {0}")]
    Busy(String),
    /// Refused before any change.
    #[error("{0}")]
    Refused(String),
}

impl HostError {
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
}

impl From<sparklane_durable::DurableError> for HostError {
    fn from(error: sparklane_durable::DurableError) -> Self {
        Self::File { what: error.what, path: error.path, source: error.source }
    }
}

impl From<HostError> for sparklane_txn::Fault {
    fn from(error: HostError) -> Self {
        Self::Failed(error.to_string())
    }
}
