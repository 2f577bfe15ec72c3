//! Layouts in a temporary folder.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::media::{DOCKER_CONFIG, DOCKER_LAYER_GZIP, DOCKER_MANIFEST};

struct Fixture {
    _dir: tempfile::TempDir,
    root: Utf8PathBuf,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let root = Utf8PathBuf::from_path_buf(dir.path().join("images")).unwrap();
    Fixture { _dir: dir, root }
}

fn put_manifest(layout: &Layout, layer: &[u8]) -> Map<String, Value> {
    let diff = digest::of(b"diff");
    let config =
        json!({ "os": "linux", "architecture": "arm64", "rootfs": { "diff_ids": [diff.as_str()] } }).to_string();
    let d = |media: &str, bytes: &[u8]| json!({ "mediaType": media, "digest": digest::of(bytes).as_str(), "size": bytes.len() });
    layout.write_blob(config.as_bytes()).unwrap();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": DOCKER_MANIFEST,
        "config": d(DOCKER_CONFIG, config.as_bytes()), "layers": [d(DOCKER_LAYER_GZIP, layer)],
    });
    let bytes = manifest.to_string().into_bytes();
    layout.write_blob(&bytes).unwrap();
    let Value::Object(entry) = d(DOCKER_MANIFEST, &bytes) else { panic!("an object") };
    entry
}

#[test]
fn a_new_layout_is_empty_and_can_be_opened_again() {
    let f = fixture();
    assert!(Layout::open(&f.root).is_err());
    let layout = Layout::open_or_create(&f.root).unwrap();
    assert!(layout.list().unwrap().is_empty());
    assert_eq!(fs::read_to_string(f.root.join("oci-layout")).unwrap(), OCI_LAYOUT);
    Layout::open_or_create(&f.root).unwrap();
    fs::write(f.root.join("oci-layout"), r#"{"imageLayoutVersion":"2.0.0"}"#).unwrap();
    assert!(Layout::open(&f.root).is_err());
}

#[test]
fn a_blob_is_there_whole_or_not_at_all() {
    let f = fixture();
    let layout = Layout::open_or_create(&f.root).unwrap();
    let mut writer = layout.blob_writer().unwrap();
    writer.write_all(b"half").unwrap();
    drop(writer);
    assert!(layout.blobs().unwrap().is_empty());
    assert_eq!(fs::read_dir(layout.partial_dir()).unwrap().count(), 0);

    let digest = layout.write_blob(b"whole").unwrap();
    assert_eq!(layout.blobs().unwrap(), [(digest.clone(), 5)]);
    let mode = fs::metadata(layout.own_path(&digest)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    layout.write_blob(b"whole").unwrap();

    let mut writer = layout.blob_writer().unwrap();
    writer.write_all(b"other").unwrap();
    let expected = Descriptor::of("x", b"whole");
    assert!(matches!(writer.finish_as("layer", &expected), Err(OciError::DigestMismatch { .. })));
    assert_eq!(layout.blobs().unwrap().len(), 1);
}

#[test]
fn a_blob_that_lies_is_found() {
    let f = fixture();
    let layout = Layout::open_or_create(&f.root).unwrap();
    let digest = layout.write_blob(b"{}").unwrap();
    layout.prove_blob(&Descriptor::of("x", b"{}")).unwrap();
    fs::write(layout.own_path(&digest), b"[]").unwrap();
    assert!(matches!(layout.read_document(&digest), Err(OciError::DigestMismatch { .. })));
    assert!(matches!(layout.prove_blob(&Descriptor::of("x", b"{}")), Err(OciError::DigestMismatch { .. })));
    fs::write(layout.own_path(&digest), b"[ ]").unwrap();
    assert!(matches!(layout.prove_blob(&Descriptor::of("x", b"{}")), Err(OciError::SizeMismatch { .. })));
}

/// Whoever may write into the folder must not read other files through a server that may.
#[test]
fn a_link_is_no_blob() {
    let f = fixture();
    let layout = Layout::open_or_create(&f.root).unwrap();
    let digest = crate::digest::of(b"elsewhere");
    std::os::unix::fs::symlink("/etc/passwd", layout.own_path(&digest)).unwrap();
    assert!(!layout.has(&digest));
    assert!(matches!(layout.open_blob(&digest), Err(OciError::BlobMissing { .. })));
    layout.write_blob(b"elsewhere").unwrap();
    assert_eq!(layout.read_document(&digest).unwrap(), b"elsewhere", "the link gave way");
}

#[test]
fn an_index_names_only_what_is_there() {
    let f = fixture();
    let layout = Layout::open_or_create(&f.root).unwrap();
    let mut entry = put_manifest(&layout, b"layer");
    assert!(matches!(layout.put_entry(&entry), Err(OciError::BlobMissing { .. })));
    assert!(layout.list().unwrap().is_empty());
    layout.write_blob(b"layer").unwrap();
    entry.insert("annotations".into(), json!({ REF_NAME: "a" }));
    layout.put_entry(&entry).unwrap();
    layout.put_entry(&entry).unwrap();
    layout.write_blob(b"layer2").unwrap();
    let mut second = put_manifest(&layout, b"layer2");
    second.insert("annotations".into(), json!({ REF_NAME: "a" }));
    layout.put_entry(&second).unwrap();
    let list = layout.list().unwrap();
    assert_eq!(list.len(), 1, "a name stands for one manifest");
    assert_eq!(list[0].1.digest.as_str(), second["digest"]);
    layout.remove_entry(&list[0].1.digest).unwrap();
    assert!(layout.list().unwrap().is_empty());
}

/// Row 14 of the issue table (bazel-contrib/rules_oci#439): a base is referred to, never copied.
#[test]
fn a_base_is_read_from_the_shared_store() {
    let (base, own) = (fixture(), fixture());
    let base = Layout::open_or_create(&base.root).map(|l| (l, base)).unwrap();
    let layer = base.0.write_blob(b"base layer").unwrap();
    let layout = Layout::open_or_create(&own.root).unwrap().with_shared(&base.1.root);
    assert_eq!(layout.blob_path(&layer).unwrap(), base.0.own_path(&layer));
    let entry = put_manifest(&layout, b"base layer");
    layout.put_entry(&entry).unwrap();
    assert_eq!(layout.blobs().unwrap().len(), 2, "manifest and config only");
}
