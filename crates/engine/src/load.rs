//! Reading and checking `<profile>/generation.json`.

use std::path::Path;

use sparklane_lane::generation::SCHEMA;
use sparklane_lane::{Generation, System};

use crate::error::EngineError;

/// Where a node's current generation is.
pub const PROFILE: &str = "/nix/var/nix/profiles/sparklane";

/// The system this tool was built for.
#[must_use]
pub fn own_system() -> Option<System> {
    match std::env::consts::ARCH {
        "aarch64" => Some(System::Aarch64Linux),
        "x86_64" => Some(System::X86_64Linux),
        _ => None,
    }
}

/// Reads the generation of a profile and checks that this node can run it.
///
/// # Errors
/// Every error is one that a restart cannot mend.
pub fn generation(profile: &Path) -> Result<Generation, EngineError> {
    let file = profile.join("generation.json");
    let path = file.display().to_string();
    let bytes = std::fs::read(&file).map_err(|source| EngineError::Read { path: path.clone(), source })?;
    let generation: Generation =
        serde_json::from_slice(&bytes).map_err(|source| EngineError::Parse { path: path.clone(), source })?;
    check(&generation, own_system()).map_err(|why| EngineError::Generation { path, why })?;
    if generation.image.manifest.is_none() && generation.image.config.is_none() {
        return Err(EngineError::Unpinned {
            reference: generation.image.reference,
            pin_with: generation.image.pin_with,
        });
    }
    Ok(generation)
}

fn check(generation: &Generation, own: Option<System>) -> Result<(), String> {
    if generation.schema != SCHEMA {
        return Err(format!("schema {} is not the one this tool reads ({SCHEMA})", generation.schema));
    }
    if own != Some(generation.system) {
        return Err(format!("it is for {}, this tool is for {}", generation.system, std::env::consts::ARCH));
    }
    if generation.engine.argv.first().is_none_or(String::is_empty) {
        return Err("engine.argv is empty".to_owned());
    }
    if generation.engine.container.is_empty() {
        return Err("engine.container is empty".to_owned());
    }
    for mount in &generation.engine.mounts {
        if !mount.source.starts_with('/') || !mount.target.starts_with('/') {
            return Err(format!("mount {} -> {} is not absolute", mount.source, mount.target));
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A generation as the builder writes it, for tests.
    pub(crate) fn sample(role: &str) -> Generation {
        let mut value: serde_json::Value =
            serde_json::from_str(include_str!("../../../tests/fixtures/engine/generation.json")).unwrap();
        value["role"] = role.into();
        value["rank"] = u32::from(role != "head").into();
        value["system"] = own_system().unwrap().as_str().into();
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn refuses_what_this_node_cannot_run() {
        let good = sample("head");
        assert_eq!(check(&good, own_system()), Ok(()));
        let other = if own_system() == Some(System::X86_64Linux) { System::Aarch64Linux } else { System::X86_64Linux };
        assert!(check(&good, Some(other)).unwrap_err().contains("it is for"));
        let mut bad = good.clone();
        bad.schema = 2;
        assert!(check(&bad, own_system()).is_err());
        let mut bad = good.clone();
        bad.engine.argv.clear();
        assert!(check(&bad, own_system()).is_err());
    }

    #[test]
    fn every_refusal_ends_in_78() {
        let dir = tempfile::tempdir().unwrap();
        let missing = generation(dir.path()).unwrap_err();
        assert_eq!(missing.exit_code(), 78);
        std::fs::write(dir.path().join("generation.json"), b"{\"schema\":1").unwrap();
        assert_eq!(generation(dir.path()).unwrap_err().exit_code(), 78);
        let mut unpinned = sample("head");
        unpinned.image.manifest = None;
        unpinned.image.config = None;
        std::fs::write(dir.path().join("generation.json"), serde_json::to_vec(&unpinned).unwrap()).unwrap();
        let error = generation(dir.path()).unwrap_err();
        assert_eq!(error.exit_code(), 78);
        assert!(error.to_string().contains("sparklane image pin"), "{error}");
    }
}
