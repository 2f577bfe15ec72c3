//! The file tree that facts are read from: `/`, or a recorded one. A missing file is a state, not an error.

use std::io::Read as _;

use camino::{Utf8Path, Utf8PathBuf};

/// Most bytes read of one file; dpkg's list of packages is the longest.
const MOST: u64 = 32 * 1024 * 1024;

/// Root of a file tree.
#[derive(Debug, Clone)]
pub struct Root {
    base: Utf8PathBuf,
}

impl Root {
    /// The tree at `base`.
    #[must_use]
    pub fn new(base: impl AsRef<Utf8Path>) -> Self {
        Self { base: base.as_ref().to_owned() }
    }

    /// Where `path`, given without a leading slash, lies.
    #[must_use]
    pub fn path(&self, path: &str) -> Utf8PathBuf {
        self.base.join(path.trim_start_matches('/'))
    }

    /// Text of a file without surrounding space; `None` when it is missing, not readable, or empty.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        let file = std::fs::File::open(self.path(path)).ok()?;
        let mut bytes = Vec::new();
        file.take(MOST).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    /// A number in a file.
    #[must_use]
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Names in a folder, sorted; none when it is missing.
    #[must_use]
    pub fn list(&self, path: &str) -> Vec<String> {
        let Ok(entries) = self.path(path).read_dir_utf8() else { return Vec::new() };
        let mut names: Vec<String> = entries.flatten().map(|e| e.file_name().to_owned()).collect();
        names.sort();
        names
    }

    /// Last part of where a link leads.
    #[must_use]
    pub fn link(&self, path: &str) -> Option<String> {
        let target = self.path(path).read_link_utf8().ok()?;
        target.file_name().map(str::to_owned)
    }

    /// True when there is something.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }
}
