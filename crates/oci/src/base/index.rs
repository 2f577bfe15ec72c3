//! The tree index of a base: what composing needs of its 20 GB in a few megabytes of JSON.
//!
//! Sorted by path and without a clock, so the same layers give the same bytes; its own SHA-256 is in the pin. A file's hash is kept
//! by one rule ([`hashed`]): texts that people edit or that describe distributions, of at most 1 MiB. The content is kept of
//! the paths that were asked for and of the RECORD of the distribution that owns each, as an edit needs the bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::{self, Digest};
use crate::error::OciError;

/// The only version that is written and read.
pub const FORMAT: u32 = 1;
/// Longest file whose hash is kept, in bytes.
pub const HASHED_MAX: u64 = 1 << 20;

/// A base's tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreeIndex {
    /// Version of this shape.
    pub format: u32,
    /// Digests of the layers it was made of, lowest first.
    pub layers: Vec<Digest>,
    /// Everything in the tree, by path without leading slash.
    pub nodes: BTreeMap<String, Node>,
    /// Python distributions, by their folder (`….dist-info`).
    pub distributions: BTreeMap<String, Distribution>,
    /// Python interpreters, by path.
    pub pythons: BTreeMap<String, Python>,
    /// Compiled modules, by path.
    pub pycs: BTreeMap<String, Pyc>,
    /// Shared libraries, by path.
    pub libraries: BTreeMap<String, Library>,
    /// Version of glibc (`2.39`), when there is one.
    pub glibc: Option<String>,
    /// Texts that were asked for, by path.
    pub kept: BTreeMap<String, String>,
}

/// A thing in the tree. Modes of 0755 (directories) and 0644 (files) and root's ids are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Node {
    /// A directory.
    D {
        /// Permission bits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        m: Option<u32>,
        /// Owner and group.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        o: Option<(u32, u32)>,
    },
    /// A regular file.
    F {
        /// Permission bits.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        m: Option<u32>,
        /// Owner and group.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        o: Option<(u32, u32)>,
        /// Bytes.
        s: u64,
        /// SHA-256 in hexadecimal, by the rule of [`hashed`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        h: Option<String>,
        /// Number of the layer that holds it, from 0.
        l: u32,
    },
    /// A symbolic link with its target.
    L(String),
    /// A device, a pipe or a socket.
    X,
}

/// A distribution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// Name as METADATA has it.
    pub name: String,
    /// Version as METADATA has it.
    pub version: String,
    /// Paths of its files, as RECORD lists them, resolved against the folder; `None` without RECORD (Debian's packages).
    pub files: Option<Vec<String>>,
}

/// An interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Python {
    /// `3.12`.
    pub version: String,
    /// Folders that it imports third-party modules from, first first.
    pub sites: Vec<String>,
}

/// How a compiled module says that it is fresh (PEP 552).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pyc {
    /// Always taken, whatever the source says.
    UncheckedHash,
    /// Taken when the source's hash is this one.
    CheckedHash,
    /// Taken when the source has this time and size.
    Timestamp(u32, u32),
    /// Too short or of flags nobody defined.
    Unknown,
}

/// A shared library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Library {
    /// The name that others ask for it by.
    pub soname: Option<String>,
    /// ELF machine number.
    pub machine: u16,
}

impl Node {
    /// A directory; usual attributes are left out.
    #[must_use]
    pub fn directory(mode: u32, owner: (u32, u32)) -> Self {
        Self::D { m: (mode != 0o755).then_some(mode), o: (owner != (0, 0)).then_some(owner) }
    }

    /// True for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        matches!(self, Self::D { .. })
    }

    /// Permission bits and owner.
    #[must_use]
    pub fn attributes(&self) -> (u32, (u32, u32)) {
        match self {
            Self::D { m, o } => (m.unwrap_or(0o755), o.unwrap_or_default()),
            Self::F { m, o, .. } => (m.unwrap_or(0o644), o.unwrap_or_default()),
            Self::L(_) | Self::X => (0o777, (0, 0)),
        }
    }
}

/// The rule by which a file's hash is kept.
#[must_use]
pub fn hashed(path: &str, size: u64) -> bool {
    const ENDS: [&str; 16] =
        ["py", "pyi", "pth", "sh", "cu", "cuh", "h", "hpp", "cc", "cpp", "json", "toml", "cfg", "txt", "in", "jinja"];
    let name = path.rsplit('/').next().unwrap_or(path);
    let known = name.rsplit_once('.').is_some_and(|(_, end)| ENDS.contains(&end));
    size <= HASHED_MAX && (known || matches!(name, "RECORD" | "METADATA"))
}

impl TreeIndex {
    /// Reads an index.
    ///
    /// # Errors
    /// When it is none, or of another format.
    pub fn parse(what: &str, bytes: &[u8]) -> Result<Self, OciError> {
        let index: Self = serde_json::from_slice(bytes).map_err(|e| OciError::document(what, e.to_string()))?;
        if index.format != FORMAT {
            return Err(OciError::document(what, format!("format {} is not {FORMAT}", index.format)));
        }
        Ok(index)
    }

    /// Its bytes: compact JSON and a line end.
    ///
    /// # Errors
    /// Never for an index that was made by a scan.
    pub fn to_bytes(&self) -> Result<Vec<u8>, OciError> {
        let text = serde_json::to_string(self).map_err(|e| OciError::document("tree index", e.to_string()))?;
        Ok((text + "\n").into_bytes())
    }

    /// Digest of its bytes.
    ///
    /// # Errors
    /// As [`TreeIndex::to_bytes`].
    pub fn digest(&self) -> Result<Digest, OciError> {
        Ok(digest::of(&self.to_bytes()?))
    }

    /// The distribution whose RECORD lists a path, with its folder.
    #[must_use]
    pub fn owner(&self, path: &str) -> Option<(&str, &Distribution)> {
        let lists = |d: &Distribution| d.files.as_ref().is_some_and(|f| f.iter().any(|p| p == path));
        self.distributions.iter().find(|(_, d)| lists(d)).map(|(folder, d)| (folder.as_str(), d))
    }

    /// Distributions of a name, however it is written (PEP 503).
    pub fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = (&'a str, &'a Distribution)> {
        let wanted = normal(name);
        self.distributions.iter().filter(move |(_, d)| normal(&d.name) == wanted).map(|(f, d)| (f.as_str(), d))
    }
}

/// A distribution's name in its normal form (PEP 503).
#[must_use]
pub fn normal(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '-' | '_' | '.' if out.ends_with('-') => {}
            '-' | '_' | '.' => out.push('-'),
            other => out.extend(other.to_lowercase()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_normal_form() {
        assert_eq!(normal("Foo._-Bar"), "foo-bar");
        assert_eq!(normal("ray"), "ray");
    }

    #[test]
    fn the_rule_of_hashes() {
        assert!(hashed("usr/lib/a.py", HASHED_MAX) && !hashed("usr/lib/a.py", HASHED_MAX + 1));
        assert!(hashed("a.dist-info/RECORD", 1) && !hashed("usr/bin/python3", 1) && !hashed("py", 1));
    }
}
