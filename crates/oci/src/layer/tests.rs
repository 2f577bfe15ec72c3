//! Layers read back by decoders that are not ours.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use proptest::prelude::*;

use super::*;

const META: Meta = Meta { mode: 0o644, uid: 0, gid: 0, mtime: 1_700_000_000 };

fn entry(path: &str, node: Node) -> Entry {
    let mode = if matches!(node, Node::Directory) { 0o755 } else { 0o644 };
    Entry { path: TreePath::new(path).unwrap(), meta: Meta { mode, ..META }, node, from: "test".to_owned() }
}

fn bytes(path: &str, bytes: &[u8]) -> Entry {
    entry(path, Node::File(Body::Bytes(bytes.to_vec())))
}

fn from(entry: Entry, from: &str) -> Entry {
    Entry { from: from.to_owned(), ..entry }
}

/// A file of raw bytes with something before and behind.
fn source(raw: &[u8]) -> Arc<File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[b"before".as_slice(), raw, b"behind"].concat()).unwrap();
    Arc::new(file)
}

fn sha(data: &[u8]) -> [u8; 32] {
    use sha2::Digest as _;
    sha2::Sha256::digest(data).into()
}

fn crc(data: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(data);
    crc.sum()
}

fn deflate(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn deflated(data: &[u8]) -> Body {
    let raw = deflate(data);
    let (compressed, size) = (raw.len() as u64, data.len() as u64);
    let (crc32, sha256) = (crc(data), Some(sha(data)));
    Body::Deflated { source: source(&raw), offset: 6, compressed, size, crc32, sha256 }
}

fn stored(data: &[u8]) -> Body {
    Body::Stored { source: source(data), offset: 6, size: data.len() as u64, crc32: None, sha256: None }
}

fn layer(entries: &[Entry]) -> (Vec<u8>, Written) {
    let mut out = Vec::new();
    let written = write_layer(entries, &mut out).unwrap();
    (out, written)
}

fn refused(entries: &[Entry]) -> String {
    write_layer(entries, &mut Vec::new()).unwrap_err().to_string()
}

fn inflated(blob: &[u8]) -> Vec<u8> {
    let mut tar = Vec::new();
    MultiGzDecoder::new(blob).read_to_end(&mut tar).unwrap();
    tar
}

/// Path, mode, time, kind and bytes or target, in the archive's order, as the tar crate reads them.
fn listed(tar: &[u8]) -> Vec<(String, u32, u64, char, Vec<u8>)> {
    let mut archive = ::tar::Archive::new(tar);
    let entries = archive.entries().unwrap().map(|e| {
        let mut e = e.unwrap();
        let path = String::from_utf8(e.path_bytes().into_owned()).unwrap();
        let (mode, mtime) = (e.header().mode().unwrap(), e.header().mtime().unwrap());
        let target = e.link_name_bytes().map(|b| b.into_owned());
        let kind = match e.header().entry_type() {
            ::tar::EntryType::Directory => 'd',
            ::tar::EntryType::Symlink => 'l',
            ::tar::EntryType::Regular => 'f',
            other => panic!("{other:?}"),
        };
        let mut body = Vec::new();
        e.read_to_end(&mut body).unwrap();
        (path, mode, mtime, kind, target.unwrap_or(body))
    });
    entries.collect()
}

fn sample() -> Vec<Entry> {
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(90));
    let longer = format!("usr/{}", "n".repeat(140));
    vec![
        bytes("usr/b.txt", b"hello\n"),
        entry("usr", Node::Directory),
        entry("usr/a.so", Node::File(deflated(&vec![7; 1_000_000]))),
        entry("usr/stored", Node::File(stored(&[9; 300_000]))),
        entry("usr/empty", Node::File(deflated(b""))),
        entry("usr/link", Node::Symlink("b.txt".to_owned())),
        entry("usr/.wh.old", Node::File(Body::Bytes(Vec::new()))),
        entry("usr/!first", Node::File(stored(b""))),
        bytes(&long, b"x"),
        bytes(&longer, b"y"),
        bytes("usr/größe", b"z"),
        entry("usr/far", Node::Symlink("t".repeat(150))),
    ]
}

#[test]
fn another_decoder_reads_what_was_meant() {
    let (blob, written) = layer(&sample());
    let tar = inflated(&blob);
    assert_eq!(written.digest, crate::digest::of(&blob));
    assert_eq!(written.diff_id, crate::digest::of(&tar));
    assert_eq!((written.size, written.uncompressed), (blob.len() as u64, tar.len() as u64));
    let found = listed(&tar);
    assert_eq!(found.len(), written.entries);
    let names: Vec<&str> = found.iter().map(|f| f.0.as_str()).collect();
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(90));
    let longer = format!("usr/{}", "n".repeat(140));
    let expected = [
        &long,
        "usr/",
        "usr/.wh.old",
        "usr/!first",
        "usr/a.so",
        "usr/b.txt",
        "usr/empty",
        "usr/far",
        "usr/größe",
        "usr/link",
        &longer,
        "usr/stored",
    ];
    assert_eq!(names, expected);
    let by_name: BTreeMap<&str, _> = found.iter().map(|f| (f.0.as_str(), f)).collect();
    assert_eq!(by_name["usr/a.so"].4, vec![7; 1_000_000]);
    assert_eq!(by_name["usr/stored"].4, vec![9; 300_000]);
    assert_eq!(by_name["usr/far"].4, vec![b't'; 150]);
    assert_eq!(by_name["usr/größe"].4, b"z");
    assert_eq!((by_name["usr/"].1, by_name["usr/"].3), (0o755, 'd'));
}

/// Row 4 of the issue table: a symlink's mode is always 0777.
#[test]
fn row_4_symlinks_have_mode_0777() {
    let (blob, _) = layer(&[entry("l", Node::Symlink("x".to_owned()))]);
    assert_eq!(listed(&inflated(&blob)), [("l".to_owned(), 0o777, META.mtime, 'l', b"x".to_vec())]);
}

/// Row 8: every member's header is the same ten bytes, and there is nothing in it that a clock could change.
#[test]
fn row_8_gzip_headers_hold_no_time_and_no_name() {
    let (blob, _) = layer(&sample());
    assert_eq!(blob[..10], gzip::HEADER);
    let mut rest = blob.as_slice();
    let mut members = 0;
    while !rest.is_empty() {
        assert_eq!(rest[..10], gzip::HEADER);
        let mut decoder = flate2::bufread::GzDecoder::new(rest);
        std::io::copy(&mut decoder, &mut std::io::sink()).unwrap();
        rest = decoder.into_inner();
        members += 1;
    }
    assert_eq!(members, 5, "headers, a.so, headers, stored, end");
    assert_eq!(layer(&sample()).0, blob);
}

/// Row 32: the diff_id is that of the bytes inside, which end with two zero blocks and no more (R6).
#[test]
fn row_32_diff_id_is_over_the_bytes_inside() {
    let (blob, written) = layer(&[bytes("a", b"x")]);
    let tar = inflated(&blob);
    assert_eq!(tar.len(), 4 * 512);
    assert_eq!(written.diff_id, crate::digest::of(&tar));
    assert_eq!(tar[2 * 512..], [0; 1024]);
    assert_eq!(layer(&[]).1.uncompressed, 1024);
}

#[test]
fn golden_digest_of_a_layer() {
    // Only bodies of ours and stored ones: the sample's deflate bytes depend on the test's compressor.
    let entries: Vec<Entry> = sample().into_iter().filter(|e| e.path.as_str() != "usr/a.so").collect();
    let (blob, written) = layer(&entries);
    assert_eq!(
        (blob.len(), written.digest.hex()),
        (300_629, "a814a940ab69cdfbfb0e07fb74bf4bff393489a845ee2501ebb492423c14e777")
    );
}

/// R1: the order of the entries does not matter.
#[test]
fn the_order_of_the_input_does_not_matter() {
    let mut entries = sample();
    let expected = layer(&entries).0;
    entries.reverse();
    assert_eq!(layer(&entries).0, expected);
    entries.rotate_left(5);
    assert_eq!(layer(&entries).0, expected);
}

#[test]
fn gunzip_and_tar_make_the_expected_tree() {
    let (blob, written) = layer(&sample());
    let folder = tempfile::tempdir().unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    std::fs::write(folder.path().join("layer.tar.gz"), &blob).unwrap();
    run("gunzip", &["--keep", "layer.tar.gz"]);
    let sum = run("sha256sum", &["layer.tar"]);
    assert!(sum.starts_with(written.diff_id.hex()), "{sum}");
    std::fs::create_dir(folder.path().join("tree")).unwrap();
    run("tar", &["--extract", "--file", "layer.tar.gz", "--gzip", "--directory", "tree"]);
    let at = |path: &str| folder.path().join("tree").join(path);
    let is = |path: &str, bytes: &[u8], mode: u32| {
        let metadata = std::fs::symlink_metadata(at(path)).unwrap();
        assert_eq!((metadata.permissions().mode() & 0o7777, metadata.mtime()), (mode, 1_700_000_000), "{path}");
        assert_eq!(std::fs::read(at(path)).unwrap(), bytes, "{path}");
    };
    is("usr/b.txt", b"hello\n", 0o644);
    is("usr/a.so", &vec![7; 1_000_000], 0o644);
    is("usr/stored", &[9; 300_000], 0o644);
    is("usr/empty", b"", 0o644);
    is("usr/größe", b"z", 0o644);
    is(&format!("{}/{}", "d".repeat(120), "f".repeat(90)), b"x", 0o644);
    assert_eq!(std::fs::read_link(at("usr/link")).unwrap(), Path::new("b.txt"));
    assert_eq!(std::fs::read_link(at("usr/far")).unwrap(), Path::new(&"t".repeat(150)));
}

/// Rows 6 and 21: one path from two is one if nothing differs, else an error that names both.
#[test]
fn rows_6_and_21_one_path_from_two() {
    let body = vec![1; 5000];
    let a = from(entry("ns/__init__.py", Node::File(deflated(&body))), "a-1.whl");
    let b = from(entry("ns/__init__.py", Node::File(stored(&body))), "b-1.whl");
    let (blob, written) = layer(&[b.clone(), a.clone()]);
    assert_eq!(written.entries, 1);
    assert_eq!(layer(&[a.clone(), b]).0, blob);
    let other = from(bytes("ns/__init__.py", b"other"), "b-1.whl");
    let words = "a-1.whl and b-1.whl both bring ns/__init__.py, with different bytes; leave one out";
    assert_eq!(refused(&[other, a.clone()]), words);
    let mut executable = from(a.clone(), "b-1.whl");
    executable.meta.mode = 0o755;
    assert!(refused(&[a, executable]).contains("different attributes"));
}

#[test]
fn what_may_not_stand_beside_what() {
    let words = refused(&[from(bytes("x", b""), "a.whl"), from(bytes("x/y", b""), "b.whl"), bytes("x.y", b"")]);
    assert_eq!(words, "a.whl and b.whl both bring x, as a file and as the directory of x/y; leave one out");
    assert!(refused(&[bytes("d/x", b"1"), bytes("d/.wh.x", b"")]).contains("as a whiteout and as an entry"));
    assert!(refused(&[bytes("d/.wh.x", b"1")]).contains("empty file of mode 0644"));
    assert!(refused(&[entry(".wh.x", Node::Directory)]).contains("empty file of mode 0644"));
    for name in [".wh.", ".wh..", ".wh...", ".wh..wh..opq"] {
        assert!(refused(&[bytes(name, b"")]).contains("names one file"), "{name}");
    }
    assert!(refused(&[bytes(".wh.d/x", b"")]).contains("would delete a file"));
    assert!(refused(&[entry("l", Node::Symlink(String::new()))]).contains("needs a target"));
}

/// Row 27: a file that Python's zipfile would refuse.
#[test]
fn row_27_a_file_of_the_epoch_is_refused() {
    let mut old = bytes("a", b"x");
    old.meta.mtime = EARLIEST - 1;
    assert!(refused(&[old.clone()]).contains("older than 1980"));
    old.meta.mtime = EARLIEST;
    assert_eq!(listed(&inflated(&layer(&[old]).0))[0].2, EARLIEST);
}

#[test]
fn bodies_that_lie_are_refused() {
    let data = vec![b'q'; 700_000];
    type Change<'a> = &'a dyn Fn(&mut u64, &mut u64, &mut u32, &mut Option<[u8; 32]>);
    let lie = |change: Change<'_>| {
        let mut body = deflated(&data);
        if let Body::Deflated { compressed, size, crc32, sha256, .. } = &mut body {
            change(compressed, size, crc32, sha256);
        }
        refused(&[entry("bin/lie", Node::File(body))])
    };
    assert!(lie(&|_, size, _, _| *size -= 1).contains("more than the 699999 bytes"));
    assert!(lie(&|_, size, _, _| *size += 1).contains("has 700000 bytes, 700001 were promised"));
    assert!(lie(&|_, _, crc, _| *crc ^= 1).contains("CRC-32"));
    assert!(lie(&|_, _, _, sha| *sha = Some([0; 32])).contains("sha256:0000"));
    assert!(lie(&|compressed, _, _, _| *compressed += 3).contains("bytes follow the end"));
    assert!(lie(&|compressed, _, _, _| *compressed -= 3).contains("ends before its end"));
    assert!(lie(&|compressed, _, _, _| *compressed += 30).contains("cannot read bin/lie from test"));
}

#[test]
fn a_bomb_is_stopped_at_the_promised_size() {
    let mut body = deflated(&vec![0; 50_000_000]);
    if let Body::Deflated { size, .. } = &mut body {
        *size = 10;
    }
    let mut out = Vec::new();
    assert!(write_layer(&[entry("bomb", Node::File(body))], &mut out).is_err());
    assert!(out.len() < 1_000_000);
}

#[test]
fn numbers_that_no_header_holds() {
    let mut entry = bytes("a", b"");
    entry.meta.uid = 0o10_000_000;
    assert!(refused(&[entry]).contains("does not fit a tar header"));
    let mut out = Vec::new();
    tar::header("big", META, tar::Kind::File(1 << 33), &mut out).unwrap();
    assert_eq!(out.len(), 3 * 512);
    assert_eq!(&out[512..530], b"19 size=8589934592");
}

#[test]
fn a_watcher_sees_every_file_once() {
    #[derive(Default)]
    struct Seen(Vec<(String, usize)>);
    impl Watch for Seen {
        fn begin(&mut self, entry: &Entry) -> Result<(), LayerError> {
            self.0.push((entry.path.as_str().to_owned(), 0));
            Ok(())
        }
        fn piece(&mut self, bytes: &[u8]) -> Result<(), LayerError> {
            self.0.last_mut().unwrap().1 += bytes.len();
            Ok(())
        }
        fn end(&mut self, _: &Entry, _: &[u8; 32]) -> Result<(), LayerError> {
            Ok(())
        }
    }
    let mut seen = Seen::default();
    let entries =
        [bytes("a", b"xyz"), entry("b", Node::File(deflated(&[1; 10]))), entry("c", Node::File(stored(b"no")))];
    write_watched(&entries, &mut Vec::new(), &mut seen).unwrap();
    assert_eq!(seen.0, [("a".to_owned(), 3), ("b".to_owned(), 10), ("c".to_owned(), 2)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever path, kind and body: the tar crate reads it back.
    #[test]
    fn any_entry_comes_back(
        parts in proptest::collection::vec("[a-zä.-]{1,60}", 1..6),
        data in proptest::collection::vec(any::<u8>(), 0..2000),
        how in 0..4,
        mode in 0..0o7777_u32,
    ) {
        let path = parts.join("/");
        prop_assume!(TreePath::new(path.clone()).is_ok());
        let node = match how {
            0 => Node::File(Body::Bytes(data.clone())),
            1 => Node::File(deflated(&data)),
            2 => Node::File(stored(&data)),
            _ => Node::Directory,
        };
        let mut entry = entry(&path, node);
        entry.meta.mode = mode;
        let (blob, written) = layer(&[entry]);
        let tar = inflated(&blob);
        prop_assert_eq!(written.diff_id, crate::digest::of(&tar));
        let (path, body) = if how == 3 { (format!("{path}/"), Vec::new()) } else { (path, data) };
        let kind = if how == 3 { 'd' } else { 'f' };
        prop_assert_eq!(listed(&tar), vec![(path, mode, META.mtime, kind, body)]);
    }
}
