//! A Hugging Face view of a published folder, for engines that ask for a hub id: `HF_HUB_CACHE=<root>/hub`.
//!
//! `models--org--name/refs/main` holds exactly the 40 bytes of the commit (41 make the client miss the snapshot), and
//! `snapshots/<commit>/…` are relative links into the store, so that both can be mounted elsewhere together.

use std::fs;

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_lane::WeightsManifest;

use crate::error::WeightsError;
use crate::staging::make_dirs;
use crate::store::{Store, sync_dir, write_atomic};

/// Makes or renews the view of a manifest and gives the cache's folder.
///
/// # Errors
/// When the folder is not published, or links cannot be made.
pub fn make(store: &Store, manifest: &WeightsManifest) -> Result<Utf8PathBuf, WeightsError> {
    let folder = store.folder(manifest);
    if !folder.is_dir() {
        return Err(WeightsError::Refused(format!("{folder} is not there; fetch or receive it first")));
    }
    let hub = store.root().join("hub");
    let model = hub.join(format!("models--{}", manifest.model.replace('/', "--")));
    let snapshots = model.join("snapshots");
    make_dirs(&snapshots)?;
    let temp = snapshots.join(format!(".new-{}", manifest.revision));
    clear(&temp)?;
    make_dirs(&temp)?;
    for file in &manifest.files {
        let link = temp.join(&file.path);
        if let Some(parent) = link.parent() {
            make_dirs(parent)?;
        }
        // hub / models--… / snapshots / <commit> / folders of the path
        let up = "../".repeat(4 + file.path.matches('/').count());
        let target = format!("{up}{}/{}", manifest.store_name(), file.path);
        std::os::unix::fs::symlink(&target, &link).map_err(WeightsError::file("link", &link))?;
    }
    let snapshot = snapshots.join(&manifest.revision);
    clear(&snapshot)?;
    fs::rename(&temp, &snapshot).map_err(WeightsError::file("publish as", &snapshot))?;
    sync_dir(&snapshots)?;
    write_atomic(&model.join("refs/main"), manifest.revision.as_bytes())?;
    Ok(hub)
}

fn clear(dir: &Utf8Path) -> Result<(), WeightsError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(WeightsError::file("remove", dir)(error)),
        _ => Ok(()),
    }
}
