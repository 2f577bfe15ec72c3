//! Where everything lies on a node. Tests put all of it under one folder.

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_lane::{StorePath, TxnId};

/// The folders of a node.
#[derive(Debug, Clone)]
pub struct HostPaths {
    /// Prefix of managed files; `/` on a node.
    pub root: Utf8PathBuf,
    /// Durable state, `/var/lib/sparklane`.
    pub state: Utf8PathBuf,
    /// Volatile state, `/run/sparklane`.
    pub run: Utf8PathBuf,
    /// The profile link, `/nix/var/nix/profiles/sparklane`.
    pub profile: Utf8PathBuf,
    /// Prefix of store paths; `/` on a node.
    pub store: Utf8PathBuf,
    /// GC roots, `/nix/var/nix/gcroots/sparklane`.
    pub gcroots: Utf8PathBuf,
}

impl HostPaths {
    /// The paths of a real node.
    #[must_use]
    pub fn system() -> Self {
        Self {
            root: "/".into(),
            state: "/var/lib/sparklane".into(),
            run: "/run/sparklane".into(),
            profile: "/nix/var/nix/profiles/sparklane".into(),
            store: "/".into(),
            gcroots: "/nix/var/nix/gcroots/sparklane".into(),
        }
    }

    /// A node in a folder, for tests.
    #[must_use]
    pub fn below(dir: &Utf8Path) -> Self {
        Self {
            root: dir.join("root"),
            state: dir.join("state"),
            run: dir.join("run"),
            profile: dir.join("profiles/sparklane"),
            store: dir.join("store"),
            gcroots: dir.join("gcroots"),
        }
    }

    /// A managed file's real place.
    #[must_use]
    pub fn managed(&self, path: &str) -> Utf8PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A store path's real place.
    #[must_use]
    pub fn in_store(&self, path: &StorePath) -> Utf8PathBuf {
        self.store.join(path.as_str().trim_start_matches('/'))
    }

    /// The folder of all transactions.
    #[must_use]
    pub fn txns(&self) -> Utf8PathBuf {
        self.state.join("txn")
    }

    /// The folder of one transaction.
    #[must_use]
    pub fn txn(&self, id: &TxnId) -> Utf8PathBuf {
        self.txns().join(id.as_str())
    }

    /// The socket of a transaction's process.
    #[must_use]
    pub fn socket(&self, id: &TxnId) -> Utf8PathBuf {
        self.run.join(format!("txn-{id}.sock"))
    }

    /// Release records, on the head.
    #[must_use]
    pub fn releases(&self) -> Utf8PathBuf {
        self.state.join("releases")
    }

    /// Files that were not ours and stood where we manage one; put back when we leave the path.
    #[must_use]
    pub fn foreign(&self) -> Utf8PathBuf {
        self.state.join("foreign")
    }

    /// Copies of edited managed files that an operator chose to replace.
    #[must_use]
    pub fn kept(&self, id: &TxnId) -> Utf8PathBuf {
        self.state.join("kept").join(id.as_str())
    }

    /// The node-wide lock.
    #[must_use]
    pub fn lock(&self) -> Utf8PathBuf {
        self.state.join("lock")
    }

    /// GC root of the tool that ends transactions; its `bin/sparklane` is what the boot unit runs.
    #[must_use]
    pub fn tool(&self) -> Utf8PathBuf {
        self.gcroots.join("tool")
    }
}
