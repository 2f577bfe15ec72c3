//! Ray's own processes: `ray start` on each node, with every port fixed so that a firewall can name them.

use std::ops::RangeInclusive;

use super::{Input, RenderError};
use crate::cluster::Node;
use crate::generation::{Ray, RayHead};
use crate::lane::Executor;

/// Ray's web server, whose API says who is in. On loopback: it lets everyone who reaches it run programs.
const DASHBOARD: u16 = 8265;
/// The per-node part of the dashboard.
const AGENT: u16 = 52365;
/// Ray Client's server, which `ray start` cannot leave out.
const CLIENT: u16 = 10001;
/// Ports that do not follow the GCS's.
pub const OTHER_PORTS: [u16; 3] = [DASHBOARD, AGENT, CLIENT];
/// Ports of the actors, one each.
pub const ACTOR_PORTS: RangeInclusive<u16> = 20000..=20999;
/// Ports above the GCS's own that Ray's other servers get.
pub const NEXT_PORTS: [(&str, u16); 5] = [
    ("--node-manager-port", 1),
    ("--object-manager-port", 2),
    ("--dashboard-agent-grpc-port", 3),
    ("--runtime-env-agent-port", 4),
    ("--metrics-export-port", 5),
];
/// Bytes of Ray's object store. Tensors go through NCCL; Ray's default would be 30 % of a memory that the GPU shares.
const OBJECT_STORE: u64 = 1 << 30;
/// Each node is one rank with the one GPU it has.
const GPUS: u32 = 1;

/// Ray's part of a node's launch, in a lane that has one.
pub(super) fn render(input: Input<'_>, node: &Node) -> Result<Option<Ray>, RenderError> {
    let Executor::Ray { port, join_secs } = input.lane.executor else {
        return Ok(None);
    };
    let (_, head) = input.cluster.head().ok_or_else(|| RenderError::NoHead(input.cluster.name.to_string()))?;
    let gcs = format!("{}:{port}", head.rail1.address);
    let head = if node.role.decides() {
        let mut own = vec![
            "--head".to_owned(),
            format!("--port={port}"),
            "--dashboard-host=127.0.0.1".to_owned(),
            format!("--dashboard-port={DASHBOARD}"),
            format!("--ray-client-server-port={CLIENT}"),
            "--include-dashboard=true".to_owned(),
            // Nothing here is scaled; the process would cost 100 MB.
            "--no-monitor".to_owned(),
        ];
        own.extend(common(node, port));
        Some(RayHead {
            start: start(input, own)?,
            dashboard_port: DASHBOARD,
            nodes: input.cluster.by_rank().into_iter().map(|(_, n)| n.rail1.address.clone()).collect(),
            gpus_per_node: GPUS,
        })
    } else {
        None
    };
    Ok(Some(Ray { gcs, join_secs, head }))
}

/// The argument vector by which a worker joins.
pub(super) fn join(input: Input<'_>, node: &Node, gcs: &str, port: u16) -> Result<Vec<String>, RenderError> {
    let mut own = vec![format!("--address={gcs}")];
    own.extend(common(node, port));
    start(input, own)
}

fn start(input: Input<'_>, own: Vec<String>) -> Result<Vec<String>, RenderError> {
    let ray = input.image.ray.clone().ok_or_else(|| RenderError::NoRay(input.image.name.clone()))?;
    Ok([ray, "start".to_owned()].into_iter().chain(own).collect())
}

fn common(node: &Node, port: u16) -> Vec<String> {
    let mut argv = vec![
        // Else Ray picks one by itself, and not always the one that peers know.
        format!("--node-ip-address={}", node.rail1.address),
        format!("--num-gpus={GPUS}"),
        // Ranks ask for none; Ray would keep an idle process of 90 MB per processor.
        "--num-cpus=1".to_owned(),
        format!("--object-store-memory={OBJECT_STORE}"),
        format!("--min-worker-port={}", ACTOR_PORTS.start()),
        format!("--max-worker-port={}", ACTOR_PORTS.end()),
        format!("--dashboard-agent-listen-port={AGENT}"),
        "--disable-usage-stats".to_owned(),
    ];
    argv.extend(NEXT_PORTS.iter().map(|(flag, above)| format!("{flag}={}", port.saturating_add(*above))));
    // Ends with Ray's processes, so that the container does.
    argv.push("--block".to_owned());
    argv
}
