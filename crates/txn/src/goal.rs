//! What an operator wants of a transaction. One enum and predicates, so no caller compares booleans.

use serde::{Deserialize, Serialize};

/// The purpose of a transaction. Names follow deploy-rs's switches (design.md section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Serve the new lane now and after a reboot.
    Switch,
    /// Serve the new lane after the next reboot; what runs is not touched.
    Boot,
    /// Serve the new lane, pass the gates, return to what was.
    Test,
    /// Check and show, change nothing.
    DryActivate,
}

impl Goal {
    /// True when anything on a node changes, even for a while.
    #[must_use]
    pub fn changes_nodes(self) -> bool {
        self != Self::DryActivate
    }

    /// True when the engine is stopped and started.
    #[must_use]
    pub fn restarts_engine(self) -> bool {
        matches!(self, Self::Switch | Self::Test)
    }

    /// True when a passed transaction ends with a new release.
    #[must_use]
    pub fn commits(self) -> bool {
        matches!(self, Self::Switch | Self::Boot)
    }
}
