//! The merged tree of an image's layers, and what must hold for layers of ours in it (R7, R8) and for the distributions in
//! it (RECORD).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::rules::{OPAQUE, WHITEOUT, plain, split};
use super::walk::{Item, Kind};

/// What lies at a path, and in which layer it was written.
#[derive(Debug, Clone)]
pub struct Placed {
    /// The entry.
    pub item: Item,
    /// Number of the layer, from 0.
    pub layer: usize,
}

/// A merged tree.
#[derive(Debug, Default)]
pub struct Tree(BTreeMap<String, Placed>);

impl Tree {
    /// What lies at a path.
    #[must_use]
    pub fn get(&self, path: &str) -> Option<&Placed> {
        self.0.get(path)
    }

    /// Everything, by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Placed)> {
        self.0.iter().map(|(path, placed)| (path.as_str(), placed))
    }

    /// Lays a layer over the tree: first its whiteouts, which concern lower layers only, then its entries.
    pub fn apply(&mut self, layer: usize, items: Vec<Item>) {
        let named = |item: &Item| split(plain(&item.path)).1.starts_with(WHITEOUT);
        let (whiteouts, entries): (Vec<Item>, Vec<Item>) = items.into_iter().partition(named);
        for item in whiteouts {
            let (folder, name) = split(plain(&item.path));
            if name == OPAQUE {
                self.empty(folder);
            } else {
                let name = &name[WHITEOUT.len()..];
                self.remove(&if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") });
            }
        }
        for item in entries {
            self.place(layer, item);
        }
    }

    fn place(&mut self, layer: usize, mut item: Item) {
        let path = plain(&item.path).to_owned();
        if path.is_empty() {
            return;
        }
        if let Kind::Hardlink(target) = &item.kind
            && let Some(first) = self.0.get(plain(target))
        {
            item = Item { path: item.path, ..first.item.clone() };
        }
        if item.kind != Kind::Directory {
            self.empty(&path);
        }
        self.0.insert(path, Placed { item, layer });
    }

    fn remove(&mut self, path: &str) {
        self.0.remove(path);
        self.empty(path);
    }

    /// Takes out what lies below a path.
    fn empty(&mut self, path: &str) {
        if path.is_empty() {
            self.0.clear();
            return;
        }
        // '0' is the byte after '/'.
        let range = format!("{path}/")..format!("{path}0");
        let below: Vec<String> = self.0.range(range).map(|(p, _)| p.clone()).collect();
        for path in below {
            self.0.remove(&path);
        }
    }

    /// What is wrong with a layer of ours that is to be laid over this tree: paths through links and files (R8), attributes
    /// of directories that change (R7), whiteouts of nothing (R10).
    #[must_use]
    pub fn judge(&self, items: &[Item]) -> Vec<String> {
        let ours: BTreeMap<&str, &Item> = items.iter().map(|i| (i.path.as_str(), i)).collect();
        let mut found = Vec::new();
        for item in items {
            let (folder, name) = split(&item.path);
            if let Some(why) = self.blocked(folder, &ours) {
                found.push(format!("{}: {why} (R8)", item.path));
            }
            if let Some(gone) = name.strip_prefix(WHITEOUT) {
                let gone = if folder.is_empty() { gone.to_owned() } else { format!("{folder}/{gone}") };
                let there =
                    self.0.contains_key(&gone) || self.0.range(format!("{gone}/")..format!("{gone}0")).next().is_some();
                if !there {
                    found.push(format!("{}: removes what is not there (R10)", item.path));
                }
            }
            let Some(old) = self.0.get(&item.path).map(|p| &p.item) else { continue };
            let attributes = |i: &Item| (i.mode, i.uid, i.gid);
            match (&old.kind, &item.kind) {
                (Kind::Directory, Kind::Directory) if attributes(old) != attributes(item) => found.push(format!(
                    "{}: changes a directory from mode {:04o}, {}:{} to {:04o}, {}:{} (R7)",
                    item.path, old.mode, old.uid, old.gid, item.mode, item.uid, item.gid
                )),
                (Kind::Directory, now) if *now != Kind::Directory => {
                    found.push(format!("{}: takes the place of a directory and all that is in it (R8)", item.path));
                }
                (Kind::Symlink(to), Kind::Directory) => {
                    found.push(format!("{}: a directory takes the place of the link to {to} (R8)", item.path));
                }
                _ => {}
            }
        }
        found
    }

    /// What on the way to a folder is no directory.
    fn blocked(&self, folder: &str, ours: &BTreeMap<&str, &Item>) -> Option<String> {
        let ends = folder.match_indices('/').map(|(at, _)| at).chain([folder.len()]);
        ends.filter(|end| *end > 0).find_map(|end| {
            let path = &folder[..end];
            let item = ours.get(path).copied().or_else(|| self.0.get(path).map(|p| &p.item))?;
            match &item.kind {
                Kind::Directory => None,
                Kind::Symlink(target) => {
                    Some(format!("{path} is a link to {target}; unpackers would put a directory in its place"))
                }
                _ => Some(format!("{path} is no directory")),
            }
        })
    }

    /// Distributions whose RECORD does not hold, with the highest layer that is concerned: `(layer, what)`. Only those that
    /// lie directly in a folder of third-party modules count (R24).
    #[must_use]
    pub fn records(&self) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for (path, placed) in &self.0 {
            let Some(text) = &placed.item.text else { continue };
            let (info, _) = split(path);
            let (site, _) = split(info);
            if !matches!(split(site).1, "site-packages" | "dist-packages") {
                continue;
            }
            match std::str::from_utf8(text) {
                Ok(text) => self.record(path, placed.layer, site, text, &mut found),
                Err(_) => found.push((placed.layer, format!("{path}: it is no UTF-8"))),
            }
        }
        found
    }

    fn record(&self, path: &str, layer: usize, site: &str, text: &str, found: &mut Vec<(usize, String)>) {
        for line in text.lines().filter(|l| !l.trim().is_empty()) {
            let Some((name, sum, size)) = row(line) else {
                found.push((layer, format!("{path}: {line:?} is no row of three fields")));
                continue;
            };
            let Some(promised) = sum.strip_prefix("sha256=") else { continue };
            let Some(file) = resolve(site, &name) else {
                found.push((layer, format!("{path}: {name} leads out of the image")));
                continue;
            };
            match self.follow(&file) {
                None => found.push((layer, format!("{path}: {name} is missing"))),
                Some(Placed { item: Item { kind: Kind::File(sum), size: bytes, .. }, layer: of }) => {
                    let agrees = URL_SAFE_NO_PAD.encode(sum) == promised.trim_end_matches('=')
                        && (size.is_empty() || size == bytes.to_string());
                    if !agrees {
                        found.push((layer.max(*of), format!("{path}: {name} is not the file that it lists")));
                    }
                }
                Some(placed) => found.push((layer.max(placed.layer), format!("{path}: {name} is no file"))),
            }
        }
    }

    /// What a path leads to when links are followed, as far as 40 of them.
    fn follow(&self, path: &str) -> Option<&Placed> {
        let mut path = path.to_owned();
        for _ in 0..40 {
            let link = path.match_indices('/').map(|(at, _)| at).chain([path.len()]).find_map(|end| {
                match &self.0.get(&path[..end])?.item.kind {
                    Kind::Symlink(target) => Some((end, target.clone())),
                    _ => None,
                }
            });
            let Some((end, target)) = link else { return self.0.get(&path) };
            let start = resolve(split(&path[..end]).0, &target)?;
            path = format!("{start}{}", &path[end..]);
        }
        None
    }
}

/// A path relative to a folder, `..` taken by text; an absolute one from the root. `None` when it leads out.
fn resolve(folder: &str, path: &str) -> Option<String> {
    let start = if path.starts_with('/') { "" } else { folder };
    let mut parts: Vec<&str> = start.split('/').filter(|p| !p.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            other => parts.push(other),
        }
    }
    Some(parts.join("/"))
}

/// The three fields of a RECORD's row; the first may be quoted (RFC 4180).
fn row(line: &str) -> Option<(String, &str, &str)> {
    let line = line.trim_end_matches('\r');
    let (rest, size) = line.rsplit_once(',')?;
    let (name, sum) = rest.rsplit_once(',')?;
    let name = match name.strip_prefix('"') {
        Some(quoted) => quoted.strip_suffix('"')?.replace("\"\"", "\""),
        None => name.to_owned(),
    };
    Some((name, sum, size))
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;

    fn item(path: &str, kind: Kind) -> Item {
        let (mode, mtime) = (0o755, 1);
        let (pax, text, path) = (Vec::new(), None, path.to_owned());
        Item { path, kind, mode, uid: 0, gid: 0, mtime, size: 0, named: false, pax, text }
    }

    fn dir(path: &str) -> Item {
        item(path, Kind::Directory)
    }

    fn file(path: &str, bytes: &[u8]) -> Item {
        let mut item = item(path, Kind::File(Sha256::digest(bytes).into()));
        item.size = bytes.len() as u64;
        item.text = path.ends_with("RECORD").then(|| bytes.to_vec());
        item
    }

    fn tree(layers: Vec<Vec<Item>>) -> Tree {
        let mut tree = Tree::default();
        layers.into_iter().enumerate().for_each(|(i, items)| tree.apply(i, items));
        tree
    }

    fn paths(tree: &Tree) -> Vec<&str> {
        tree.iter().map(|(p, _)| p).collect()
    }

    #[test]
    fn whiteouts_concern_lower_layers_only() {
        let lower = vec![dir("a"), file("a/b", b""), dir("a/c"), file("a/c/d", b""), file("a0", b"")];
        let found = tree(vec![lower.clone(), vec![file("a/.wh.c", b""), file("a/.wh.b", b""), file("a/b", b"new")]]);
        assert_eq!(paths(&found), ["a", "a/b", "a0"]);
        let found = tree(vec![lower.clone(), vec![file("a/x", b""), file("a/.wh..wh..opq", b"")]]);
        assert_eq!(paths(&found), ["a", "a/x", "a0"]);
        let found = tree(vec![lower, vec![file("a", b"now a file")]]);
        assert_eq!(paths(&found), ["a", "a0"]);
    }

    /// Issue row 5 (rules_oci#857, nixpkgs#57073): an entry through a base's link bricks the image.
    #[test]
    fn row_5_a_path_through_a_link_of_the_base_is_found() {
        let base = tree(vec![vec![item("lib", Kind::Symlink("usr/lib".into())), dir("usr"), dir("usr/lib")]]);
        assert!(base.judge(&[file("lib/x", b"")]).join("").contains("lib is a link to usr/lib"));
        assert!(base.judge(&[dir("lib")]).join("").contains("takes the place of the link"));
        assert_eq!(base.judge(&[file("usr/lib/x", b"")]), Vec::<String>::new());
    }

    #[test]
    fn directories_keep_their_attributes() {
        let mut tmp = dir("tmp");
        tmp.mode = 0o1777;
        let base = tree(vec![vec![tmp.clone()]]);
        assert!(base.judge(&[dir("tmp")]).join("").contains("from mode 1777, 0:0 to 0755"));
        assert!(base.judge(&[tmp]).is_empty());
        assert!(base.judge(&[file("tmp", b"")]).join("").contains("takes the place of a directory"));
        assert!(base.judge(&[file("tmp/.wh.x", b"")]).join("").contains("not there"));
        assert!(tree(vec![vec![file("f", b"")]]).judge(&[file("f/x", b"")]).join("").contains("f is no directory"));
    }

    #[test]
    fn records_are_held_against_the_tree() {
        let sum = URL_SAFE_NO_PAD.encode(Sha256::digest(b"1"));
        let site = "usr/lib/python3.12/site-packages";
        let record = format!(
            "x.py,sha256={sum},1\r\n\"q,\"\"q.py\",sha256={sum},1\n../../../bin/x,sha256={sum},\nx-1.dist-info/RECORD,,\ngone.pyc,,\n"
        );
        let whole = vec![
            file(&format!("{site}/x.py"), b"1"),
            file(&format!("{site}/q,\"q.py"), b"1"),
            file("usr/bin/x", b"1"),
            item("bin", Kind::Symlink("usr/bin".into())),
            file(&format!("{site}/x-1.dist-info/RECORD"), record.as_bytes()),
            // Not a distribution of this python (R24).
            file(&format!("{site}/ray/thirdparty/y-1.dist-info/RECORD"), b"y.py,sha256=aaaa,1\n"),
        ];
        assert!(tree(vec![whole.clone()]).records().is_empty());
        let edited = tree(vec![whole.clone(), vec![file(&format!("{site}/x.py"), b"2")]]).records();
        assert!(matches!(&edited[..], [(1, why)] if why.contains("x.py is not the file")), "{edited:?}");
        let gone = tree(vec![whole, vec![file("usr/bin/.wh.x", b"")]]).records();
        assert!(matches!(&gone[..], [(0, why)] if why.contains("bin/x is missing")), "{gone:?}");
    }

    #[test]
    fn links_that_loop_end() {
        let looped = tree(vec![vec![item("a", Kind::Symlink("b".into())), item("b", Kind::Symlink("a".into()))]]);
        assert!(looped.follow("a/x").is_none());
    }

    proptest::proptest! {
        #[test]
        fn any_row_and_path_is_read(line in ".{0,80}", path in "[a-c./]{0,30}") {
            let _ = row(&line);
            if let Some(found) = resolve("a/b", &path) {
                proptest::prop_assert!(!found.split('/').any(|c| c == ".."));
            }
        }
    }
}
