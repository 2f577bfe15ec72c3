//! Keeping secrets out of logs, evidence and debug output.

use std::borrow::Cow;
use std::fmt;

/// A value that prints as `[redacted]` however it is shown; [`Redacted::expose`] is the one way in.
#[derive(Clone, PartialEq, Eq)]
pub struct Redacted<T>(T);

impl<T> Redacted<T> {
    /// Wraps a secret.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The secret itself, for the one place that needs it.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl<T> fmt::Display for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Replaces known secrets in text that others wrote, e.g. the engine's own start-up log.
#[derive(Debug, Clone, Default)]
pub struct Redactor {
    secrets: Vec<Redacted<String>>,
}

impl Redactor {
    /// Adds a secret; an empty one is ignored.
    #[must_use]
    pub fn with(mut self, secret: &Redacted<String>) -> Self {
        if !secret.expose().is_empty() {
            self.secrets.push(secret.clone());
        }
        self
    }

    /// The text without any known secret.
    #[must_use]
    pub fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut out = Cow::Borrowed(text);
        for secret in &self.secrets {
            if out.contains(secret.expose().as_str()) {
                out = Cow::Owned(out.replace(secret.expose().as_str(), "[redacted]"));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_shown() {
        let key = Redacted::new("sk-very-secret".to_owned());
        assert_eq!(format!("{key} {key:?}"), "[redacted] [redacted]");
        let redactor = Redactor::default().with(&key).with(&Redacted::new(String::new()));
        assert_eq!(redactor.apply("api_key='sk-very-secret'"), "api_key='[redacted]'");
        assert_eq!(redactor.apply("plain"), "plain");
        assert!(!format!("{redactor:?}").contains("secret-"));
        assert!(!format!("{redactor:?}").contains("sk-"));
    }
}
