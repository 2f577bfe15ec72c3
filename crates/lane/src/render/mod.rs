//! From files to a generation: pure functions of (cluster, lane, image, weights, node).

mod argv;
mod env;
mod files;
mod firewall;
mod ray;

use std::collections::BTreeMap;

use crate::cluster::{Absent, Cluster, Node};
use crate::generation::{
    Budgets, Engine, Gate, GateKind, Generation, Image, ManagedFile, MemoryGate, Mount, Peer, SCHEMA, Weights,
};
use crate::ids::NodeName;
use crate::image::ImageSpec;
use crate::lane::{GateCheck, Lane, LaneGate};
use crate::sha256_hex;
use crate::weights::WeightsManifest;

pub use argv::flags_of;
pub use env::{CACHE_KINDS, RAY_ENV, SET_BY_TOOL};
pub use files::{DROP_IN, ENGINE_UNIT, Rendered as FileContent};
pub use firewall::{FIREWALL, FIREWALL_UNIT, TABLE};
pub use ray::{ACTOR_PORTS, NEXT_PORTS, OTHER_PORTS};

/// Folder of everything a node keeps.
const STATE: &str = "/var/lib/sparklane";

/// A weights manifest and what identifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightsRef {
    /// Name in the catalogue.
    pub name: String,
    /// The manifest.
    pub manifest: WeightsManifest,
    /// The manifest's id, hex.
    pub id: String,
}

/// All that a node's generation follows from.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The lane.
    pub lane: &'a Lane,
    /// The lane's image.
    pub image: &'a ImageSpec,
    /// The lane's weights, when it names a manifest.
    pub weights: Option<&'a WeightsRef>,
}

/// A generation and the content of its managed files by absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The generation.
    pub generation: Generation,
    /// File contents.
    pub files: BTreeMap<String, String>,
}

/// Why nothing could be rendered. The rules report the same things with their keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The cluster has no such node.
    #[error("cluster {cluster} has no node {node}")]
    NoNode {
        /// The cluster.
        cluster: String,
        /// The missing node.
        node: String,
    },
    /// The cluster has no head.
    #[error("cluster {0} has no head")]
    NoHead(String),
    /// An engine that JSON cannot hold.
    #[error("the engine cannot be written as JSON: {0}")]
    Json(String),
    /// A Ray lane on an image without Ray.
    #[error("image {0} has no ray")]
    NoRay(String),
}

/// Renders one node's generation.
///
/// # Errors
/// When cluster, lane and image do not fit together; [`crate::rules::check`] says so with keys.
pub fn render(input: Input<'_>, name: &NodeName) -> Result<Rendered, RenderError> {
    let Input { cluster, lane, .. } = input;
    let node = cluster
        .nodes
        .get(name)
        .ok_or_else(|| RenderError::NoNode { cluster: cluster.name.to_string(), node: name.to_string() })?;
    let engine = engine(input, node)?;
    let files = files::render(input, node, &engine);
    let generation = Generation {
        schema: SCHEMA,
        cluster: cluster.name.clone(),
        lane: lane.name.clone(),
        node: name.clone(),
        role: node.role,
        rank: node.rank,
        system: node.system,
        peers: cluster.by_rank().into_iter().map(|(n, node)| peer(n, node)).collect(),
        image: image_of(input),
        weights: input.weights.map(weights),
        engine,
        gates: lane.gates.iter().map(|g| gate(input, g)).collect::<Result<_, _>>()?,
        files: files.iter().map(|(path, file)| (path.clone(), managed(file))).collect(),
        budgets: Budgets {
            start_secs: lane.budgets.start_secs,
            confirm_secs: lane.budgets.confirm_secs,
            warmup_secs: lane.budgets.warmup_secs.unwrap_or(lane.budgets.start_secs),
        },
        watchdog: lane.watchdog,
        serves: serves(input)?,
        keep_releases: cluster.keep_releases,
    };
    let files = files.into_iter().map(|(path, file)| (path, file.content)).collect();
    Ok(Rendered { generation, files })
}

/// Renders every node of the cluster, by rank.
///
/// # Errors
/// As [`render`].
pub fn render_all(input: Input<'_>) -> Result<Vec<Rendered>, RenderError> {
    input.cluster.by_rank().into_iter().map(|(name, _)| render(input, name)).collect()
}

fn image_of(Input { image, .. }: Input<'_>) -> Image {
    Image {
        reference: image.reference.clone(),
        base: image.base.clone(),
        manifest: image.manifest.clone(),
        config: image.config.clone(),
        pin_with: image.pin_command(),
    }
}

/// See [`Generation::serves`]: a hash over every rank's launch.
fn serves(input: Input<'_>) -> Result<String, RenderError> {
    let (image, weights) = (image_of(input), input.weights.map(weights));
    let launch = |node: &Node| -> Result<String, RenderError> {
        crate::generation::launch(&engine(input, node)?, &image, weights.as_ref(), node.rank, input.lane.watchdog.port)
            .map_err(|error| RenderError::Json(error.to_string()))
    };
    let launches: Vec<String> =
        input.cluster.by_rank().into_iter().map(|(_, node)| launch(node)).collect::<Result<_, _>>()?;
    Ok(sha256_hex(launches.join("\n").as_bytes()))
}

fn engine(input: Input<'_>, node: &Node) -> Result<Engine, RenderError> {
    let Input { cluster, lane, .. } = input;
    let container = &lane.container;
    let privileged = cluster.has(Absent::SysResource);
    let limits = container.ulimits.iter().filter(|_| privileged);
    let cache_roots = env::cache_roots(lane);
    Ok(Engine {
        container: "sparklane-engine".to_owned(),
        argv: argv::render(input, node)?,
        ray: ray::render(input, node)?,
        memory: memory_gate(lane),
        env: env::render(input, node),
        mounts: mounts(input, &cache_roots),
        devices: container.devices.iter().filter(|_| cluster.has(Absent::Rdma)).cloned().collect(),
        gpus: container.gpus && cluster.has(Absent::Gpu),
        capabilities: container.capabilities.clone(),
        ulimits: limits.map(|(name, bytes)| (name.clone(), *bytes)).collect(),
        shm_bytes: container.shm_bytes,
        oom_score_adj: container.oom_score_adj.filter(|_| privileged),
        api_host: lane.api.host.clone(),
        api_port: lane.api.port,
        served_model: lane.model.served_name.clone(),
        api_key_file: lane.api.key_file.clone(),
        stop_secs: lane.budgets.stop_secs,
        cache_roots,
    })
}

/// An engine that takes a share of the memory waits until that share is free; one that takes what it needs does not.
fn memory_gate(lane: &Lane) -> Option<MemoryGate> {
    let share = lane.serve.gpu_memory_utilization.filter(|share| *share > 0.0 && *share <= 1.0)?;
    Some(MemoryGate {
        // Between 0 and a million, so nothing is cut off.
        share_ppm: (share * 1e6).round() as u32,
        margin_bytes: lane.memory.margin_bytes,
        wait_secs: lane.memory.wait_secs,
    })
}

fn mounts(input: Input<'_>, cache_roots: &BTreeMap<String, String>) -> Vec<Mount> {
    let model = input.weights.map(|w| Mount {
        source: weights_folder(w),
        target: input.lane.model.path.clone(),
        read_only: true,
        create: false,
    });
    let caches = cache_roots.iter().map(|(kind, source)| Mount {
        source: source.clone(),
        target: env::cache_target(kind),
        read_only: false,
        create: true,
    });
    model.into_iter().chain(caches).collect()
}

fn weights_folder(weights: &WeightsRef) -> String {
    format!("{STATE}/weights/{}", weights.manifest.store_name())
}

fn weights(weights: &WeightsRef) -> Weights {
    Weights {
        model: weights.manifest.model.clone(),
        revision: weights.manifest.revision.clone(),
        manifest: weights.id.clone(),
        bytes: weights.manifest.bytes(),
        path: weights_folder(weights),
    }
}

fn peer(name: &NodeName, node: &Node) -> Peer {
    Peer {
        node: name.clone(),
        role: node.role,
        rank: node.rank,
        host: node.host.clone(),
        rail1: node.rail1.address.clone(),
        rail2: node.rail2.address.clone(),
    }
}

fn managed(file: &FileContent) -> ManagedFile {
    ManagedFile { mode: file.mode, sha256: sha256_hex(file.content.as_bytes()), kind: file.kind }
}

fn gate(Input { cluster, lane, .. }: Input<'_>, gate: &LaneGate) -> Result<Gate, RenderError> {
    // Gates run on the head itself; an API on all addresses answers on loopback too.
    let host = if lane.api.host == "0.0.0.0" { "127.0.0.1" } else { &lane.api.host };
    let base = format!("http://{host}:{}", lane.api.port);
    let kind = match gate.check.clone() {
        GateCheck::Unit { unit } => GateKind::Unit { unit },
        GateCheck::Http { path, status } => GateKind::Http { url: format!("{base}{path}"), status },
        GateCheck::Tokens { prompt, max_tokens, min_tokens } => {
            GateKind::Tokens { url: base, model: lane.model.served_name.clone(), prompt, max_tokens, min_tokens }
        }
        GateCheck::Fabric {} => GateKind::Fabric {
            cluster: serde_json::to_value(cluster).map_err(|error| RenderError::Json(error.to_string()))?,
        },
    };
    Ok(Gate {
        name: gate.name.clone(),
        scope: gate.scope,
        budget_secs: gate.budget_secs,
        interval_secs: gate.interval_secs,
        kind,
    })
}
