//! The keys with which the nodes' supervisors prove their heartbeats (issue 5, item 2): 32 random bytes per release, made
//! on the control host, brought over ssh when the release is staged.
//!
//! A node keeps those of its releases, which all nodes of the cluster have, and the last few besides: however many
//! deployments were refused on one node after they were staged on another, there is a key that both have.

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};
use sparklane_lane::TxnId;

use crate::error::HostError;
use crate::files;
use crate::paths::HostPaths;
use crate::releases;

/// Keys that are kept besides those of releases.
const KEPT: usize = 3;

/// One key, as hex. It is never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PeerKey(String);

impl std::fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerKey(…)")
    }
}

impl PeerKey {
    /// A new one, at random.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn random() -> Result<Self, rustix::io::Errno> {
        let mut bytes = [0_u8; 32];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self(bytes.iter().map(|b| format!("{b:02x}")).collect()))
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        let whole = self.0.len() == 64 && self.0.is_ascii();
        let pairs = self.0.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
        pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect::<Option<Vec<u8>>>().filter(|_| whole)
    }
}

fn folder(paths: &HostPaths) -> Utf8PathBuf {
    paths.state.join("keys/peer")
}

/// Keeps the key of a transaction, and removes those of older ones.
///
/// # Errors
/// When it is no key, or cannot be written.
pub fn keep(paths: &HostPaths, txn: &TxnId, key: &PeerKey) -> Result<(), HostError> {
    let bytes = key.bytes().ok_or_else(|| HostError::Refused("the heartbeat key is not 64 hex digits".into()))?;
    let folder = folder(paths);
    files::make_dir(&folder)?;
    files::write_atomic(&folder.join(txn.as_str()), &bytes, 0o600)?;
    let read = HostError::file("read", &folder);
    let entries = folder.read_dir_utf8().and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(read)?;
    // Without knowing the releases nothing may go.
    let Ok(releases) = releases::list(paths) else { return Ok(()) };
    let of_release = |path: &Utf8PathBuf| releases.iter().any(|r| path.file_name() == Some(r.txn.as_str()));
    // Transaction ids begin with their time and sort by it. Other names are someone's own and are let alone.
    let of_txn = |path: &Utf8PathBuf| path.file_name().is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()));
    let mut names: Vec<Utf8PathBuf> = entries.into_iter().map(|e| e.path().to_owned()).collect();
    names.retain(|path| of_txn(path) && !of_release(path) && path.file_name() != Some(txn.as_str()));
    names.sort();
    names.iter().take(names.len().saturating_sub(KEPT - 1)).try_for_each(|old| files::remove(old))
}

/// Removes all keys, after a first deployment that was taken back.
///
/// # Errors
/// When a file does not go.
pub fn forget(paths: &HostPaths) -> Result<(), HostError> {
    let folder = folder(paths);
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(HostError::file("remove", &folder)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_last_three_are_kept_private_and_none_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let paths = HostPaths::below(camino::Utf8Path::from_path(dir.path()).unwrap());
        for n in 0..5 {
            let txn: TxnId = format!("20261130-12000{n}-abc").parse().unwrap();
            keep(&paths, &txn, &PeerKey::random().unwrap()).unwrap();
        }
        let mut kept: Vec<_> = folder(&paths).read_dir_utf8().unwrap().map(|e| e.unwrap().path().to_owned()).collect();
        kept.sort();
        assert_eq!(kept.len(), KEPT);
        assert!(kept[0].ends_with("20261130-120002-abc"), "{kept:?}");
        let meta = std::fs::metadata(&kept[0]).unwrap();
        assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (32, 0o600));
        // Whatever else lies there neither goes nor drives a key out.
        for n in 0..4 {
            std::fs::write(folder(&paths).join(format!("zz-backup{n}")), [0; 32]).unwrap();
        }
        keep(&paths, &"20261130-120004-abc".parse().unwrap(), &PeerKey::random().unwrap()).unwrap();
        assert!(kept.iter().all(|path| path.exists()) && folder(&paths).join("zz-backup3").exists());
        for n in 0..4 {
            std::fs::remove_file(folder(&paths).join(format!("zz-backup{n}"))).unwrap();
        }
        // However many deployments are refused elsewhere, the key of a release stays: all nodes have it.
        let first = kept[0].file_name().unwrap().to_owned();
        let release = serde_json::json!({
            "number": 1, "cluster": "lab", "lane": "lab-a", "nodes": [], "image": null, "weights": null, "txn": first,
            "rollbackOf": null, "time": "2026-11-30T12:00:02Z", "who": "a@b"
        });
        let own = format!("/nix/store/{}-x", "0".repeat(32)).parse().unwrap();
        releases::add(&paths, &serde_json::from_value(release).unwrap(), &own, 5).unwrap();
        for n in 5..9 {
            let txn: TxnId = format!("20261130-12000{n}-abc").parse().unwrap();
            keep(&paths, &txn, &PeerKey::random().unwrap()).unwrap();
        }
        assert!(folder(&paths).join(&first).exists());
        assert_eq!(folder(&paths).read_dir_utf8().unwrap().count(), KEPT + 1);
        assert_eq!(format!("{:?}", PeerKey::random().unwrap()), "PeerKey(…)");
        let txn: TxnId = "t".parse().unwrap();
        for bad in ["", "zz", &"g".repeat(64), &"ä".repeat(32), &"0".repeat(63)] {
            assert!(keep(&paths, &txn, &PeerKey(bad.to_owned())).is_err(), "{bad:?}");
        }
        forget(&paths).unwrap();
        forget(&paths).unwrap();
        assert!(!folder(&paths).exists());
    }
}
