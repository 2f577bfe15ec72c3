//! What an image is, for people: digests, config, layers with what made them.

use serde::Serialize;
use serde_json::Value;

use crate::digest::Digest;
use crate::error::OciError;
use crate::layout::Layout;
use crate::manifest::{Config, Manifest};
use crate::verify;

/// An image at a glance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Digest of the manifest: the image's identity, and its ID in docker's containerd store.
    pub manifest: Digest,
    /// Media type of the manifest.
    pub media_type: String,
    /// Digest of the config: the image's ID in docker's classic store.
    pub config: Digest,
    /// e.g. `linux/arm64`.
    pub platform: String,
    /// When it was made, as the config says.
    pub created: Option<String>,
    /// Bytes of all blobs, each once.
    pub size: u64,
    /// Environment, as the config has it.
    pub env: Vec<String>,
    /// Entry point.
    pub entrypoint: Vec<String>,
    /// Default arguments.
    pub cmd: Vec<String>,
    /// Layers, lowest first.
    pub layers: Vec<LayerRow>,
}

/// One layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerRow {
    /// Digest of the blob.
    pub digest: Digest,
    /// Digest of the tar inside.
    pub diff_id: Digest,
    /// Bytes of the blob.
    pub size: u64,
    /// Media type.
    pub media_type: String,
    /// What made it, by the history.
    pub created_by: Option<String>,
    /// True when this tool wrote it, by the history.
    pub ours: bool,
    /// True when the layout has the blob.
    pub here: bool,
}

/// Looks at an image of a layout. Only manifest and config are read.
///
/// # Errors
/// When one of them is missing or not what its digest says.
pub fn inspect(layout: &Layout, digest: &Digest) -> Result<Summary, OciError> {
    let manifest = layout.manifest(digest)?;
    let config = layout.config(&manifest)?;
    let inner = config.tree().get("config").and_then(Value::as_object);
    let list = |key: &str| inner.and_then(|c| c.get(key)).map(texts).unwrap_or_default();
    Ok(Summary {
        manifest: digest.clone(),
        media_type: manifest.media_type().to_owned(),
        config: manifest.config.digest.clone(),
        platform: config.platform.to_string(),
        created: config.tree().get("created").and_then(Value::as_str).map(str::to_owned),
        size: manifest.blobs().iter().map(|d| d.size).sum(),
        env: list("Env"),
        entrypoint: list("Entrypoint"),
        cmd: list("Cmd"),
        layers: layers(layout, &manifest, &config),
    })
}

fn layers(layout: &Layout, manifest: &Manifest, config: &Config) -> Vec<LayerRow> {
    let rows = verify::history(config).filter(|rows| rows.len() == manifest.layers.len()).unwrap_or_default();
    let ours = manifest.layers.len() - verify::our_layers(config).min(manifest.layers.len());
    let by = |i: usize| rows.get(i).and_then(|r| r.get("created_by")).and_then(Value::as_str).map(str::to_owned);
    let pairs = manifest.layers.iter().zip(&config.diff_ids).enumerate();
    pairs
        .map(|(i, (layer, diff_id))| LayerRow {
            digest: layer.digest.clone(),
            diff_id: diff_id.clone(),
            size: layer.size,
            media_type: layer.media_type.clone(),
            created_by: by(i),
            ours: i >= ours,
            here: layout.has(&layer.digest),
        })
        .collect()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
