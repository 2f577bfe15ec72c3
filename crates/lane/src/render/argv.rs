//! The argument vector of a rank.

use serde_json::Value;

use super::{Input, RenderError};
use crate::cluster::Node;
use crate::lane::{Executor, Serve};

/// Renders the argument vector of one node.
pub(super) fn render(input: Input<'_>, node: &Node) -> Result<Vec<String>, RenderError> {
    let Input { cluster, lane, image, .. } = input;
    let (_, head) = cluster.head().ok_or_else(|| RenderError::NoHead(cluster.name.to_string()))?;
    if let (Executor::Ray { port }, false) = (lane.executor, node.role.decides()) {
        // Ray starts the rank itself; the worker only joins. The head's container entry starts the GCS.
        let ray = image.ray.clone().ok_or_else(|| RenderError::NoRay(image.name.clone()))?;
        return Ok(vec![
            ray,
            "start".to_owned(),
            format!("--address={}:{port}", head.rail1.address),
            format!("--node-ip-address={}", node.rail1.address),
            "--num-gpus=1".to_owned(),
            "--block".to_owned(),
        ]);
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
        other => vec![format!("--{name}"), other.to_string()],
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
