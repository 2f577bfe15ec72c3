//! A node's closure for a lane.

use camino::Utf8Path;
use serde::Deserialize;
use serde_json::Value;
use sparklane_lane::catalog::{cluster_file, image_file, lane_file, read_weights, weights_file};
use sparklane_lane::problem::{Problem, refused};
use sparklane_lane::render::{Input, Rendered, WeightsRef, render};
use sparklane_lane::{Cluster, ImageSpec, Lane, NodeName, reader, rules, sha256_hex};

use crate::attrs::Attrs;
use crate::error::BuildError;
use crate::fs;

/// The weights of the lane, as Nix hands them over.
#[derive(Debug, Deserialize)]
struct WeightsAttr {
    name: String,
    text: Option<String>,
}

pub(crate) fn build(attrs: &Attrs, out: &Utf8Path) -> Result<(), BuildError> {
    let tool = attrs.path("tool")?;
    let weights: Option<WeightsAttr> = attrs.read("weights")?;
    let node: NodeName = attrs.read("node")?;
    let rendered = checked(attrs, weights.as_ref(), &node)?;
    write(&rendered, tool, out)?;
    if let Some(layout) = attrs.read::<Option<String>>("composed")? {
        fs::symlink(&layout, &out.join("image"))?;
    }
    if let Some(text) = weights.and_then(|w| w.text) {
        fs::write(&out.join("weights.json"), text.as_bytes(), 0o444)?;
    }
    Ok(())
}

/// Reads, checks and renders; every problem of every file ends in one failure.
fn checked(attrs: &Attrs, weights: Option<&WeightsAttr>, node: &NodeName) -> Result<Rendered, BuildError> {
    let lane_name = attrs.text("laneName")?;
    let mut lines = Vec::new();
    let lane = named::<Lane>(attrs.value("lane")?, &lane_file(lane_name), &mut lines);
    let cluster_value = attrs.value("cluster")?;
    let cluster_path = cluster_file(cluster_value.get("name").and_then(Value::as_str).unwrap_or_default());
    let cluster = named::<Cluster>(cluster_value, &cluster_path, &mut lines);
    let image_name = lane.as_ref().map(|l| l.image.clone()).unwrap_or_default();
    let image = match attrs.value("image")? {
        // The lane's own reading failed, or names an image that the catalogue lacks.
        Value::Null => {
            let missing = Problem::error("image", format!("there is no image {image_name:?}"));
            lane.is_some().then(|| say(&lane_file(lane_name), &[missing], &mut lines));
            None
        }
        value => named::<ImageSpec>(value, &image_file(&image_name), &mut lines),
    };
    let weights = weights.map(|w| weights_of(w, lane_name, &mut lines));
    let (Some(lane), Some(cluster), Some(image), Some(weights)) = (lane, cluster, image, unless_failed(weights)) else {
        return Err(BuildError::Failed(lines));
    };
    let input = Input { cluster: &cluster, lane: &lane, image: &image, weights: weights.as_ref() };
    let (of_cluster, of_lane) = (rules::check_cluster(&cluster), rules::check(&input));
    say(&cluster_path, &of_cluster, &mut lines);
    say(&lane_file(lane_name), &of_lane, &mut lines);
    if refused(&of_cluster) || refused(&of_lane) {
        return Err(BuildError::Failed(lines));
    }
    for line in lines {
        eprintln!("{line}");
    }
    render(input, node).map_err(|e| BuildError::Failed(vec![e.to_string()]))
}

fn named<T: serde::de::DeserializeOwned + schemars::JsonSchema>(
    value: &Value,
    file: &str,
    lines: &mut Vec<String>,
) -> Option<T> {
    reader::read(value).map_err(|problems| say(file, &problems, lines)).ok()
}

fn weights_of(weights: &WeightsAttr, lane: &str, lines: &mut Vec<String>) -> Option<WeightsRef> {
    let Some(text) = &weights.text else {
        let missing = Problem::error("model.weights", format!("there is no weights manifest {:?}", weights.name));
        say(&lane_file(lane), &[missing], lines);
        return None;
    };
    read_weights(&weights.name, text).map_err(|problems| say(&weights_file(&weights.name), &problems, lines)).ok()
}

/// `None` when reading failed; `Some(None)` when there was nothing to read.
#[allow(clippy::option_option)]
fn unless_failed<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        None => Some(None),
        Some(read) => read.map(Some),
    }
}

fn say(file: &str, problems: &[Problem], lines: &mut Vec<String>) {
    lines.extend(problems.iter().map(|p| format!("{file}: {p}")));
}

fn write(rendered: &Rendered, tool: &Utf8Path, out: &Utf8Path) -> Result<(), BuildError> {
    let generation = &rendered.generation;
    let json = |source| BuildError::Json { path: out.join("generation.json"), source };
    let binary = fs::read(&tool.join("bin/sparklane"))?;
    let id = generation.id(&sha256_hex(&binary)).map_err(json)?;
    fs::write(&out.join("generation.json"), &generation.canonical().map_err(json)?, 0o444)?;
    fs::write(&out.join("generation.id"), format!("{id}\n").as_bytes(), 0o444)?;
    for (path, content) in &rendered.files {
        // Modes live in generation.json: the store keeps only the executable bit.
        fs::write(&out.join(path.trim_start_matches('/')), content.as_bytes(), 0o444)?;
    }
    fs::symlink(&format!("{tool}/bin/sparklane"), &out.join("bin/sparklane"))?;
    for name in ["activate-rs", "deploy-rs-activate"] {
        fs::symlink("bin/sparklane", &out.join(name))?;
    }
    Ok(())
}
