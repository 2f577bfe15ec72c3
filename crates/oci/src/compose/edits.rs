//! Changed text files of the base (R35 to R37), and what a changed python file takes with it.

use std::collections::BTreeMap;

use base64::Engine as _;
use sha2::{Digest as _, Sha256};

use super::patch;
use super::spec::{Edit, Edits, absolute};
use crate::base::facts::{first_field, join, source_of_pyc};
use crate::base::index::{Node as Base, TreeIndex};
use crate::base::paths::Overlay;
use crate::digest;
use crate::layer::entry::{Body, Entry, Meta, Node, TreePath};

/// What a layer is made of before its paths are placed.
#[derive(Debug, Default)]
pub struct Parts {
    /// Entries.
    pub entries: Vec<Entry>,
    /// Paths that go, each with who wants it.
    pub removes: Vec<(String, String)>,
    /// What was done, for `image.json`.
    pub why: Vec<String>,
    /// What people should know.
    pub warnings: Vec<String>,
}

/// A file as the base has it.
struct Found<'a> {
    path: String,
    text: &'a str,
    node: &'a Base,
}

/// The entries of an edits layer.
///
/// # Errors
/// Without a tree index; when a file is not the one that the edit was written for; when a change does not fit.
pub fn parts(edits: &Edits, overlay: &Overlay<'_>, epoch: u64) -> Result<Parts, String> {
    let index =
        overlay.base().ok_or("an edit needs the tree index of the base; `sparklane image pin REF --scan` makes it")?;
    let mut parts = Parts::default();
    let mut changed: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for edit in &edits.edits {
        let at = |why: String| format!("edit of {}: {why}", edit.path);
        let found = find(edit, overlay, index).map_err(at)?;
        let text = patch::apply(found.text, &edit.change).map_err(at)?;
        check_post(edit, &text).map_err(at)?;
        let from = format!("edit of {}", edit.path);
        parts.why.push(format!("{from}: sha256 {} to {}", hex(found.text.as_bytes()), hex(text.as_bytes())));
        parts.entries.push(entry(&found.path, found.node, text.clone().into_bytes(), &from, epoch)?);
        for pyc in stale(index, &found.path) {
            parts.why.push(format!("/{pyc} goes: it could be taken instead of the changed source"));
            parts.removes.push((pyc, from.clone()));
        }
        if changed.insert(found.path.clone(), text.into_bytes()).is_some() {
            return Err(at("there are two edits of it; make them one".into()));
        }
    }
    records(overlay, index, &changed, &mut parts, epoch)?;
    Ok(parts)
}

fn find<'a>(edit: &Edit, overlay: &Overlay<'a>, index: &'a TreeIndex) -> Result<Found<'a>, String> {
    let path = overlay.resolve(absolute(&edit.path)?.as_str())?;
    if overlay.is_new(&path) {
        return Err("a layer of ours has changed it already".into());
    }
    let node = index.nodes.get(&path).ok_or("the base has no such file")?;
    let (hash, layer) = match node {
        Base::F { h, l, .. } => (h.as_deref(), *l),
        Base::L(target) => return Err(format!("it is a link to {target}; name the file itself")),
        _ => return Err("it is no file".into()),
    };
    let pin = "run `sparklane image pin REF --scan --keep PATH` where the base can be read";
    let Some(wanted) = &edit.preimage else {
        let known = hash.map_or(String::new(), |h| format!("; the base's file has sha256 {h}"));
        return Err(format!("the hash of its pre-image is not known{known}; {pin}"));
    };
    if hash.is_some_and(|h| h != wanted) {
        let has = hash.unwrap_or_default();
        return Err(format!("the edit is for a file of sha256 {wanted}; layer {layer} of the base has one of {has}"));
    }
    let text = index.kept.get(&path).ok_or_else(|| format!("the index does not hold its text; {pin}"))?;
    let has = hex(text.as_bytes());
    if has != *wanted {
        return Err(format!("the edit is for a file of sha256 {wanted}; layer {layer} of the base has one of {has}"));
    }
    Ok(Found { path, text, node })
}

fn check_post(edit: &Edit, text: &str) -> Result<(), String> {
    let has = hex(text.as_bytes());
    match &edit.postimage {
        Some(wanted) if *wanted != has => Err(format!("it became a file of sha256 {has}, not {wanted}")),
        _ => Ok(()),
    }
}

fn hex(bytes: &[u8]) -> String {
    digest::of(bytes).hex().to_owned()
}

/// An entry with the attributes that the base's file has.
fn entry(path: &str, node: &Base, bytes: Vec<u8>, from: &str, mtime: u64) -> Result<Entry, String> {
    let (mode, (uid, gid)) = node.attributes();
    let meta = Meta { mode, uid, gid, mtime };
    Ok(Entry { path: TreePath::new(path)?, meta, node: Node::File(Body::Bytes(bytes)), from: from.to_owned() })
}

/// Compiled forms of a module, of whatever interpreter and level (R36): with one time on all files, a compiled form checked
/// by time and size may pass for that of the new source, and an unchecked one always does.
#[must_use]
pub fn stale(index: &TreeIndex, source: &str) -> Vec<String> {
    if !source.ends_with(".py") {
        return Vec::new();
    }
    // The source lies beside `__pycache__`, so only its folder is looked through.
    let folder = source.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let near = index.pycs.range(folder.clone()..).take_while(|(path, _)| path.starts_with(&folder));
    near.filter(|(path, _)| source_of_pyc(path).as_deref() == Some(source)).map(|(path, _)| path.clone()).collect()
}

/// Brings the RECORD of every touched distribution up to date.
fn records(
    overlay: &Overlay<'_>,
    index: &TreeIndex,
    changed: &BTreeMap<String, Vec<u8>>,
    parts: &mut Parts,
    epoch: u64,
) -> Result<(), String> {
    let folders: std::collections::BTreeSet<&str> =
        changed.keys().filter_map(|path| index.owner(path)).map(|(folder, _)| folder).collect();
    for folder in folders {
        let path = format!("{folder}/RECORD");
        if overlay.is_new(&path) {
            return Err(format!("/{path} was changed by a layer of ours already; put these edits into one layer"));
        }
        let text = index.kept.get(&path).ok_or_else(|| {
            format!("the index does not hold /{path}; run `sparklane image pin REF --scan --keep PATH` again")
        })?;
        let node = index.nodes.get(&path).ok_or_else(|| format!("the base has no /{path}"))?;
        let site = folder.rsplit_once('/').map_or("", |(site, _)| site);
        let gone: Vec<&str> = parts.removes.iter().map(|(p, _)| p.as_str()).collect();
        let new = update_record(text, site, changed, &gone);
        parts.why.push(format!("/{path} lists the changed files"));
        parts.entries.push(entry(&path, node, new.into_bytes(), "edits", epoch)?);
    }
    Ok(())
}

/// A RECORD with new hashes for changed files and without the rows of removed ones; other rows and line ends stay.
fn update_record(text: &str, site: &str, changed: &BTreeMap<String, Vec<u8>>, gone: &[&str]) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let path = first_field(line.trim_end_matches(['\n', '\r'])).and_then(|field| join(site, &field));
        match path {
            Some(path) if gone.contains(&path.as_str()) => {}
            Some(path) if changed.contains_key(&path) => {
                let end = &line[line.trim_end_matches(['\n', '\r']).len()..];
                let field = field_text(line);
                let bytes = changed.get(&path).map(Vec::as_slice).unwrap_or_default();
                out.push_str(&format!("{field},sha256={},{}{end}", record_hash(bytes), bytes.len()));
            }
            _ => out.push_str(line),
        }
    }
    out
}

/// The first field as it is written, quotes included.
fn field_text(line: &str) -> &str {
    if !line.starts_with('"') {
        return line.split(',').next().unwrap_or(line);
    }
    let mut quotes = 0;
    let end = line.char_indices().find(|(_, c)| {
        quotes += usize::from(*c == '"');
        *c == ',' && quotes % 2 == 0
    });
    end.map_or(line, |(at, _)| &line[..at])
}

/// A hash as RECORD writes it: URL-safe base64 without padding.
#[must_use]
pub fn record_hash(bytes: &[u8]) -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(Sha256::digest(bytes))
}

#[cfg(test)]
#[path = "edits_tests.rs"]
mod tests;
