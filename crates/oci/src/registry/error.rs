//! Why a registry's answer was not had or not taken.

use std::time::Duration;

/// A failure at a registry. Texts name the address without its query, which may hold a signature.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Plain http to another machine without the user's word.
    #[error("{url} is not https; plain http needs --plain-http {host}")]
    Plain {
        /// The address.
        url: String,
        /// Its host.
        host: String,
    },
    /// It answers, but not with TLS.
    #[error("{url} does not speak https; if it is meant to speak plain http: --plain-http {host}")]
    NoTls {
        /// The address.
        url: String,
        /// Its host.
        host: String,
    },
    /// No connection, or it broke.
    #[error("{url}: {why}")]
    Connection {
        /// The address.
        url: String,
        /// Why.
        why: String,
    },
    /// Nothing came for too long.
    #[error("{url}: nothing came for {} s", .after.as_secs())]
    Stalled {
        /// The address.
        url: String,
        /// How long was waited.
        after: Duration,
    },
    /// The registry wants a login, or another.
    #[error("{registry} refuses{}: {why}; name a file with its login: --auth-file", if *.logged_in { " the login" } else { " without a login" })]
    Unauthorized {
        /// The registry.
        registry: String,
        /// True when there was one.
        logged_in: bool,
        /// Its words.
        why: String,
    },
    /// There is no such thing there.
    #[error("{url} does not exist there ({why})")]
    NotFound {
        /// The address.
        url: String,
        /// The registry's words.
        why: String,
    },
    /// Any other refusal.
    #[error("{url} answers {status}{}{why}", if .why.is_empty() { "" } else { ": " })]
    Status {
        /// The address.
        url: String,
        /// HTTP status.
        status: u16,
        /// The registry's words.
        why: String,
        /// How long it asks us to wait.
        retry_after: Option<Duration>,
    },
    /// An answer that contradicts the question, the manifest or itself.
    #[error("{url} cannot be believed: {why}")]
    Lie {
        /// The address.
        url: String,
        /// The contradiction.
        why: String,
    },
    /// Given up: failures without progress.
    #[error(
        "given up after {failures} failures without progress; the last: {last}. What came is kept; run it again to go on"
    )]
    GaveUp {
        /// How many.
        failures: u32,
        /// The last one.
        last: Box<RegistryError>,
    },
    /// This machine cannot do it.
    #[error("{0}")]
    Setup(String),
}

impl RegistryError {
    /// True when the same request may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connection { .. } | Self::Stalled { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 425 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// How long the registry asked us to wait.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
