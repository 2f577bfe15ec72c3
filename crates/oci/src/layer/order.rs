//! The order of a layer's entries, and what may not stand beside what (R4, R8, R10, R33).

use std::collections::HashMap;

use super::body;
use super::entry::{Body, Entry, Meta, Node};
use super::error::LayerError;

/// Python's zipfile refuses files older than 1980 (R2).
pub const EARLIEST: u64 = 315_532_800;

/// What a whiteout's name begins with.
pub const WHITEOUT: &str = ".wh.";

/// The entries in the order in which they are written, each path once.
///
/// # Errors
/// The first in order that breaks a rule.
pub fn arrange(entries: &[Entry]) -> Result<Vec<&Entry>, LayerError> {
    entries.iter().try_for_each(rules)?;
    let mut sorted: Vec<(Vec<u8>, &Entry)> = entries.iter().map(|e| (key(e.path.as_str()), e)).collect();
    sorted.sort_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.from.cmp(&y.from)));
    let mut once: Vec<&Entry> = Vec::with_capacity(sorted.len());
    for (_, entry) in sorted {
        match once.last() {
            Some(last) if last.path == entry.path => same(last, entry)?,
            _ => once.push(entry),
        }
    }
    families(&once)?;
    Ok(once)
}

/// Bytewise order of paths, but whiteouts of a directory before its other entries. No path holds a NUL.
fn key(path: &str) -> Vec<u8> {
    match path.rsplit_once('/') {
        Some((parent, name)) if name.starts_with(WHITEOUT) => format!("{parent}/\0{name}").into_bytes(),
        None if path.starts_with(WHITEOUT) => format!("\0{path}").into_bytes(),
        _ => path.as_bytes().to_vec(),
    }
}

/// What holds for an entry alone.
fn rules(entry: &Entry) -> Result<(), LayerError> {
    let path = entry.path.as_str();
    let refuse = |why: &str| Err(LayerError::entry(path, format!("{why} ({})", entry.from)));
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    if parent.split('/').any(|c| c.starts_with(WHITEOUT)) {
        return refuse("a directory whose name begins with .wh. would delete a file");
    }
    if entry.meta.mode & !0o7777 != 0 {
        return refuse("the mode has more than permission bits");
    }
    if let Some(gone) = name.strip_prefix(WHITEOUT) {
        let empty = matches!(&entry.node, Node::File(Body::Bytes(bytes)) if bytes.is_empty());
        if !empty || entry.meta.mode != 0o644 {
            return refuse("a name that begins with .wh. is a whiteout: an empty file of mode 0644");
        }
        // `.wh..wh.` names are opaque whiteouts and aufs' own; `.wh.` alone and `.wh...` would name the directory or above.
        if gone.is_empty() || gone == "." || gone == ".." || gone.starts_with(WHITEOUT) {
            return refuse("a whiteout names one file of its directory");
        }
        return Ok(());
    }
    match &entry.node {
        Node::File(_) if entry.meta.mtime < EARLIEST => refuse("a file older than 1980 (Python's zipfile refuses it)"),
        Node::Symlink(target) if target.is_empty() || target.contains('\0') => refuse("a symlink needs a target"),
        _ => Ok(()),
    }
}

/// Two entries of one path are one if nothing differs.
fn same(first: &Entry, second: &Entry) -> Result<(), LayerError> {
    let how = match (&first.node, &second.node) {
        (Node::File(a), Node::File(b)) => (!body::same(first, a, second, b)?).then_some("with different bytes"),
        (Node::Symlink(a), Node::Symlink(b)) => (a != b).then_some("as symlinks to different targets"),
        (Node::Directory, Node::Directory) => None,
        _ => Some("as different kinds of file"),
    };
    let how = how.map(str::to_owned).or_else(|| attributes(first.meta, second.meta));
    how.map_or(Ok(()), |how| {
        let (path, first, second) = (first.path.as_str().to_owned(), first.from.clone(), second.from.clone());
        Err(LayerError::Conflict { path, first, second, how })
    })
}

fn attributes(a: Meta, b: Meta) -> Option<String> {
    (a != b).then(|| format!("with different attributes ({a:?} and {b:?})"))
}

/// No entry lies below one that is no directory, and nothing is both brought and whited out.
fn families(entries: &[&Entry]) -> Result<(), LayerError> {
    let by_path: HashMap<&str, &Entry> = entries.iter().map(|e| (e.path.as_str(), *e)).collect();
    for entry in entries {
        let path = entry.path.as_str();
        for (slash, _) in path.match_indices('/') {
            if let Some(above) = by_path.get(&path[..slash]).filter(|a| !matches!(a.node, Node::Directory)) {
                return Err(LayerError::Conflict {
                    path: path[..slash].to_owned(),
                    first: above.from.clone(),
                    second: entry.from.clone(),
                    how: format!("as a file and as the directory of {path}"),
                });
            }
        }
        let (parent, name) = path.rsplit_once('/').map_or(("", path), |(parent, name)| (parent, name));
        let whiteout =
            if parent.is_empty() { format!("{WHITEOUT}{name}") } else { format!("{parent}/{WHITEOUT}{name}") };
        if let Some(gone) = by_path.get(whiteout.as_str()) {
            return Err(LayerError::Conflict {
                path: path.to_owned(),
                first: gone.from.clone(),
                second: entry.from.clone(),
                how: "as a whiteout and as an entry, which unpackers understand differently".to_owned(),
            });
        }
    }
    Ok(())
}
