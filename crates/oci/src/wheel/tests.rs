//! Synthetic wheels: good ones, and every kind of hostile one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::Arc;

use proptest::prelude::*;

use super::make::{Make, Part, open, part, sha, zip};
use super::*;
use crate::layer::{self, Node, TreePath};

fn site() -> Site {
    let path = |p: &str| TreePath::new(p).unwrap();
    Site {
        target: Target { minor: 12, arch: Arch::Aarch64, glibc: (2, 39) },
        site_packages: path("usr/local/lib/python3.12/dist-packages"),
        bin: path("usr/local/bin"),
        data: path("usr/local"),
        headers: None,
        python: Interpreter::new("/usr/bin/python3").unwrap(),
        mtime: 1_700_000_000,
        pyc: false,
    }
}

/// Path, mode and bytes of a layer's files.
fn files(entries: &[layer::Entry]) -> Vec<(String, u32, Vec<u8>)> {
    let mut blob = Vec::new();
    layer::write_layer(entries, &mut blob).unwrap();
    let mut archive = tar::Archive::new(flate2::read::MultiGzDecoder::new(blob.as_slice()));
    let read = archive.entries().unwrap().map(|e| {
        let mut e = e.unwrap();
        let path = e.path().unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        e.read_to_end(&mut bytes).unwrap();
        (path, e.header().mode().unwrap(), bytes)
    });
    read.collect()
}

fn layer_error(makes: &[Make]) -> String {
    let wheels: Vec<Wheel> = makes.iter().map(|m| m.open().unwrap()).collect();
    match install(&wheels, &site()) {
        Err(e) => e.to_string(),
        Ok(i) => layer::write_layer(&i.entries, &mut Vec::new()).unwrap_err().to_string(),
    }
}

/// A wheel with a bit of everything.
fn rich() -> Make {
    let entry_points = "[console_scripts]\ntool = foo.cli:main\n";
    let nested = "[console_scripts]\nwrong = x:y\n";
    let mut make = Make::new(
        "foo",
        &[
            ("foo/__init__.py", b"x = 1\n"),
            ("foo/empty.py", b""),
            ("foo/third/bar-2.dist-info/entry_points.txt", nested.as_bytes()),
            ("foo/third/bar-2.dist-info/RECORD", b"nonsense"),
            ("foo-1.0.dist-info/entry_points.txt", entry_points.as_bytes()),
            ("foo-1.0.dist-info/REQUESTED", b""),
            ("foo-1.0.dist-info/direct_url.json", b"{}"),
            ("foo-1.0.data/scripts/run.py", b"#!python\nprint(1)\n"),
            ("foo-1.0.data/scripts/elf", b"\x7fELF..."),
            ("foo-1.0.data/data/share/doc", b"doc"),
            ("foo-1.0.data/platlib/foo/native.so", b"so"),
        ],
    );
    make.parts[0].mode = 0o666;
    make.parts[1].deflate = false;
    make.parts.iter_mut().find(|p| p.name.ends_with("native.so")).unwrap().mode = 0o100_777;
    make.parts.insert(0, Part { mode: 0o040_755, deflate: false, ..part("foo/", b"") });
    make
}

#[test]
fn a_wheel_is_installed_as_pip_would() {
    let wheel = rich().open().unwrap();
    let installed = install(&[wheel], &site()).unwrap();
    let found = files(&installed.entries);
    let listed: Vec<(&str, u32)> = found.iter().map(|(p, m, _)| (p.as_str(), *m)).collect();
    let packages = "usr/local/lib/python3.12/dist-packages";
    let expected = [
        ("usr/local/bin/elf".to_owned(), 0o755),
        ("usr/local/bin/run.py".to_owned(), 0o755),
        ("usr/local/bin/tool".to_owned(), 0o755),
        (format!("{packages}/foo-1.0.dist-info/INSTALLER"), 0o644),
        (format!("{packages}/foo-1.0.dist-info/METADATA"), 0o644),
        (format!("{packages}/foo-1.0.dist-info/RECORD"), 0o644),
        (format!("{packages}/foo-1.0.dist-info/WHEEL"), 0o644),
        (format!("{packages}/foo-1.0.dist-info/entry_points.txt"), 0o644),
        (format!("{packages}/foo/__init__.py"), 0o644),
        (format!("{packages}/foo/empty.py"), 0o644),
        (format!("{packages}/foo/native.so"), 0o755),
        (format!("{packages}/foo/third/bar-2.dist-info/RECORD"), 0o644),
        (format!("{packages}/foo/third/bar-2.dist-info/entry_points.txt"), 0o644),
        ("usr/local/share/doc".to_owned(), 0o644),
    ];
    assert_eq!(listed, expected.iter().map(|(p, m)| (p.as_str(), *m)).collect::<Vec<_>>());
    let text = |end: &str| {
        let file = found.iter().find(|(p, _, _)| p.ends_with(end)).unwrap();
        String::from_utf8(file.2.clone()).unwrap()
    };
    assert_eq!(text("bin/run.py"), "#!/usr/bin/python3\nprint(1)\n");
    assert!(
        text("bin/tool").starts_with("#!/usr/bin/python3\n") && text("bin/tool").contains("from foo.cli import main")
    );
    // RECORD: every file once with the hash of what is there, sorted, relative to the folder of modules.
    let rows = record::parse(&text("foo-1.0.dist-info/RECORD")).unwrap();
    let paths: Vec<&str> = rows.iter().map(|r| r.path.as_str()).collect();
    assert!(paths.is_sorted() && paths.len() == found.len());
    assert_eq!(paths[..2], ["../../../bin/elf", "../../../bin/run.py"]);
    for row in rows.iter().filter(|r| !r.path.ends_with("foo-1.0.dist-info/RECORD")) {
        let path =
            row.path.strip_prefix("../../../").map_or(format!("{packages}/{}", row.path), |p| format!("usr/local/{p}"));
        let bytes = &found.iter().find(|f| f.0 == path).unwrap().2;
        assert_eq!((row.sha256, row.size), (Some(sha(bytes)), Some(bytes.len() as u64)), "{path}");
    }
    let [distribution] = installed.distributions.as_slice() else { panic!("one") };
    assert_eq!(
        (distribution.name.as_str(), distribution.version.as_str(), distribution.files.len()),
        ("foo", "1.0", 14)
    );
    assert_eq!(distribution.dist_info.as_str(), format!("{packages}/foo-1.0.dist-info"));
}

/// Golden: stored members only, so that no compressor decides a byte.
#[test]
fn golden_digest_of_a_synthetic_layer() {
    let mut make = rich();
    make.parts.iter_mut().for_each(|p| p.deflate = false);
    let entries = entries(&[make.open().unwrap()], &site()).unwrap();
    let mut blob = Vec::new();
    let written = layer::write_layer(&entries, &mut blob).unwrap();
    assert_eq!(written.digest.hex(), "78486ac8431019de6ab918b442a5454c3ee0ea200c3c858ff5c3b9f3d865aa46");
}

/// R1 and row 24: neither folder, name, time, mode of the files nor the builder's environment change a byte.
#[test]
fn row_24_where_the_wheels_lie_does_not_matter() {
    use std::os::unix::fs::PermissionsExt as _;
    let build = |folder: &std::path::Path, mode: u32, age: u64| {
        let makes = [rich(), Make::new("bar", &[("bar.py", b"1")])];
        let wheels: Vec<Wheel> = makes
            .iter()
            .map(|make| {
                let path = folder.join(&make.file);
                std::fs::write(&path, make.bytes()).unwrap();
                std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
                let file = File::open(&path).unwrap();
                let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(age);
                file.set_modified(time).unwrap();
                Wheel::open(Arc::new(file), &make.file).unwrap()
            })
            .collect();
        let wheels: Vec<Wheel> = if age > 1 << 30 { wheels.into_iter().rev().collect() } else { wheels };
        let mut blob = Vec::new();
        layer::write_layer(&entries(&wheels, &site()).unwrap(), &mut blob).unwrap();
        blob
    };
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let deep = b.path().join("a folder");
    std::fs::create_dir(&deep).unwrap();
    assert_eq!(build(a.path(), 0o600, 1), build(&deep, 0o777, 1 << 31));
}

/// Row 21: two wheels with another `ns/__init__.py`: the error names both. R33: alike is once, in both RECORDs.
#[test]
fn row_21_two_wheels_bring_one_path() {
    let a = Make::new("a", &[("ns/__init__.py", b"1")]);
    let error = layer_error(&[a.clone(), Make::new("b", &[("ns/__init__.py", b"2")])]);
    for part in ["a-1.0-py3-none-any.whl", "b-1.0-py3-none-any.whl", "dist-packages/ns/__init__.py", "different bytes"]
    {
        assert!(error.contains(part), "{error}");
    }
    let b = Make::new("b", &[("ns/__init__.py", b"1")]);
    let found = files(&entries(&[a.open().unwrap(), b.open().unwrap()], &site()).unwrap());
    assert_eq!(found.iter().filter(|f| f.0.ends_with("ns/__init__.py")).count(), 1);
    let records =
        found.iter().filter(|f| f.0.ends_with("/RECORD") && f.2.starts_with(b"a-1.0") | f.2.starts_with(b"b-1.0"));
    assert!(
        records.clone().count() == 2
            && records.clone().all(|r| String::from_utf8_lossy(&r.2).contains("ns/__init__.py"))
    );
    let clash = layer_error(&[Make::new("a", &[("x", b"1")]), Make::new("b", &[("x/y.py", b"2")])]);
    assert!(clash.contains("as a file and as the directory of"), "{clash}");
    assert!(layer_error(&[a.clone(), a]).contains("both are a"));
}

#[test]
fn modules_hidden_by_packages_are_named() {
    let wheels =
        [Make::new("a", &[("x.py", b"")]), Make::new("b", &[("x/__init__.py", b"")])].map(|m| m.open().unwrap());
    let warnings = install(&wheels, &site()).unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("a-1.0") && warnings[0].contains("is hidden"), "{warnings:?}");
}

/// Row 23: names that leave their directory, in the archive and in RECORD.
#[test]
fn row_23_names_that_leave_are_refused() {
    for name in ["../x", "a/../../x", "/etc/x", "a\\x", "C:x", "a//x", "./x", "a/./x", "a\nx", "a\0x", "", "foo/.wh.x"]
    {
        let words = Make::new("foo", &[]).with(part(name, b"x")).refused();
        assert!(words.contains("foo-1.0-py3-none-any.whl"), "{name:?}: {words}");
    }
    let words = Make::new("foo", &[("a.py", b"")]).edit("/RECORD", "a.py", "../a.py").refused();
    assert!(words.contains("leaves its directory"), "{words}");
    let evil = "[console_scripts]\n../../etc/cron.d/x = m:f\n";
    let words = Make::new("foo", &[("foo-1.0.dist-info/entry_points.txt", evil.as_bytes())]).refused();
    assert!(words.contains("not a plain file name"), "{words}");
    let script = Make::new("foo", &[("foo-1.0.data/scripts/a/b", b"")]);
    assert!(layer_error(&[script]).contains("not a plain file name"));
}

#[test]
fn names_that_differ_in_case_are_two_files() {
    let wheel = Make::new("foo", &[("a.py", b"1"), ("A.py", b"2")]).open().unwrap();
    assert_eq!(
        files(&entries(&[wheel], &site()).unwrap()).iter().filter(|f| f.0.to_lowercase().ends_with("/a.py")).count(),
        2
    );
}

#[test]
fn record_tells_the_truth() {
    let make = || Make::new("foo", &[("a.py", b"abc"), ("b.py", b"")]);
    let cases = [
        (make().edit("/RECORD", "b.py", "c.py"), "c.py is listed, but not there"),
        (make().edit("/RECORD", ",3\n", ",4\n"), "a.py has 3 bytes, not those listed"),
        (
            make().edit("/RECORD", "b.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n", ""),
            "b.py is there, but not listed",
        ),
        (
            make().edit("/RECORD", "b.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n", "b.py,,0\n"),
            "b.py has no hash",
        ),
        (make().edit("/RECORD", "b.py", "a.py"), "listed"),
        (make().edit("/RECORD", "sha256=", "md5="), "only sha256"),
    ];
    for (make, words) in cases {
        assert!(make.refused().contains(words), "{}", make.refused());
    }
    // A wrong hash is seen when the layer is written.
    let wrong = make().edit("/RECORD", "47DEQ", "47DEX");
    assert!(layer_error(&[wrong]).contains("was promised"));
    // CRLF is as good.
    let mut crlf = make();
    let record = crlf.parts.last_mut().unwrap();
    record.bytes = String::from_utf8(record.bytes.clone()).unwrap().replace('\n', "\r\n").into_bytes();
    assert!(crlf.open().is_ok());
}

#[test]
fn parts_agree() {
    let make = || Make::new("foo", &[]);
    let cases = [
        (make().edit("/METADATA", "Name: foo", "Name: fob"), "METADATA: it is of fob 1.0"),
        (make().edit("/METADATA", "Version: 1.0", "Version: 1.1"), "METADATA: it is of foo 1.1"),
        (make().edit("/WHEEL", "py3-none", "py2-none"), "WHEEL: none of its tags"),
        (make().edit("/WHEEL", "Version: 1.0", "Version: 2.0"), "only 1 is known"),
        (make().with(part("bar-1.0.dist-info/METADATA", b"")), "there are 2: bar-1.0.dist-info, foo-1.0.dist-info"),
        (Make { file: "fob-1.0-py3-none-any.whl".to_owned(), ..make() }, "is not that of fob 1.0"),
        (Make { parts: Vec::new(), ..make() }, "there are 0"),
    ];
    for (make, words) in cases {
        assert!(make.refused().contains(words), "{}", make.refused());
    }
    let other = Make { file: "foo-1.0-py2-none-any.whl".to_owned(), ..make().edit("/WHEEL", "py3-none", "py2-none") }
        .recorded();
    assert!(layer_error(&[other]).contains("none fits cp312 on aarch64 with glibc 2.39"));
}

#[test]
fn what_data_and_modules_may_not_be() {
    let of = |name: &str| layer_error(&[Make::new("foo", &[(name, b"x")])]);
    assert!(of("foo-1.0.data/other/x").contains("no wheel has a folder other"));
    assert!(of("foo-1.0.data/x").contains("lies in no folder"));
    assert!(of("foo-1.0.data/headers/x.h").contains("no folder for C headers"));
    assert!(of("foo-1.0.data/scripts/python3").contains("reserved"));
    assert!(of("foo/__pycache__/a.cpython-312.pyc").contains("compiled module"));
    let wheel = Make::new("foo", &[("foo/a.pyc", b"x"), ("foo-1.0.data/headers/x.h", b"x")]).open().unwrap();
    let with = Site { pyc: true, headers: Some(TreePath::new("usr/include").unwrap()), ..site() };
    let paths: Vec<String> =
        entries(&[wheel], &with).unwrap().into_iter().map(|e| e.path.as_str().to_owned()).collect();
    assert!(paths.contains(&"usr/include/foo/x.h".to_owned()) && paths.iter().any(|p| p.ends_with("foo/a.pyc")));
}

/// Changes the bytes of an archive in its only member's row of the directory (and, if told, in the member's header).
fn patched(row: usize, header: Option<usize>, bytes: &[u8]) -> Vec<u8> {
    let mut zip = zip(&[Part { mode: 0, ..part("a.py", [b'x'; 5000]) }]);
    let begin = u32::from_le_bytes(zip[zip.len() - 6..zip.len() - 2].try_into().unwrap()) as usize;
    zip[begin + row..][..bytes.len()].copy_from_slice(bytes);
    if let Some(at) = header {
        zip[at..at + bytes.len()].copy_from_slice(bytes);
    }
    zip
}

fn archive(bytes: &[u8]) -> Result<zip::Archive, WheelError> {
    let mut source = tempfile::tempfile().unwrap();
    source.write_all(bytes).unwrap();
    zip::Archive::open(Arc::new(source), "a.whl")
}

#[test]
fn archives_that_are_odd() {
    let cases = [
        (patched(8, Some(6), &[1, 0]), "encrypted"),
        (patched(8, Some(6), &[8, 0]), "data descriptor"),
        (patched(8, Some(6), &[16, 0]), "flags"),
        (patched(10, Some(8), &[12, 0]), "compression method 12"),
        (patched(10, Some(8), &[9, 0]), "compression method 9"),
        (patched(10, Some(8), &[0, 0]), "two sizes differ"),
        (patched(8, None, &[2, 0]), "differs from the zip directory"),
        (patched(20, Some(18), &[255; 4]), "zip64"),
        (patched(20, Some(18), &[255, 255, 0, 0]), "outside of the archive"),
        (patched(42, None, &[200, 0, 0, 0]), "outside of the archive"),
        (patched(40, None, &[0, 0xa0]), "symlink"),
        (patched(40, None, &[0, 0x20]), "kind of file"),
        (patched(46, Some(30), b"\xff"), "not UTF-8"),
        (patched(46, Some(30), "ä".as_bytes()), "unknown character set"),
        (patched(28, None, &[200, 0]), "cut off"),
    ];
    for (bytes, words) in cases {
        let error = archive(&bytes).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
    let good = zip(&[part("a.py", b"x")]);
    for (bytes, words) in [
        ([good.as_slice(), b"x"].concat(), "without a comment"),
        ([b"#!/bin/sh\n".as_slice(), &good].concat(), "its directory is not where"),
        (good[..10].to_vec(), "too short"),
        (zip(&[part("a.py", b"x"), part("a.py", b"x")]), "twice"),
    ] {
        assert!(archive(&bytes).unwrap_err().to_string().contains(words), "{words}");
    }
}

/// Members that share their bytes make a small archive large.
#[test]
fn members_that_overlap_are_refused() {
    let mut bytes = zip(&[part("a.py", b"x"), part("a.pz", b"x")]);
    let end = bytes.len();
    let begin = u32::from_le_bytes(bytes[end - 6..end - 2].try_into().unwrap()) as usize;
    // The second row points at the first member, with its name.
    bytes[begin + 46 + 4 + 42..][..4].copy_from_slice(&[0; 4]);
    bytes[begin + 46 + 4 + 46..][..4].copy_from_slice(b"a.py");
    assert!(archive(&bytes).unwrap_err().to_string().contains("share bytes"));
}

/// Size fields that lie, wrong sums, and bytes behind a stream's end.
#[test]
fn members_that_lie_are_refused() {
    let read = |bytes: &[u8]| {
        let archive = archive(bytes).unwrap();
        archive.read(archive.file("a.py").unwrap(), 1 << 20).unwrap_err().to_string()
    };
    assert!(read(&patched(24, Some(22), &[10, 0, 0, 0])).contains("more than the 10 bytes"));
    assert!(read(&patched(24, Some(22), &[0x89, 0x13, 0, 0])).contains("has 5000 bytes, 5001 were promised"));
    assert!(read(&patched(16, Some(14), &[0; 4])).contains("CRC-32"));
    assert!(read(&patched(24, Some(22), &[0, 0, 0, 1])).contains("at most 1048576 are read"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// A wheel with any few bytes changed is read, or refused, without a panic; so is one that is cut off.
    #[test]
    fn damaged_wheels_never_panic(at in any::<proptest::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 1..9), cut in any::<bool>()) {
        let mut zip = rich().bytes();
        let at = at.index(zip.len());
        let count = bytes.len().min(zip.len() - at);
        zip[at..at + count].copy_from_slice(&bytes[..count]);
        if cut { zip.truncate(at); }
        if let Ok(wheel) = open(&zip, "foo-1.0-py3-none-any.whl") {
            let _ = entries(&[wheel], &site()).map(|e| layer::write_layer(&e, &mut Vec::new()).is_ok());
        }
    }

    #[test]
    fn any_bytes_are_no_archive_and_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let tail = [bytes.as_slice(), b"PK\x05\x06\0\0\0\0\x01\0\x01\0", &bytes].concat();
        let _ = (archive(&bytes).is_ok(), archive(&tail).is_ok());
    }

    /// Whatever plain files a wheel has, the layer has them too.
    #[test]
    fn files_come_back(files_in in proptest::collection::btree_map("[a-z]{1,5}(/[a-z]{1,5}\\.py)?", proptest::collection::vec(any::<u8>(), 0..300), 0..6), deflate in any::<bool>()) {
        let list: Vec<(&str, &[u8])> = files_in.iter().map(|(n, b)| (n.as_str(), b.as_slice())).collect();
        let mut make = Make::new("foo", &list);
        make.parts.iter_mut().for_each(|p| p.deflate = deflate);
        let entries = entries(&[make.open().unwrap()], &site()).unwrap();
        let clash = files_in.keys().any(|n| files_in.contains_key(n.split('/').next().unwrap()) && n.contains('/'));
        prop_assume!(!clash);
        prop_assert!(entries.iter().all(|e| matches!(e.node, Node::File(_))));
        let found = files(&entries);
        for (name, bytes) in &files_in {
            let path = format!("usr/local/lib/python3.12/dist-packages/{name}");
            prop_assert_eq!(&found.iter().find(|f| f.0 == path).unwrap().2, bytes);
        }
    }
}
