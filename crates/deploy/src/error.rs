//! What keeps a deployment from beginning. Once a transaction is staged, everything is a [`crate::Verdict`].

use crate::trouble::Cause;

/// Refused before any change, busy, or not understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeployError {
    /// Refused before any change (exit code 1).
    #[error("{0}")]
    Refused(String),
    /// Refused because a node cannot be asked (exit code 1).
    #[error("{why}")]
    NoAnswer {
        /// What keeps it from answering.
        cause: Cause,
        /// The node, why, and what to do.
        why: String,
    },
    /// Asked for something that does not exist or makes no sense (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// Begun and not finished; nothing that serves was touched (exit code 3).
    #[error("{0}")]
    Failed(String),
    /// Someone else holds a node (exit code 5).
    #[error("{0}")]
    Busy(String),
    /// Nobody can say which release a node is on (exit code 4).
    #[error("{0}")]
    InDoubt(String),
}

impl DeployError {
    /// The same failure with its cause.
    #[must_use]
    pub(crate) fn because(self, why: &str) -> Self {
        let told = |text: String| format!("{text}\n{why}");
        match self {
            Self::Refused(text) => Self::Refused(told(text)),
            Self::NoAnswer { cause, why } => Self::NoAnswer { cause, why: told(why) },
            Self::Usage(text) => Self::Usage(told(text)),
            Self::Failed(text) => Self::Failed(told(text)),
            Self::Busy(text) => Self::Busy(told(text)),
            Self::InDoubt(text) => Self::InDoubt(told(text)),
        }
    }

    /// The exit code (design.md section 6).
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) | Self::NoAnswer { .. } => 1,
            Self::Usage(_) => 2,
            Self::Failed(_) => 3,
            Self::InDoubt(_) => 4,
            Self::Busy(_) => 5,
        }
    }
}
