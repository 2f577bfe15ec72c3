//! The weights manifest: every file of a model's revision by size and hash (`nix/weights/*.json`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::is_hex;
use crate::problem::Problem;
use crate::reader;

/// A weights manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WeightsManifest {
    /// Hub id, `org/name`.
    pub model: String,
    /// Commit, 40 hex digits.
    pub revision: String,
    /// Files by path.
    pub files: Vec<WeightsFile>,
}

/// One file of the weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WeightsFile {
    /// Path below the weights folder.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// sha256, hex.
    pub sha256: String,
}

impl WeightsManifest {
    /// Reads a manifest and checks what its schema cannot say.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn read(value: &serde_json::Value) -> Result<Self, Vec<Problem>> {
        let manifest: Self = reader::read(value)?;
        let problems = manifest.problems();
        if problems.is_empty() { Ok(manifest) } else { Err(problems) }
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, f| sum.saturating_add(f.size))
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !is_hex(&self.revision, 40) {
            problems.push(Problem::error("revision", "is not a commit (40 hex digits)"));
        }
        if self.model.split('/').filter(|p| !p.is_empty()).count() != 2 {
            problems.push(Problem::error("model", "is not a hub id (org/name)"));
        }
        for (n, file) in self.files.iter().enumerate() {
            if !is_hex(&file.sha256, 64) {
                problems.push(Problem::error(format!("files[{n}].sha256"), "is not a sha256 (64 hex digits)"));
            }
            let climbs = file.path.split('/').any(|part| matches!(part, "" | "." | ".."));
            if climbs {
                problems.push(Problem::error(format!("files[{n}].path"), "leaves the weights folder"));
            }
            if self.files[..n].iter().any(|f| f.path == file.path) {
                problems.push(Problem::error(format!("files[{n}].path"), format!("{:?} is listed twice", file.path)));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_manifest_cannot_name_a_file_outside_its_folder() {
        let file = |path: &str| json!({"path": path, "size": 1, "sha256": "0".repeat(64)});
        let with = |path: &str| {
            let value = json!({"model": "a/b", "revision": "0".repeat(40), "files": [file(path)]});
            WeightsManifest::read(&value)
        };
        assert!(with("encoding/x.py").is_ok());
        for bad in ["../x", "/etc/passwd", "a//b", ".", ""] {
            assert!(with(bad).is_err(), "{bad}");
        }
        let twice = json!({"model": "a/b", "revision": "0".repeat(40), "files": [file("a"), file("a")]});
        assert!(WeightsManifest::read(&twice).is_err());
        let unpinned = json!({"model": "a", "revision": "main", "files": []});
        assert_eq!(WeightsManifest::read(&unpinned).map_err(|p| p.len()), Err(2));
    }
}
