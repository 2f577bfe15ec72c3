//! Our nftables table on this node: loaded, taken away, and compared with what was loaded.
//!
//! nft's words for a table differ between its versions, so what a script made is not compared with the script but with
//! nft's own answer right after it was loaded, kept in `/run` beside the script's hash.

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sparklane_lane::Generation;
use sparklane_lane::render::{FIREWALL, TABLE};

use crate::error::HostError;
use crate::files;
use crate::paths::HostPaths;
use crate::process;

/// What to do about a table that is not as it should be.
pub const REMEDY: &str =
    "sudo systemctl start sparklane-firewall.service (its file was edited? nix run .#deploy -- --replace-edited)";

/// What was loaded in this boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Loaded {
    /// sha256 of the script.
    script: String,
    /// sha256 of the table as nft lists it.
    table: String,
}

fn record(paths: &HostPaths) -> Utf8PathBuf {
    paths.run.join("firewall.json")
}

/// Makes the table what the file says, or takes it away where there is no file.
///
/// # Errors
/// When nft is missing or refuses.
pub fn follow(paths: &HostPaths) -> Result<(), HostError> {
    let script = paths.managed(FIREWALL);
    match std::fs::read(&script) {
        Ok(bytes) => load(paths, &script, &files::sha256(&bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => remove(paths),
        Err(error) => Err(HostError::file("read", script)(error)),
    }
}

fn load(paths: &HostPaths, script: &Utf8Path, hash: &str) -> Result<(), HostError> {
    process::run("nft", &["--file", script.as_str()])?;
    let loaded = Loaded { script: hash.to_owned(), table: listed()? };
    let text = serde_json::to_vec(&loaded).map_err(|e| HostError::Refused(e.to_string()))?;
    files::write_atomic(&record(paths), &text, 0o644)
}

fn remove(paths: &HostPaths) -> Result<(), HostError> {
    let (family, name) = TABLE;
    // Deleting what is not there is an error, so it is made first; both happen at once.
    process::run("nft", &[&format!("add table {family} {name}; delete table {family} {name}")])?;
    files::remove(&record(paths))
}

/// What is wrong with the table that a generation wants; `None` when it stands as it was loaded, or none is wanted.
#[must_use]
pub fn trouble(paths: &HostPaths, generation: &Generation) -> Option<String> {
    let wanted = generation.files.get(FIREWALL)?;
    let (family, name) = TABLE;
    let loaded = std::fs::read(record(paths)).ok().and_then(|bytes| serde_json::from_slice::<Loaded>(&bytes).ok());
    let now = match listed() {
        Ok(now) => now,
        Err(HostError::Program { .. }) => {
            return Some(format!("the table {family} {name} is gone: its ports are open"));
        }
        Err(error) => return Some(error.to_string()),
    };
    match loaded {
        Some(loaded) if loaded.table == now && loaded.script == wanted.sha256 => None,
        Some(loaded) if loaded.table != now => Some(format!("the table {family} {name} was changed by hand")),
        _ => Some(format!("the table {family} {name} is not the deployed one's")),
    }
}

/// sha256 of the table's rules as nft lists them.
fn listed() -> Result<String, HostError> {
    let (family, name) = TABLE;
    let text = process::run("nft", &["--json", "list", "table", family, name])?;
    let listed: Value =
        serde_json::from_str(&text).map_err(|e| HostError::Refused(format!("nft's list is no JSON: {e}")))?;
    Ok(files::sha256(canonical(listed).to_string().as_bytes()))
}

/// Without what differs between two loads of one script: handles, and nft's own version.
fn canonical(mut listed: Value) -> Value {
    if let Some(items) = listed.get_mut("nftables").and_then(Value::as_array_mut) {
        items.retain(|item| item.get("metainfo").is_none());
        for item in items.iter_mut().filter_map(Value::as_object_mut).flat_map(|item| item.values_mut()) {
            if let Some(fields) = item.as_object_mut() {
                fields.remove("handle");
            }
        }
    }
    listed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(version: &str, handle: u64, policy: &str, port: u16) -> Value {
        json!({"nftables": [
            {"metainfo": {"version": version, "json_schema_version": 1}},
            {"table": {"family": "inet", "name": "sparklane", "handle": handle}},
            {"chain": {"family": "inet", "table": "sparklane", "name": "input", "handle": 1, "policy": policy}},
            {"rule": {"family": "inet", "table": "sparklane", "chain": "input", "handle": handle + 3,
                "expr": [{"match": {"op": "==", "right": port}}, {"drop": null}]}},
        ]})
    }

    #[test]
    fn only_rules_count() {
        let first = canonical(list("1.0.9", 7, "accept", 25000));
        assert_eq!(canonical(list("1.1.3", 900, "accept", 25000)), first);
        assert_ne!(canonical(list("1.0.9", 7, "drop", 25000)), first);
        assert_ne!(canonical(list("1.0.9", 7, "accept", 25001)), first);
        // Not nft's words at all.
        assert_eq!(canonical(json!(["x"])), json!(["x"]));
        assert_eq!(canonical(json!({"nftables": 3})), json!({"nftables": 3}));
    }
}
