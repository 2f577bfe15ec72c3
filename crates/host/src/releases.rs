//! The cluster's releases, as files on each node that committed them; the head's are the truth.

use camino::Utf8Path;
use sparklane_lane::{Release, StorePath};

use crate::error::HostError;
use crate::files;
use crate::paths::HostPaths;

/// All releases, oldest first. Damaged files are left out; a release is written whole or not at all.
///
/// # Errors
/// When the folder exists and cannot be read.
pub fn list(paths: &HostPaths) -> Result<Vec<Release>, HostError> {
    let dir = paths.releases();
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(HostError::file("list", dir)(error)),
    };
    let mut releases: Vec<Release> = entries
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path()).ok())
        .filter_map(|bytes| serde_json::from_slice(&bytes).ok())
        .collect();
    releases.sort_by_key(|r| r.number);
    Ok(releases)
}

/// Writes a release, roots this node's closure, and forgets what lies beyond `keep` releases.
///
/// # Errors
/// When the record or the root cannot be written.
pub fn add(paths: &HostPaths, release: &Release, own: &StorePath, keep: u32) -> Result<(), HostError> {
    let file = paths.releases().join(format!("{}.json", release.number));
    let there: Option<Release> = std::fs::read(&file).ok().and_then(|b| serde_json::from_slice(&b).ok());
    if let Some(other) = there.filter(|other| other.txn != release.txn) {
        let why = format!("is of transaction {}; that of {} is not written over it", other.txn, release.txn);
        return Err(HostError::Content { path: file, why });
    }
    let bytes = serde_json::to_vec_pretty(release)
        .map_err(|e| HostError::Content { path: paths.releases(), why: e.to_string() })?;
    files::write_atomic(&file, &bytes, 0o644)?;
    files::link_atomic(&root_of(&paths.gcroots, release.number), own.as_str())?;
    forget(paths, release.number, u64::from(keep.max(1)))
}

fn root_of(gcroots: &Utf8Path, number: u64) -> camino::Utf8PathBuf {
    gcroots.join(format!("release-{number}"))
}

fn forget(paths: &HostPaths, newest: u64, keep: u64) -> Result<(), HostError> {
    for release in list(paths)? {
        if release.number + keep <= newest {
            files::remove(&paths.releases().join(format!("{}.json", release.number)))?;
            files::remove(&root_of(&paths.gcroots, release.number))?;
        }
    }
    Ok(())
}
