//! What keeps machines from becoming a cluster.

use sparklane_deploy::DeployError;

/// Refused before any change, not understood, or failed half-way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// Refused before any change (exit code 1).
    #[error("{0}")]
    Refused(String),
    /// Asked for something that makes no sense (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// Begun and not finished; the same command goes on from there (exit code 3).
    #[error("{0}")]
    Failed(String),
}

impl InitError {
    /// The exit code (design.md section 6).
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Failed(_) => 3,
        }
    }
}

impl From<DeployError> for InitError {
    fn from(error: DeployError) -> Self {
        Self::Refused(error.to_string())
    }
}
