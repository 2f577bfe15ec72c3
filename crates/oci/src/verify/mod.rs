//! Verifying an image in a layout (R40): consumers do not check for us, many accept wrong sizes and paths that lead out.

mod record;
mod rules;

use serde::Serialize;
use serde_json::Value;

use crate::base::scan::{self, Keep, LayerScan};
use crate::base::tree;
use crate::digest::Digest;
use crate::error::OciError;
use crate::layout::Layout;
use crate::manifest::{Config, Manifest};
use crate::media::{Compression, Kind};

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What holds.
    pub proved: Vec<String>,
    /// What does not.
    pub problems: Vec<String>,
    /// What is not ours and not as it should be, or could not be looked at.
    pub notes: Vec<String>,
}

/// Verifies an image. Layers of the base that the layout lacks are noted, not refused; layers of ours must be here.
///
/// # Errors
/// When manifest or config cannot be read at all.
pub fn verify(layout: &Layout, digest: &Digest) -> Result<Report, OciError> {
    let manifest = layout.manifest(digest)?;
    manifest.check_image()?;
    let config = layout.config(&manifest)?;
    let mut report = Report::default();
    report.proved.push(format!("manifest {digest} and config {} are what they are named", config.digest()));
    documents(&manifest, &config, &mut report);
    let ours = ours(&config).min(manifest.layers.len());
    let scans = layers(layout, &manifest, &config, manifest.layers.len() - ours, &mut report);
    if let Some(scans) = scans {
        merged(&manifest, scans, manifest.layers.len() - ours, &mut report);
    }
    Ok(report)
}

/// Number of layers that this tool put on top, by the history that it wrote.
fn ours(config: &Config) -> usize {
    let rows = full_history(config);
    rows.iter().rev().take_while(|by| by.starts_with("sparklane: ")).count()
}

/// `created_by` of the rows that stand for layers.
fn full_history(config: &Config) -> Vec<String> {
    let rows = config.tree().get("history").and_then(Value::as_array).cloned().unwrap_or_default();
    let full = rows.iter().filter(|row| row.get("empty_layer").and_then(Value::as_bool) != Some(true));
    full.map(|row| row.get("created_by").and_then(Value::as_str).unwrap_or_default().to_owned()).collect()
}

fn documents(manifest: &Manifest, config: &Config, report: &mut Report) {
    let (rows, layers) = (full_history(config).len(), manifest.layers.len());
    if rows == layers {
        report.proved.push(format!("{layers} layers, diff_ids and rows of history"));
    } else {
        report.problems.push(format!("{layers} layers, but {rows} rows of history that are not empty"));
    }
    let foreign = std::iter::once(&manifest.config).chain(&manifest.layers).find(|d| match d.kind() {
        Kind::Layer(family, _) | Kind::Config(family) => family != manifest.family(),
        _ => true,
    });
    match foreign {
        None => report.proved.push(format!("media types are all {}", manifest.family())),
        Some(d) => report.problems.push(format!("a {} manifest names a {}", manifest.family(), d.media_type)),
    }
    match config.tree().get("created").and_then(Value::as_str) {
        Some("") => report.problems.push("the config's created is empty, which docker refuses".into()),
        Some(text) if text.parse::<jiff::Timestamp>().is_err() => {
            report.problems.push(format!("the config's created is no time: {text}"));
        }
        _ => {}
    }
}

/// Reads every layer that is here; gives all scans when all are.
fn layers(
    layout: &Layout,
    manifest: &Manifest,
    config: &Config,
    first: usize,
    report: &mut Report,
) -> Option<Vec<LayerScan>> {
    let (mut scans, mut absent, mut bad) = (Vec::new(), 0, false);
    for (i, (descriptor, diff_id)) in manifest.layers.iter().zip(&config.diff_ids).enumerate() {
        if i < first && !layout.has(&descriptor.digest) {
            absent += 1;
            continue;
        }
        match layer(layout, descriptor, diff_id, i >= first, report) {
            Ok(scan) => scans.push(scan),
            Err(why) => {
                bad = true;
                report.problems.push(format!("layer {i} ({}): {why}", descriptor.digest));
            }
        }
    }
    if absent > 0 {
        report.notes.push(format!("{absent} layers of the base are not here, so the whole tree was not looked at"));
    }
    if !bad {
        let here = manifest.layers.len() - absent;
        report.proved.push(format!(
            "size, digest and diff_id of {here} layers, tree rules of {}",
            here.min(manifest.layers.len() - first)
        ));
    }
    (absent == 0 && !bad).then_some(scans)
}

fn layer(
    layout: &Layout,
    descriptor: &crate::Descriptor,
    diff_id: &Digest,
    ours: bool,
    report: &mut Report,
) -> Result<LayerScan, String> {
    layout.prove_blob(descriptor).map_err(|e| e.to_string())?;
    let open = || layout.open_blob(&descriptor.digest).map(|(file, _)| file).map_err(|e| e.to_string());
    let scan = scan::layer(open()?, &Keep::new())?;
    if scan.diff_id != *diff_id {
        return Err(format!("its diff_id is {}, the config says {diff_id}", scan.diff_id));
    }
    if let Kind::Layer(_, said) = descriptor.kind() {
        let mut head = [0; 4];
        let n = std::io::Read::read(&mut open()?, &mut head).map_err(|e| e.to_string())?;
        let is = Compression::sniff(&head[..n]);
        if is != said {
            report.notes.push(format!("{} is said to be {said:?}, it is {is:?}", descriptor.digest));
        }
    }
    if ours {
        rules::check(open()?)?;
    }
    Ok(scan)
}

fn merged(manifest: &Manifest, scans: Vec<LayerScan>, first: usize, report: &mut Report) {
    let layers: Vec<Digest> = manifest.layers.iter().map(|l| l.digest.clone()).collect();
    // Twice: where the RECORDs are is known only of the merged tree.
    let records = tree::merge(layers.clone(), scans.clone(), &Keep::new())
        .map(|index| index.distributions.keys().map(|folder| format!("{folder}/RECORD")).collect::<Keep>());
    match records.and_then(|keep| tree::merge(layers, scans, &keep)) {
        Ok(index) => record::check(&index, first, report),
        Err(why) => report.problems.push(why),
    }
}
