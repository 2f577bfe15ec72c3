//! A whole image from a registry into a layout: documents, blobs, and last the index entry.

use serde_json::{Map, Value, json};

use crate::error::OciError;
use crate::layout::{Layout, REF_NAME};
use crate::manifest::{Config, Descriptor, Manifest, Platform};
use crate::reference::Reference;
use crate::registry::{PullOptions, Pulled, Registry, Resolved, pull_blobs};

/// Brings the image that a reference names into a layout and lists it there under the reference.
///
/// # Errors
/// As [`pull_blobs`]; what came is kept, and nothing is listed that is not whole.
pub async fn fetch_image(
    registry: &Registry,
    reference: &Reference,
    platform: &Platform,
    layout: &Layout,
    options: &PullOptions,
) -> Result<(Resolved, Pulled), OciError> {
    let repo = registry.repo(reference)?;
    let found = repo.resolve(reference.selector(), platform).await?;
    layout.write_blob(found.config.bytes())?;
    let layers: Vec<Descriptor> = found.manifest.blobs().into_iter().cloned().collect();
    let pulled = pull_blobs(&repo, layout, &layers, options).await?;
    list(layout, &found.manifest, &found.config, &reference.to_string())?;
    Ok((found, pulled))
}

/// Writes a manifest whose blobs are here and lists it under a name.
///
/// # Errors
/// When a blob is missing, or the system's.
pub fn list(layout: &Layout, manifest: &Manifest, config: &Config, name: &str) -> Result<(), OciError> {
    layout.write_blob(manifest.bytes())?;
    layout.put_entry(&entry(manifest, config, name))
}

/// An index entry: the platform is the config's, so that whoever reads the layout can choose (R21).
#[must_use]
pub fn entry(manifest: &Manifest, config: &Config, name: &str) -> Map<String, Value> {
    let mut platform = Map::new();
    platform.insert("architecture".into(), config.platform.architecture.clone().into());
    platform.insert("os".into(), config.platform.os.clone().into());
    if let Some(variant) = &config.platform.variant {
        platform.insert("variant".into(), variant.clone().into());
    }
    let mut entry = Map::new();
    entry.insert("mediaType".into(), manifest.media_type().into());
    entry.insert("digest".into(), manifest.digest().as_str().into());
    entry.insert("size".into(), manifest.bytes().len().into());
    entry.insert("annotations".into(), json!({ REF_NAME: name }));
    entry.insert("platform".into(), Value::Object(platform));
    entry
}
