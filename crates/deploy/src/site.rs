//! Which flake and which cluster: what an app knows about where it came from.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize;
use sparklane_lane::catalog::{Catalog, RawCatalog};
use sparklane_lane::cluster::Cluster;
use sparklane_lane::{LaneName, NodeName, Role};
use sparklane_txn::cluster::Member;

use crate::error::DeployError;

/// The flake that lanes are built from. An app deploys exactly the flake it was run from.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flake {
    /// Store path, or any folder, of the flake.
    pub flake: Utf8PathBuf,
    /// The folders it was evaluated with, by the input's path from the flake's own inputs (a user's flake has them below
    /// ours): `prebuilt`, when the binary came from there, and `wheelhouse`.
    pub inputs: BTreeMap<String, Utf8PathBuf>,
}

/// Flake, catalog and one cluster of it.
#[derive(Debug, Clone)]
pub struct Site {
    /// The flake.
    pub flake: Flake,
    /// All lanes and clusters.
    pub catalog: Catalog,
    /// The cluster to act on.
    pub cluster: Cluster,
}

impl Site {
    /// Reads `share/sparklane` beside the app that was called.
    ///
    /// # Errors
    /// When there is no such folder, or the cluster is unknown.
    pub fn of_app(share: &Utf8Path, cluster: Option<&str>) -> Result<Self, DeployError> {
        let flake: Flake = read(&share.join("flake.json"))?;
        let raw: RawCatalog = read(&share.join("lanes.json"))?;
        let (catalog, problems) = Catalog::read(&raw);
        if let Some(problem) = problems.iter().find(|p| sparklane_lane::catalog::any_refused(std::slice::from_ref(*p)))
        {
            return Err(DeployError::Refused(problem.to_string()));
        }
        let cluster = pick(&catalog, cluster)?;
        Ok(Self { flake, catalog, cluster })
    }

    /// Name and role of each node, by rank: the head is first.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let mut ranked: Vec<(u32, NodeName, Role)> =
            self.cluster.nodes.iter().map(|(name, node)| (node.rank, name.clone(), node.role)).collect();
        ranked.sort();
        ranked.into_iter().map(|(_, node, role)| Member { node, role }).collect()
    }

    /// The lane that was named, or the cluster's default.
    ///
    /// # Errors
    /// When the flake has no such lane; the nearest name is suggested.
    pub fn lane(&self, name: Option<&str>) -> Result<LaneName, DeployError> {
        let name = name.unwrap_or(self.cluster.default_lane.as_str());
        match self.catalog.lanes.get_key_value(name) {
            Some((name, _)) => {
                let fits: Vec<&str> =
                    self.catalog.lanes_of(&self.cluster).iter().map(|i| i.lane.name.as_str()).collect();
                if !fits.contains(&name.as_str()) {
                    let (cluster, fits) = (&self.cluster.name, fits.join(", "));
                    return Err(DeployError::Usage(format!(
                        "lane {name} is not for cluster {cluster}; its lanes: {fits}"
                    )));
                }
                name.parse().map_err(|e: sparklane_lane::BadId| DeployError::Usage(e.to_string()))
            }
            None => Err(unknown("lane", name, self.catalog.lanes.keys())),
        }
    }
}

fn pick(catalog: &Catalog, name: Option<&str>) -> Result<Cluster, DeployError> {
    let env = std::env::var("SPARKLANE_CLUSTER").ok();
    let name = name.or(env.as_deref());
    match name {
        Some(name) => {
            catalog.clusters.get(name).cloned().ok_or_else(|| unknown("cluster", name, catalog.clusters.keys()))
        }
        None => match catalog.clusters.values().collect::<Vec<_>>()[..] {
            [only] => Ok(only.clone()),
            _ => {
                let names: Vec<&str> = catalog.clusters.keys().map(String::as_str).collect();
                Err(DeployError::Usage(format!("which cluster? --cluster {}", names.join(" | "))))
            }
        },
    }
}

/// "no lane `lab-c`; did you mean `lab-a`?"
fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> DeployError {
    let known: Vec<&str> = known.map(String::as_str).collect();
    let hint = sparklane_lane::problem::closest(name, known.iter().copied());
    let hint = hint.map_or_else(|| format!("there are: {}", known.join(", ")), |h| format!("did you mean {h:?}?"));
    DeployError::Usage(format!("no {what} {name:?}; {hint}"))
}

fn read<T: serde::de::DeserializeOwned>(path: &Utf8Path) -> Result<T, DeployError> {
    let bytes = std::fs::read(path).map_err(|e| {
        DeployError::Usage(format!(
            "{path}: {e}. Run the flake's app (nix run .#deploy), or name a share folder with --share"
        ))
    })?;
    serde_json::from_slice(&bytes).map_err(|e| DeployError::Refused(format!("{path}: {e}")))
}
