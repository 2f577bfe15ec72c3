use std::io::Write as _;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn sample() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o4755);
    header.set_size(3);
    builder.append_data(&mut header, "a/b.py", &b"abc"[..]).unwrap();
    builder.append_data(&mut header, "a/.wh.gone", &b"abc"[..]).unwrap();
    builder.into_inner().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

#[test]
fn plain_and_gzip_of_many_members_are_the_same() {
    let tar = sample();
    let plain = layer(&tar[..], &Keep::new()).unwrap();
    let members = [gzip(&tar[..700]), gzip(&tar[700..])].concat();
    assert_eq!(layer(&members[..], &Keep::new()).unwrap(), plain);
    assert_eq!(plain.diff_id, crate::digest::of(&tar));
    assert_eq!(plain.rows[1], Row { path: "a/gone".into(), act: Act::Whiteout });
    let Act::File(attributes, facts) = &plain.rows[0].act else { panic!() };
    assert_eq!((attributes.mode, facts.size), (0o4755, 3));
    assert_eq!(facts.sha256.as_deref(), Some(crate::digest::of(b"abc").hex()));
    let zstd = layer(&[0x28, 0xb5, 0x2f, 0xfd, 0][..], &Keep::new()).unwrap_err();
    assert!(zstd.contains("zstd"));
}

#[test]
fn glibc_is_known_by_its_banner() {
    assert_eq!(glibc(b"\0GNU C Library (x) stable release version 2.39.\nCopy").as_deref(), Some("2.39"));
    assert_eq!(glibc(b"nothing"), None);
    assert_eq!(glibc(b"release version x"), None);
}

#[test]
fn a_scan_is_kept_by_its_layer() {
    let dir = tempfile::tempdir().unwrap();
    let root = Utf8Path::from_path(dir.path()).unwrap();
    let layout = Layout::open_or_create(root.join("l")).unwrap();
    let tar = sample();
    let (blob, id) = (gzip(&tar), crate::digest::of(&tar));
    let config =
        serde_json::json!({ "os": "linux", "architecture": "arm64", "rootfs": { "type": "layers", "diff_ids": [id] } });
    let config = config.to_string().into_bytes();
    let (layer, config_digest) = (layout.write_blob(&blob).unwrap(), layout.write_blob(&config).unwrap());
    let manifest = serde_json::json!({ "schemaVersion": 2,
        "config": { "mediaType": crate::media::OCI_CONFIG, "size": config.len(), "digest": config_digest },
        "layers": [{ "mediaType": crate::media::OCI_LAYER_GZIP, "size": blob.len(), "digest": layer }] });
    let manifest = Manifest::parse(None, manifest.to_string().into_bytes()).unwrap();
    let cache = root.join("cache");
    let first = layers(&layout, &manifest, &Keep::new(), Some(&cache)).unwrap();
    std::fs::remove_file(layout.own_path(&layer)).unwrap();
    assert_eq!(layers(&layout, &manifest, &Keep::new(), Some(&cache)).unwrap(), first);
    let kept = cache.read_dir_utf8().unwrap().next().unwrap().unwrap();
    std::fs::write(kept.path(), "damaged").unwrap();
    assert!(layers(&layout, &manifest, &Keep::new(), Some(&cache)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn hostile_bytes_never_panic(changes in vec((0usize..3072, any::<u8>()), 0..60), cut in 0usize..3072, squeeze: bool) {
        let mut tar = sample();
        for (at, byte) in changes {
            if let Some(slot) = tar.get_mut(at) {
                *slot = byte;
            }
        }
        tar.truncate(cut);
        let bytes = if squeeze { gzip(&tar) } else { tar };
        let _ = layer(&bytes[..], &Keep::new());
    }

    #[test]
    fn any_bytes_never_panic(bytes in vec(any::<u8>(), 0..2000)) {
        let _ = layer(&bytes[..], &Keep::new());
        let _ = (look(&bytes), glibc(&bytes));
    }
}

/// A library whose file is called otherwise is found by the name that it gives itself, as the loader's cache has it.
#[test]
fn libraries_are_known_by_their_own_names() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|l| l.split_whitespace().nth(5)).find(|p| p.contains("libc.so")).unwrap();
    let bytes = std::fs::read(libc).unwrap();
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in [("lib/liba.so.6.0.30", bytes.as_slice()), ("lib/broken.so", b"\x7fELF\x02\x01\x01")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, name, content).unwrap();
    }
    let found = layer(&builder.into_inner().unwrap()[..], &Keep::new()).unwrap();
    let library = |row: &Row| match &row.act {
        Act::File(_, facts) => facts.library.clone(),
        _ => None,
    };
    assert_eq!(library(&found.rows[0]).unwrap().soname.as_deref(), Some("libc.so.6"));
    assert_eq!(library(&found.rows[1]), None);
}
