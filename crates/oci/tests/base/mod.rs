//! A base of the real one's shape: 44 layers, docker media types, merged /usr, a file overlaid by a later layer, Debian's
//! python 3.12, distributions with RECORD, compiled modules; and an applier of layers that shares no code with the builder.
#![allow(dead_code)]

pub mod wheel;

use std::collections::BTreeMap;
use std::io::{Read, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::json;
use sparklane_oci::base::{TreeIndex, scan, tree};
use sparklane_oci::{Config, Layout, Manifest, digest, media};

pub const SITE: &str = "usr/local/lib/python3.12/dist-packages";
pub const CACHE_PY: &str = "class CacheConfig:\n    def compute_hash(self):\n        ignored_factors = {\n            \"swap_space\",\n        }\n";

pub struct Base {
    pub root: Utf8PathBuf,
    pub manifest: Manifest,
    pub config: Config,
}

impl Base {
    pub fn index(&self) -> TreeIndex {
        let layout = Layout::open(&self.root).unwrap();
        let keep = [format!("{SITE}/vllm/config/cache.py")].into();
        let scans = scan::layers(&layout, &self.manifest, &keep, None).unwrap();
        let layers = self.manifest.layers.iter().map(|l| l.digest.clone()).collect();
        tree::merge(layers, scans, &keep).unwrap()
    }
}

type Row<'a> = (&'a str, char, &'a [u8]);

fn layer(rows: &[Row<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (path, kind, body) in rows {
        let mut header = tar::Header::new_gnu();
        header.set_mtime(1_700_000_000);
        header.set_mode(if *kind == 'd' || *kind == 'x' { 0o755 } else { 0o644 });
        match kind {
            'l' => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                builder.append_link(&mut header, path, std::str::from_utf8(body).unwrap()).unwrap();
            }
            _ => {
                header.set_entry_type(if *kind == 'd' { tar::EntryType::Directory } else { tar::EntryType::Regular });
                header.set_size(body.len() as u64);
                builder.append_data(&mut header, path, *body).unwrap();
            }
        }
    }
    builder.into_inner().unwrap()
}

/// Stored blocks only: the base's own bytes must not depend on a compressor either, as golden digests stand on them.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::GzBuilder::new().operating_system(255).write(Vec::new(), flate2::Compression::none());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn layers() -> Vec<Vec<u8>> {
    let at = |path: &str| format!("{SITE}/{path}");
    let folders = ["usr", "usr/bin", "usr/lib", "usr/lib/python3", "usr/lib/python3/dist-packages", "tmp", "opt"];
    let mut first: Vec<Row<'_>> = folders.iter().map(|f| (*f, 'd', &b""[..])).collect();
    first.extend([
        ("bin", 'l', &b"usr/bin"[..]),
        ("lib", 'l', b"usr/lib"),
        ("lib64", 'l', b"usr/lib"),
        ("usr/bin/python3.12", 'x', b"not a program"),
        ("usr/bin/python3", 'l', b"python3.12"),
        ("opt/cache/a/b", 'f', b"jit"),
    ]);
    let pyc = b"\xcb\r\r\n\x01\0\0\0hashhash code";
    let stamped = b"\xcb\r\r\n\0\0\0\0\x00\x90\x55\x65\x09\0\0\0 code";
    let record = b"google/protobuf/__init__.py,sha256=x,9\r\ngoogle/protobuf/old.py,,\r\n../../../bin/protoc-old,,\r\nprotobuf-5.0.dist-info/METADATA,,\r\nprotobuf-5.0.dist-info/RECORD,,\r\n";
    let vllm = b"vllm/__init__.py,,\nvllm/config/cache.py,sha256=old,1\nvllm-0.25.1.dist-info/METADATA,,\nvllm-0.25.1.dist-info/RECORD,,\n";
    let names = [
        at("google/protobuf/__init__.py"),
        at("google/protobuf/old.py"),
        "usr/local/bin/protoc-old".to_owned(),
        at("protobuf-5.0.dist-info/METADATA"),
        at("protobuf-5.0.dist-info/RECORD"),
        at("google/protobuf/__pycache__/old.cpython-312.pyc"),
    ];
    let bodies: [&[u8]; 6] = [b"version=5", b"old", b"#!", b"Name: protobuf\nVersion: 5.0\n", record, stamped];
    let protobuf: Vec<Row<'_>> = names.iter().zip(bodies).map(|(n, b)| (n.as_str(), 'f', b)).collect();
    let names = [
        at("vllm/__init__.py"),
        at("vllm/config/cache.py"),
        at("vllm/config/__pycache__/cache.cpython-312.pyc"),
        at("vllm/config/__pycache__/cache.cpython-312.opt-1.pyc"),
        at("vllm-0.25.1.dist-info/METADATA"),
        at("vllm-0.25.1.dist-info/RECORD"),
    ];
    let bodies: [&[u8]; 6] = [b"", b"first", pyc, stamped, b"Name: vllm\nVersion: 0.25.1\n", vllm];
    let engine: Vec<Row<'_>> = names.iter().zip(bodies).map(|(n, b)| (n.as_str(), 'f', b)).collect();
    let (old, overlaid) = (at("vllm/config/__pycache__/cache.cpython-311.pyc"), at("vllm/config/cache.py"));
    let mut all = vec![layer(&first), layer(&protobuf), layer(&engine), layer(&[(&old, 'f', pyc)])];
    for i in all.len()..43 {
        all.push(layer(&[(&format!("opt/l{i}"), 'f', b"x")]));
    }
    all.push(layer(&[(&overlaid, 'f', CACHE_PY.as_bytes())]));
    all
}

/// Writes the base's layout.
pub fn real(root: &Utf8Path) -> Base {
    let layout = Layout::open_or_create(root).unwrap();
    let (mut ids, mut rows, mut history) = (Vec::new(), Vec::new(), Vec::new());
    for (i, tar) in layers().iter().enumerate() {
        let blob = gzip(tar);
        let digest = layout.write_blob(&blob).unwrap();
        ids.push(digest::of(tar));
        rows.push(json!({ "mediaType": media::DOCKER_LAYER_GZIP, "size": blob.len(), "digest": digest }));
        history.push(
            json!({ "created": "2026-07-14T00:00:00.123456789Z", "created_by": format!("RUN step {i} # <buildkit>") }),
        );
        history.push(json!({ "created_by": "ENV A=1", "empty_layer": true }));
    }
    let config = json!({
        "architecture": "arm64", "os": "linux", "config": { "Env": ["PATH=/usr/local/bin:/usr/bin"],
        "Entrypoint": ["vllm", "serve"], "Labels": { "maintainer": "x" } },
        "created": "2026-07-14T00:00:00Z", "history": history, "rootfs": { "type": "layers", "diff_ids": ids },
    });
    let config = config.to_string().into_bytes();
    let digest = layout.write_blob(&config).unwrap();
    let manifest = json!({ "schemaVersion": 2, "mediaType": media::DOCKER_MANIFEST,
        "config": { "mediaType": media::DOCKER_CONFIG, "size": config.len(), "digest": digest }, "layers": rows });
    let manifest = Manifest::parse(None, manifest.to_string().into_bytes()).unwrap();
    layout.write_blob(manifest.bytes()).unwrap();
    Base { root: root.to_owned(), manifest, config: Config::parse(config).unwrap() }
}

/// What files a container would see: path to content (links as `-> target`). Layers go into folders of their own and an overlay shows
/// the uppermost, as docker does it.
pub fn apply(layout: &Layout, manifest: &Manifest) -> BTreeMap<String, Vec<u8>> {
    let mut tree: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for descriptor in &manifest.layers {
        let (file, _) = layout.open_blob(&descriptor.digest).unwrap();
        let mut upper: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut archive = tar::Archive::new(flate2::read::MultiGzDecoder::new(file));
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_str().unwrap().trim_end_matches('/').to_owned();
            let mut body = Vec::new();
            entry.read_to_end(&mut body).unwrap();
            if let Some(target) = entry.link_name().unwrap() {
                body = format!("-> {}", target.display()).into_bytes();
            }
            if entry.header().entry_type().is_dir() {
                // A folder that takes a link's place bricks the image.
                assert!(!tree.get(&path).is_some_and(|b| b.starts_with(b"-> ")), "{path} covers a link");
                continue;
            }
            for (at, _) in path.match_indices('/') {
                assert!(!tree.contains_key(&path[..at]), "{path} leads through {}", &path[..at]);
            }
            assert!(upper.insert(path.clone(), body).is_none(), "{path} twice");
        }
        for path in upper.keys() {
            let (folder, name) = path.rsplit_once('/').map_or(("", path.as_str()), |(f, n)| (f, n));
            if let Some(gone) = name.strip_prefix(".wh.") {
                let gone = if folder.is_empty() { gone.to_owned() } else { format!("{folder}/{gone}") };
                let below = format!("{gone}/");
                let count = tree.len();
                tree.retain(|p, _| *p != gone && !p.starts_with(&below));
                assert!(tree.len() < count, "a whiteout of nothing: {gone}");
            }
        }
        tree.extend(upper.into_iter().filter(|(p, _)| !p.rsplit('/').next().unwrap().starts_with(".wh.")));
    }
    tree
}
