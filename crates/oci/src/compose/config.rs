//! Config and manifest of an image of ours, made from the base's bytes by a few named changes (R18 to R20).
//!
//! The base's media family is kept, so types are never mixed; a Docker manifest has no annotations, so the base is named by
//! annotations in OCI manifests only (image.json names it always).

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::raw::RawObject;
use super::spec::{Delta, Spec};
use crate::digest::Digest;
use crate::manifest::{Config, Manifest};
use crate::media::{Compression, Family, Kind};

/// How the history of a config begins a row that this tool wrote.
pub const OURS: &str = "sparklane: ";

/// Most layers that the classic store of docker takes (R38).
pub const LAYERS_MAX: usize = 125;
/// Above this many the build warns.
const LAYERS_MANY: usize = 120;

/// A finished layer of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Added {
    /// Digest of the gzip blob.
    pub digest: Digest,
    /// Bytes of the blob.
    pub size: u64,
    /// Digest of the tar.
    pub diff_id: Digest,
    /// What it is, for history and messages.
    pub title: String,
}

/// The two documents, with what should be said about them.
#[derive(Debug, Clone)]
pub struct Documents {
    /// The config.
    pub config: Vec<u8>,
    /// The manifest.
    pub manifest: Vec<u8>,
    /// What people should know.
    pub warnings: Vec<String>,
}

/// Refuses an image that the classic store of docker would not take; warns where little is left.
///
/// # Errors
/// With more than [`LAYERS_MAX`] layers.
pub fn check_count(base: usize, ours: usize) -> Result<Option<String>, String> {
    let all = base + ours;
    if all > LAYERS_MAX {
        return Err(format!(
            "{base} layers of the base and {ours} of ours are {all}; docker's classic store ends at {LAYERS_MAX}"
        ));
    }
    Ok((all > LAYERS_MANY).then(|| format!("{all} layers; docker's classic store ends at {LAYERS_MAX}")))
}

/// Makes both documents.
///
/// # Errors
/// When the base's documents do not fit each other, or there would be too many layers.
pub fn documents(base: &Manifest, config: &Config, spec: &Spec, layers: &[Added]) -> Result<Documents, String> {
    config.check_against(base).map_err(|e| e.to_string())?;
    let mut warnings: Vec<String> = check_count(base.layers.len(), layers.len())?.into_iter().collect();
    warnings.extend(mixed(base));
    let config = make_config(config, spec, layers, &mut warnings)?;
    let manifest = make_manifest(base, spec, &config, layers)?;
    Ok(Documents { config, manifest, warnings })
}

/// A base that mixes families already runs, but some builders refuse to go on from it.
fn mixed(base: &Manifest) -> Option<String> {
    let other = |media_type: &str, kind: Kind| match kind {
        Kind::Layer(family, _) | Kind::Config(family) if family == base.family() => None,
        _ => Some(media_type.to_owned()),
    };
    let all = std::iter::once(&base.config).chain(&base.layers);
    let found = all.filter_map(|d| other(&d.media_type, d.kind())).next()?;
    Some(format!("the base's {} manifest names a {found}; that stays as it is", base.family()))
}

fn make_config(base: &Config, spec: &Spec, layers: &[Added], warnings: &mut Vec<String>) -> Result<Vec<u8>, String> {
    let mut tree = RawObject::parse(base.bytes())?;
    let created = created(spec)?;
    tree.set("created", &created)?;
    if spec.config != Delta::default() {
        let mut inner: RawObject = tree.read("config")?.unwrap_or_default();
        apply(&mut inner, &spec.config)?;
        tree.set("config", &inner)?;
    }
    let mut rootfs: RawObject = tree.read("rootfs")?.ok_or("rootfs is missing")?;
    let ids: Vec<&Digest> = base.diff_ids.iter().chain(layers.iter().map(|l| &l.diff_id)).collect();
    rootfs.set("diff_ids", &ids)?;
    tree.set("rootfs", &rootfs)?;
    let mut history: Vec<Box<RawValue>> = tree.read("history")?.unwrap_or_default();
    fit_history(&mut history, base.diff_ids.len(), &created, warnings)?;
    for layer in layers {
        history.push(row(&created, &format!("{OURS}{}", layer.title))?);
    }
    tree.set("history", &history)?;
    tree.to_bytes()
}

/// The spec's time as RFC 3339.
fn created(spec: &Spec) -> Result<String, String> {
    let seconds = i64::try_from(spec.epoch).map_err(|e| format!("epoch: {e}"))?;
    jiff::Timestamp::from_second(seconds).map(|t| t.to_string()).map_err(|e| format!("epoch: {e}"))
}

fn row(created: &str, by: &str) -> Result<Box<RawValue>, String> {
    #[derive(Serialize)]
    struct Row<'a> {
        created: &'a str,
        created_by: &'a str,
    }
    to_raw_value(&Row { created, created_by: by }).map_err(|e| e.to_string())
}

/// One row that is not empty for each layer of the base: buildah and others fail on anything else.
fn fit_history(
    history: &mut Vec<Box<RawValue>>,
    layers: usize,
    created: &str,
    warnings: &mut Vec<String>,
) -> Result<(), String> {
    let mut full = Vec::new();
    for (i, raw) in history.iter().enumerate() {
        let row: RawObject = serde_json::from_str(raw.get()).map_err(|e| format!("history[{i}]: {e}"))?;
        if row.read::<bool>("empty_layer")? != Some(true) {
            full.push((i, row));
        }
    }
    if full.len() != layers {
        warnings.push(format!("the base has {layers} layers, but {} rows of history; made to fit", full.len()));
    }
    for _ in full.len()..layers {
        history.push(row(created, "(no history)")?);
    }
    for (i, row) in full.iter_mut().skip(layers) {
        row.set("empty_layer", &true)?;
        history[*i] = to_raw_value(row).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn apply(config: &mut RawObject, delta: &Delta) -> Result<(), String> {
    if !delta.env.is_empty() {
        let mut env: Vec<Box<RawValue>> = config.read("Env")?.unwrap_or_default();
        for (key, value) in &delta.env {
            merge_env(&mut env, key, value.as_deref())?;
        }
        config.set("Env", &env)?;
    }
    if !delta.labels.is_empty() {
        let mut labels: RawObject = config.read("Labels")?.unwrap_or_default();
        for (key, value) in &delta.labels {
            match value {
                Some(value) => labels.set(key, value)?,
                None => labels.remove(key),
            }
        }
        config.set("Labels", &labels)?;
    }
    if let Some(entrypoint) = &delta.entrypoint {
        config.set("Entrypoint", entrypoint)?;
        // As docker does: the old arguments belonged to the old entry point.
        config.remove("Cmd");
    }
    if let Some(cmd) = &delta.cmd {
        config.set("Cmd", cmd)?;
        // Windows' flag that Cmd is one escaped text.
        config.remove("ArgsEscaped");
    }
    if let Some(workdir) = &delta.workdir {
        config.set("WorkingDir", workdir)?;
    }
    Ok(())
}

/// Sets a variable in its place, or at the end.
fn merge_env(env: &mut Vec<Box<RawValue>>, key: &str, value: Option<&str>) -> Result<(), String> {
    let mut kept = Vec::with_capacity(env.len() + 1);
    let mut set = value.map(|v| to_raw_value(&format!("{key}={v}")).map_err(|e| e.to_string())).transpose()?;
    for old in env.drain(..) {
        let text: String = serde_json::from_str(old.get()).map_err(|e| format!("config.Env: {e}"))?;
        match text.split_once('=').map_or(text.as_str(), |(k, _)| k) == key {
            true => kept.extend(set.take()),
            false => kept.push(old),
        }
    }
    kept.extend(set);
    *env = kept;
    Ok(())
}

fn make_manifest(base: &Manifest, spec: &Spec, config: &[u8], layers: &[Added]) -> Result<Vec<u8>, String> {
    let mut tree = RawObject::parse(base.bytes())?;
    let mut descriptor: RawObject = tree.read("config")?.ok_or("config is missing")?;
    descriptor.set("size", &config.len())?;
    descriptor.set("digest", &crate::digest::of(config))?;
    // It would be the base's config, embedded (R20).
    descriptor.remove("data");
    tree.set("config", &descriptor)?;
    let mut all: Vec<Box<RawValue>> = tree.read("layers")?.unwrap_or_default();
    for layer in layers {
        all.push(layer_row(base.family(), layer)?);
    }
    tree.set("layers", &all)?;
    if base.family() == Family::Oci {
        let mut annotations: RawObject = tree.read("annotations")?.unwrap_or_default();
        annotations.set("org.opencontainers.image.base.name", &spec.base.reference)?;
        annotations.set("org.opencontainers.image.base.digest", &spec.base.manifest)?;
        tree.set("annotations", &annotations)?;
    }
    tree.to_bytes()
}

fn layer_row(family: Family, layer: &Added) -> Result<Box<RawValue>, String> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Row<'a> {
        media_type: &'a str,
        size: u64,
        digest: &'a Digest,
    }
    let media_type = family.layer(Compression::Gzip);
    to_raw_value(&Row { media_type, size: layer.size, digest: &layer.digest }).map_err(|e| e.to_string())
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
