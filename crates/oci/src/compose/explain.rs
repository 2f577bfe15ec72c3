//! Why a digest is another than the recorded one, in words.

use std::collections::BTreeMap;

use super::build::Built;
use super::raw::RawObject;
use super::spec::Expected;
use crate::digest::{self, Digest};

/// Digest of each member of a config, one level deep; members of `config` by themselves.
///
/// # Errors
/// When it is no object.
pub fn keys(config: &[u8]) -> Result<BTreeMap<String, Digest>, String> {
    let tree = RawObject::parse(config)?;
    let mut found = BTreeMap::new();
    for key in tree.keys() {
        let text = tree.get(key).unwrap_or("null");
        if key == "config" && text != "null" {
            let inner = RawObject::parse(text.as_bytes())?;
            for key in inner.keys() {
                found.insert(format!("config.{key}"), digest::of(inner.get(key).unwrap_or("null").as_bytes()));
            }
        } else {
            found.insert(key.to_owned(), digest::of(text.as_bytes()));
        }
    }
    Ok(found)
}

/// Lines that say what moved; none when nothing did.
#[must_use]
pub fn moved(expected: &Expected, built: &Built) -> Vec<String> {
    if expected.manifest == built.manifest {
        return Vec::new();
    }
    let mut lines = vec![format!("the manifest is {}, recorded is {}", built.manifest, expected.manifest)];
    if let Some(old) = &expected.layers {
        for (i, layer) in built.layers.iter().enumerate() {
            match old.get(i) {
                Some(was) if *was == layer.digest => {}
                Some(was) => lines.push(format!("layer {i} ({}) is {}, was {was}", layer.title, layer.digest)),
                None => lines.push(format!("layer {i} ({}) is new", layer.title)),
            }
        }
        for (i, was) in old.iter().enumerate().skip(built.layers.len()) {
            lines.push(format!("layer {i} ({was}) is gone"));
        }
    }
    if let Some(old) = &expected.keys {
        lines.extend(between(old, &built.keys));
    }
    if lines.len() == 1 {
        let config = expected.config.as_ref().map(|c| *c == built.config);
        lines.push(match config {
            Some(true) => "the config is the same: the base or its manifest's other members moved".to_owned(),
            Some(false) => format!("the config is {}", built.config),
            None => "nothing else was recorded; record image.json to see what moves".to_owned(),
        });
    }
    lines
}

/// What differs between the members of two configs; layers and history say nothing that the layers do not.
#[must_use]
pub fn between(old: &BTreeMap<String, Digest>, new: &BTreeMap<String, Digest>) -> Vec<String> {
    let all: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let line = |key: &&String| match (old.get(*key), new.get(*key)) {
        (Some(a), Some(b)) if a == b => None,
        (Some(_), Some(_)) => Some(format!("the config's {key} moved")),
        (Some(_), None) => Some(format!("the config's {key} is gone")),
        _ => Some(format!("the config's {key} is new")),
    };
    all.iter().filter(|k| !matches!(k.as_str(), "rootfs" | "history")).filter_map(line).collect()
}
