//! One entry of a layer before it is encoded.

use std::fs::File;
use std::sync::Arc;

/// A path inside the image: relative, no empty, `.` or `..` component, no NUL (R4). Made only by the check.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreePath(String);

impl TreePath {
    /// Checks a path; a leading slash or `./` is refused too.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(path: impl Into<String>) -> Result<Self, String> {
        let path = path.into();
        let bad = |c: &str| c.is_empty() || c == "." || c == "..";
        if path.split('/').any(bad) || path.chars().any(|c| c == '\0' || c == '\\' || c.is_control()) {
            return Err(format!("{path:?} is not a plain relative path"));
        }
        Ok(Self(path))
    }

    /// The path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Attributes of an entry. Owner names are never written (R3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits, setuid included when it is meant to be.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Whole seconds since 1970 (R2).
    pub mtime: u64,
}

/// What an entry is.
#[derive(Debug, Clone)]
pub enum Node {
    /// A directory that is new, or whose attributes are meant to change (R7).
    Directory,
    /// A regular file; a whiteout is an empty one named `.wh.NAME` (R10).
    File(Body),
    /// A symbolic link with its target; its mode is written as 0777.
    Symlink(String),
}

/// A file's bytes.
#[derive(Debug, Clone)]
pub enum Body {
    /// Bytes of ours (scripts, RECORD, edited files), encoded by our own encoder.
    Bytes(Vec<u8>),
    /// A raw deflate stream inside a wheel, copied as it is (R14). Size, CRC and (where known) SHA-256 are those of the
    /// inflated bytes and are checked while the layer is written.
    Deflated {
        /// The wheel.
        source: Arc<File>,
        /// Where the stream begins.
        offset: u64,
        /// Bytes of the stream.
        compressed: u64,
        /// Bytes of the file.
        size: u64,
        /// CRC-32 of the file.
        crc32: u32,
        /// SHA-256 of the file, as RECORD says.
        sha256: Option<[u8; 32]>,
    },
    /// Bytes that lie unpacked in a file (a stored zip member, a plain file), written as stored blocks.
    Stored {
        /// The file that holds them.
        source: Arc<File>,
        /// Where they begin.
        offset: u64,
        /// Bytes of the file.
        size: u64,
        /// CRC-32 of the file, when known beforehand.
        crc32: Option<u32>,
        /// SHA-256 of the file, when known beforehand.
        sha256: Option<[u8; 32]>,
    },
}

/// One entry.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Where.
    pub path: TreePath,
    /// Attributes.
    pub meta: Meta,
    /// What.
    pub node: Node,
    /// Who brings it, for messages about conflicts: a wheel's file name, an edit, a file.
    pub from: String,
}
