//! Taking weights that are on the node already into the store: nothing is downloaded twice, and nothing is believed.
//!
//! A source is a plain folder of files, a Hugging Face snapshot, a model's folder in a hub cache, or the cache itself.
//! Links are followed to wherever they lead (the newer cache keeps its bytes outside the model's folder, under names
//! that are no SHA-256), so only the manifest says what bytes must be. Each file is hashed, then shared by reflink, else
//! by hard link, else copied when the caller allows it.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_lane::WeightsManifest;

use crate::blobs::Blob;
use crate::error::WeightsError;
use crate::read::{Reader, stamp_of};
use crate::staging::Staging;

/// How a file came into the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// Shares blocks with the source; later writes to either do not touch the other.
    Reflink,
    /// Is the source's inode: whoever writes to the source writes to the store, which the proof's stamp then shows.
    HardLink,
    /// Own bytes.
    Copy,
}

/// What an adoption did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Files by the way they came.
    pub files: Vec<(String, Means)>,
    /// Files that were not adopted, and why; a transfer brings them.
    pub missing: Vec<String>,
}

/// Folders below a source that may hold the model's files, the likeliest first.
#[must_use]
pub fn candidates(source: &Utf8Path, manifest: &WeightsManifest) -> Vec<Utf8PathBuf> {
    let cached = format!("models--{}", manifest.model.replace('/', "--"));
    let snapshot = |model: Utf8PathBuf| model.join("snapshots").join(&manifest.revision);
    let all = [
        snapshot(source.join(&cached)),
        snapshot(source.join("hub").join(&cached)),
        snapshot(source.to_owned()),
        source.to_owned(),
    ];
    all.into_iter().filter(|dir| dir.is_dir()).collect()
}

/// Adopts what a source holds of a manifest into its staging.
///
/// # Errors
/// When the source is no folder, or the staging cannot be written. A wrong or missing file is a row, not an error.
pub fn adopt(
    source: &Utf8Path,
    manifest: &WeightsManifest,
    staging: &Staging,
    allow_copy: bool,
    hashed: &dyn Fn(u64) -> bool,
) -> Result<Adopted, WeightsError> {
    let folders = candidates(source, manifest);
    if folders.is_empty() {
        return Err(WeightsError::Refused(format!("{source} is no folder that can be read")));
    }
    let mut adopted = Adopted::default();
    for index in staging.missing() {
        let Some(blob) = staging.set().get(index).cloned() else { continue };
        let found = folders.iter().map(|dir| dir.join(&blob.path)).find(|path| path.exists());
        let Some(found) = found else {
            adopted.missing.push(format!("{}: is not below {source}", blob.path));
            continue;
        };
        match one(&found, index, &blob, staging, allow_copy, hashed) {
            Ok(means) => adopted.files.push((blob.path, means)),
            Err(error @ (WeightsError::Failed(_) | WeightsError::File { what: "write" | "rename", .. })) => {
                return Err(error);
            }
            Err(error) => adopted.missing.push(error.to_string()),
        }
    }
    Ok(adopted)
}

fn one(
    found: &Utf8Path,
    index: u32,
    blob: &Blob,
    staging: &Staging,
    allow_copy: bool,
    hashed: &dyn Fn(u64) -> bool,
) -> Result<Means, WeightsError> {
    let real = found.canonicalize_utf8().map_err(WeightsError::file("follow", found))?;
    let (Some(dir), Some(name)) = (real.parent(), real.file_name()) else {
        return Err(WeightsError::Content { path: real, why: "is not a file".into() });
    };
    let mut reader = Reader::beneath(dir, name)?;
    let before = reader.stamp()?;
    if before.size != blob.size {
        let why = format!("has {} bytes, the manifest says {}", before.size, blob.size);
        return Err(WeightsError::Content { path: found.into(), why });
    }
    let got = reader.hash(hashed)?;
    if got != blob.sha256 {
        return Err(WeightsError::Mismatch { path: found.to_string(), wanted: blob.sha256, got });
    }
    let part = staging.part_path(index);
    let _stale = fs::remove_file(&part);
    let means = share(&real, reader.file(), &part, allow_copy)?;
    let file = File::open(&part).map_err(WeightsError::file("open", &part))?;
    // What was hashed must be what was shared.
    let same = fs::symlink_metadata(&real).map(|m| stamp_of(&m)).is_ok_and(|after| after == before);
    let copied = means != Means::Copy
        || Reader::beneath(part.parent().unwrap_or(&part), &index.to_string())?.hash(hashed)? == got;
    if !same || !copied {
        let _gone = fs::remove_file(&part);
        return Err(WeightsError::Content { path: real, why: "changed while it was adopted".into() });
    }
    if means == Means::HardLink {
        refuse_writable(&file, &real)?;
    } else {
        file.set_permissions(fs::Permissions::from_mode(0o644)).map_err(WeightsError::file("protect", &part))?;
    }
    staging.place(index, blob, &file, false)?;
    Ok(means)
}

/// A linked file keeps the source's mode; one that the engine's user cannot read is no use.
fn refuse_writable(file: &File, path: &Utf8Path) -> Result<(), WeightsError> {
    let mode = file.metadata().map_err(WeightsError::file("look at", path))?.permissions().mode();
    if mode & 0o022 != 0 {
        let why = format!(
            "others may write to it (mode {:o}), so it is not linked; chmod go-w, or use --copy",
            mode & 0o7777
        );
        return Err(WeightsError::Content { path: path.into(), why });
    }
    Ok(())
}

fn share(real: &Utf8Path, source: &File, part: &Utf8Path, allow_copy: bool) -> Result<Means, WeightsError> {
    {
        let made = File::create_new(part).map_err(WeightsError::file("write", part))?;
        if rustix::fs::ioctl_ficlone(&made, source).is_ok() {
            return Ok(Means::Reflink);
        }
    }
    fs::remove_file(part).map_err(WeightsError::file("write", part))?;
    if !allow_copy {
        return fs::hard_link(real, part).map(|()| Means::HardLink).map_err(|error| {
            let why = format!("can be neither reflinked nor linked into the store ({error}); use --copy");
            WeightsError::Content { path: real.into(), why }
        });
    }
    fs::copy(real, part).map_err(WeightsError::file("write", part))?;
    Ok(Means::Copy)
}
