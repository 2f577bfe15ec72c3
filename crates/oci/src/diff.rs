//! Why two images have different digests: config, layers, and the files in the layers that differ.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::digest::Digest;
use crate::error::OciError;
use crate::layout::Layout;
use crate::manifest::{Config, Descriptor, Manifest};
use crate::verify::{Item, Kind, walk};

/// Files shown of one layer; the rest is counted.
const SHOWN: usize = 50;

/// What differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// Digests of both manifests.
    pub manifests: [Digest; 2],
    /// Layers that both have at the bottom.
    pub common: usize,
    /// Values of manifest and config that differ. What lists layers is left out: they are below.
    pub values: Vec<Changed>,
    /// Layers above the common ones.
    pub layers: Vec<LayerDifference>,
}

impl Difference {
    /// True when both are the same image.
    #[must_use]
    pub fn none(&self) -> bool {
        self.manifests[0] == self.manifests[1]
    }
}

/// A value that differs; `None` where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Changed {
    /// Where, e.g. `config.config.Env.PATH`.
    pub at: String,
    /// In the first image, as JSON.
    pub a: Option<String>,
    /// In the second.
    pub b: Option<String>,
}

/// Two layers at the same place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LayerDifference {
    /// Place, from 0.
    pub layer: usize,
    /// The first image's layer there.
    pub a: Option<Digest>,
    /// The second's.
    pub b: Option<Digest>,
    /// What differs in it.
    pub files: Vec<String>,
    /// How many more than those.
    pub more: usize,
}

/// An image and where its blobs are.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// The layout.
    pub layout: &'a Layout,
    /// Digest of the manifest.
    pub manifest: &'a Digest,
}

/// Compares two images.
///
/// # Errors
/// When manifest or config of one cannot be read, or a layer is damaged. A layer that is not here is said to be so.
pub fn diff(a: Side<'_>, b: Side<'_>) -> Result<Difference, OciError> {
    let read = |side: Side<'_>| -> Result<(Manifest, Config), OciError> {
        let manifest = side.layout.manifest(side.manifest)?;
        let config = side.layout.config(&manifest)?;
        Ok((manifest, config))
    };
    let ((first, first_config), (second, second_config)) = (read(a)?, read(b)?);
    let common = first.layers.iter().zip(&second.layers).take_while(|(x, y)| x.digest == y.digest).count();
    let mut values = Vec::new();
    let document = |manifest: &Manifest, config: &Config| {
        let without = |tree: &serde_json::Map<String, Value>, keys: &[&str]| {
            let kept = tree.iter().filter(|(k, _)| !keys.contains(&k.as_str()));
            Value::Object(kept.map(|(k, v)| (k.clone(), by_name(k, v))).collect())
        };
        let manifest = without(manifest.tree(), &["layers", "config"]);
        let mut config = without(config.tree(), &["rootfs", "history"]);
        if let Some(inner) = config.get_mut("config").and_then(Value::as_object_mut)
            && let Some(env) = inner.get_mut("Env")
        {
            *env = by_name("Env", env);
        }
        BTreeMap::from([("manifest", manifest), ("config", config)])
    };
    let (one, other) = (document(&first, &first_config), document(&second, &second_config));
    for key in ["manifest", "config"] {
        compare(key, one.get(key), other.get(key), &mut values);
    }
    let mut layers = Vec::new();
    for layer in common..first.layers.len().max(second.layers.len()) {
        layers.push(layer_difference(layer, (a, first.layers.get(layer)), (b, second.layers.get(layer)))?);
    }
    Ok(Difference { manifests: [first.digest().clone(), second.digest().clone()], common, values, layers })
}

/// A list of `NAME=value` as an object, so that one changed variable is one row.
fn by_name(key: &str, value: &Value) -> Value {
    let Some(list) = value.as_array().filter(|_| key == "Env") else { return value.clone() };
    let pairs = list.iter().filter_map(Value::as_str).map(|row| {
        let (name, value) = row.split_once('=').unwrap_or((row, ""));
        (name.to_owned(), Value::from(value))
    });
    Value::Object(pairs.collect())
}

fn compare(at: &str, a: Option<&Value>, b: Option<&Value>, found: &mut Vec<Changed>) {
    if a == b {
        return;
    }
    if let (Some(Value::Object(x)), Some(Value::Object(y))) = (a, b) {
        let mut keys: Vec<&String> = x.keys().chain(y.keys()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            compare(&format!("{at}.{key}"), x.get(key), y.get(key), found);
        }
        // The same members in another order are other bytes too.
        if x == y {
            found.push(Changed { at: at.to_owned(), a: Some("order of keys".into()), b: Some("another".into()) });
        }
        return;
    }
    let text = |v: Option<&Value>| v.map(ToString::to_string);
    found.push(Changed { at: at.to_owned(), a: text(a), b: text(b) });
}

type Layer<'a> = (Side<'a>, Option<&'a Descriptor>);

fn layer_difference(layer: usize, a: Layer<'_>, b: Layer<'_>) -> Result<LayerDifference, OciError> {
    let digest = |side: &Layer<'_>| side.1.map(|d| d.digest.clone());
    let mut files = match (items(&a)?, items(&b)?) {
        (Some(one), Some(other)) => compare_items(&one, &other),
        (one, _) => {
            let side = if one.is_none() { &a } else { &b };
            vec![format!("{} is not in {}; its files are not compared", name(side), side.0.layout.root())]
        }
    };
    let more = files.len().saturating_sub(SHOWN);
    files.truncate(SHOWN);
    Ok(LayerDifference { layer, a: digest(&a), b: digest(&b), files, more })
}

fn name(side: &Layer<'_>) -> String {
    side.1.map_or_else(|| "the layer".into(), |d| d.digest.to_string())
}

/// Entries by path; no layer counts as an empty one, and `None` is one that is not here.
fn items((side, descriptor): &Layer<'_>) -> Result<Option<BTreeMap<String, Item>>, OciError> {
    let Some(descriptor) = descriptor else { return Ok(Some(BTreeMap::new())) };
    if !side.layout.has(&descriptor.digest) {
        return Ok(None);
    }
    let (file, _) = side.layout.open_blob(&descriptor.digest)?;
    let walked = walk(&format!("layer {}", descriptor.digest), file)?;
    crate::manifest::check_digest("layer", &descriptor.digest, walked.digest)?;
    Ok(Some(walked.items.into_iter().map(|i| (i.path.clone(), i)).collect()))
}

fn compare_items(a: &BTreeMap<String, Item>, b: &BTreeMap<String, Item>) -> Vec<String> {
    let mut paths: Vec<&String> = a.keys().chain(b.keys()).collect();
    paths.sort();
    paths.dedup();
    let mut found: Vec<String> = paths
        .into_iter()
        .filter_map(|path| match (a.get(path), b.get(path)) {
            (Some(_), None) => Some(format!("- {path}")),
            (None, Some(_)) => Some(format!("+ {path}")),
            (Some(x), Some(y)) => {
                let how = changes(x, y);
                (!how.is_empty()).then(|| format!("~ {path}: {}", how.join(", ")))
            }
            (None, None) => None,
        })
        .collect();
    if found.is_empty() && a != b {
        found.push("the same files, otherwise written".into());
    } else if found.is_empty() {
        found.push("the same files, otherwise packed or ordered".into());
    }
    found
}

fn changes(a: &Item, b: &Item) -> Vec<String> {
    let mut found = Vec::new();
    match (&a.kind, &b.kind) {
        (x, y) if x == y => {}
        (Kind::File(_), Kind::File(_)) => found.push(format!("{} and {} bytes that differ", a.size, b.size)),
        (Kind::Symlink(x), Kind::Symlink(y)) => found.push(format!("link to {x}, to {y}")),
        _ => found.push("another kind of file".into()),
    }
    if a.mode != b.mode {
        found.push(format!("mode {:04o}, {:04o}", a.mode, b.mode));
    }
    if (a.uid, a.gid) != (b.uid, b.gid) {
        found.push(format!("owner {}:{}, {}:{}", a.uid, a.gid, b.uid, b.gid));
    }
    if a.mtime != b.mtime {
        found.push(format!("time {}, {}", a.mtime, b.mtime));
    }
    found
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
