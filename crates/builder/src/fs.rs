//! File operations with the path in every error.

use std::os::unix::fs::{PermissionsExt as _, symlink as os_symlink};

use camino::{Utf8Path, Utf8PathBuf};
use serde::de::DeserializeOwned;

use crate::error::BuildError;

pub(crate) fn at(path: &Utf8Path) -> impl FnOnce(std::io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| BuildError::Io { path, source }
}

pub(crate) fn read(path: &Utf8Path) -> Result<Vec<u8>, BuildError> {
    std::fs::read(path).map_err(at(path))
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Utf8Path) -> Result<T, BuildError> {
    serde_json::from_slice(&read(path)?).map_err(|source| BuildError::Json { path: path.to_owned(), source })
}

/// Writes a file below folders that are made when missing.
pub(crate) fn write(path: &Utf8Path, content: &[u8], mode: u32) -> Result<(), BuildError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(at(folder))?;
    }
    std::fs::write(path, content).map_err(at(path))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(at(path))
}

pub(crate) fn symlink(target: &str, path: &Utf8Path) -> Result<(), BuildError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(at(folder))?;
    }
    os_symlink(target, path).map_err(at(path))
}

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    File { executable: bool },
    Link { target: String },
}

/// Files and links of a tree by path below its root, sorted.
pub(crate) fn tree(root: &Utf8Path) -> Result<Vec<(Utf8PathBuf, Entry)>, BuildError> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir_utf8().map_err(at(&folder))? {
            let entry = entry.map_err(at(&folder))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(at(path))?;
            let below = path.strip_prefix(root).unwrap_or(path).to_owned();
            if kind.is_dir() {
                folders.push(path.to_owned());
            } else if kind.is_symlink() {
                let target = path.read_link_utf8().map_err(at(path))?.into_string();
                found.push((below, Entry::Link { target }));
            } else {
                let mode = entry.metadata().map_err(at(path))?.permissions().mode();
                found.push((below, Entry::File { executable: mode & 0o111 != 0 }));
            }
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}
