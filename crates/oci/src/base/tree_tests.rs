use super::*;
use crate::base::index::Pyc;
use crate::base::scan;

pub(crate) fn tar(entries: &[(&str, char, &str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, kind, link, body) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(if *kind == 'd' { 0o755 } else { 0o644 });
        header.set_size(body.len() as u64);
        header.set_entry_type(match kind {
            'd' => tar::EntryType::Directory,
            'l' => tar::EntryType::Symlink,
            'h' => tar::EntryType::Link,
            _ => tar::EntryType::Regular,
        });
        if !link.is_empty() {
            header.set_link_name(link).unwrap();
        }
        // The library refuses names that layers from outside may have.
        let name = header.as_old_mut();
        name.name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, body.as_bytes()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn merged(layers: &[&[(&str, char, &str, &str)]], keep: &[&str]) -> Result<TreeIndex, String> {
    let keep: Keep = keep.iter().map(|p| (*p).to_owned()).collect();
    let scans: Result<Vec<LayerScan>, String> = layers.iter().map(|l| scan::layer(&tar(l)[..], &keep)).collect();
    merge(Vec::new(), scans?, &keep)
}

fn paths(index: &TreeIndex) -> Vec<&str> {
    index.nodes.keys().map(String::as_str).collect()
}

#[test]
fn whiteouts_are_for_lower_layers_only() {
    let low: &[_] = &[
        ("a/", 'd', "", ""),
        ("a/x", 'f', "", "1"),
        ("a/y", 'f', "", "1"),
        ("a-b", 'f', "", ""),
        ("b/z", 'f', "", ""),
    ];
    let index =
        merged(&[low, &[("a/y", 'f', "", "22"), ("a/.wh.y", 'f', "", ""), ("b/.wh..wh..opq", 'f', "", "")]], &[])
            .unwrap();
    assert_eq!(paths(&index), ["a", "a-b", "a/x", "a/y", "b"]);
    assert!(matches!(index.nodes["a/y"], Node::F { s: 2, l: 1, .. }));
    let index = merged(&[low, &[(".wh.a", 'f', "", "")]], &[]).unwrap();
    assert_eq!(paths(&index), ["a-b", "b", "b/z"]);
    let index = merged(&[low, &[("a", 'f', "", ""), ("a-b/n", 'f', "", "")]], &[]).unwrap();
    assert_eq!(paths(&index), ["a", "a-b", "a-b/n", "b", "b/z"]);
}

#[test]
fn hard_links_are_their_targets() {
    let index = merged(&[&[("a", 'f', "", "123"), ("b", 'h', "a", "")]], &[]).unwrap();
    assert_eq!(index.nodes["a"], index.nodes["b"]);
    assert!(merged(&[&[("b", 'h', "none", "")]], &[]).unwrap_err().contains("none"));
}

#[test]
fn what_leads_out_is_refused() {
    for path in ["../x", "a/../../x", "/a/../b"] {
        assert!(merged(&[&[(path, 'f', "", "")]], &[]).unwrap_err().contains("leads out"), "{path}");
    }
    assert!(merged(&[&[("a", 'h', "../x", "")]], &[]).is_err());
    assert_eq!(
        paths(&merged(&[&[("./a", 'f', "", ""), ("/b", 'f', "", ""), ("./", 'd', "", "")]], &[]).unwrap()),
        ["a", "b"]
    );
}

#[test]
fn python_and_its_distributions_are_found() {
    let site = "usr/local/lib/python3.12/dist-packages";
    let (metadata, record) = (format!("{site}/Foo-1.0.dist-info/METADATA"), format!("{site}/Foo-1.0.dist-info/RECORD"));
    let vendored = format!("{site}/ray/third/idna-3.dist-info/METADATA");
    let (module, compiled) = (format!("{site}/foo.py"), format!("{site}/__pycache__/foo.cpython-312.pyc"));
    let layers: &[_] = &[
        ("usr/bin/python3.12", 'f', "", "elf"),
        ("usr/bin/python3", 'l', "python3.12", ""),
        ("opt/env/bin/python3", 'l', "/usr/bin/python3", ""),
        ("opt/env/lib/python3.12/site-packages/", 'd', "", ""),
        (&metadata, 'f', "", "Name: Foo\nVersion: 1.0\n\n"),
        (&record, 'f', "", "foo.py,sha256=x,3\nFoo-1.0.dist-info/RECORD,,\n../../../bin/foo,,\n"),
        (&vendored, 'f', "", "Name: idna\nVersion: 3\n\n"),
        (&module, 'f', "", "x=1"),
        (&compiled, 'f', "", "\u{1}\u{1}\r\n\u{1}\0\0\0xxxxyyyyzz"),
    ];
    let index = merged(&[layers], &[&module]).unwrap();
    assert_eq!(index.distributions.len(), 1);
    let (folder, found) = index.named("foo").next().unwrap();
    assert_eq!((folder, found.version.as_str()), (&metadata[..metadata.len() - 9], "1.0"));
    assert_eq!(found.files.as_ref().unwrap()[2], "usr/local/bin/foo");
    assert_eq!(index.owner(&module).unwrap().1.name, "Foo");
    assert_eq!(index.kept.keys().collect::<Vec<_>>(), [&record, &module]);
    assert_eq!(index.pycs[&compiled], Pyc::UncheckedHash);
    assert_eq!(index.pythons["usr/bin/python3.12"].sites, [site, "usr/lib/python3/dist-packages"]);
    assert_eq!(index.pythons["opt/env/bin/python3"].sites, ["opt/env/lib/python3.12/site-packages"]);
    let bytes = index.to_bytes().unwrap();
    assert_eq!(TreeIndex::parse("again", &bytes).unwrap(), index);
}
