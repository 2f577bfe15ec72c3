//! Where the lab keeps its files.

use camino::{Utf8Path, Utf8PathBuf};

/// The two folders of a lab: what is kept between labs, and what belongs to one lab.
#[derive(Debug, Clone)]
pub struct Paths {
    cache: Utf8PathBuf,
    dir: Utf8PathBuf,
}

impl Paths {
    /// The usual places; `SPARKLANE_LAB_CACHE` and `SPARKLANE_LAB_DIR` override them.
    #[must_use]
    pub fn from_env() -> Self {
        let get = |name: &str, usual: &str| {
            std::env::var(name).ok().filter(|v| !v.is_empty()).unwrap_or_else(|| usual.to_owned()).into()
        };
        Self {
            cache: get("SPARKLANE_LAB_CACHE", "/var/cache/sparklane/lab"),
            dir: get("SPARKLANE_LAB_DIR", "/var/lib/sparklane-lab"),
        }
    }

    /// Holds the base root file systems.
    #[must_use]
    pub fn cache(&self) -> &Utf8Path {
        &self.cache
    }

    /// Holds everything of the running lab; `down` removes it.
    #[must_use]
    pub fn dir(&self) -> &Utf8Path {
        &self.dir
    }

    /// The record of the running lab.
    #[must_use]
    pub fn state(&self) -> Utf8PathBuf {
        self.dir.join("state.json")
    }

    /// Locked by every command that changes the lab. Lies beside the folder, since `down` removes that.
    #[must_use]
    pub fn lock(&self) -> Utf8PathBuf {
        let mut name = self.dir.clone().into_string();
        name.push_str(".lock");
        name.into()
    }

    /// Names the developer task that made the lab; see [`crate::owner`]. Beside the folder, as the lock.
    #[must_use]
    pub(crate) fn owner(&self) -> Utf8PathBuf {
        format!("{}.owner", self.dir).into()
    }

    /// A lab of a test's own.
    #[cfg(test)]
    pub(crate) fn below(dir: &Utf8Path) -> Self {
        Self { cache: dir.join("cache"), dir: dir.join("lab") }
    }

    /// Keys of this lab.
    #[must_use]
    pub fn keys(&self) -> Utf8PathBuf {
        self.dir.join("keys")
    }

    /// One node's folder.
    #[must_use]
    pub fn node(&self, name: &str) -> Utf8PathBuf {
        self.dir.join("nodes").join(name)
    }

    /// Where one node's root file system is mounted on this host.
    #[must_use]
    pub fn root(&self, name: &str) -> Utf8PathBuf {
        self.node(name).join("root")
    }

    /// What the node's console said.
    #[must_use]
    pub fn console(&self, name: &str) -> Utf8PathBuf {
        self.node(name).join("console.log")
    }
}
