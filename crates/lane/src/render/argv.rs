//! The argument vector of a rank.

use serde_json::Value;

use super::{Input, RenderError, ray};
use crate::cluster::Node;
use crate::lane::{Executor, Serve};

/// Renders the argument vector of one node.
pub(super) fn render(input: Input<'_>, node: &Node) -> Result<Vec<String>, RenderError> {
    let Input { cluster, lane, image, .. } = input;
    let (_, head) = cluster.head().ok_or_else(|| RenderError::NoHead(cluster.name.to_string()))?;
    if let (Executor::Ray { port, .. }, false) = (lane.executor, node.role.decides()) {
        // Ray starts the rank itself; the worker only joins.
        return ray::join(input, node, &format!("{}:{port}", head.rail1.address), port);
    }
    let mut argv = image.serve.clone();
    argv.push(lane.model.path.clone());
    let mut flag = |name: &str, value: &str| argv.extend([name.to_owned(), value.to_owned()]);
    flag("--served-model-name", &lane.model.served_name);
    flag("--host", &lane.api.host);
    flag("--port", &lane.api.port.to_string());
    match lane.executor {
        Executor::Ray { .. } => flag("--distributed-executor-backend", "ray"),
        Executor::Mp { port } => {
            flag("--distributed-executor-backend", "mp");
            flag("--nnodes", &cluster.nodes.len().to_string());
            flag("--node-rank", &node.rank.to_string());
            flag("--master-addr", &head.rail1.address);
            flag("--master-port", &port.to_string());
            if !node.role.decides() {
                argv.push("--headless".to_owned());
            }
        }
    }
    argv.extend(flags_of(&lane.serve));
    argv.extend(lane.serve.extra_args.iter().cloned());
    Ok(argv)
}

/// The flags of a lane's `serve` keys, in the order of the type's fields.
#[must_use]
pub fn flags_of(serve: &Serve) -> Vec<String> {
    // The keys are the engine's flags in camelCase, so the type itself is the table of flags.
    let Ok(Value::Object(keys)) = serde_json::to_value(serve) else {
        return Vec::new();
    };
    keys.iter().filter(|(key, _)| key.as_str() != "extraArgs").flat_map(|(key, value)| flag(key, value)).collect()
}

fn flag(key: &str, value: &Value) -> Vec<String> {
    let name = kebab(key);
    match value {
        Value::Null => Vec::new(),
        Value::Bool(true) => vec![format!("--{name}")],
        Value::Bool(false) => vec![format!("--no-{name}")],
        Value::String(text) => vec![format!("--{name}"), text.clone()],
        other => vec![format!("--{name}"), plain_numbers(other).to_string()],
    }
}

/// Whole numbers without a point: some versions of Nix hand 1.0 over as 1, and the vector must not depend on that.
fn plain_numbers(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().filter(|n| number.is_f64() && n.fract() == 0.0).map_or_else(
            || value.clone(),
            |n| format!("{n:.0}").parse::<i64>().map_or_else(|_| value.clone(), Value::from),
        ),
        Value::Array(items) => items.iter().map(plain_numbers).collect(),
        Value::Object(map) => map.iter().map(|(key, v)| (key.clone(), plain_numbers(v))).collect(),
        other => other.clone(),
    }
}

fn kebab(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 4);
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            name.push('-');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::{DraftSample, Speculative};

    #[test]
    fn a_whole_number_has_one_spelling() {
        let text = |json: &str| plain_numbers(&serde_json::from_str(json).unwrap()).to_string();
        assert_eq!(text(r#"{"a":[1.0,0.5],"b":-2.0,"c":1e300}"#), r#"{"a":[1,0.5],"b":-2,"c":1e+300}"#);
        let whole = Serve { gpu_memory_utilization: Some(1.0), ..Serve::default() };
        assert_eq!(flags_of(&whole), ["--gpu-memory-utilization", "1"]);
    }

    #[test]
    fn a_key_is_its_flag() {
        let serve = Serve {
            max_num_seqs: Some(6),
            gpu_memory_utilization: Some(0.85),
            async_scheduling: Some(false),
            enable_prefix_caching: Some(true),
            speculative_config: Some(Speculative {
                method: "dspark".into(),
                num_speculative_tokens: 3,
                draft_sample_method: Some(DraftSample::Probabilistic),
            }),
            extra_args: vec!["--not-here".into()],
            ..Serve::default()
        };
        assert_eq!(
            flags_of(&serve),
            [
                "--max-num-seqs",
                "6",
                "--gpu-memory-utilization",
                "0.85",
                "--enable-prefix-caching",
                "--no-async-scheduling",
                "--speculative-config",
                r#"{"method":"dspark","num_speculative_tokens":3,"draft_sample_method":"probabilistic"}"#,
            ]
        );
    }
}
