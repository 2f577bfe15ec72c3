//! Where new paths lie in a base (R8) and which directories a layer names (R7).
//!
//! A store unpacks a layer into a folder of its own: a layer that holds `lib/x` puts a directory in the place of the base's link
//! `lib -> usr/lib`, and the image is bricked. So each path is resolved through the links of base and earlier layers first.

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::index::{Node as Base, TreeIndex};
use crate::layer::entry::{Body, Entry, Meta, Node, TreePath};

/// Most links that are followed in one path, as Linux does.
const LINKS_MAX: usize = 40;
/// Top folders that are links in every base with merged /usr; without an index they are refused.
const MERGED: [&str; 5] = ["bin", "lib", "lib32", "lib64", "sbin"];

/// A base with the layers that were put on it so far.
#[derive(Debug)]
pub struct Overlay<'a> {
    base: Option<&'a TreeIndex>,
    new: BTreeMap<String, Kind>,
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file, or a thing that is as little of a directory.
    File,
    /// A link with its target.
    Symlink(String),
    /// It was there and has been taken out.
    Gone,
}

impl<'a> Overlay<'a> {
    /// Nothing added yet.
    #[must_use]
    pub fn new(base: Option<&'a TreeIndex>) -> Self {
        Self { base, new: BTreeMap::new() }
    }

    /// The base's index.
    #[must_use]
    pub fn base(&self) -> Option<&'a TreeIndex> {
        self.base
    }

    /// What is at a path that leads through no links; `None` where nothing is.
    #[must_use]
    pub fn at(&self, path: &str) -> Option<Kind> {
        match self.new.get(path) {
            Some(Kind::Gone) => return None,
            Some(kind) => return Some(kind.clone()),
            None => {}
        }
        let mut parent = path;
        while let Some((up, _)) = parent.rsplit_once('/') {
            match self.new.get(up) {
                Some(Kind::Gone | Kind::File | Kind::Symlink(_)) => return None,
                _ => parent = up,
            }
        }
        Some(match self.base?.nodes.get(path)? {
            Base::D { .. } => Kind::Directory,
            Base::F { .. } | Base::X => Kind::File,
            Base::L(target) => Kind::Symlink(target.clone()),
        })
    }

    /// Where a path really is: links among its folders are followed, the last name is not.
    ///
    /// # Errors
    /// When links go in a circle or lead out, or a file is in a folder's place.
    pub fn resolve(&self, path: &str) -> Result<String, String> {
        self.walk(path, false)
    }

    fn walk(&self, path: &str, last: bool) -> Result<String, String> {
        self.guard(path)?;
        let mut done: Vec<String> = Vec::new();
        let mut todo: Vec<String> = path.rsplit('/').map(str::to_owned).collect();
        let mut links = 0;
        while let Some(part) = todo.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    done.pop().ok_or_else(|| format!("/{path} leads out of the image"))?;
                    continue;
                }
                _ => done.push(part),
            }
            if todo.is_empty() && !last {
                break;
            }
            match self.at(&done.join("/")) {
                Some(Kind::Symlink(target)) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(format!("/{path} goes in a circle"));
                    }
                    done.pop();
                    if target.starts_with('/') {
                        done.clear();
                    }
                    todo.extend(target.rsplit('/').map(str::to_owned));
                }
                Some(Kind::File) if !todo.is_empty() => return Err(format!("/{path}: /{} is a file", done.join("/"))),
                _ => {}
            }
        }
        if done.is_empty() { Err(format!("/{path} is the root")) } else { Ok(done.join("/")) }
    }

    /// True when a layer of ours has put something at a path, or taken it out.
    #[must_use]
    pub fn is_new(&self, path: &str) -> bool {
        self.new.contains_key(path)
    }

    /// As [`Overlay::resolve`], with the last name followed too.
    ///
    /// # Errors
    /// As [`Overlay::resolve`].
    pub fn follow(&self, path: &str) -> Result<String, String> {
        self.walk(path, true)
    }

    /// The index knows which folders are links; without one the usual links are refused.
    fn guard(&self, path: &str) -> Result<(), String> {
        let top = path.split('/').next().unwrap_or(path);
        if self.base.is_none() && MERGED.contains(&top) {
            return Err(format!(
                "/{path}: /{top} may be a link in the base; name the path below /usr, or make the tree index"
            ));
        }
        Ok(())
    }

    /// Makes a layer of entries and removals: paths resolved, missing folders named, known ones left out, the same file twice
    /// named once; `meta` is for what the layer itself makes. The result is sorted, whiteouts first in each folder.
    ///
    /// # Errors
    /// For paths that cannot be resolved, two different things at one path, or a thing that would take the place of another kind
    /// of thing which the layer does not remove.
    pub fn place(
        &mut self,
        entries: Vec<Entry>,
        removes: &[(String, String)],
        mtime: u64,
    ) -> Result<Vec<Entry>, String> {
        let mut layer: BTreeMap<String, Entry> = BTreeMap::new();
        let mut gone: BTreeMap<String, String> = BTreeMap::new();
        for (path, from) in removes {
            let real = self.resolve(path)?;
            if self.base.is_some() && self.at(&real).is_none() {
                return Err(format!("{from}: /{path} is not there to be removed"));
            }
            gone.insert(real, from.clone());
        }
        for mut entry in entries {
            let real = self.resolve(entry.path.as_str())?;
            entry.path = TreePath::new(real.clone())?;
            match layer.get(&real) {
                Some(other) if !same(other, &entry) => {
                    return Err(format!("/{real} is in {} and, with other content, in {}", other.from, entry.from));
                }
                Some(_) => {}
                None => {
                    layer.insert(real, entry);
                }
            }
        }
        self.check_kinds(&layer, &gone)?;
        let folders = self.folders(&mut layer, mtime)?;
        Ok(self.finish(layer, gone, folders, mtime))
    }

    fn check_kinds(&self, layer: &BTreeMap<String, Entry>, gone: &BTreeMap<String, String>) -> Result<(), String> {
        for (path, entry) in layer {
            let name = path.rsplit('/').next().unwrap_or(path);
            if name.starts_with(".wh.") {
                return Err(format!("{}: /{path} has the name of a whiteout", entry.from));
            }
            let dir = matches!(entry.node, Node::Directory);
            let was = self.at(path).filter(|_| !gone.contains_key(path));
            match was {
                Some(Kind::Directory) if !dir => {
                    return Err(format!("{}: /{path} is a directory in the base; remove it first", entry.from));
                }
                Some(Kind::File | Kind::Symlink(_)) if dir => {
                    return Err(format!("{}: /{path} is no directory in the base; remove it first", entry.from));
                }
                _ => {}
            }
            if dir && gone.contains_key(path) {
                return Err(emptied(path));
            }
            let mut at = path.as_str();
            while let Some((up, _)) = at.rsplit_once('/') {
                if gone.contains_key(up) {
                    return Err(emptied(up));
                }
                if let Some(other) = layer.get(up).filter(|e| !matches!(e.node, Node::Directory)) {
                    return Err(format!("{} puts a file at /{up}, {} one below it", other.from, entry.from));
                }
                at = up;
            }
        }
        Ok(())
    }

    /// Folders that are new; those that were known are taken out of the layer, so that their attributes stay.
    fn folders(&self, layer: &mut BTreeMap<String, Entry>, mtime: u64) -> Result<Vec<Entry>, String> {
        let known = |path: &str| self.base.is_none() || self.at(path) == Some(Kind::Directory);
        layer.retain(|path, entry| !(matches!(entry.node, Node::Directory) && known(path)));
        let mut missing = BTreeSet::new();
        for path in layer.keys() {
            let mut at = path.as_str();
            while let Some((up, _)) = at.rsplit_once('/') {
                if known(up) || layer.contains_key(up) || !missing.insert(up.to_owned()) {
                    break;
                }
                at = up;
            }
        }
        let meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime };
        let make = |path: String| {
            Ok(Entry { path: TreePath::new(path)?, meta, node: Node::Directory, from: "sparklane".into() })
        };
        missing.into_iter().map(make).collect()
    }

    fn finish(
        &mut self,
        layer: BTreeMap<String, Entry>,
        gone: BTreeMap<String, String>,
        folders: Vec<Entry>,
        mtime: u64,
    ) -> Vec<Entry> {
        let mut all = folders;
        for (path, from) in gone {
            self.forget(&path);
            // The new file hides the old one; a folder's old content would show through.
            let hidden = layer.get(&path).is_some_and(|e| !matches!(e.node, Node::Directory));
            all.extend(whiteout(&path, from, mtime).filter(|_| !hidden));
        }
        all.extend(layer.into_values());
        for entry in &all {
            let kind = match &entry.node {
                Node::Directory => Kind::Directory,
                Node::Symlink(target) => Kind::Symlink(target.clone()),
                Node::File(_) if is_whiteout(entry.path.as_str()) => continue,
                Node::File(_) => Kind::File,
            };
            self.new.insert(entry.path.as_str().to_owned(), kind);
        }
        all.sort_by_cached_key(|e| order(e.path.as_str()));
        all
    }

    fn forget(&mut self, path: &str) {
        let below = format!("{path}/");
        self.new.retain(|p, _| !p.starts_with(&below));
        self.new.insert(path.to_owned(), Kind::Gone);
    }
}

/// Stores make the whiteout first and the folder over it, and the old content shows through again.
fn emptied(path: &str) -> String {
    format!("/{path} is removed and something is put at or below it; use two layers")
}

/// True for the path of a whiteout.
#[must_use]
pub fn is_whiteout(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with(".wh."))
}

/// Folder by folder, whiteouts before other names (R4).
fn order(path: &str) -> Vec<(bool, String)> {
    path.split('/').map(|part| (!part.starts_with(".wh."), part.to_owned())).collect()
}

/// The entry that takes a path of lower layers out (R10).
fn whiteout(path: &str, from: String, mtime: u64) -> Option<Entry> {
    let name = match path.rsplit_once('/') {
        Some((folder, name)) => format!("{folder}/.wh.{name}"),
        None => format!(".wh.{path}"),
    };
    let meta = Meta { mode: 0o644, uid: 0, gid: 0, mtime };
    Some(Entry { path: TreePath::new(name).ok()?, meta, node: Node::File(Body::Bytes(Vec::new())), from })
}

/// True when two entries of one path are the same thing (R33).
fn same(a: &Entry, b: &Entry) -> bool {
    match (&a.node, &b.node) {
        (Node::Directory, Node::Directory) => true,
        (Node::Symlink(a), Node::Symlink(b)) => a == b,
        (Node::File(x), Node::File(y)) => a.meta.mode == b.meta.mode && sum(x).is_some() && sum(x) == sum(y),
        _ => false,
    }
}

fn sum(body: &Body) -> Option<[u8; 32]> {
    match body {
        Body::Bytes(bytes) => Some(Sha256::digest(bytes).into()),
        Body::Deflated { sha256, .. } | Body::Stored { sha256, .. } => *sha256,
    }
}

#[cfg(test)]
#[path = "paths_tests.rs"]
mod tests;
