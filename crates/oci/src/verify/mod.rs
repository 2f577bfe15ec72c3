//! Proof of an image in a layout: every size, digest and diff_id, the rules of layers, the merged tree (R40).
//!
//! Consumers do not do this for us: docker takes a wrong size, podman a wrong diff_id, and both a layer that bricks the
//! image (facts, section 3). A rule that only the base breaks is a notice: it is not ours to change.

mod rules;
mod tree;
mod walk;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

pub use rules::{WHITEOUT, split};
pub use tree::{Placed, Tree};
pub use walk::{Item, Kind, Walked, walk};

use crate::compose::config::OURS;
use crate::digest::Digest;
use crate::error::OciError;
use crate::layout::Layout;
use crate::manifest::{Config, Descriptor, Manifest, check_digest, check_size};
use crate::media;

/// Most layers that the classic store of docker takes (R38).
const LAYERS_MAX: usize = 125;
/// Above this many there is a notice.
const LAYERS_MANY: usize = 120;
/// Rows that one rule is given before the rest is counted.
const SHOWN: usize = 20;

/// Whether a finding refuses the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// The image is not what it says, or a layer of ours breaks a rule.
    Problem,
    /// To be known; nothing of ours is wrong.
    Notice,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// Whether it refuses the image.
    pub weight: Weight,
    /// Where: `manifest`, `config`, `layer 3 (sha256:…)`, `tree`.
    pub at: String,
    /// What.
    pub what: String,
}

/// What was proved and what was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Digest of the manifest.
    pub manifest: Digest,
    /// Digest of the config.
    pub config: Digest,
    /// Number of layers.
    pub layers: usize,
    /// How many of them, the topmost, are ours.
    pub ours: usize,
    /// How many of them were read to their end.
    pub read: usize,
    /// Entries in those.
    pub entries: usize,
    /// What was found, problems first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// True when there is no problem.
    #[must_use]
    pub fn good(&self) -> bool {
        self.findings.iter().all(|f| f.weight == Weight::Notice)
    }
}

/// Whether layers may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Every blob must be here.
    Whole,
    /// The base's blobs may be elsewhere, as in what the flake builds; what needs them is not judged.
    OursOnly,
}

/// Proves an image of a layout.
///
/// # Errors
/// When manifest or config cannot be read at all; everything else is a finding.
pub fn verify(layout: &Layout, manifest: &Digest, extent: Extent) -> Result<Report, OciError> {
    let manifest = layout.manifest(manifest)?;
    let config = layout.config(&manifest)?;
    let ours = our_layers(&config).min(manifest.layers.len());
    let mut work =
        Work { layout, extent, ours, layers: manifest.layers.len(), read: 0, entries: 0, findings: Vec::new() };
    work.documents(&manifest, &config);
    let tree = work.read_layers(&manifest, &config);
    if let Some(tree) = &tree {
        work.records(tree);
    }
    work.findings.sort();
    Ok(Report {
        manifest: manifest.digest().clone(),
        config: manifest.config.digest.clone(),
        layers: work.layers,
        ours,
        read: work.read,
        entries: work.entries,
        findings: work.findings,
    })
}

/// Rows of history that stand for a layer; `None` where there is no history.
#[must_use]
pub fn history(config: &Config) -> Option<Vec<&Value>> {
    let rows = config.tree().get("history").and_then(Value::as_array)?;
    Some(rows.iter().filter(|r| r.get("empty_layer").and_then(Value::as_bool) != Some(true)).collect())
}

/// How many of the topmost layers this tool wrote, by the config's history.
#[must_use]
pub fn our_layers(config: &Config) -> usize {
    let by = |row: &&&Value| row.get("created_by").and_then(Value::as_str).is_some_and(|by| by.starts_with(OURS));
    history(config).map_or(0, |rows| rows.iter().rev().take_while(by).count())
}

struct Work<'a> {
    layout: &'a Layout,
    extent: Extent,
    ours: usize,
    layers: usize,
    read: usize,
    entries: usize,
    findings: Vec<Finding>,
}

impl Work<'_> {
    fn say(&mut self, weight: Weight, at: &str, what: impl Into<String>) {
        self.findings.push(Finding { weight, at: at.to_owned(), what: what.into() });
    }

    /// Many of one kind: the first are shown, the rest is counted.
    fn say_all(&mut self, weight: Weight, at: &str, all: Vec<String>) {
        let more = all.len().saturating_sub(SHOWN);
        all.into_iter().take(SHOWN).for_each(|what| self.say(weight, at, what));
        if more > 0 {
            self.say(weight, at, format!("and {more} more"));
        }
    }

    /// What a rule weighs that only images of ours must keep.
    fn weight(&self) -> Weight {
        if self.ours > 0 { Weight::Problem } else { Weight::Notice }
    }

    fn documents(&mut self, manifest: &Manifest, config: &Config) {
        if let Err(e) = manifest.check_image() {
            self.say(Weight::Problem, "manifest", e.to_string());
        }
        if let Err(e) = check_size("config", manifest.config.size, config.bytes().len() as u64) {
            self.say(Weight::Problem, "manifest", e.to_string());
        }
        let family = |d: &Descriptor| match d.kind() {
            media::Kind::Layer(family, _) | media::Kind::Config(family) => Some(family),
            _ => None,
        };
        let mixed = |d: &&Descriptor| family(d).is_some_and(|f| f != manifest.family());
        let mine = manifest.layers.len() - self.ours;
        if let Some(d) = manifest.layers[mine..].iter().find(mixed) {
            self.say(Weight::Problem, "manifest", format!("a layer of ours is a {} (R19)", d.media_type));
        } else if let Some(d) = std::iter::once(&manifest.config).chain(&manifest.layers).find(mixed) {
            self.say(Weight::Notice, "manifest", format!("a {} is among {} types", d.media_type, manifest.family()));
        }
        match self.layers {
            n if n > LAYERS_MAX => {
                self.say(
                    Weight::Problem,
                    "manifest",
                    format!("{n} layers; docker's classic store ends at {LAYERS_MAX} (R38)"),
                );
            }
            n if n > LAYERS_MANY => self.say(Weight::Notice, "manifest", format!("{n} layers of at most {LAYERS_MAX}")),
            _ => {}
        }
        let (weight, rows) = (self.weight(), history(config).map(|rows| rows.len()));
        if rows != Some(self.layers) {
            let rows = rows.map_or("no history".into(), |n| format!("{n} rows of history"));
            self.say(weight, "config", format!("{rows} for {} layers; building on it fails (R18)", self.layers));
        }
        match config.tree().get("created") {
            None => {}
            Some(Value::String(time)) if time.parse::<jiff::Timestamp>().is_ok() => {}
            Some(other) => self.say(Weight::Problem, "config", format!("created is {other}, no time (R19)")),
        }
    }

    /// Reads the layers, lowest first; gives the tree when all were here.
    fn read_layers(&mut self, manifest: &Manifest, config: &Config) -> Option<Tree> {
        let mut tree = Some(Tree::default());
        let mut seen: BTreeMap<&Digest, usize> = BTreeMap::new();
        for (i, (descriptor, diff_id)) in manifest.layers.iter().zip(&config.diff_ids).enumerate() {
            let at = format!("layer {i} ({})", descriptor.digest);
            if let Some(first) = seen.insert(&descriptor.digest, i) {
                self.say(Weight::Notice, &at, format!("is layer {first} again"));
            }
            let ours = i + self.ours >= self.layers;
            if !self.layout.has(&descriptor.digest) {
                let weight = if ours || self.extent == Extent::Whole { Weight::Problem } else { Weight::Notice };
                self.say(weight, &at, "is not here; not proved");
                tree = None;
                continue;
            }
            match self.layer(&at, descriptor, diff_id) {
                Ok(walked) => self.judge(&at, i, ours, walked, tree.as_mut()),
                Err(e) => {
                    self.say(Weight::Problem, &at, e.to_string());
                    tree = None;
                }
            }
        }
        tree
    }

    fn layer(&mut self, at: &str, descriptor: &Descriptor, diff_id: &Digest) -> Result<Walked, OciError> {
        let (file, size) = self.layout.open_blob(&descriptor.digest)?;
        check_size(at, descriptor.size, size)?;
        let walked = walk(at, file)?;
        check_digest(at, &descriptor.digest, walked.digest.clone())?;
        check_digest(&format!("{at}, unpacked,"), diff_id, walked.diff_id.clone())?;
        if let media::Kind::Layer(_, said) = descriptor.kind()
            && said != walked.compression
        {
            self.say(Weight::Notice, at, format!("is {:?}, but typed {}", walked.compression, descriptor.media_type));
        }
        Ok(walked)
    }

    fn judge(&mut self, at: &str, layer: usize, ours: bool, walked: Walked, tree: Option<&mut Tree>) {
        self.read += 1;
        self.entries += walked.items.len();
        let weight = if ours { Weight::Problem } else { Weight::Notice };
        let (outside, rest) = rules::any_layer(&walked).into_iter().partition(|w: &String| w.contains("leads out"));
        self.say_all(Weight::Problem, at, outside);
        self.say_all(weight, at, rest);
        if ours {
            self.say_all(weight, at, rules::our_layer(&walked));
        }
        if let Some(tree) = tree {
            if ours {
                self.say_all(weight, at, tree.judge(&walked.items));
            }
            tree.apply(layer, walked.items);
        }
    }

    /// Distributions that layers of ours touch must be whole; others are the base's.
    fn records(&mut self, tree: &Tree) {
        let first_of_ours = self.layers - self.ours;
        let found = tree.records();
        let (ours, base): (Vec<_>, Vec<_>) = found.into_iter().partition(|(layer, _)| *layer >= first_of_ours);
        let texts = |rows: Vec<(usize, String)>| rows.into_iter().map(|(_, what)| what).collect();
        self.say_all(Weight::Problem, "tree", texts(ours));
        self.say_all(Weight::Notice, "tree", texts(base));
    }
}

#[cfg(test)]
pub(crate) mod tests;
