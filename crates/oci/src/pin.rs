//! A pin: what a reference was when someone looked, with the documents as they were served (`images/pins/<digest>/`).
//!
//! Nix takes the documents as fixed outputs: their digests are flat hashes (design.md section 3).

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};

use crate::digest::{self, Digest};
use crate::error::OciError;
use crate::layout::write_atomic;
use crate::manifest::check_digest;
use crate::media::Family;
use crate::registry::Resolved;

/// The only version of the file that this tool writes and reads.
pub const SCHEMA: u32 = 1;

/// Name of the tree index beside `pin.json`.
pub const TREE: &str = "tree.json";

/// Content of `pin.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pin {
    /// Version of this file's shape.
    pub schema: u32,
    /// The reference that was looked up.
    pub reference: String,
    /// `os/architecture[/variant]` of the image.
    pub platform: String,
    /// Digest of the index that offered it, if there was one.
    pub index: Option<Digest>,
    /// Digest of the manifest.
    pub manifest: Digest,
    /// Digest of the config.
    pub config: Digest,
    /// Whose media types it uses.
    pub family: Family,
    /// The layers, lowest first.
    pub layers: Vec<Layer>,
    /// Digest of the tree index beside this file ([`TREE`]), once the layers were read.
    pub tree: Option<Digest>,
    /// Where it came from, when it was taken from a docker store and not from a registry.
    pub adopted: Option<Adopted>,
}

/// A layer of a pinned image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Layer {
    /// Digest of the blob.
    pub digest: Digest,
    /// Digest of the uncompressed tar.
    pub diff_id: Digest,
    /// Bytes of the blob.
    pub size: u64,
}

/// The docker store that an image was taken from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Adopted {
    /// Its name there.
    pub name: String,
    /// The machine.
    pub node: String,
    /// `classic` or `containerd`.
    pub store: String,
    /// What that store calls it.
    pub id: Digest,
}

impl Pin {
    /// What a resolved reference pins.
    #[must_use]
    pub fn of(reference: &str, found: &Resolved) -> Self {
        let rows = found.manifest.layers.iter().zip(&found.config.diff_ids);
        let layer = |(d, id): (&crate::Descriptor, &Digest)| Layer {
            digest: d.digest.clone(),
            diff_id: id.clone(),
            size: d.size,
        };
        Self {
            schema: SCHEMA,
            reference: reference.to_owned(),
            platform: found.config.platform.to_string(),
            index: found.index.as_ref().map(|i| i.digest().clone()),
            manifest: found.manifest.digest().clone(),
            config: found.config.digest().clone(),
            family: found.manifest.family(),
            layers: rows.map(layer).collect(),
            tree: None,
            adopted: None,
        }
    }

    /// The digest by which images name the pin: the index's where there is one, as that is what a tag shows.
    #[must_use]
    pub fn key(&self) -> &Digest {
        self.index.as_ref().unwrap_or(&self.manifest)
    }

    /// The pin's folder below the folder of all pins.
    #[must_use]
    pub fn folder(&self, pins: &Utf8Path) -> Utf8PathBuf {
        pins.join(self.key().hex())
    }

    /// Writes pin and documents; `pin.json` last, so that a pin that can be read is whole. What is beside them stays.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, pins: &Utf8Path, found: &Resolved) -> Result<Utf8PathBuf, OciError> {
        let dir = self.folder(pins);
        std::fs::create_dir_all(&dir).map_err(OciError::io("make", &dir))?;
        write_atomic(&dir.join("manifest.json"), found.manifest.bytes())?;
        write_atomic(&dir.join("config.json"), found.config.bytes())?;
        if let Some(index) = &found.index {
            write_atomic(&dir.join("index.json"), index.bytes())?;
        }
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|e| OciError::document(dir.as_str(), e.to_string()))?;
        bytes.push(b'\n');
        write_atomic(&dir.join("pin.json"), &bytes)?;
        Ok(dir)
    }

    /// Reads a pin and proves the documents beside it.
    ///
    /// # Errors
    /// When it is of another shape, or a document is not the one it names.
    pub fn read(dir: &Utf8Path) -> Result<Self, OciError> {
        let path = dir.join("pin.json");
        let bytes = std::fs::read(&path).map_err(OciError::io("read", &path))?;
        let pin: Self = serde_json::from_slice(&bytes).map_err(|e| OciError::document(path.as_str(), e.to_string()))?;
        if pin.schema != SCHEMA {
            return Err(OciError::document(path, format!("schema {} is not {SCHEMA}", pin.schema)));
        }
        for (name, expected) in [
            ("manifest.json", Some(&pin.manifest)),
            ("config.json", Some(&pin.config)),
            ("index.json", pin.index.as_ref()),
            (TREE, pin.tree.as_ref()),
        ] {
            let Some(expected) = expected else { continue };
            let path = dir.join(name);
            let bytes = std::fs::read(&path).map_err(OciError::io("read", &path))?;
            check_digest(path.as_str(), expected, digest::of(&bytes))?;
        }
        Ok(pin)
    }
}
