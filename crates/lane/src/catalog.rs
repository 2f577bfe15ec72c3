//! Everything a flake defines, as one JSON document (`share/sparklane/lanes.json`, `nix/catalog.nix`).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::image::ImageSpec;
use crate::lane::Lane;
use crate::problem::{Problem, closest, refused};
use crate::reader;
use crate::render::{Input, WeightsRef};
use crate::rules;
use crate::weights::WeightsManifest;

/// The document as it is written: nothing in it is trusted yet.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RawCatalog {
    /// Lanes by name.
    pub lanes: BTreeMap<String, Value>,
    /// Clusters by name.
    pub clusters: BTreeMap<String, Value>,
    /// Images by name.
    pub images: BTreeMap<String, Value>,
    /// Texts of the weights manifests by name; their hash is an identity, so they stay text.
    pub weights: BTreeMap<String, String>,
    /// Where shipped lanes differ from the recipes they replace.
    #[serde(default)]
    pub deviations: Vec<Deviation>,
}

/// One difference between a shipped lane and the recipe it replaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Deviation {
    /// A lane, or a beginning of names and `*`.
    pub lane: String,
    /// `argv.<flag>`, `env.<NAME>` or `container.<key>`, after `head.` or `worker.` when the roles differ.
    pub key: String,
    /// The recipe's value; absent when it sets none.
    pub kit: Option<String>,
    /// Ours; absent when we set none.
    pub ours: Option<String>,
    /// Why.
    pub reason: String,
}

impl Deviation {
    /// True when the row is about the lane: its name, or a beginning of it and `*`.
    #[must_use]
    pub fn covers(&self, lane: &str) -> bool {
        self.lane.strip_suffix('*').map_or(self.lane == lane, |stem| lane.starts_with(stem))
    }
}

/// A problem and the file it is in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileProblem {
    /// The file, e.g. `nix/lanes/ray-0731.nix`.
    pub file: String,
    /// The problem.
    #[serde(flatten)]
    pub problem: Problem,
}

impl std::fmt::Display for FileProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.file, self.problem)
    }
}

/// Lanes, clusters, images and weights that were read without a refusal.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// Lanes by name.
    pub lanes: BTreeMap<String, Lane>,
    /// Clusters by name.
    pub clusters: BTreeMap<String, Cluster>,
    /// Images by name.
    pub images: BTreeMap<String, ImageSpec>,
    /// Weights by name.
    pub weights: BTreeMap<String, WeightsRef>,
    /// Differences from the recipes.
    pub deviations: Vec<Deviation>,
    /// Files that were refused: what names one of them is not to blame.
    refused: BTreeSet<String>,
}

impl Catalog {
    /// Reads every file, and reports every problem of every file. What could not be read is left out.
    #[must_use]
    pub fn read(raw: &RawCatalog) -> (Self, Vec<FileProblem>) {
        let mut problems = Vec::new();
        let mut catalog = Self { deviations: raw.deviations.clone(), ..Self::default() };
        for (name, value) in &raw.lanes {
            let lane = read_named(value, &lane_file(name), name, |l: &Lane| l.name.as_str(), &mut problems);
            catalog.lanes.extend(lane.map(|l| (name.clone(), l)));
        }
        for (name, value) in &raw.clusters {
            let cluster = read_named(value, &cluster_file(name), name, |c: &Cluster| c.name.as_str(), &mut problems);
            catalog.clusters.extend(cluster.map(|c| (name.clone(), c)));
        }
        for (name, value) in &raw.images {
            let image = read_named(value, &image_file(name), name, |i: &ImageSpec| &i.name, &mut problems);
            catalog.images.extend(image.map(|i| (name.clone(), i)));
        }
        for (name, text) in &raw.weights {
            match read_weights(name, text) {
                Ok(weights) => drop(catalog.weights.insert(name.clone(), weights)),
                Err(found) => problems.extend(in_file(&weights_file(name), found)),
            }
        }
        catalog.refused = problems.iter().map(|p| p.file.clone()).collect();
        problems.extend(catalog.check());
        (catalog, problems)
    }

    /// The lane with all it refers to, on a cluster.
    ///
    /// # Errors
    /// One problem per name that is not in the catalogue.
    pub fn input<'a>(&'a self, cluster: &str, lane: &str) -> Result<Input<'a>, Vec<Problem>> {
        let cluster = find(&self.clusters, cluster, "cluster", "");
        let lane = find(&self.lanes, lane, "lane", "").map_err(|p| vec![p]);
        match (cluster, lane) {
            (Ok(cluster), Ok(lane)) => self.resolve(cluster, lane),
            (Err(c), Err(l)) => Err([vec![c], l].concat()),
            (Err(c), Ok(_)) => Err(vec![c]),
            (Ok(_), Err(l)) => Err(l),
        }
    }

    fn resolve<'a>(&'a self, cluster: &'a Cluster, lane: &'a Lane) -> Result<Input<'a>, Vec<Problem>> {
        let image = find(&self.images, &lane.image, "image", "image");
        let weights = lane.model.weights.as_deref();
        let weights = weights.map(|w| find(&self.weights, w, "weights manifest", "model.weights")).transpose();
        match (image, weights) {
            (Ok(image), Ok(weights)) => Ok(Input { cluster, lane, image, weights }),
            (image, weights) => Err(image.err().into_iter().chain(weights.err()).collect()),
        }
    }

    /// Lanes that a cluster's machines can run, by name.
    #[must_use]
    pub fn lanes_of<'a>(&'a self, cluster: &'a Cluster) -> Vec<Input<'a>> {
        let inputs = self.lanes.values().filter_map(|lane| self.resolve(cluster, lane).ok());
        inputs.filter(|i| rules::fits(i)).collect()
    }

    /// The deviations of one lane.
    pub fn deviations_of<'a>(&'a self, lane: &'a str) -> impl Iterator<Item = &'a Deviation> {
        self.deviations.iter().filter(move |d| d.covers(lane))
    }

    fn check(&self) -> Vec<FileProblem> {
        let mut problems = Vec::new();
        for cluster in self.clusters.values() {
            let mut found = rules::check_cluster(cluster);
            let default = cluster.default_lane.as_str();
            if !self.refused.contains(&lane_file(default)) {
                found.extend(find(&self.lanes, default, "lane", "defaultLane").err());
            }
            problems.extend(in_file(&cluster_file(cluster.name.as_str()), found));
        }
        for lane in self.lanes.values().filter(|lane| !self.names_refused(lane)) {
            let mut found = Vec::new();
            for cluster in self.clusters.values() {
                match self.resolve(cluster, lane) {
                    Ok(input) if rules::fits(&input) => found.extend(rules::check(&input)),
                    Ok(_) => {}
                    Err(missing) => found.extend(missing),
                }
            }
            found.dedup();
            let file = lane_file(lane.name.as_str());
            // Two clusters report most findings alike.
            for problem in in_file(&file, found) {
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
        problems
    }

    fn names_refused(&self, lane: &Lane) -> bool {
        let weights = lane.model.weights.as_deref().map(weights_file);
        self.refused.contains(&image_file(&lane.image)) || weights.is_some_and(|file| self.refused.contains(&file))
    }
}

/// True when one of the files is refused.
#[must_use]
pub fn any_refused(problems: &[FileProblem]) -> bool {
    problems.iter().any(|p| refused(std::slice::from_ref(&p.problem)))
}

/// Reads the text of a weights manifest.
///
/// # Errors
/// All problems of the file.
pub fn read_weights(name: &str, text: &str) -> Result<WeightsRef, Vec<Problem>> {
    let manifest = WeightsManifest::parse(text)?;
    let id = manifest.id();
    Ok(WeightsRef { name: name.to_owned(), manifest, id })
}

/// Path of a lane's file in the flake.
#[must_use]
pub fn lane_file(name: &str) -> String {
    format!("nix/lanes/{name}.nix")
}

/// Path of a cluster's file in the flake.
#[must_use]
pub fn cluster_file(name: &str) -> String {
    format!("nix/clusters/{name}.nix")
}

/// Path of an image's file in the flake.
#[must_use]
pub fn image_file(name: &str) -> String {
    format!("images/{name}.nix")
}

/// Path of a weights manifest in the flake.
#[must_use]
pub fn weights_file(name: &str) -> String {
    format!("nix/weights/{name}.json")
}

fn in_file(file: &str, problems: Vec<Problem>) -> impl Iterator<Item = FileProblem> {
    let file = file.to_owned();
    problems.into_iter().map(move |problem| FileProblem { file: file.clone(), problem })
}

fn find<'a, T>(map: &'a BTreeMap<String, T>, name: &str, what: &str, path: &str) -> Result<&'a T, Problem> {
    map.get(name).ok_or_else(|| {
        let problem = Problem::error(path, format!("there is no {what} {name:?}"));
        match closest(name, map.keys().map(String::as_str)) {
            Some(near) => problem.suggest(format!("did you mean `{near}`?")),
            None => problem.suggest(format!("there are: {}", map.keys().cloned().collect::<Vec<_>>().join(", "))),
        }
    })
}

fn read_named<T: serde::de::DeserializeOwned + schemars::JsonSchema>(
    value: &Value,
    file: &str,
    name: &str,
    own_name: impl Fn(&T) -> &str,
    problems: &mut Vec<FileProblem>,
) -> Option<T> {
    let found = match reader::read::<T>(value) {
        Ok(read) if own_name(&read) == name => return Some(read),
        Ok(read) => vec![Problem::error("name", format!("is {:?}, but the file is {file}", own_name(&read)))],
        Err(found) => found,
    };
    problems.extend(in_file(file, found));
    None
}
