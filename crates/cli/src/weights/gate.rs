//! Parity as a gate: a node whose weights are not those of the lane's manifest does not switch, and does not start it.

use camino::Utf8Path;
use sparklane_host::HostError;
use sparklane_host::stage::{Context, StageStep};
use sparklane_host::status::WeightsStatus;
use sparklane_lane::generation::Weights;
use sparklane_lane::{Generation, WeightsManifest};
use sparklane_weights::Store;
use sparklane_weights::store::Presence;

/// The check of a staging.
pub struct Gate;

impl StageStep for Gate {
    fn name(&self) -> &'static str {
        "weights"
    }

    fn check(&self, context: &Context<'_>) -> Result<(), HostError> {
        check(context.generation, context.closure).map_err(HostError::Refused)
    }
}

/// Checks that the weights of a generation are on this node and proved. Reads names, sizes and times only.
///
/// # Errors
/// What is missing, and the command that brings it.
pub fn check(generation: &Generation, closure: &Utf8Path) -> Result<(), String> {
    let Some(wanted) = &generation.weights else { return Ok(()) };
    let (folder, file) = (&wanted.path, closure.join("weights.json"));
    match presence(wanted, &file)? {
        Presence::Proved(_) => Ok(()),
        Presence::Unproved(why) => {
            let why = why.first().cloned().unwrap_or_default();
            Err(format!("{why}; prove it: sparklane weights verify --deep {file}, mend it: sparklane weights send"))
        }
        Presence::Partial | Presence::Absent => Err(format!(
            "{folder} is not there; fetch or adopt it on one node, then: sparklane weights send (deploy does that by itself)"
        )),
    }
}

/// What the node's status says of a generation's weights.
pub fn status(generation: &Generation, closure: &Utf8Path) -> Option<WeightsStatus> {
    let wanted = generation.weights.as_ref()?;
    let (state, why) = match presence(wanted, &closure.join("weights.json")) {
        Ok(found) => (
            found.word(),
            match found {
                Presence::Unproved(why) => why.into_iter().next(),
                _ => None,
            },
        ),
        Err(why) => ("unknown", Some(why)),
    };
    let (model, manifest) = (wanted.model.clone(), wanted.manifest.clone());
    Some(WeightsStatus { model, manifest, state: state.to_owned(), why })
}

fn presence(wanted: &Weights, file: &Utf8Path) -> Result<Presence, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let manifest =
        WeightsManifest::parse(&text).map_err(|_| format!("{file} is no manifest of this tool's version"))?;
    if manifest.id() != wanted.manifest {
        return Err(format!("{file} is manifest {}, the generation names {}", manifest.id(), wanted.manifest));
    }
    let folder = Utf8Path::new(&wanted.path);
    let root = folder.parent().unwrap_or(Utf8Path::new("/"));
    let store = Store::at(root);
    if store.folder(&manifest) != folder {
        return Err(format!("the generation expects {folder}, its manifest is kept in {}", store.folder(&manifest)));
    }
    store.presence(&manifest).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparklane_weights::proof::How;

    #[test]
    fn only_proved_weights_of_the_lanes_manifest_pass() {
        let guard = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(guard.path()).unwrap();
        let sha256 = sparklane_lane::sha256_hex(b"abc");
        let file = sparklane_lane::weights::WeightsFile { path: "a".into(), size: 3, sha256 };
        let manifest = WeightsManifest { model: "o/m".into(), revision: "b".repeat(40), files: vec![file] };
        let store = Store::at(&dir.join("weights"));
        let text = include_str!("../../../../tests/fixtures/engine/generation.json");
        let mut generation: Generation = serde_json::from_str(text).unwrap();
        generation.weights = Some(sparklane_lane::generation::Weights {
            model: manifest.model.clone(),
            revision: manifest.revision.clone(),
            manifest: manifest.id(),
            bytes: 3,
            path: store.folder(&manifest).into_string(),
        });
        assert!(check(&generation, dir).unwrap_err().contains("weights.json"));
        std::fs::write(dir.join("weights.json"), manifest.to_text()).unwrap();
        assert!(check(&generation, dir).unwrap_err().contains("is not there"));
        std::fs::create_dir_all(store.folder(&manifest)).unwrap();
        std::fs::write(store.folder(&manifest).join("a"), "abd").unwrap();
        assert!(check(&generation, dir).unwrap_err().contains("verify --deep"));
        assert_eq!(store.verify(&manifest, 1, &|_| true).unwrap().len(), 1);
        assert!(check(&generation, dir).is_err());
        std::fs::write(store.folder(&manifest).join("a"), "abc").unwrap();
        assert_eq!(store.verify(&manifest, 1, &|_| true).unwrap(), []);
        assert_eq!(store.presence(&manifest).unwrap(), Presence::Proved(How::Deep));
        assert_eq!(check(&generation, dir), Ok(()));
        if let Some(weights) = &mut generation.weights {
            weights.manifest = "0".repeat(64);
        }
        assert!(check(&generation, dir).unwrap_err().contains("names"));
    }
}
