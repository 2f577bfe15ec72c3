//! What must hold for the entries of one layer (R2 to R10). Of layers of ours every rule must hold; of a base's only what
//! makes an unpacker fail or write outside.

use std::collections::HashSet;

use super::walk::{Item, Kind, Walked};
use crate::media::Compression;

/// What a whiteout's name begins with.
pub const WHITEOUT: &str = ".wh.";
/// The name that empties a directory of a lower layer.
pub const OPAQUE: &str = ".wh..wh..opq";
/// Bytes of the two zero blocks at the end of a tar (R6).
const END: u64 = 1024;
/// 1980-01-01: Python's zipfile refuses older files (R2).
const OLDEST: u64 = 315_532_800;

/// Folder and name of a path.
#[must_use]
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// Whether a path stays in its folder when it is unpacked there.
#[must_use]
pub fn escapes(path: &str) -> bool {
    path.split('/').any(|c| c == "..")
}

/// What is wrong in any layer, with the path of the entry.
#[must_use]
pub fn any_layer(walked: &Walked) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen: HashSet<&str> = HashSet::new();
    for item in &walked.items {
        let path = plain(&item.path);
        if escapes(path) {
            found.push(format!("{}: leads out of the image (R4)", item.path));
        }
        if let Kind::Hardlink(target) = &item.kind
            && !seen.contains(plain(target))
        {
            found.push(format!("{}: is a hard link to {target}, which is not above it in this layer (R9)", item.path));
        }
        if !seen.insert(path) {
            found.push(format!("{}: is there twice (R4)", item.path));
        }
    }
    found
}

/// What is wrong in a layer that we wrote, beyond [`any_layer`].
#[must_use]
pub fn our_layer(walked: &Walked) -> Vec<String> {
    let mut found = Vec::new();
    if walked.compression != Compression::Gzip {
        found.push("it is not compressed with gzip (R13)".to_owned());
    }
    if walked.tail != END {
        found.push(format!("its tar ends with {} bytes, not with two zero blocks (R6)", walked.tail));
    }
    let time = walked.items.first().map(|i| i.mtime);
    for item in &walked.items {
        let say = |why: &str| format!("{}: {why}", item.path);
        found.extend(alone(item).into_iter().map(say));
        if Some(item.mtime) != time {
            found.push(say("its time differs from the other entries' (R2)"));
        }
    }
    for pair in walked.items.windows(2) {
        if let [a, b] = pair
            && order(&a.path) >= order(&b.path)
        {
            found.push(format!("{}: comes after {} (R4)", b.path, a.path));
        }
    }
    found
}

/// What is wrong with one entry of ours.
fn alone(item: &Item) -> Vec<&'static str> {
    let mut found = Vec::new();
    let mut must = |holds: bool, why: &'static str| {
        if !holds {
            found.push(why);
        }
    };
    let bad = |c: &str| c.is_empty() || c == "." || c == "..";
    must(!item.path.split('/').any(bad), "is no plain relative path (R4)");
    must(!item.path.chars().any(char::is_control), "has a control character (R4)");
    must(!item.named, "names its owner (R3)");
    must(item.mtime >= OLDEST, "is older than 1980 (R2)");
    must(item.pax.iter().all(|k| matches!(k.as_str(), "path" | "linkpath" | "size")), "has more PAX keys (R5)");
    must(item.kind != Kind::Other, "is neither file, directory nor link");
    must(!matches!(item.kind, Kind::Symlink(_)) || item.mode == 0o777, "is a symlink of another mode than 0777");
    let (folder, name) = split(&item.path);
    must(!folder.split('/').any(|c| c.starts_with(WHITEOUT)), "lies in a folder whose name begins with .wh. (R10)");
    if name.starts_with(WHITEOUT) {
        let empty = matches!(item.kind, Kind::File(_)) && item.size == 0 && item.mode == 0o644;
        must(empty, "is a whiteout, but no empty file of mode 0644 (R10)");
        must(name != OPAQUE, "empties a folder; name what goes (R10)");
    }
    found
}

/// Bytewise order of paths, with a folder's whiteouts before its other entries (R4).
fn order(path: &str) -> Vec<u8> {
    let (folder, name) = split(path);
    match (folder, name.starts_with(WHITEOUT)) {
        (_, false) => path.as_bytes().to_vec(),
        ("", true) => format!("\0{name}").into_bytes(),
        (folder, true) => format!("{folder}/\0{name}").into_bytes(),
    }
}

/// A path without `./` and slashes at its beginning, as unpackers read it.
#[must_use]
pub fn plain(path: &str) -> &str {
    let mut rest = path;
    loop {
        match rest.strip_prefix("./").or_else(|| rest.strip_prefix('/')) {
            Some(next) => rest = next,
            None => return if rest == "." { "" } else { rest },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> Item {
        let kind = Kind::File([0; 32]);
        let (pax, text, path) = (Vec::new(), None, path.to_owned());
        Item { path, kind, mode: 0o644, uid: 0, gid: 0, mtime: OLDEST, size: 0, named: false, pax, text }
    }

    fn layer(items: Vec<Item>) -> Walked {
        let digest = crate::digest::of(b"");
        let (diff_id, compression) = (digest.clone(), Compression::Gzip);
        Walked { digest, size: 0, diff_id, bytes: 0, compression, items, tail: END }
    }

    fn both(items: Vec<Item>) -> String {
        let layer = layer(items);
        [any_layer(&layer), our_layer(&layer)].concat().join("\n")
    }

    #[test]
    fn a_layer_of_ours_has_nothing_to_say() {
        assert_eq!(both(vec![file("a/.wh.z"), file("a/b"), file("a/c"), file("b")]), "");
    }

    #[test]
    fn each_broken_rule_is_named() {
        let with = |change: &dyn Fn(&mut Item)| {
            let mut item = file("a/b");
            change(&mut item);
            both(vec![item])
        };
        assert!(both(vec![file("b"), file("a")]).contains("comes after b (R4)"));
        assert!(both(vec![file("a"), file("a")]).contains("twice (R4)"));
        assert!(both(vec![file("a"), file("./a")]).contains("twice (R4)"));
        assert!(both(vec![file("opt/../../evil")]).contains("leads out"));
        assert!(both(vec![file("/abs")]).contains("plain relative"));
        assert!(both(vec![file("a/.wh..wh..opq")]).contains("R10"));
        assert!(both(vec![file(".wh.d/x")]).contains("R10"));
        assert!(with(&|i| i.path = "a/.wh.x".into()).is_empty());
        assert!(with(&|i| (i.path, i.size) = ("a/.wh.x".into(), 1)).contains("R10"));
        assert!(with(&|i| i.named = true).contains("R3"));
        assert!(with(&|i| i.mtime = 1).contains("R2"));
        assert!(with(&|i| i.pax = vec!["mtime".into()]).contains("R5"));
        assert!(with(&|i| i.kind = Kind::Other).contains("neither"));
        assert!(with(&|i| i.kind = Kind::Symlink("x".into())).contains("0777"));
        assert!(with(&|i| i.kind = Kind::Hardlink("x".into())).contains("R9"));
        let mut late = file("b");
        late.mtime += 1;
        assert!(both(vec![file("a"), late]).contains("time differs"));
        let mut tail = layer(vec![file("a")]);
        tail.tail = 10240;
        assert!(our_layer(&tail).join("").contains("R6"));
    }
}
