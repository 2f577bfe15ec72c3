//! Files that were not ours where we now manage one. Kept until the path is left, then put back bit for bit.

use camino::Utf8PathBuf;
use sparklane_txn::plan::Before;

use crate::error::HostError;
use crate::files;
use crate::paths::HostPaths;

fn entry(paths: &HostPaths, path: &str) -> Utf8PathBuf {
    paths.foreign().join(files::sha256(path.as_bytes()))
}

/// Keeps what stood at `path`; `copies` holds its bytes.
///
/// # Errors
/// When it cannot be kept.
pub fn keep(paths: &HostPaths, path: &str, before: &Before, copies: &camino::Utf8Path) -> Result<(), HostError> {
    let dir = entry(paths, path);
    let before = match before {
        Before::Absent { .. } => return Ok(()),
        Before::Link { .. } => before.clone(),
        Before::File { sha256, mode, uid, gid, copy } => {
            let from = copies.join(copy.to_string());
            let bytes = std::fs::read(&from).map_err(HostError::file("read", from))?;
            files::write_atomic(&dir.join("0"), &bytes, 0o600)?;
            Before::File { sha256: sha256.clone(), mode: *mode, uid: *uid, gid: *gid, copy: 0 }
        }
    };
    let json = serde_json::to_vec(&(path, before)).map_err(|e| HostError::Refused(e.to_string()))?;
    files::write_atomic(&dir.join("was.json"), &json, 0o600)
}

/// Puts back what once stood at `path`, or removes the file when nothing did.
///
/// # Errors
/// When the path cannot be brought back.
pub fn leave(paths: &HostPaths, path: &str) -> Result<(), HostError> {
    let dir = entry(paths, path);
    let was = std::fs::read(dir.join("was.json")).ok();
    let was: Option<(String, Before)> = was.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let before = was.map_or(Before::Absent { missing_parents: Vec::new() }, |(_, before)| before);
    files::restore(&paths.managed(path), &before, &dir)
}

/// Forgets what once stood at `path`, after it was put back for good.
///
/// # Errors
/// When the folder does not go.
pub fn forget(paths: &HostPaths, path: &str) -> Result<(), HostError> {
    let dir = entry(paths, path);
    match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(HostError::file("remove", dir)(error)),
        _ => Ok(()),
    }
}
