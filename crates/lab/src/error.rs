//! What can go wrong with a lab.

use camino::Utf8PathBuf;

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file or folder could not be read, made, moved or removed.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried, e.g. "write /var/lib/sparklane-lab/state.json".
        what: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A program ended with a failure.
    #[error("`{command}` failed ({status}){}", tail(.stderr))]
    Command {
        /// The argv, joined with blanks, for people.
        command: String,
        /// Exit code or signal, as text.
        status: String,
        /// What it said on standard error.
        stderr: String,
    },
    /// Programs that the lab uses are not installed.
    #[error("not installed: {programs}. Install with: apt-get install --yes --no-install-recommends {packages}")]
    Missing {
        /// Names of the programs.
        programs: String,
        /// Debian packages that bring them.
        packages: String,
    },
    /// The caller is not root.
    #[error("the lab makes namespaces and mounts, so it needs root")]
    NotRoot,
    /// No lab runs, or not this node of it.
    #[error("{0} is not up. Start it with: sparklane lab up")]
    NotUp(String),
    /// A name that is no node.
    #[error("no node {0:?} in the lab; nodes: control, head, worker")]
    UnknownNode(String),
    /// A name that is no link.
    #[error("no link {0:?}; links: NODE:mgmt, NODE:rail1, NODE:rail2, NODE:rails, mgmt, rail1, rail2, rails")]
    UnknownLink(String),
    /// Something did not happen in time.
    #[error("{what} after {seconds} s{hint}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
        /// Where to look, or empty.
        hint: String,
    },
    /// A lab runs that a task must not replace unasked.
    #[error(
        "a lab runs in {dir} ({nodes}) that no `cargo xtask` command made; a new one would remove it with all it holds. \
         End it with: sparklane lab down, or say --replace"
    )]
    Taken {
        /// The lab's folder.
        dir: Utf8PathBuf,
        /// Machines that run.
        nodes: String,
    },
    /// Another process works on the lab now.
    #[error("another `sparklane lab` command works on {0}; try again when it has ended")]
    Busy(Utf8PathBuf),
    /// A file holds what we cannot use.
    #[error("{path}: {why}")]
    BadFile {
        /// The file.
        path: Utf8PathBuf,
        /// Why it is refused.
        why: String,
    },
}

/// Short for results of this crate.
pub type Result<T> = std::result::Result<T, LabError>;

fn tail(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().filter(|l| !l.trim().is_empty()).collect();
    if lines.is_empty() {
        return String::new();
    }
    format!(":\n  {}", lines[lines.len().saturating_sub(12)..].join("\n  "))
}

/// Names what was tried when an I/O call fails.
pub trait Try<T> {
    /// Turns the error into [`LabError::Io`] with `what`.
    fn trying(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Try<T> for std::io::Result<T> {
    fn trying(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| LabError::Io { what: what(), source })
    }
}

impl<T> Try<T> for rustix::io::Result<T> {
    fn trying(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| LabError::Io { what: what(), source: e.into() })
    }
}
