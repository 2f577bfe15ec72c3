//! `generation.json`: all a node needs to know to serve one lane (design.md section 4).
//!
//! The Nix builder writes it, the node's tool reads it. Argument vectors and environment are arrays end to end.
//!
//! A node may hold generations of a later tool than the one that reads them, as after a rollback to a release that an
//! older one made: fields that are not known are passed over, and identities come from files, never from what was read.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::ids::{ClusterName, Digest, GenerationId, LaneName, NodeName, Role, System};

/// The only version of the file that this tool writes and reads.
pub const SCHEMA: u32 = 1;

/// Folder on a node with the keys that supervisors authenticate each other with, one 0600 file per release.
pub const PEER_KEYS: &str = "/var/lib/sparklane/keys/peer";

/// Content of `generation.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Generation {
    /// Version of this file's shape.
    pub schema: u32,
    /// The cluster.
    pub cluster: ClusterName,
    /// The lane.
    pub lane: LaneName,
    /// The node this closure is for.
    pub node: NodeName,
    /// Its role.
    pub role: Role,
    /// Its rank; the head is 0.
    pub rank: u32,
    /// The node's system; every executable of the closure is of it.
    pub system: System,
    /// All nodes of the cluster, this one included, by rank.
    pub peers: Vec<Peer>,
    /// The engine's image.
    pub image: Image,
    /// The weights, when the lane names a manifest.
    pub weights: Option<Weights>,
    /// How the engine is launched.
    pub engine: Engine,
    /// Checks with budgets.
    pub gates: Vec<Gate>,
    /// Files this generation manages outside the store, by absolute path.
    pub files: BTreeMap<String, ManagedFile>,
    /// Times, in seconds.
    pub budgets: Budgets,
    /// How the running engine is watched. Generations of older tools do not say.
    #[serde(default)]
    pub watchdog: Watchdog,
    /// Identity of what all ranks together run; supervisors start a rank only beside ranks of the same. Empty in
    /// generations of older tools: their ranks start by themselves.
    #[serde(default)]
    pub serves: String,
    /// How many releases the cluster keeps; every garbage collector reads it (design.md section 10).
    pub keep_releases: u32,
}

/// A node as its peers see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Name of the node.
    pub node: NodeName,
    /// Role of the node.
    pub role: Role,
    /// Rank of the node.
    pub rank: u32,
    /// Host name or address on the management network.
    pub host: String,
    /// Address on rail 1.
    pub rail1: String,
    /// Address on rail 2.
    pub rail2: String,
}

/// The engine's image by its one identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Name for people, e.g. `ghcr.io/anemll/dspark-vllm-gx10:0.1.1`.
    pub reference: String,
    /// Manifest digest of the base the image is composed on.
    pub base: Option<Digest>,
    /// Manifest digest of the image; absent until someone pinned it, and then `deploy` refuses the lane.
    pub manifest: Option<Digest>,
    /// Config digest, which docker's classic store calls the image id.
    pub config: Option<Digest>,
    /// The command that makes `manifest` known, for the refusal.
    pub pin_with: String,
}

/// The weights a lane serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Weights {
    /// Hub id, `org/name`.
    pub model: String,
    /// Commit, 40 hex digits.
    pub revision: String,
    /// Id of the manifest, hex: the sha256 of its canonical form.
    pub manifest: String,
    /// Bytes of all files.
    pub bytes: u64,
    /// Folder on the node.
    pub path: String,
}

/// How the engine's container is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Engine {
    /// Container name.
    pub container: String,
    /// Program and arguments inside the container; never a shell. On a worker of a Ray lane it is `ray start`.
    pub argv: Vec<String>,
    /// How Ray comes up around `argv`, in a lane whose ranks meet through it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ray: Option<Ray>,
    /// Memory that must be free before the container starts, in a lane that takes a share of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryGate>,
    /// Environment, complete and sorted.
    pub env: BTreeMap<String, String>,
    /// Bind mounts.
    pub mounts: Vec<Mount>,
    /// Host device nodes handed in, e.g. `/dev/infiniband`.
    pub devices: Vec<String>,
    /// True when all GPUs are handed in.
    pub gpus: bool,
    /// Linux capabilities added, e.g. `IPC_LOCK`.
    pub capabilities: Vec<String>,
    /// Resource limits: name (`memlock`, `stack`) to bytes, -1 for no limit.
    pub ulimits: BTreeMap<String, i64>,
    /// Size of /dev/shm in bytes.
    pub shm_bytes: u64,
    /// `oom_score_adj` of the container, when the host may lower it.
    pub oom_score_adj: Option<i32>,
    /// Address the API listens on, on the node that serves it.
    pub api_host: String,
    /// Port of the API.
    pub api_port: u16,
    /// The model name that clients use.
    pub served_model: String,
    /// File with the API key on the node; only its name is ever stored.
    pub api_key_file: Option<String>,
    /// Seconds the engine gets to drain before it is killed.
    pub stop_secs: u32,
    /// Cache roots on the node, all derived from the lane's name.
    pub cache_roots: BTreeMap<String, String>,
}

/// `MemAvailable` must be at least this share of `MemTotal` and the margin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryGate {
    /// The engine's share (`--gpu-memory-utilization`), in millionths.
    pub share_ppm: u32,
    /// Bytes that must be free beside it.
    pub margin_bytes: u64,
    /// Seconds until the wait is a failure.
    pub wait_secs: u32,
}

/// Ray on one node, as the container's entry brings it up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ray {
    /// `ADDRESS:PORT` of the GCS, on the head's rail 1.
    pub gcs: String,
    /// Seconds until all nodes are in.
    pub join_secs: u32,
    /// What the head does besides; absent on a worker.
    pub head: Option<RayHead>,
}

/// Ray on the head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RayHead {
    /// Program and arguments that run GCS and raylet until they end.
    pub start: Vec<String>,
    /// Port of the dashboard on loopback; it answers who is in.
    pub dashboard_port: u16,
    /// Addresses on rail 1 of exactly the nodes that must be in, by rank.
    pub nodes: Vec<String>,
    /// GPUs that each of them must bring.
    pub gpus_per_node: u32,
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Path on the node.
    pub source: String,
    /// Path in the container.
    pub target: String,
    /// True when the container may not write.
    pub read_only: bool,
    /// True when the folder is made when missing.
    pub create: bool,
}

/// A file the generation places outside the store. Its content is `<closure><path>` (so `/etc/x` is `<closure>/etc/x`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManagedFile {
    /// Permission bits, e.g. 420 (0644).
    pub mode: u32,
    /// sha256 of the content, hex.
    pub sha256: String,
    /// What reads the file; decides validation and what follows a change.
    pub kind: FileKind,
}

/// What reads a managed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// systemd unit or drop-in: a change needs `daemon-reload`.
    Unit,
    /// netplan YAML.
    Netplan,
    /// sysctl.d.
    Sysctl,
    /// limits.d.
    Limits,
    /// tmpfiles.d.
    Tmpfiles,
    /// sudoers.d.
    Sudoers,
    /// sshd_config.d.
    Sshd,
    /// A script of nft that makes our table.
    Firewall,
    /// Anything else.
    Plain,
}

/// A declared check (design.md section 1).
// serde cannot refuse unknown fields beside a flattened enumeration: it would refuse the enumeration's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gate {
    /// Name, unique in the lane.
    pub name: String,
    /// Where it holds.
    pub scope: GateScope,
    /// Seconds until a gate that has not passed counts as failed.
    pub budget_secs: u32,
    /// Seconds between tries.
    pub interval_secs: u32,
    /// What is checked.
    #[serde(flatten)]
    pub kind: GateKind,
}

/// Where a gate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GateScope {
    /// On each node, after its units started.
    Node,
    /// On the head only, once all nodes passed theirs.
    Cluster,
}

/// What a gate checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase", tag = "kind")]
pub enum GateKind {
    /// A unit is active; `failed` ends the wait at once.
    Unit {
        /// Unit name with suffix.
        unit: String,
    },
    /// An HTTP GET answers with the status.
    Http {
        /// `http://host:port/path`.
        url: String,
        /// Expected status.
        status: u16,
    },
    /// A chat completion yields tokens; 200 with an empty answer fails.
    Tokens {
        /// Base, `http://host:port`.
        url: String,
        /// Model name in the request.
        model: String,
        /// User message.
        prompt: String,
        /// `max_tokens` of the request.
        max_tokens: u32,
        /// Fewest completion tokens that count.
        min_tokens: u32,
    },
    /// Nothing that `fabric verify` finds of this node alone fails.
    Fabric {
        /// The cluster file that says what must be, as the tool that made this generation knew it.
        cluster: serde_json::Value,
    },
}

/// Times, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Budgets {
    /// From start job to READY.
    pub start_secs: u32,
    /// From the vote to the commit; deploy-rs calls it confirm-timeout.
    pub confirm_secs: u32,
    /// For each warm-up request; 0 warms nothing up.
    #[serde(default)]
    pub warmup_secs: u32,
}

/// How a serving engine is watched. A change counts from the engine's next start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Watchdog {
    /// UDP port on the rails where the nodes' supervisors hear each other.
    #[serde(default = "peer_port")]
    pub port: u16,
    /// Seconds of silence of another node after which this one's rank is given up. Longer than a cable takes to be put back.
    #[serde(default = "peer_grace_secs")]
    pub peer_grace_secs: u32,
    /// Seconds between two canary requests; 0 sends none.
    #[serde(default = "canary_secs")]
    pub canary_secs: u32,
    /// Seconds a canary may take.
    #[serde(default = "canary_timeout_secs")]
    pub canary_timeout_secs: u32,
    /// Canaries in a row that must fail before the engine is started anew.
    #[serde(default = "canary_failures")]
    pub canary_failures: u32,
}

fn peer_port() -> u16 {
    25010
}

fn peer_grace_secs() -> u32 {
    60
}

fn canary_secs() -> u32 {
    60
}

fn canary_timeout_secs() -> u32 {
    90
}

fn canary_failures() -> u32 {
    2
}

impl Default for Watchdog {
    fn default() -> Self {
        Self {
            port: peer_port(),
            peer_grace_secs: peer_grace_secs(),
            canary_secs: canary_secs(),
            canary_timeout_secs: canary_timeout_secs(),
            canary_failures: canary_failures(),
        }
    }
}

impl Generation {
    /// Canonical bytes: compact JSON in declaration order with sorted maps. The generation id hashes them.
    ///
    /// # Errors
    /// Only when serde refuses the value, which no value of this type makes it do.
    pub fn canonical(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// Identity of the content: sha256 over canonical JSON, every managed file (path, mode, content hash are part of
    /// the JSON) and the hash of the node's binary. Store paths differ with the host that built them; this does not.
    ///
    /// # Errors
    /// As [`Generation::canonical`].
    pub fn id(&self, binary_sha256: &str) -> Result<GenerationId, serde_json::Error> {
        let mut hash = Sha256::new();
        hash.update(self.canonical()?);
        hash.update(b"\0binary\0");
        hash.update(binary_sha256.as_bytes());
        let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        GenerationId::try_from(hex).map_err(serde::ser::Error::custom)
    }

    /// Identity of what an engine runs with: two generations of one launch differ in gates, budgets, the watchdog's times or
    /// files only, and an engine serves on through a switch between them. The heartbeats' port is part of it: supervisors on
    /// two ports would never meet again.
    ///
    /// # Errors
    /// As [`Generation::canonical`].
    pub fn launch(&self) -> Result<String, serde_json::Error> {
        launch(&self.engine, &self.image, self.weights.as_ref(), self.rank, self.watchdog.port)
    }

    /// This node's entry among the peers.
    #[must_use]
    pub fn own(&self) -> Option<&Peer> {
        self.peers.iter().find(|p| p.node == self.node)
    }

    /// The node that decides transactions.
    #[must_use]
    pub fn head(&self) -> Option<&Peer> {
        self.peers.iter().find(|p| p.role.decides())
    }

    /// Seconds from the first change until an unconfirmed generation is given up: start, every gate, confirmation.
    #[must_use]
    pub fn activation_secs(&self) -> u64 {
        let gates: u64 = self.gates.iter().map(|g| u64::from(g.budget_secs)).sum();
        u64::from(self.budgets.start_secs) + gates + u64::from(self.budgets.confirm_secs)
    }
}

/// See [`Generation::launch`].
///
/// # Errors
/// As [`Generation::canonical`].
pub(crate) fn launch(
    engine: &Engine,
    image: &Image,
    weights: Option<&Weights>,
    rank: u32,
    port: u16,
) -> Result<String, serde_json::Error> {
    let parts = serde_json::to_vec(&(engine, image, weights, rank, port))?;
    Ok(crate::sha256_hex(&parts))
}
