//! Files that a crash leaves old or new, never half: temporary name, fsync, rename, fsync of the folder.
//!
//! One writer's temporary name is nobody else's, so that threads and processes may write the same file at once: the last
//! rename wins, whole. What a killed writer left is cleared by whoever next writes or removes that file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::sync::atomic::{AtomicU64, Ordering};

use camino::{Utf8Path, Utf8PathBuf};

/// A file operation failed. The file has its old content then, unless only the last sync of its folder failed: then it
/// has the new one, and a power cut may take that back.
#[derive(Debug, thiserror::Error)]
#[error("{what} {path}: {source}")]
pub struct DurableError {
    /// What was tried, e.g. "write".
    pub what: &'static str,
    /// The file or folder.
    pub path: Utf8PathBuf,
    /// The system's answer.
    pub source: io::Error,
}

impl DurableError {
    fn at(what: &'static str, path: &Utf8Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { what, path: path.to_owned(), source }
    }
}

/// End of every temporary name.
const SUFFIX: &str = ".sparklane-new";

/// fsyncs a folder, so that a rename in it is durable.
///
/// # Errors
/// When the folder cannot be opened or synced.
pub fn sync_dir(dir: &Utf8Path) -> Result<(), DurableError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(DurableError::at("sync", dir))
}

/// Writes a file of this mode (permission bits); its folder must exist.
///
/// # Errors
/// When anything cannot be written or made durable.
pub fn write(path: &Utf8Path, bytes: &[u8], mode: u32) -> Result<(), DurableError> {
    write_file(path, bytes, mode, None)
}

/// As [`write`], with an owner (uid, gid) from the first moment under its name.
///
/// # Errors
/// As [`write`].
pub fn write_owned(path: &Utf8Path, bytes: &[u8], mode: u32, owner: (u32, u32)) -> Result<(), DurableError> {
    write_file(path, bytes, mode, Some(owner))
}

fn write_file(path: &Utf8Path, bytes: &[u8], mode: u32, owner: Option<(u32, u32)>) -> Result<(), DurableError> {
    replace(path, "write", |temp| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temp)?;
        file.write_all(bytes)?;
        if let Some((uid, gid)) = owner {
            std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
        }
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    })
}

/// Makes a symbolic link; its folder must exist.
///
/// # Errors
/// As [`write`].
pub fn link(path: &Utf8Path, target: &str) -> Result<(), DurableError> {
    replace(path, "link", |temp| std::os::unix::fs::symlink(target, temp))
}

/// Gives a file that was written under a temporary name its final one: file, then name, then folder.
///
/// # Errors
/// When anything cannot be made durable; the temporary name is the caller's to clear.
pub fn publish(file: &File, from: &Utf8Path, to: &Utf8Path) -> Result<(), DurableError> {
    file.sync_all().map_err(DurableError::at("sync", from))?;
    fs::rename(from, to).map_err(DurableError::at("rename to", to))?;
    sync_dir(parts(to)?.0)
}

/// Removes a file if it is there.
///
/// # Errors
/// When it is there and stays.
pub fn remove(path: &Utf8Path) -> Result<(), DurableError> {
    let (dir, name) = parts(path)?;
    clear_left(dir, name);
    match fs::remove_file(path) {
        Ok(()) => sync_dir(dir),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
        Err(error) => Err(DurableError::at("remove", path)(error)),
    }
}

fn replace(
    path: &Utf8Path,
    what: &'static str,
    make: impl FnOnce(&Utf8Path) -> io::Result<()>,
) -> Result<(), DurableError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let (dir, name) = parts(path)?;
    clear_left(dir, name);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let temp = dir.join(format!(".{name}.{}-{n}{SUFFIX}", std::process::id()));
    if let Err(error) = make(&temp).and_then(|()| fs::rename(&temp, path)) {
        let _cleared = fs::remove_file(&temp);
        return Err(DurableError::at(what, path)(error));
    }
    sync_dir(dir)
}

fn parts(path: &Utf8Path) -> Result<(&Utf8Path, &str), DurableError> {
    let named = path.parent().zip(path.file_name());
    let (dir, name) = named.ok_or_else(|| {
        DurableError::at("write", path)(io::Error::new(io::ErrorKind::InvalidInput, "is not the path of a file"))
    })?;
    Ok((if dir.as_str().is_empty() { Utf8Path::new(".") } else { dir }, name))
}

/// Removes what killed writers of this file left. A writer that lives keeps its own.
fn clear_left(dir: &Utf8Path, name: &str) {
    for entry in dir.read_dir_utf8().into_iter().flatten().flatten() {
        if writer(entry.file_name(), name).is_some_and(|pid| pid.is_none_or(|pid| !lives(pid))) {
            let _gone = fs::remove_file(entry.path());
        }
    }
}

/// Whose temporary file of `name` this is: `None` when it is none; `Some(None)` for the names of earlier versions.
fn writer(found: &str, name: &str) -> Option<Option<u32>> {
    let middle = found.strip_prefix('.')?.strip_prefix(name)?.strip_suffix(SUFFIX)?;
    if middle.is_empty() {
        return Some(None);
    }
    let (pid, n) = middle.strip_prefix('.')?.split_once('-')?;
    n.parse::<u64>().ok()?;
    pid.parse().ok().map(Some)
}

fn lives(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    // Another user's process answers with "not permitted", and lives.
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests;
