use super::*;
use crate::base::scan::{self, Keep};
use crate::base::tree;

fn base() -> TreeIndex {
    let mut builder = tar::Builder::new(Vec::new());
    let mut add = |path: &str, kind: tar::EntryType, link: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(0o755);
        if link.is_empty() {
            builder.append_data(&mut header, path, &b""[..]).unwrap();
        } else {
            builder.append_link(&mut header, path, link).unwrap();
        }
    };
    for dir in ["usr", "usr/lib", "usr/bin", "tmp", "opt"] {
        add(dir, tar::EntryType::Directory, "");
    }
    for (link, target) in [
        ("lib", "usr/lib"),
        ("bin", "/usr/bin"),
        ("l1", "l2"),
        ("l2", "l1"),
        ("out", "../../x"),
        ("opt/v", "/opt/v-real"),
        ("usr/lib/up", "../bin"),
    ] {
        add(link, tar::EntryType::Symlink, target);
    }
    add("usr/lib/x.so", tar::EntryType::Regular, "");
    let scan = scan::layer(&builder.into_inner().unwrap()[..], &Keep::new()).unwrap();
    tree::merge(Vec::new(), vec![scan], &Keep::new()).unwrap()
}

fn file(path: &str, body: &str, from: &str) -> Entry {
    let meta = Meta { mode: 0o644, uid: 0, gid: 0, mtime: 1 };
    Entry { path: TreePath::new(path).unwrap(), meta, node: Node::File(Body::Bytes(body.into())), from: from.into() }
}

fn directory(path: &str) -> Entry {
    Entry { node: Node::Directory, ..file(path, "", "d") }
}

fn place(overlay: &mut Overlay<'_>, entries: Vec<Entry>, removes: &[&str]) -> Result<Vec<String>, String> {
    let removes: Vec<_> = removes.iter().map(|r| ((*r).to_owned(), "r".to_owned())).collect();
    Ok(overlay.place(entries, &removes, 1)?.iter().map(|e| e.path.as_str().to_owned()).collect())
}

/// Issue row 5 (rules_oci#857, nixpkgs#57073): a path through a link of the base lands where the link leads.
#[test]
fn row_05_usr_merge() {
    let index = base();
    let mut overlay = Overlay::new(Some(&index));
    let found = place(&mut overlay, vec![file("lib/hello", "", "f"), file("bin/b", "", "f")], &[]).unwrap();
    assert_eq!(found, ["usr/bin/b", "usr/lib/hello"]);
    assert_eq!(overlay.resolve("lib/up/z").unwrap(), "usr/bin/z");
    assert_eq!(overlay.resolve("opt/v/z").unwrap(), "opt/v-real/z");
    assert_eq!(overlay.follow("lib").unwrap(), "usr/lib");
    for (path, word) in [("l1/x", "circle"), ("out/x", "leads out"), ("usr/lib/x.so/y", "is a file")] {
        assert!(overlay.resolve(path).unwrap_err().contains(word), "{path}");
    }
}

#[test]
fn known_folders_are_left_out_and_new_ones_named() {
    let index = base();
    let mut overlay = Overlay::new(Some(&index));
    let entries = vec![directory("tmp"), directory("opt/new"), file("opt/new/a/b", "", "f"), file("tmp/t", "", "f")];
    assert_eq!(place(&mut overlay, entries, &[]).unwrap(), ["opt/new", "opt/new/a", "opt/new/a/b", "tmp/t"]);
    // The next layer knows them.
    assert_eq!(place(&mut overlay, vec![file("opt/new/a/c", "", "f")], &[]).unwrap(), ["opt/new/a/c"]);
}

#[test]
fn another_kind_of_thing_needs_a_removal() {
    let index = base();
    let mut overlay = Overlay::new(Some(&index));
    assert!(place(&mut overlay, vec![file("tmp", "", "f")], &[]).unwrap_err().contains("remove it first"));
    assert!(place(&mut overlay, vec![file("usr/lib/x.so/y", "", "f")], &[]).unwrap_err().contains("is a file"));
    assert!(place(&mut overlay, vec![], &["opt/none"]).unwrap_err().contains("not there"));
    assert_eq!(place(&mut overlay, vec![file("tmp", "", "f")], &["tmp"]).unwrap(), ["tmp"]);
    assert_eq!(place(&mut overlay, vec![], &["lib/x.so"]).unwrap(), ["usr/lib/.wh.x.so"]);
    assert_eq!(overlay.at("usr/lib/x.so"), None);
    assert!(place(&mut overlay, vec![file("opt/z", "", "f")], &["opt"]).unwrap_err().contains("two layers"));
    assert_eq!(
        place(&mut overlay, vec![file("usr/.wh.x", "", "f")], &[]).unwrap_err(),
        "f: /usr/.wh.x has the name of a whiteout"
    );
}

/// Issue row 6 (buildkit#266, containerd#2070): one path once.
#[test]
fn row_06_the_same_path_twice() {
    let index = base();
    let mut overlay = Overlay::new(Some(&index));
    let twice = vec![file("lib/a", "1", "one.whl"), file("usr/lib/a", "1", "two.whl")];
    assert_eq!(place(&mut overlay, twice, &[]).unwrap(), ["usr/lib/a"]);
    let differ = vec![file("lib/b", "1", "one.whl"), file("usr/lib/b", "2", "two.whl")];
    let error = place(&mut overlay, differ, &[]).unwrap_err();
    assert!(error.contains("one.whl") && error.contains("two.whl"), "{error}");
    let module = vec![file("opt/m", "1", "one.whl"), file("opt/m/n", "2", "two.whl")];
    assert!(place(&mut overlay, module, &[]).unwrap_err().contains("two.whl"));
}

#[test]
fn without_an_index_nothing_is_guessed() {
    let mut overlay = Overlay::new(None);
    assert_eq!(place(&mut overlay, vec![directory("usr"), file("usr/x", "", "f")], &[]).unwrap(), ["usr/x"]);
    assert!(place(&mut overlay, vec![file("lib/x", "", "f")], &[]).unwrap_err().contains("may be a link"));
}

#[test]
fn whiteouts_come_first_in_their_folder() {
    let index = base();
    let mut overlay = Overlay::new(Some(&index));
    let found = place(&mut overlay, vec![file("usr/lib/!a", "", "f"), file("usr/lib/x.d", "", "f")], &["usr/lib/x.so"])
        .unwrap();
    assert_eq!(found, ["usr/lib/.wh.x.so", "usr/lib/!a", "usr/lib/x.d"]);
}
