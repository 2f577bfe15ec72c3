//! An image that someone built by hand, from a docker store into a layout, with digests that stay.
//!
//! `docker save` is read as it streams. What has an identity keeps it: the containerd store's manifest, the classic store's
//! config. The classic store keeps no packed layers and no manifest; there the layers stay plain tars, so that no compressor
//! decides a byte, and the manifest is made of config and layers alone: the same image gives the same manifest anywhere.

use std::collections::BTreeMap;
use std::io::{Read, copy};

use serde_json::{Value, json};

use crate::digest::Digest;
use crate::docker::{StoreKind, Stored};
use crate::error::OciError;
use crate::layout::Layout;
use crate::manifest::{Config, DOCUMENT_MAX, Descriptor, Document, Manifest, Platform, check_digest};
use crate::media;
use crate::tarball;

/// Most files of a saved image: layers, configs and names of some hundred layers.
const FILES_MAX: usize = 10_000;

/// What a saved image's files became.
#[derive(Debug, Default)]
struct Saved {
    blobs: BTreeMap<String, (Digest, u64)>,
    links: BTreeMap<String, String>,
}

impl Saved {
    /// A file by its path, through at most one link, as old dockers save a layer that is there twice.
    fn find(&self, path: &str) -> Option<&(Digest, u64)> {
        self.blobs.get(path).or_else(|| self.blobs.get(self.links.get(path)?))
    }
}

/// Reads a `docker save` stream into a layout; gives manifest and config of the image that the store calls `stored.id`.
/// Nothing is listed in the layout yet.
///
/// # Errors
/// When the stream is no saved image, or not that image.
pub fn read_saved(
    layout: &Layout,
    kind: StoreKind,
    stored: &Stored,
    stream: impl Read,
    platform: &Platform,
) -> Result<(Manifest, Config), OciError> {
    let saved = unpack(layout, stream)?;
    let manifest = match kind {
        StoreKind::Containerd => from_containerd(layout, stored, platform)?,
        StoreKind::Classic => from_classic(layout, &saved, stored)?,
    };
    manifest.check_image()?;
    let config = layout.config(&manifest)?;
    if config.diff_ids != stored.diff_ids {
        return Err(odd("its layers are not those that docker lists"));
    }
    if let Some(missing) = layout.missing(&manifest).first() {
        return Err(OciError::BlobMissing { layout: layout.root().to_owned(), digest: missing.digest.clone() });
    }
    Ok((manifest, config))
}

fn odd(why: impl Into<String>) -> OciError {
    OciError::document("what docker saved", why)
}

/// Every file of the stream becomes a blob: what belongs to the image is named by its digest anyway.
fn unpack(layout: &Layout, stream: impl Read) -> Result<Saved, OciError> {
    let broken = |e: std::io::Error| odd(format!("it is no whole tar: {e}"));
    let mut saved = Saved::default();
    tarball::each(stream, broken, |entry| {
        if saved.blobs.len() + saved.links.len() >= FILES_MAX {
            return Err(odd(format!("it has more than {FILES_MAX} files")));
        }
        let path = entry.path().map_err(broken)?.to_str().map(plain);
        let path = path.ok_or_else(|| odd("it has a file whose name is no text"))?;
        match entry.header().entry_type() {
            tar::EntryType::Regular => {
                let mut writer = layout.blob_writer()?;
                copy(entry, &mut writer).map_err(OciError::io("copy to", layout.root()))?;
                saved.blobs.insert(path, writer.finish()?);
            }
            tar::EntryType::Symlink | tar::EntryType::Link => {
                let target = entry.link_name().map_err(broken)?.and_then(|t| t.to_str().map(str::to_owned));
                let target = target.ok_or_else(|| odd("it has a link to no name"))?;
                saved.links.insert(path, plain(target.trim_start_matches("../")));
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(saved)
}

fn plain(path: &str) -> String {
    path.trim_start_matches("./").trim_end_matches('/').to_owned()
}

/// The manifest that the containerd store knows, as it is; of an index, the one for this machine.
fn from_containerd(layout: &Layout, stored: &Stored, platform: &Platform) -> Result<Manifest, OciError> {
    let mut digest = stored.id.clone();
    for _ in 0..4 {
        match Document::parse(None, layout.read_document(&digest)?)? {
            Document::Manifest(manifest) => return Ok(manifest),
            Document::Index(index) => digest = index.choose(platform)?.digest.clone(),
        }
    }
    Err(odd("its indexes lie in each other without end"))
}

fn from_classic(layout: &Layout, saved: &Saved, stored: &Stored) -> Result<Manifest, OciError> {
    let (list, size) = saved.find("manifest.json").ok_or_else(|| odd("it has no manifest.json"))?;
    if *size > DOCUMENT_MAX {
        return Err(odd("its manifest.json is too long"));
    }
    let list: Value = serde_json::from_slice(&layout.read_document(list)?).map_err(|e| odd(e.to_string()))?;
    let [image] = list.as_array().map_or(&[][..], Vec::as_slice) else {
        return Err(odd("it holds not exactly one image"));
    };
    let path = |value: Option<&Value>| value.and_then(Value::as_str).map(plain);
    let file = |name: Option<String>| {
        let name = name.ok_or_else(|| odd("its manifest.json names a file by no text"))?;
        saved.find(&name).cloned().ok_or_else(|| odd(format!("it has no {name}")))
    };
    let (config, config_size) = file(path(image.get("Config")))?;
    check_digest("the saved config", &stored.id, config.clone())?;
    let rows = image.get("Layers").and_then(Value::as_array).ok_or_else(|| odd("its manifest.json has no layers"))?;
    let layers: Result<Vec<_>, _> = rows.iter().map(|row| file(path(Some(row)))).collect();
    let layers = layers?;
    for ((found, _), expected) in layers.iter().zip(&stored.diff_ids) {
        check_digest("a saved layer", expected, found.clone())?;
    }
    made(&Descriptor::new(media::OCI_CONFIG, config, config_size), &layers)
}

/// The manifest of a config and plain layers, always the same bytes.
fn made(config: &Descriptor, layers: &[(Digest, u64)]) -> Result<Manifest, OciError> {
    let row = |media: &str, digest: &Digest, size: u64| json!({ "mediaType": media, "digest": digest.as_str(), "size": size });
    let layers: Vec<Value> = layers.iter().map(|(digest, size)| row(media::OCI_LAYER_TAR, digest, *size)).collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media::OCI_MANIFEST,
        "config": row(&config.media_type, &config.digest, config.size),
        "layers": layers,
    });
    Manifest::parse(None, manifest.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::digest::of;
    use crate::layout::scratch as layout;

    fn tar_of(files: &[(&str, &[u8])], links: &[(&str, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, content) in files {
            let mut header = tar::Header::new_ustar();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, *content).unwrap();
        }
        for (path, target) in links {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            tar.append_link(&mut header, path, target).unwrap();
        }
        tar.into_inner().unwrap()
    }

    /// As `docker commit` leaves it: a container's name, empty lists, a comment, nanoseconds.
    fn config(layers: &[&[u8]]) -> Vec<u8> {
        let ids: Vec<String> = layers.iter().map(|l| of(l).to_string()).collect();
        json!({
            "architecture": "arm64", "os": "linux", "container": "c0ffee", "docker_version": "26.1.5",
            "config": { "Hostname": "c0ffee", "Env": null, "Cmd": ["sh"] }, "comment": "fixed by hand",
            "created": "2026-07-31T10:11:12.123456789Z", "rootfs": { "type": "layers", "diff_ids": ids },
        })
        .to_string()
        .into_bytes()
    }

    fn stored(id: Digest, layers: &[&[u8]]) -> Stored {
        let diff_ids = layers.iter().map(|l| of(l)).collect();
        Stored { id, repo_digests: Vec::new(), tags: Vec::new(), diff_ids, size: 0 }
    }

    fn read(layout: &Layout, kind: StoreKind, stored: &Stored, tar: &[u8]) -> Result<(Manifest, Config), OciError> {
        read_saved(layout, kind, stored, tar, &Platform::linux("arm64"))
    }

    #[test]
    fn a_classic_image_keeps_its_config_and_gets_the_same_manifest_anywhere() {
        let layers: [&[u8]; 2] = [b"layer one", b"layer two"];
        let config = config(&layers);
        let stored = stored(of(&config), &layers);
        // As docker 25 and later save it …
        let path = |bytes: &[u8]| format!("blobs/sha256/{}", of(bytes).hex());
        let list =
            json!([{ "Config": path(&config), "RepoTags": ["x:1"], "Layers": [path(layers[0]), path(layers[1])] }]);
        let new = tar_of(
            &[
                (&path(layers[0]), layers[0]),
                (&path(layers[1]), layers[1]),
                (&path(&config), &config),
                ("manifest.json", list.to_string().as_bytes()),
            ],
            &[],
        );
        // … and as older ones did.
        let name = format!("{}.json", of(&config).hex());
        let list = json!([{ "Config": name, "RepoTags": null, "Layers": ["a/layer.tar", "b/layer.tar"] }]);
        let old = tar_of(
            &[
                ("a/layer.tar", layers[0]),
                ("c/layer.tar", layers[1]),
                (&name, &config),
                ("manifest.json", list.to_string().as_bytes()),
            ],
            &[("b/layer.tar", "../c/layer.tar")],
        );
        let found: Vec<Manifest> = [new, old]
            .iter()
            .map(|tar| {
                let (_dir, layout) = layout();
                let (manifest, kept) = read(&layout, StoreKind::Classic, &stored, tar).unwrap();
                assert_eq!(kept.bytes(), config, "the config's bytes are its identity");
                manifest
            })
            .collect();
        assert_eq!(found[0].bytes(), found[1].bytes());
        assert_eq!(found[0].layers[1].digest, of(layers[1]));
    }

    #[test]
    fn a_containerd_image_keeps_its_manifest() {
        let layers: [&[u8]; 1] = [b"layer"];
        let config = config(&layers);
        let manifest = made(&Descriptor::of(media::OCI_CONFIG, &config), &[(of(layers[0]), 5)]).unwrap();
        let index = json!({ "schemaVersion": 2, "manifests": [{ "mediaType": media::OCI_MANIFEST, "digest": manifest.digest().as_str(), "size": manifest.bytes().len(), "platform": { "os": "linux", "architecture": "arm64" } }] });
        let index = index.to_string().into_bytes();
        for id in [manifest.digest().clone(), of(&index)] {
            let (_dir, layout) = layout();
            let tar = tar_of(
                &[("blobs/a", layers[0]), ("blobs/b", &config), ("blobs/c", manifest.bytes()), ("blobs/d", &index)],
                &[],
            );
            let (found, _) = read(&layout, StoreKind::Containerd, &stored(id, &layers), &tar).unwrap();
            assert_eq!(found.bytes(), manifest.bytes());
        }
    }

    #[test]
    fn what_is_not_that_image_is_refused() {
        let layers: [&[u8]; 1] = [b"layer"];
        let config = config(&layers);
        let list = json!([{ "Config": "c.json", "Layers": ["l"] }]).to_string();
        let good: [(&str, &[u8]); 3] = [("c.json", &config), ("l", layers[0]), ("manifest.json", list.as_bytes())];
        let right = stored(of(&config), &layers);
        let refused = |files: &[(&str, &[u8])], stored: &Stored| {
            let (_dir, layout) = layout();
            read(&layout, StoreKind::Classic, stored, &tar_of(files, &[])).unwrap_err().to_string()
        };
        let (_dir, layout) = layout();
        read(&layout, StoreKind::Classic, &right, &tar_of(&good, &[])).unwrap();
        assert!(refused(&good, &stored(of(b"other"), &layers)).contains("digest"));
        assert!(refused(&good[..2], &right).contains("manifest.json"));
        assert!(refused(&[good[0], good[2]], &right).contains("it has no l"));
        assert!(refused(&[good[0], ("l", b"other"), good[2]], &right).contains("a saved layer"));
        assert!(read(&layout, StoreKind::Classic, &right, &tar_of(&good, &[])[..700]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_stream_is_answered(bytes in prop::collection::vec(any::<u8>(), 0..2048), list in "\\PC{0,64}") {
            let (_dir, layout) = layout();
            let right = stored(of(b"x"), &[]);
            for kind in [StoreKind::Classic, StoreKind::Containerd] {
                let _ = read(&layout, kind, &right, &bytes);
                let _ = read(&layout, kind, &right, &tar_of(&[("manifest.json", list.as_bytes())], &[]));
            }
        }
    }
}
