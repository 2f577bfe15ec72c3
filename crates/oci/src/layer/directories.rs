//! Directories that a layer must bring itself (R7).

use std::collections::BTreeSet;

use super::entry::{Entry, Meta, Node, TreePath};

/// Entries for the directories above `entries` that neither `there` knows nor `entries` brings: mode 0755, owner root. A
/// directory that the base has gets none, as its entry would change the base's attributes.
#[must_use]
pub fn directories(entries: &[Entry], there: impl Fn(&str) -> bool, mtime: u64) -> Vec<Entry> {
    let brought: BTreeSet<&str> = entries.iter().map(|e| e.path.as_str()).collect();
    let mut above: BTreeSet<&str> = BTreeSet::new();
    for path in &brought {
        above.extend(path.match_indices('/').map(|(slash, _)| &path[..slash]));
    }
    let missing = above.into_iter().filter(|path| !brought.contains(path) && !there(path));
    let entry = |path: &str| {
        let meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime };
        // Components of a checked path are a checked path.
        let path = TreePath::new(path).ok()?;
        Some(Entry { path, meta, node: Node::Directory, from: "sparklane".to_owned() })
    };
    missing.filter_map(entry).collect()
}
