//! Building: a spec and the base's documents in, a layout with our layers only and `image.json` out.
//!
//! Nothing here reads a clock, an environment or a folder's order, so the same inputs give the same bytes anywhere (R1). The layout
//! appears under its name when it is whole (R39).

use std::collections::BTreeMap;
use std::fs::{self, File};

use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;

use super::binaries::{Binaries, collect};
use super::config::{Added, check_count, documents};
use super::edits::Parts;
use super::spec::{Base, Expected, Layer, Spec};
use super::{edits, explain, files, upgrade};
use crate::base::{Overlay, TreeIndex};
use crate::digest::Digest;
use crate::error::OciError;
use crate::fetch;
use crate::layer::write_watched;
use crate::layout::{Layout, write_atomic};
use crate::manifest::{Config, Manifest, check_digest};

/// Version of `image.json`.
pub const SCHEMA: u32 = 1;

/// What an image is made from.
#[derive(Debug)]
pub struct Inputs<'a> {
    /// What to make.
    pub spec: &'a Spec,
    /// The base's manifest.
    pub manifest: &'a Manifest,
    /// The base's config.
    pub config: &'a Config,
    /// What is known of the base's tree.
    pub index: Option<&'a TreeIndex>,
    /// Folder of the wheels.
    pub wheels: &'a Utf8Path,
    /// Folder that relative sources of files are in.
    pub sources: &'a Utf8Path,
}

/// How the output comes to its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Made beside it and renamed.
    Renamed,
    /// Made where it is: Nix takes an output only from a builder that succeeded.
    Direct,
}

/// What was made; the content of `image.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Built {
    /// Version of this shape.
    pub schema: u32,
    /// Name in the catalogue.
    pub name: String,
    /// The base.
    pub base: Base,
    /// Digest of the manifest: the image's one identity.
    pub manifest: Digest,
    /// Digest of the config: what docker's classic store calls the image.
    pub config: Digest,
    /// `os/architecture`.
    pub platform: String,
    /// Our layers, lowest first.
    pub layers: Vec<Added>,
    /// Digest of each member of the config.
    pub keys: BTreeMap<String, Digest>,
    /// What was done and why.
    pub why: Vec<String>,
    /// What could not be proved, e.g. without a tree index.
    pub unproved: Vec<String>,
    /// What people should know.
    pub warnings: Vec<String>,
}

impl Built {
    /// What a later build must come to, and enough to say what moved when it does not.
    #[must_use]
    pub fn expected(&self) -> Expected {
        Expected {
            manifest: self.manifest.clone(),
            config: Some(self.config.clone()),
            layers: Some(self.layers.iter().map(|l| l.digest.clone()).collect()),
            keys: Some(self.keys.clone()),
        }
    }
}

/// Builds an image into `out`, which must not exist.
///
/// # Errors
/// When the inputs are not those that the spec names, a layer cannot be made, the digest is not the expected one, or a file
/// cannot be written. Then there is nothing at `out`.
pub fn build(inputs: &Inputs<'_>, out: &Utf8Path, place: Place) -> Result<Built, OciError> {
    check(inputs)?;
    if out.symlink_metadata().is_ok() {
        return Err(OciError::document(out.as_str(), "is there already; name another folder or remove it"));
    }
    let stage = Stage::new(out, place)?;
    let built = fill(inputs, &Layout::stage(&stage.path)?)?;
    stage.publish(out)?;
    Ok(built)
}

fn refuse(spec: &Spec) -> impl Fn(String) -> OciError {
    let what = format!("image {}", spec.name);
    move |why| OciError::document(&what, why)
}

/// Everything that can be refused before a byte is written.
fn check(inputs: &Inputs<'_>) -> Result<(), OciError> {
    let (spec, manifest) = (inputs.spec, inputs.manifest);
    check_digest("the base's manifest", &spec.base.manifest, manifest.digest().clone())?;
    if let Some(config) = &spec.base.config {
        check_digest("the base's config", config, inputs.config.digest().clone())?;
    }
    manifest.check_image()?;
    inputs.config.check_against(manifest)?;
    check_count(manifest.layers.len(), spec.layers.len()).map_err(refuse(spec))?;
    if let Some(index) = inputs.index
        && !index.layers.iter().eq(manifest.layers.iter().map(|l| &l.digest))
    {
        return Err(refuse(spec)("the tree index was made of other layers than the base's".into()));
    }
    Ok(())
}

fn fill(inputs: &Inputs<'_>, layout: &Layout) -> Result<Built, OciError> {
    let spec = inputs.spec;
    let bad = refuse(spec);
    let mut overlay = Overlay::new(inputs.index);
    let mut binaries = Binaries::new(&inputs.config.platform, inputs.index);
    let (mut layers, mut why, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    for (i, layer) in spec.layers.iter().enumerate() {
        let at = |e: String| bad(format!("layer {i} ({}): {e}", layer.title()));
        let parts = parts(layer, &overlay, inputs).map_err(at)?;
        let entries = overlay.place(parts.entries, &parts.removes, spec.epoch).map_err(at)?;
        why.extend(parts.why);
        warnings.extend(parts.warnings);
        let mut blob = layout.blob_writer()?;
        let mut found = collect(layout.root())?;
        let written = write_watched(&entries, &mut blob, &mut found).map_err(|e| at(e.to_string()))?;
        binaries.check(&found.found).map_err(at)?;
        let (digest, size) = blob.finish()?;
        check_digest("the layer on disk", &written.digest, digest.clone())?;
        layers.push(Added { digest, size, diff_id: written.diff_id, title: layer.title() });
    }
    let made = documents(inputs.manifest, inputs.config, spec, &layers).map_err(&bad)?;
    warnings.extend(made.warnings);
    let keys = explain::keys(&made.config).map_err(&bad)?;
    layout.write_blob(&made.config)?;
    layout.write_blob(&made.manifest)?;
    let (manifest, config) = (Manifest::parse(None, made.manifest)?, Config::parse(made.config)?);
    config.check_against(&manifest)?;
    let built = Built {
        schema: SCHEMA,
        name: spec.name.clone(),
        base: spec.base.clone(),
        manifest: manifest.digest().clone(),
        config: config.digest().clone(),
        platform: config.platform.to_string(),
        layers,
        keys,
        why,
        unproved: unproved(inputs),
        warnings,
    };
    let moved = spec.expected.as_ref().map(|e| explain::moved(e, &built)).unwrap_or_default();
    if !moved.is_empty() {
        return Err(bad(moved.join("; ")));
    }
    let mut json = serde_json::to_vec_pretty(&built).map_err(|e| bad(e.to_string()))?;
    json.push(b'\n');
    write_atomic(&layout.root().join("image.json"), &json)?;
    layout.finish_stage(&fetch::entry(&manifest, &config, &spec.name))?;
    Ok(built)
}

fn parts(layer: &Layer, overlay: &Overlay<'_>, inputs: &Inputs<'_>) -> Result<Parts, String> {
    let epoch = inputs.spec.epoch;
    match layer {
        Layer::Wheels(wheels) => upgrade::parts(wheels, overlay, inputs.wheels, epoch),
        Layer::Edits(edits) => edits::parts(edits, overlay, epoch),
        Layer::Files(files) => files::parts(files, overlay, inputs.sources, epoch),
    }
}

/// Without a tree index paths are taken as they are written.
fn unproved(inputs: &Inputs<'_>) -> Vec<String> {
    if inputs.index.is_some() {
        return Vec::new();
    }
    let mut lines = vec![
        "no folder that paths lead through is a link in the base (only /bin, /lib and /sbin are refused)",
        "no file takes the place of a folder of the base",
    ];
    if inputs.spec.layers.iter().any(|l| matches!(l, Layer::Wheels(_))) {
        lines.extend([
            "no distribution of the wheels is in the base in another version",
            "the base's python imports from the folder that the wheels are installed into",
            "the base has the libraries and the glibc that the wheels need",
        ]);
    }
    lines.into_iter().map(str::to_owned).collect()
}

/// The folder that is filled; it goes unless it is published.
struct Stage {
    path: Utf8PathBuf,
    published: bool,
}

impl Stage {
    fn new(out: &Utf8Path, place: Place) -> Result<Self, OciError> {
        let name = out.file_name().ok_or_else(|| OciError::document(out.as_str(), "is no name for a folder"))?;
        let path = match place {
            Place::Direct => out.to_owned(),
            Place::Renamed => out.with_file_name(format!(".{name}.{}.tmp", std::process::id())),
        };
        if place == Place::Renamed && path.symlink_metadata().is_ok() {
            // Of a process of the same number that was killed.
            fs::remove_dir_all(&path).map_err(OciError::io("remove", &path))?;
        }
        fs::create_dir_all(&path).map_err(OciError::io("make", &path))?;
        Ok(Self { path, published: false })
    }

    fn publish(mut self, out: &Utf8Path) -> Result<(), OciError> {
        if self.path != out {
            fs::rename(&self.path, out).map_err(OciError::io("rename to", out))?;
            let parent = out.parent().filter(|p| !p.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
            File::open(parent).and_then(|d| d.sync_all()).map_err(OciError::io("sync", parent))?;
        }
        self.published = true;
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.published {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
