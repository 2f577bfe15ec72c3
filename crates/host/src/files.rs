//! Managed files: looked at, placed, put back. Every write is temp file, fsync, rename, fsync of the folder.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use camino::Utf8Path;
use sha2::{Digest as _, Sha256};
use sparklane_txn::plan::{Before, Found};

use crate::error::HostError;

/// Largest file we look into; a managed path that holds more is not a configuration file.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// sha256 of bytes as hex.
#[must_use]
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// fsyncs a folder, so that a rename in it is durable.
///
/// # Errors
/// When the folder cannot be opened or synced.
pub fn sync_dir(dir: &Utf8Path) -> Result<(), HostError> {
    Ok(sparklane_durable::sync_dir(dir)?)
}

/// Creates a folder with its parents, private to root where we make it.
///
/// # Errors
/// When it cannot be made.
pub fn make_dir(dir: &Utf8Path) -> Result<(), HostError> {
    fs::create_dir_all(dir).map_err(HostError::file("create", dir))
}

/// Writes a file so that a crash leaves the old or the new content, never a part.
///
/// # Errors
/// When the parent cannot be made, or anything cannot be written or made durable; the old file stands then.
pub fn write_atomic(path: &Utf8Path, bytes: &[u8], mode: u32) -> Result<(), HostError> {
    make_parent(path)?;
    Ok(sparklane_durable::write(path, bytes, mode)?)
}

/// As [`write_atomic`], with an owner from the first moment on.
///
/// # Errors
/// As [`write_atomic`].
pub fn write_owned(path: &Utf8Path, bytes: &[u8], mode: u32, owner: (u32, u32)) -> Result<(), HostError> {
    make_parent(path)?;
    Ok(sparklane_durable::write_owned(path, bytes, mode, owner)?)
}

fn make_parent(path: &Utf8Path) -> Result<(), HostError> {
    path.parent().map_or(Ok(()), make_dir)
}

/// Makes a symbolic link so that a crash leaves the old or the new target.
///
/// # Errors
/// As [`write_atomic`].
pub fn link_atomic(path: &Utf8Path, target: &str) -> Result<(), HostError> {
    make_parent(path)?;
    Ok(sparklane_durable::link(path, target)?)
}

/// Removes a file if it is there.
///
/// # Errors
/// When it is there and stays.
pub fn remove(path: &Utf8Path) -> Result<(), HostError> {
    Ok(sparklane_durable::remove(path)?)
}

/// Looks at a path without changing anything. `copy` is the number under which its bytes would be kept.
///
/// # Errors
/// When the path cannot be looked at.
pub fn look(path: &Utf8Path, copy: usize) -> Result<Found, HostError> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Found::Known(Before::Absent { missing_parents: missing_parents(path) }));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            return Ok(Found::Blocked("a file stands where a folder is needed".into()));
        }
        Err(error) => return Err(HostError::file("look at", path)(error)),
    };
    if meta.is_symlink() {
        let target = fs::read_link(path).map_err(HostError::file("read link", path))?;
        let target = target.into_os_string().into_string();
        return Ok(target.map_or_else(
            |_| Found::Blocked("a link whose target is not UTF-8".into()),
            |target| Found::Known(Before::Link { target }),
        ));
    }
    if !meta.is_file() {
        return Ok(Found::Blocked("something that is not a regular file stands there".into()));
    }
    if meta.len() > MAX_BYTES {
        return Ok(Found::Blocked("a file of more than 16 MiB stands there".into()));
    }
    if is_immutable(path) {
        return Ok(Found::Blocked("the file is immutable (chattr -i)".into()));
    }
    let bytes = fs::read(path).map_err(HostError::file("read", path))?;
    let mode = meta.mode() & 0o7777;
    Ok(Found::Known(Before::File { sha256: sha256(&bytes), mode, uid: meta.uid(), gid: meta.gid(), copy }))
}

fn is_immutable(path: &Utf8Path) -> bool {
    // File systems without attributes answer with an error: nothing is immutable there.
    fs::File::open(path)
        .ok()
        .and_then(|file| rustix::fs::ioctl_getflags(&file).ok())
        .is_some_and(|flags| flags.intersects(rustix::fs::IFlags::IMMUTABLE | rustix::fs::IFlags::APPEND))
}

fn missing_parents(path: &Utf8Path) -> Vec<String> {
    let mut missing: Vec<String> =
        path.ancestors().skip(1).take_while(|dir| !dir.exists()).map(ToString::to_string).collect();
    missing.reverse();
    missing
}

/// Puts a path back to what [`look`] saw; `copies` holds the kept bytes. Does nothing when it is so already.
///
/// # Errors
/// When the path cannot be brought back.
pub fn restore(path: &Utf8Path, before: &Before, copies: &Utf8Path) -> Result<(), HostError> {
    if is_as_before(path, before)? {
        return Ok(());
    }
    match before {
        Before::Absent { missing_parents } => {
            remove(path)?;
            for dir in missing_parents.iter().rev() {
                // Someone may have put a file there meanwhile; a folder that is in use stays.
                if fs::remove_dir(dir).is_err() {
                    break;
                }
            }
            Ok(())
        }
        Before::Link { target } => link_atomic(path, target),
        Before::File { mode, uid, gid, copy, .. } => {
            let kept = copies.join(copy.to_string());
            let bytes = fs::read(&kept).map_err(HostError::file("read the kept copy", kept))?;
            write_owned(path, &bytes, *mode, (*uid, *gid))
        }
    }
}

/// True when a path is as [`look`] saw it.
///
/// # Errors
/// When the path cannot be looked at.
pub fn is_as_before(path: &Utf8Path, before: &Before) -> Result<bool, HostError> {
    let Found::Known(now) = look(path, 0)? else { return Ok(false) };
    Ok(match (&now, before) {
        (Before::Absent { .. }, Before::Absent { missing_parents }) => {
            missing_parents.iter().all(|dir| !Utf8Path::new(dir).exists())
        }
        (Before::Link { target: now }, Before::Link { target }) => now == target,
        (
            Before::File { sha256: now, mode: now_mode, uid: now_uid, gid: now_gid, .. },
            Before::File { sha256, mode, uid, gid, .. },
        ) => (now, now_mode, now_uid, now_gid) == (sha256, mode, uid, gid),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use camino::Utf8PathBuf;

    use super::*;

    fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(dir.path().to_path_buf()).unwrap();
        (dir, path)
    }

    fn known(path: &Utf8Path) -> Before {
        match look(path, 0).unwrap() {
            Found::Known(before) => before,
            Found::Blocked(why) => panic!("{why}"),
        }
    }

    #[test]
    fn what_was_there_comes_back_bit_for_bit() {
        let (_guard, dir) = temp();
        let copies = dir.join("copies");
        make_dir(&copies).unwrap();
        let file = dir.join("etc/a.conf");
        write_atomic(&file, b"old \x00\xff", 0o640).unwrap();
        fs::copy(&file, copies.join("0")).unwrap();
        let before = known(&file);
        write_atomic(&file, b"new", 0o644).unwrap();
        assert!(!is_as_before(&file, &before).unwrap());
        restore(&file, &before, &copies).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"old \x00\xff");
        assert!(is_as_before(&file, &before).unwrap());
    }

    #[test]
    fn a_file_that_was_not_there_leaves_no_folders_behind() {
        let (_guard, dir) = temp();
        let file = dir.join("x/y/z.conf");
        let before = known(&file);
        write_atomic(&file, b"new", 0o644).unwrap();
        restore(&file, &before, &dir).unwrap();
        assert!(!dir.join("x").exists());
    }

    #[test]
    fn links_dangling_or_not_come_back() {
        let (_guard, dir) = temp();
        let file = dir.join("l");
        std::os::unix::fs::symlink("/nowhere/at/all", &file).unwrap();
        let before = known(&file);
        write_atomic(&file, b"new", 0o644).unwrap();
        restore(&file, &before, &dir).unwrap();
        assert_eq!(fs::read_link(&file).unwrap().to_str(), Some("/nowhere/at/all"));
    }

    #[test]
    fn folders_and_files_in_the_way_are_said() {
        let (_guard, dir) = temp();
        make_dir(&dir.join("d")).unwrap();
        assert!(matches!(look(&dir.join("d"), 0).unwrap(), Found::Blocked(_)));
        fs::write(dir.join("f"), "x").unwrap();
        assert!(matches!(look(&dir.join("f/g"), 0).unwrap(), Found::Blocked(_)));
    }

    #[test]
    fn a_stale_temporary_file_is_in_nobodys_way() {
        let (_guard, dir) = temp();
        fs::write(dir.join(".a.sparklane-new"), "half").unwrap();
        write_atomic(&dir.join("a"), b"whole", 0o600).unwrap();
        assert_eq!(fs::read(dir.join("a")).unwrap(), b"whole");
        assert!(!dir.join(".a.sparklane-new").exists());
    }
}
