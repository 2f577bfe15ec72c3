//! What is wrong with a file, where, and what was probably meant.

use std::fmt;

use serde::Serialize;

/// How much a problem matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; nothing to change.
    Note,
    /// Works, but probably not as meant.
    Warning,
    /// Refused.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One finding about one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// How much it matters.
    pub severity: Severity,
    /// Path of the key, e.g. `gates[1].check.minTokens`; empty for the whole file.
    pub path: String,
    /// What is wrong.
    pub what: String,
    /// What was probably meant, or what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<String>,
}

impl Problem {
    /// A refusal.
    pub fn error(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Severity::Error, path, what)
    }

    /// A warning.
    pub fn warning(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Severity::Warning, path, what)
    }

    /// A note.
    pub fn note(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self::new(Severity::Note, path, what)
    }

    fn new(severity: Severity, path: impl Into<String>, what: impl Into<String>) -> Self {
        Self { severity, path: path.into(), what: what.into(), suggestion: None }
    }

    /// The same problem with advice.
    #[must_use]
    pub fn suggest(mut self, advice: impl Into<String>) -> Self {
        self.suggestion = Some(advice.into());
        self
    }

    /// The same problem under a key, e.g. of a file that holds several things.
    #[must_use]
    pub fn under(mut self, prefix: &str) -> Self {
        self.path = if self.path.is_empty() { prefix.to_owned() } else { format!("{prefix}.{}", self.path) };
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.severity)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.what)?;
        match &self.suggestion {
            Some(advice) => write!(f, " ({advice})"),
            None => Ok(()),
        }
    }
}

/// True when something is refused.
#[must_use]
pub fn refused(problems: &[Problem]) -> bool {
    problems.iter().any(|p| p.severity == Severity::Error)
}

/// The candidate closest to `given`, when one is close enough to be a typing slip.
pub fn closest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|c| (strsim::damerau_levenshtein(&given.to_lowercase(), &c.to_lowercase()), c))
        .filter(|(distance, c)| *distance <= 1 + c.len() / 4)
        .min()
        .map(|(_, c)| c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        assert_eq!(closest("maxNumSeq", ["maxNumSeqs", "maxModelLen"]), Some("maxNumSeqs"));
        assert_eq!(closest("colour", ["maxNumSeqs", "maxModelLen"]), None);
    }

    #[test]
    fn a_problem_names_its_key_and_advice() {
        let p = Problem::error("host", "is bad").suggest("use 127.0.0.1").under("api");
        assert_eq!(p.to_string(), "error: api.host: is bad (use 127.0.0.1)");
        assert!(refused(&[p]));
        assert!(!refused(&[Problem::warning("a", "b"), Problem::note("a", "b")]));
    }
}
