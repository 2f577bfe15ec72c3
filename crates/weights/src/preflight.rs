//! What must hold before the first byte: room for the old and the new, inodes, a file system that keeps its word.

use camino::Utf8Path;
use std::os::unix::fs::MetadataExt as _;

use crate::blobs::BlobSet;
use crate::error::WeightsError;

/// Bytes left free beside the weights, for logs, journals and the store's records.
const SPARE: u64 = 256 * 1024 * 1024;
/// `f_type` of overlayfs (statfs(2)): it hides what is durable, and its reservations are not the disk's.
const OVERLAY: u64 = 0x794c_7630;
/// Bytes of a file system block, for what a file's end takes.
const BLOCK: u64 = 4096;

/// What a file system offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that we may take.
    pub bytes: u64,
    /// Inodes that we may take; `None` when the file system makes them as needed.
    pub inodes: Option<u64>,
    /// True for overlayfs.
    pub overlay: bool,
    /// True when it is mounted read-only.
    pub read_only: bool,
}

impl Room {
    /// The room at a folder, or at its nearest parent that is there.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn at(dir: &Utf8Path) -> Result<Self, WeightsError> {
        let there = dir.ancestors().find(|d| d.exists()).unwrap_or(Utf8Path::new("/"));
        let stat = rustix::fs::statvfs(there.as_str()).map_err(WeightsError::errno("look at", there))?;
        let kind = rustix::fs::statfs(there.as_str()).map_err(WeightsError::errno("look at", there))?;
        Ok(Self {
            bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            inodes: (stat.f_files > 0).then_some(stat.f_favail),
            overlay: u64::try_from(kind.f_type).is_ok_and(|t| t == OVERLAY),
            read_only: stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
        })
    }
}

/// Bytes that a set takes on a disk, from nothing.
#[must_use]
pub fn needed(set: &BlobSet) -> u64 {
    set.blobs().iter().fold(0, |sum: u64, b| sum.saturating_add(b.size.div_ceil(BLOCK).saturating_mul(BLOCK)))
}

/// Judges the room for a set of which `there` bytes are on the disk already.
///
/// # Errors
/// What is missing, with numbers and what to do.
pub fn judge(dir: &Utf8Path, room: &Room, set: &BlobSet, there: u64, links_only: bool) -> Result<(), WeightsError> {
    let refuse = |why: String| Err(WeightsError::Refused(why));
    if room.read_only {
        return refuse(format!("{dir} is on a read-only file system"));
    }
    if room.overlay {
        return refuse(format!("{dir} is on an overlay; name a folder on a disk (--store DIR)"));
    }
    let bytes = if links_only { 0 } else { needed(set).saturating_sub(there) };
    let wanted = bytes.saturating_add(SPARE.min(bytes));
    if wanted > room.bytes {
        let missing = wanted - room.bytes;
        return refuse(format!(
            "{dir} has {} bytes free, {wanted} are needed: {missing} more; see: sparklane weights du, then sparklane weights gc",
            room.bytes
        ));
    }
    let files = set.blobs().len() as u64 + 64;
    match room.inodes {
        Some(free) if free < files => refuse(format!("{dir} has {free} inodes free, {files} are needed")),
        _ => Ok(()),
    }
}

/// Checks a folder for a set, crediting what its staging holds.
///
/// # Errors
/// As [`judge`], or when the folder cannot be asked.
pub fn check(dir: &Utf8Path, staging: &Utf8Path, set: &BlobSet, links_only: bool) -> Result<(), WeightsError> {
    judge(dir, &Room::at(dir)?, set, blocks_below(staging), links_only)
}

fn blocks_below(dir: &Utf8Path) -> u64 {
    let Ok(entries) = dir.read_dir_utf8() else { return 0 };
    let one = |entry: camino::Utf8DirEntry| match std::fs::symlink_metadata(entry.path()) {
        Ok(meta) if meta.is_dir() => blocks_below(entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(one).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blob, Sha};

    fn set(size: u64) -> BlobSet {
        BlobSet::new(vec![Blob { path: "a".into(), size, sha256: Sha::of(b"") }]).unwrap()
    }

    #[test]
    fn room_is_judged_with_credit_for_what_is_there() {
        let dir = Utf8Path::new("/x");
        let room = Room { bytes: 200 << 30, inodes: Some(1000), overlay: false, read_only: false };
        // 1.2 times the model on the disk, and all of it there: a second run needs nothing.
        assert!(judge(dir, &room, &set(300 << 30), 300 << 30, false).is_ok());
        let why = judge(dir, &room, &set(300 << 30), 50 << 30, false).unwrap_err().to_string();
        assert!(why.contains("more") && why.contains("gc"), "{why}");
        assert!(judge(dir, &room, &set(300 << 30), 0, true).is_ok());
        assert!(judge(dir, &Room { overlay: true, ..room }, &set(1), 0, false).is_err());
        assert!(judge(dir, &Room { read_only: true, ..room }, &set(1), 0, false).is_err());
        assert!(judge(dir, &Room { inodes: Some(3), ..room }, &set(1), 0, false).is_err());
        assert!(judge(dir, &Room { inodes: None, ..room }, &set(1 << 37), 0, false).is_ok());
    }

    #[test]
    fn this_machine_answers() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room::at(&Utf8Path::from_path(dir.path()).unwrap().join("not/yet")).unwrap();
        assert!(room.bytes > 0 && !room.read_only);
    }
}
