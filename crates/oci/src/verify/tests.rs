use std::io::Write as _;

use flate2::write::GzEncoder;
use serde_json::json;

use super::*;
use crate::layer::{Body, Entry, Meta, Node, TreePath, write_layer};

const META: Meta = Meta { mode: 0o644, uid: 0, gid: 0, mtime: 1_577_836_800 };

/// An image in the making.
pub(crate) struct Made {
    dir: tempfile::TempDir,
    pub(crate) layout: Layout,
    layers: Vec<(Digest, u64, Digest)>,
    history: Vec<Value>,
}

impl Made {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = camino::Utf8PathBuf::try_from(dir.path().join("image")).unwrap();
        let layout = Layout::open_or_create(root).unwrap();
        Self { dir, layout, layers: Vec::new(), history: Vec::new() }
    }

    /// A base layer with directories and links, as other tools write it.
    pub(crate) fn base(mut self, fill: impl Fn(&mut tar::Builder<Vec<u8>>)) -> Self {
        let mut tar = tar::Builder::new(Vec::new());
        fill(&mut tar);
        let tar = tar.into_inner().unwrap();
        let mut out = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(&tar).unwrap();
        let blob = out.finish().unwrap();
        let digest = self.layout.write_blob(&blob).unwrap();
        self.layers.push((digest, blob.len() as u64, crate::digest::of(&tar)));
        self.history.push(json!({ "created_by": "RUN x" }));
        self
    }

    /// A layer as the builder writes it.
    pub(crate) fn ours(mut self, entries: &[Entry]) -> Self {
        let mut writer = self.layout.blob_writer().unwrap();
        let written = write_layer(entries, &mut writer).unwrap();
        writer.finish().unwrap();
        self.layers.push((written.digest, written.size, written.diff_id));
        self.history.push(json!({ "created_by": format!("{OURS}files") }));
        self
    }

    pub(crate) fn finish(&self) -> Digest {
        let ids: Vec<&str> = self.layers.iter().map(|l| l.2.as_str()).collect();
        let config = json!({ "os": "linux", "architecture": "arm64", "created": "2020-01-01T00:00:00Z",
            "rootfs": { "type": "layers", "diff_ids": ids }, "history": self.history })
        .to_string();
        let row = |t: &str, d: &Digest, s: u64| json!({ "mediaType": t, "digest": d.as_str(), "size": s });
        let config_digest = self.layout.write_blob(config.as_bytes()).unwrap();
        let layers: Vec<Value> = self.layers.iter().map(|(d, s, _)| row(media::DOCKER_LAYER_GZIP, d, *s)).collect();
        let manifest = json!({ "schemaVersion": 2, "mediaType": media::DOCKER_MANIFEST,
            "config": row(media::DOCKER_CONFIG, &config_digest, config.len() as u64), "layers": layers });
        self.layout.write_blob(manifest.to_string().as_bytes()).unwrap()
    }

    fn verify(&self, extent: Extent) -> Report {
        verify(&self.layout, &self.finish(), extent).unwrap()
    }
}

pub(crate) fn usrmerge(tar: &mut tar::Builder<Vec<u8>>) {
    let mut add = |path: &str, kind: tar::EntryType, mode: u32, link: Option<&str>| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(0);
        match link {
            Some(link) => tar.append_link(&mut header, path, link).unwrap(),
            None => tar.append_data(&mut header, path, &b""[..]).unwrap(),
        }
    };
    add("tmp/", tar::EntryType::Directory, 0o1777, None);
    add("usr/", tar::EntryType::Directory, 0o755, None);
    add("usr/lib/", tar::EntryType::Directory, 0o755, None);
    add("usr/lib/old", tar::EntryType::Regular, 0o644, None);
    add("lib", tar::EntryType::Symlink, 0o777, Some("usr/lib"));
}

pub(crate) fn file(path: &str) -> Entry {
    let node = Node::File(Body::Bytes(b"hello".to_vec()));
    Entry { path: TreePath::new(path).unwrap(), meta: META, node, from: "test".into() }
}

pub(crate) fn whiteout(path: &str) -> Entry {
    Entry { node: Node::File(Body::Bytes(Vec::new())), ..file(path) }
}

fn directory(path: &str, mode: u32) -> Entry {
    Entry { node: Node::Directory, meta: Meta { mode, ..META }, ..file(path) }
}

fn problems(report: &Report) -> String {
    let all = report.findings.iter().filter(|f| f.weight == Weight::Problem);
    all.map(|f| format!("{}: {}\n", f.at, f.what)).collect()
}

#[test]
fn what_the_builder_writes_is_good() {
    let made = Made::new().base(usrmerge).ours(&[whiteout("usr/lib/.wh.old"), file("usr/lib/new")]);
    let report = made.verify(Extent::Whole);
    assert_eq!(problems(&report), "");
    assert_eq!((report.layers, report.ours, report.read, report.entries), (2, 1, 2, 7));
}

#[test]
fn row_5_a_layer_of_ours_through_a_link_is_refused() {
    let made = Made::new().base(usrmerge).ours(&[file("lib/new"), directory("tmp", 0o755)]);
    let found = problems(&made.verify(Extent::Whole));
    assert!(found.contains("lib/new: lib is a link to usr/lib"), "{found}");
    assert!(found.contains("tmp: changes a directory from mode 1777"), "{found}");
}

#[test]
fn a_damaged_blob_and_a_wrong_diff_id_are_found() {
    let mut made = Made::new().base(usrmerge).ours(&[file("usr/lib/new")]);
    let path = made.layout.own_path(&made.layers[1].0);
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(!made.verify(Extent::Whole).good());
    bytes[last] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    assert!(made.verify(Extent::Whole).good());
    made.layers[1].2 = crate::digest::of(b"other");
    assert!(problems(&made.verify(Extent::Whole)).contains("unpacked, has digest"));
}

/// Facts, section 3: no consumer looks at a size when the blob is there.
#[test]
fn a_wrong_size_is_found() {
    let mut made = Made::new().base(usrmerge);
    made.layers[0].1 += 1;
    assert!(problems(&made.verify(Extent::Whole)).contains("bytes, expected"));
}

#[test]
fn a_missing_base_is_named_and_allowed_only_on_request() {
    let made = Made::new().base(usrmerge).ours(&[file("usr/lib/new")]);
    let digest = made.finish();
    std::fs::remove_file(made.layout.own_path(&made.layers[0].0)).unwrap();
    let whole = verify(&made.layout, &digest, Extent::Whole).unwrap();
    assert!(problems(&whole).contains("layer 0") && problems(&whole).contains("not here"));
    let ours = verify(&made.layout, &digest, Extent::OursOnly).unwrap();
    assert!(ours.good() && ours.read == 1);
    std::fs::remove_file(made.layout.own_path(&made.layers[1].0)).unwrap();
    assert!(!verify(&made.layout, &digest, Extent::OursOnly).unwrap().good());
    drop(made.dir);
}

/// Issue row 12 (go-containerregistry#1826, #2034): plain layers, and one blob twice or two of one diff_id.
#[test]
fn row_12_plain_layers_and_equal_diff_ids() {
    let mut made = Made::new().base(usrmerge).base(usrmerge);
    let mut tar = tar::Builder::new(Vec::new());
    usrmerge(&mut tar);
    let tar = tar.into_inner().unwrap();
    let digest = made.layout.write_blob(&tar).unwrap();
    made.layers.push((digest.clone(), tar.len() as u64, digest));
    made.history.push(json!({ "created_by": "COPY" }));
    let report = made.verify(Extent::Whole);
    assert!(report.good(), "{}", problems(&report));
    let said = serde_json::to_string(&report).unwrap();
    assert!(said.contains("is layer 0 again") && said.contains("is None, but typed"), "{said}");
}

#[test]
fn a_base_with_odd_rows_is_only_noted() {
    let twice = |tar: &mut tar::Builder<Vec<u8>>| {
        usrmerge(tar);
        usrmerge(tar);
    };
    let mut made = Made::new().base(twice);
    made.history.clear();
    let report = made.verify(Extent::Whole);
    assert!(report.good(), "{}", problems(&report));
    assert!(report.findings.iter().any(|f| f.what.contains("usr/lib/old: is there twice")));
    assert!(report.findings.iter().any(|f| f.what.contains("no history") || f.what.contains("0 rows")));
}

#[test]
fn an_entry_that_leads_out_is_a_problem_of_anyone() {
    let evil = |tar: &mut tar::Builder<Vec<u8>>| {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..14].copy_from_slice(b"opt/../../evil");
        header.set_size(0);
        header.set_cksum();
        tar.append(&header, &b""[..]).unwrap();
    };
    assert!(problems(&Made::new().base(evil).verify(Extent::Whole)).contains("leads out"));
}

#[test]
fn a_changed_module_without_its_record_row_is_a_problem() {
    let site = "usr/lib/python3.12/site-packages";
    let fill = |tar: &mut tar::Builder<Vec<u8>>| {
        for (path, bytes) in [
            ("x.py", &b"1"[..]),
            ("x-1.dist-info/RECORD", b"x.py,sha256=a4ayc_80_OGda4BO_1o_V0etpOqiLx1JwB5S3beHW0s,1\n"),
        ] {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, format!("{site}/{path}"), bytes).unwrap();
        }
    };
    assert!(Made::new().base(fill).verify(Extent::Whole).findings.is_empty());
    let found = problems(&Made::new().base(fill).ours(&[file(&format!("{site}/x.py"))]).verify(Extent::Whole));
    assert!(found.contains("x.py is not the file that it lists"), "{found}");
}
