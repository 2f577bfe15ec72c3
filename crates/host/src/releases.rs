//! The cluster's releases, as files on each node that committed them; the head's are the truth.

use camino::Utf8Path;
use sparklane_lane::{Release, StorePath};

use crate::error::HostError;
use crate::files;
use crate::paths::HostPaths;

/// All releases, oldest first. Damaged files are left out (see [`damaged`]); a release is written whole or not at all.
///
/// # Errors
/// When the folder exists and cannot be read.
pub fn list(paths: &HostPaths) -> Result<Vec<Release>, HostError> {
    let mut releases: Vec<Release> = read_all(paths)?.into_iter().filter_map(Result::ok).collect();
    releases.sort_by_key(|r| r.number);
    Ok(releases)
}

/// Release files that cannot be read, each with the reason; for `status`.
#[must_use]
pub fn damaged(paths: &HostPaths) -> Vec<String> {
    let mut found: Vec<String> = read_all(paths).unwrap_or_default().into_iter().filter_map(Result::err).collect();
    found.sort();
    found
}

fn read_all(paths: &HostPaths) -> Result<Vec<Result<Release, String>>, HostError> {
    let dir = paths.releases();
    let entries = match dir.read_dir_utf8() {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(HostError::file("list", dir)(error)),
    };
    let ours = entries.flatten().map(|e| e.into_path()).filter(|p| p.extension() == Some("json"));
    Ok(ours.map(|path| read(&path).map_err(|why| format!("{path}: {why}"))).collect())
}

fn read(path: &Utf8Path) -> Result<Release, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    serde_json::from_slice(&bytes).map_err(|e| e.to_string())
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
