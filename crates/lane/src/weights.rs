//! The weights manifest: every file of a model's revision by size and hash (`nix/weights/*.json`).
//!
//! Its id is the sha256 of a canonical form, so that neither the order of files nor the layout of the text changes what
//! a lane names, a node proves and two ends of a transfer agree on.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::is_hex;
use crate::problem::Problem;
use crate::reader;

/// Most files of a manifest; real ones have some dozens, the rest is room for odd repositories.
pub const MAX_FILES: usize = 200_000;
/// Longest path in bytes (`PATH_MAX` less the folders above).
const MAX_PATH: usize = 1024;
/// Longest name in a path in bytes (`NAME_MAX`).
const MAX_NAME: usize = 255;
/// Largest file and largest sum: file offsets are signed 64-bit numbers.
const MAX_BYTES: u64 = i64::MAX as u64;
/// Findings that are worth reading; a file of another kind has 10^5 of them.
const MAX_PROBLEMS: usize = 50;

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

    /// Reads the text of a manifest.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let value = serde_json::from_str(text).map_err(|e| vec![Problem::error("", e.to_string())])?;
        Self::read(&value)
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, f| sum.saturating_add(f.size))
    }

    /// The manifest's id, 64 hex digits: sha256 over model, revision and files sorted by path, one line each.
    #[must_use]
    pub fn id(&self) -> String {
        let mut files: Vec<&WeightsFile> = self.files.iter().collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let lines: Vec<String> = files.iter().map(|f| format!("{} {} {}\n", f.sha256, f.size, f.path)).collect();
        let text = format!("sparklane weights 1\n{}\n{}\n{}", self.model, self.revision, lines.concat());
        crate::sha256_hex(text.as_bytes())
    }

    /// Name of the folder that holds exactly these files: `org--name@<12 of the commit>-<12 of the id>`.
    #[must_use]
    pub fn store_name(&self) -> String {
        let model = self.model.replace('/', "--");
        let revision: String = self.revision.chars().take(12).collect();
        let id: String = self.id().chars().take(12).collect();
        format!("{model}@{revision}-{id}")
    }

    /// The manifest as the flake keeps it: one line per file, sorted.
    #[must_use]
    pub fn to_text(&self) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let mut files: Vec<&WeightsFile> = self.files.iter().collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let line = |f: &&WeightsFile| {
            let (path, sha256) = (quoted(&f.path), quoted(&f.sha256));
            format!("    {{\"path\": {path}, \"size\": {}, \"sha256\": {sha256}}}", f.size)
        };
        let lines: Vec<String> = files.iter().map(line).collect();
        let (model, revision) = (quoted(&self.model), quoted(&self.revision));
        format!(
            "{{\n  \"model\": {model},\n  \"revision\": {revision},\n  \"files\": [\n{}\n  ]\n}}\n",
            lines.join(",\n")
        )
    }

    /// What the schema cannot say; empty when the manifest may be used.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !is_hex(&self.revision, 40) {
            problems.push(Problem::error("revision", "is not a commit (40 hex digits)"));
        }
        if !is_model(&self.model) {
            problems.push(Problem::error("model", "is not a hub id (org/name)"));
        }
        if self.files.is_empty() {
            problems.push(Problem::error("files", "is empty"));
        }
        if self.files.len() > MAX_FILES {
            problems.push(Problem::error("files", format!("has more than {MAX_FILES} entries")));
            return problems;
        }
        let mut sum: u64 = 0;
        for (n, file) in self.files.iter().enumerate() {
            sum = sum.saturating_add(file.size);
            problems.extend(file.problems(n));
            if problems.len() >= MAX_PROBLEMS {
                return problems;
            }
        }
        if sum > MAX_BYTES {
            problems.push(Problem::error("files", "sizes add up to more than 2^63 bytes"));
        }
        problems.extend(collisions(&self.files));
        problems.truncate(MAX_PROBLEMS);
        problems
    }
}

impl WeightsFile {
    fn problems(&self, n: usize) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !is_hex(&self.sha256, 64) {
            problems.push(Problem::error(format!("files[{n}].sha256"), "is not a sha256 (64 hex digits)"));
        }
        if let Some(what) = bad_path(&self.path) {
            problems.push(Problem::error(format!("files[{n}].path"), what));
        }
        if self.size > MAX_BYTES {
            problems.push(Problem::error(format!("files[{n}].size"), "is more than 2^63 bytes"));
        }
        problems
    }
}

/// Why a path may not be one of the files; `None` when it may.
#[must_use]
pub fn bad_path(path: &str) -> Option<&'static str> {
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Some("leaves the weights folder");
    }
    if path.len() > MAX_PATH || path.split('/').any(|part| part.len() > MAX_NAME) {
        return Some("is longer than a file system allows");
    }
    if path.chars().any(|c| c.is_control() || c == '\\') {
        return Some("has a control character or a backslash");
    }
    None
}

/// `org/name` by the hub's rules: no `--` and no `..`, so that a folder name made of it can be read back.
fn is_model(model: &str) -> bool {
    let part = |p: &str| {
        !p.is_empty()
            && p.len() <= 96
            && p.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
            && !p.starts_with(['.', '-'])
            && !p.contains("--")
            && !p.contains("..")
    };
    matches!(model.split('/').collect::<Vec<_>>()[..], [org, name] if part(org) && part(name))
}

/// Paths that are one file on some file system: listed twice, equal but for case, or a file where a folder is needed.
fn collisions(files: &[WeightsFile]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    let folded: Vec<String> = files.iter().map(|f| f.path.to_lowercase()).collect();
    for (n, (file, key)) in files.iter().zip(&folded).enumerate() {
        if let Some(other) = seen.insert(key.clone(), &file.path) {
            let what = if other == file.path {
                format!("{:?} is listed twice", file.path)
            } else {
                format!("{:?} differs from {other:?} only by case", file.path)
            };
            problems.push(Problem::error(format!("files[{n}].path"), what));
        }
    }
    let all: BTreeSet<&str> = folded.iter().map(String::as_str).collect();
    for (n, key) in folded.iter().enumerate() {
        let parents = key.match_indices('/').map(|(at, _)| &key[..at]);
        if let Some(parent) = parents.into_iter().find(|p| all.contains(p)) {
            let what = format!("{parent:?} is a file and a folder");
            problems.push(Problem::error(format!("files[{n}].path"), what));
        }
    }
    problems
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
