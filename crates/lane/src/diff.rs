//! What changes on a node between two generations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use crate::generation::Generation;
use crate::ids::NodeName;

/// One value that differs; an absent side does not have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Flag, name or path.
    pub key: String,
    /// Before.
    pub old: Option<String>,
    /// After.
    pub new: Option<String>,
}

/// All that differs on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeDiff {
    /// The node.
    pub node: NodeName,
    /// Engine arguments by flag; positional ones by place, e.g. `[1]`.
    pub argv: Vec<Change>,
    /// Environment.
    pub env: Vec<Change>,
    /// Managed files by path: content hash and mode.
    pub files: Vec<Change>,
    /// The image.
    pub image: Vec<Change>,
    /// The weights.
    pub weights: Vec<Change>,
    /// Everything else: mounts, limits, gates, budgets, peers.
    pub other: Vec<Change>,
}

impl NodeDiff {
    /// True when nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sections().iter().all(|(_, changes)| changes.is_empty())
    }

    fn sections(&self) -> [(&'static str, &[Change]); 6] {
        [
            ("argv", &self.argv),
            ("env", &self.env),
            ("files", &self.files),
            ("image", &self.image),
            ("weights", &self.weights),
            ("other", &self.other),
        ]
    }
}

impl fmt::Display for NodeDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.node)?;
        if self.is_empty() {
            return writeln!(f, "  no change");
        }
        for (title, changes) in self.sections().into_iter().filter(|(_, changes)| !changes.is_empty()) {
            writeln!(f, "  {title}")?;
            for Change { key, old, new } in changes {
                match (old, new) {
                    (None, Some(new)) => writeln!(f, "    + {key} {new}")?,
                    (Some(old), None) => writeln!(f, "    - {key} {old}")?,
                    (old, new) => {
                        let text = |side: &Option<String>| side.clone().unwrap_or_default();
                        writeln!(f, "    ~ {key} {} -> {}", text(old), text(new))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Compares two generations of one node.
#[must_use]
pub fn diff(old: &Generation, new: &Generation) -> NodeDiff {
    NodeDiff {
        node: new.node.clone(),
        argv: changes(&argv_table(&old.engine.argv), &argv_table(&new.engine.argv)),
        env: changes(&old.engine.env, &new.engine.env),
        files: changes(&files(old), &files(new)),
        image: changes(&flat(&old.image), &flat(&new.image)),
        weights: changes(&flat(&old.weights), &flat(&new.weights)),
        other: changes(&flat(&other(old)), &flat(&other(new))),
    }
}

/// An argument vector as a table: `--flag` to its value, positional arguments by their place among their kind.
#[must_use]
pub fn argv_table(argv: &[String]) -> BTreeMap<String, String> {
    let mut table = BTreeMap::new();
    let mut places = 0;
    let mut rest = argv.iter().peekable();
    while let Some(arg) = rest.next() {
        if let Some((flag, value)) = arg.split_once('=').filter(|(flag, _)| flag.starts_with("--")) {
            table.insert(flag.to_owned(), value.to_owned());
        } else if arg.starts_with("--") {
            let value = rest.next_if(|next| !next.starts_with("--"));
            table.insert(arg.clone(), value.cloned().unwrap_or_default());
        } else {
            table.insert(format!("[{places}]"), arg.clone());
            places += 1;
        }
    }
    table
}

fn changes(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<Change> {
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let change = |key: &String| Change { key: key.clone(), old: old.get(key).cloned(), new: new.get(key).cloned() };
    keys.into_iter().map(change).filter(|c| c.old != c.new).collect()
}

fn files(generation: &Generation) -> BTreeMap<String, String> {
    let entry = |file: &crate::generation::ManagedFile| format!("{} {:o}", file.sha256, file.mode);
    generation.files.iter().map(|(path, file)| (path.clone(), entry(file))).collect()
}

/// What the other sections do not show. The lane's own name is no difference of a node.
fn other(generation: &Generation) -> Value {
    let engine = &generation.engine;
    json!({
        "api": format!("{}:{}", engine.api_host, engine.api_port),
        "apiKeyFile": engine.api_key_file,
        "budgets": generation.budgets,
        "capabilities": engine.capabilities,
        "container": engine.container,
        "devices": engine.devices,
        "gates": generation.gates.iter().map(|g| (g.name.clone(), g)).collect::<BTreeMap<_, _>>(),
        "gpus": engine.gpus,
        "keepReleases": generation.keep_releases,
        "mounts": engine.mounts.iter().map(|m| (m.target.clone(), m)).collect::<BTreeMap<_, _>>(),
        "oomScoreAdj": engine.oom_score_adj,
        "peers": generation.peers,
        "servedModel": engine.served_model,
        "shmBytes": engine.shm_bytes,
        "stopSecs": engine.stop_secs,
        "ulimits": engine.ulimits,
    })
}

/// Every leaf of a value by its path.
fn flat(value: &impl Serialize) -> BTreeMap<String, String> {
    let mut leaves = BTreeMap::new();
    walk("", &serde_json::to_value(value).unwrap_or_default(), &mut leaves);
    leaves
}

fn walk(path: &str, value: &Value, leaves: &mut BTreeMap<String, String>) {
    let below = |key: &str| {
        if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
    };
    match value {
        Value::Null => {}
        Value::Object(map) => map.iter().for_each(|(key, v)| walk(&below(key), v, leaves)),
        Value::Array(items) => items.iter().enumerate().for_each(|(n, v)| walk(&below(&n.to_string()), v, leaves)),
        Value::String(text) => drop(leaves.insert(path.to_owned(), text.clone())),
        Value::Bool(_) | Value::Number(_) => drop(leaves.insert(path.to_owned(), value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::render;
    use crate::rules::fixture::case;

    fn head(case: &crate::rules::fixture::Case) -> Generation {
        render(case.input(), &"head".parse().unwrap()).unwrap().generation
    }

    #[test]
    fn a_changed_flag_is_one_line() {
        let mut case = case();
        let old = head(&case);
        case.lane.serve.max_num_seqs = Some(8);
        case.lane.env.insert("NCCL_DEBUG".into(), "WARN".into());
        let found = diff(&old, &head(&case));
        assert_eq!(found.to_string(), "head:\n  argv\n    ~ --max-num-seqs 6 -> 8\n  env\n    + NCCL_DEBUG WARN\n");
        assert!(diff(&old, &old).is_empty());
    }

    #[test]
    fn nothing_of_a_generation_escapes_the_diff() {
        let mut case = case();
        let old = head(&case);
        case.lane.gates[0].budget_secs = 21;
        case.lane.container.shm_bytes = 1;
        case.weights.as_mut().unwrap().id = "1".repeat(64);
        case.image.reference = "other".into();
        let found = diff(&old, &head(&case));
        let keys = |c: &[Change]| c.iter().map(|c| c.key.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&found.other), ["gates.tokens.budgetSecs", "shmBytes"]);
        assert_eq!(keys(&found.weights), ["manifest"]);
        assert_eq!(keys(&found.image), ["reference"]);
    }

    #[test]
    fn arguments_become_a_table() {
        let argv = ["ray", "start", "--address=a:1", "--block", "--num", "-1"].map(str::to_owned);
        let table = argv_table(&argv);
        let pairs: Vec<_> = table.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(pairs, [("--address", "a:1"), ("--block", ""), ("--num", "-1"), ("[0]", "ray"), ("[1]", "start")]);
    }
}
