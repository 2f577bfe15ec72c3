//! Layers put upon each other, as an overlay of folders shows them.

use std::collections::BTreeMap;

use super::facts;
use super::index::{Distribution, FORMAT, Node, Python, TreeIndex};
use super::scan::{Act, Attributes, Facts, Keep, LayerScan, Row};
use crate::digest::Digest;

/// A thing in the merged tree.
#[derive(Debug, Clone)]
enum Item {
    Directory(Attributes),
    File(Attributes, Facts),
    Symlink(String),
    Other,
}

/// A merged tree: each path with the number of the layer that it is from.
#[derive(Debug, Default)]
struct Tree {
    items: BTreeMap<String, (u32, Item)>,
}

/// Merges scans (lowest first) into an index; `layers` are the blobs' digests. Texts of `keep` are kept, and the RECORD of the
/// distribution that owns each.
///
/// # Errors
/// For a hard link to nothing.
pub fn merge(layers: Vec<Digest>, scans: Vec<LayerScan>, keep: &Keep) -> Result<TreeIndex, String> {
    let mut tree = Tree::default();
    for (number, scan) in scans.into_iter().enumerate() {
        let number = u32::try_from(number).map_err(|e| e.to_string())?;
        tree.apply(number, scan.rows).map_err(|why| format!("layer {number}: {why}"))?;
    }
    Ok(tree.index(layers, keep))
}

/// First path behind everything below a directory: `/` is followed by `0`.
fn below(path: &str) -> (String, String) {
    (format!("{path}/"), format!("{path}0"))
}

impl Tree {
    fn apply(&mut self, layer: u32, rows: Vec<Row>) -> Result<(), String> {
        // Whiteouts are for lower layers only, wherever in the tar they are.
        for row in &rows {
            match row.act {
                Act::Whiteout => {
                    self.clear_below(&row.path);
                    self.items.remove(&row.path);
                }
                Act::Opaque if row.path.is_empty() => self.items.clear(),
                Act::Opaque => self.clear_below(&row.path),
                _ => {}
            }
        }
        for Row { path, act } in rows {
            let item = match act {
                Act::Whiteout | Act::Opaque => continue,
                Act::Directory(attributes) => Item::Directory(attributes),
                Act::File(attributes, facts) => Item::File(attributes, facts),
                Act::Symlink(target) => Item::Symlink(target),
                Act::Other => Item::Other,
                Act::Hardlink(target) => match self.items.get(&target) {
                    Some((_, item)) => item.clone(),
                    None => return Err(format!("{path:?} is a hard link to {target:?}, which is not there")),
                },
            };
            self.put(layer, path, item);
        }
        Ok(())
    }

    fn clear_below(&mut self, path: &str) {
        let (from, to) = below(path);
        let gone: Vec<String> = self.items.range(from..to).map(|(p, _)| p.clone()).collect();
        for path in gone {
            self.items.remove(&path);
        }
    }

    fn put(&mut self, layer: u32, path: String, item: Item) {
        let mut at = 0;
        while let Some(next) = path[at..].find('/') {
            let parent = &path[..at + next];
            if !matches!(self.items.get(parent), Some((_, Item::Directory(_)))) {
                // An overlay shows the upper directory in a lower file's or link's place.
                let usual = Attributes { mode: 0o755, uid: 0, gid: 0 };
                self.items.insert(parent.to_owned(), (layer, Item::Directory(usual)));
            }
            at += next + 1;
        }
        if !matches!(item, Item::Directory(_)) {
            self.clear_below(&path);
        }
        self.items.insert(path, (layer, item));
    }

    fn index(self, layers: Vec<Digest>, keep: &Keep) -> TreeIndex {
        let mut index = TreeIndex {
            format: FORMAT,
            layers,
            nodes: BTreeMap::new(),
            distributions: self.distributions(),
            pythons: self.pythons(),
            pycs: BTreeMap::new(),
            libraries: BTreeMap::new(),
            glibc: None,
            kept: BTreeMap::new(),
        };
        let mut texts = keep.clone();
        for path in keep {
            let record = index.owner(path).map(|(folder, _)| format!("{folder}/RECORD"));
            texts.extend(record);
        }
        for (path, (layer, item)) in self.items {
            if let Item::File(_, facts) = &item {
                note(&mut index, &path, facts, texts.contains(&path));
            }
            index.nodes.insert(path, node(layer, item));
        }
        index
    }

    fn text(&self, path: &str) -> Option<&str> {
        match self.items.get(path) {
            Some((_, Item::File(_, facts))) => facts.text.as_deref(),
            _ => None,
        }
    }

    fn distributions(&self) -> BTreeMap<String, Distribution> {
        let mut found = BTreeMap::new();
        for path in self.items.keys() {
            let Some(folder) = path.strip_suffix("/METADATA").filter(|f| f.ends_with(".dist-info")) else { continue };
            // A folder within a package is somebody's vendored copy, not an installed distribution (R24).
            let site = folder.rsplit_once('/').map_or("", |(site, _)| site);
            if !site.ends_with("-packages") {
                continue;
            }
            let Some((name, version)) = self.text(path).and_then(facts::metadata) else { continue };
            let files = self.text(&format!("{folder}/RECORD")).map(|text| facts::record_paths(text, site));
            found.insert(folder.to_owned(), Distribution { name, version, files });
        }
        found
    }

    fn is_dir(&self, path: &str) -> bool {
        matches!(self.items.get(path), Some((_, Item::Directory(_))))
    }

    fn pythons(&self) -> BTreeMap<String, Python> {
        let mut found = BTreeMap::new();
        for (path, (_, item)) in &self.items {
            let (true, Some(prefix)) = (matches!(item, Item::File(..) | Item::Symlink(_)), python_prefix(path)) else {
                continue;
            };
            let versions = match facts::interpreter(path) {
                Some((_, version)) => vec![version.to_owned()],
                None => self.versions(prefix),
            };
            if let [version] = versions.as_slice() {
                let sites = self.sites(prefix, version);
                found.insert(path.clone(), Python { version: version.clone(), sites });
            }
        }
        found
    }

    /// Versions of the libraries below a prefix, for a `python3` whose name does not tell.
    fn versions(&self, prefix: &str) -> Vec<String> {
        let lib = facts::join(prefix, "lib").unwrap_or_default();
        let (from, to) = below(&lib);
        let version = |path: &String| {
            let name = path.strip_prefix(&from)?.strip_prefix("python")?;
            let plain = name.starts_with("3.") && name[2..].bytes().all(|b| b.is_ascii_digit());
            (plain && self.is_dir(path)).then(|| name.to_owned())
        };
        self.items.range(from.clone()..to).filter_map(|(path, _)| version(path)).collect()
    }

    /// Where an interpreter imports third-party modules from: Debian's folders for /usr, the prefix's own otherwise.
    fn sites(&self, prefix: &str, version: &str) -> Vec<String> {
        const DEBIAN: &str = "usr/lib/python3/dist-packages";
        let mut all = Vec::new();
        let local = format!("usr/local/lib/python{version}/dist-packages");
        // Debian's python looks into its local folder as soon as there is one, so a layer may make it.
        if prefix == "usr" && (self.is_dir(DEBIAN) || self.is_dir(&local)) {
            all.push(local);
            all.push(DEBIAN.to_owned());
        }
        all.extend(facts::join(prefix, &format!("lib/python{version}/site-packages")).filter(|site| self.is_dir(site)));
        all
    }
}

/// `usr` for `usr/bin/python3` and `usr/bin/python3.12`.
fn python_prefix(path: &str) -> Option<&str> {
    let prefix = path.strip_suffix("/bin/python3").or_else(|| path.strip_suffix("/bin/python"));
    prefix.or_else(|| facts::interpreter(path).map(|(prefix, _)| prefix))
}

fn note(index: &mut TreeIndex, path: &str, facts: &Facts, keep: bool) {
    if let Some(pyc) = facts.pyc {
        index.pycs.insert(path.to_owned(), pyc);
    }
    if let Some(library) = &facts.library {
        index.libraries.insert(path.to_owned(), library.clone());
    }
    if index.glibc.is_none() {
        index.glibc.clone_from(&facts.glibc);
    }
    if let (true, Some(text)) = (keep, &facts.text) {
        index.kept.insert(path.to_owned(), text.clone());
    }
}

fn node(layer: u32, item: Item) -> Node {
    let owner = |a: &Attributes| (a.uid, a.gid);
    match item {
        Item::Directory(a) => Node::directory(a.mode, owner(&a)),
        Item::File(a, facts) => Node::F {
            m: (a.mode != 0o644).then_some(a.mode),
            o: (owner(&a) != (0, 0)).then_some(owner(&a)),
            s: facts.size,
            h: facts.sha256,
            l: layer,
        },
        Item::Symlink(target) => Node::L(target),
        Item::Other => Node::X,
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
