//! The lane file: everything that defines one way of serving, except the machines (`nix/lanes/*.nix`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::generation::{GateScope, Watchdog};
use crate::ids::LaneName;

/// A lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Lane {
    /// Name; the file's name without `.nix`.
    pub name: LaneName,
    /// One line for people.
    pub description: String,
    /// Name of the image in the catalogue (`images/`).
    pub image: String,
    /// What is served.
    pub model: Model,
    /// How the ranks find each other.
    pub executor: Executor,
    /// Where the API listens.
    #[serde(default)]
    pub api: Api,
    /// Engine arguments; each key is the engine's flag in camelCase.
    #[serde(default)]
    pub serve: Serve,
    /// Environment beyond what the tool sets itself.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// How the container is made.
    #[serde(default)]
    pub container: Container,
    /// Memory that must be free before it starts.
    #[serde(default)]
    pub memory: MemoryMargin,
    /// Checks with budgets.
    pub gates: Vec<LaneGate>,
    /// Times, in seconds.
    pub budgets: LaneBudgets,
    /// How the serving engine is watched.
    #[serde(default)]
    pub watchdog: Watchdog,
}

/// What is served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Model {
    /// Path or name that the engine gets.
    pub path: String,
    /// Name that clients use.
    pub served_name: String,
    /// Name of the weights manifest (`nix/weights/`); its folder is mounted read-only at `path`.
    pub weights: Option<String>,
    /// Tokens that conversations should stay below, where the model goes wrong before `serve.maxModelLen`; what
    /// `sparklane lane clients` tells clients [default: nine tenths of it].
    pub fence_tokens: Option<u64>,
}

/// How the ranks find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Executor {
    /// A Ray cluster; the head runs its GCS.
    Ray {
        /// Port of the GCS on the head's rail 1; the five above it are Ray's other fixed ones.
        port: u16,
        /// Seconds until all nodes must be in Ray's session.
        #[serde(default = "join_secs")]
        join_secs: u32,
    },
    /// vLLM's own: one process group per node, rendezvous on the head.
    Mp {
        /// Rendezvous port on the head's rail 1.
        port: u16,
    },
}

/// Both containers start within a second of each other, and Ray takes 5 to 10 s when its files are cold.
fn join_secs() -> u32 {
    120
}

/// Where the API listens, on the head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Api {
    /// Address; anything but loopback needs `keyFile`.
    #[serde(default = "loopback")]
    pub host: String,
    /// Port.
    #[serde(default = "api_port")]
    pub port: u16,
    /// File with the API key on the head, mode 0600; only its name is stored.
    pub key_file: Option<String>,
}

fn loopback() -> String {
    "127.0.0.1".to_owned()
}

fn api_port() -> u16 {
    8000
}

impl Default for Api {
    fn default() -> Self {
        Self { host: loopback(), port: api_port(), key_file: None }
    }
}

/// Engine arguments. A key that is absent or null leaves the flag out; `false` renders `--no-…`. The order of the
/// fields is the order of the argument vector.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Serve {
    /// Allow the checkpoint's own code.
    pub trust_remote_code: Option<bool>,
    /// Ranks that share one layer.
    pub tensor_parallel_size: Option<u32>,
    /// Ranks that share the layers among them.
    pub pipeline_parallel_size: Option<u32>,
    /// KV cache type.
    pub kv_cache_dtype: Option<String>,
    /// Backend of the expert layers.
    pub moe_backend: Option<String>,
    /// Tokens per KV block.
    pub block_size: Option<u32>,
    /// Longest sequence, in tokens.
    pub max_model_len: Option<u64>,
    /// Sequences served at once.
    pub max_num_seqs: Option<u32>,
    /// Tokens per scheduler step.
    pub max_num_batched_tokens: Option<u32>,
    /// Prompts above it count as long and cannot starve short ones.
    pub long_prefill_token_threshold: Option<u32>,
    /// Seconds the engine drains on SIGTERM.
    pub shutdown_timeout: Option<u32>,
    /// Largest batch that runs as a CUDA graph.
    pub max_cudagraph_capture_size: Option<u32>,
    /// Share of the memory that the engine may use.
    pub gpu_memory_utilization: Option<f64>,
    /// Bytes of KV cache per rank; replaces the profiler's estimate.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Reuse the KV of equal prefixes.
    pub enable_prefix_caching: Option<bool>,
    /// Schedule the next step while one runs; three-valued since 0.26 (absent is on).
    pub async_scheduling: Option<bool>,
    /// Split long prompts over steps.
    pub enable_chunked_prefill: Option<bool>,
    /// Speculative decoding.
    pub speculative_config: Option<Speculative>,
    /// Tokenizer mode.
    pub tokenizer_mode: Option<String>,
    /// Tool-call parser.
    pub tool_call_parser: Option<String>,
    /// Let the model choose tools.
    pub enable_auto_tool_choice: Option<bool>,
    /// Reasoning parser.
    pub reasoning_parser: Option<String>,
    /// Reasoning markers, passed as JSON.
    pub reasoning_config: Option<Map<String, Value>>,
    /// Defaults of the chat template, passed as JSON.
    pub default_chat_template_kwargs: Option<Map<String, Value>>,
    /// Where sampling defaults come from.
    pub generation_config: Option<String>,
    /// Sampling defaults, passed as JSON.
    pub override_generation_config: Option<Map<String, Value>>,
    /// Tune FlashInfer's kernels at start.
    pub enable_flashinfer_autotune: Option<bool>,
    /// Arguments that have no key here, passed as they are.
    #[serde(default)]
    pub extra_args: Vec<String>,
}

/// Speculative decoding, as the engine's JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Speculative {
    /// Method, e.g. `dspark`.
    pub method: String,
    /// Draft tokens per step.
    pub num_speculative_tokens: u32,
    /// How drafts are sampled.
    pub draft_sample_method: Option<DraftSample>,
}

/// How draft tokens are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DraftSample {
    /// By probability.
    Probabilistic,
    /// The likeliest token.
    Greedy,
}

/// How the container is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Container {
    /// Hand in all GPUs.
    #[serde(default)]
    pub gpus: bool,
    /// Device nodes handed in where the cluster does not declare them absent.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Linux capabilities added.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Resource limits in bytes, -1 for none.
    #[serde(default)]
    pub ulimits: BTreeMap<String, i64>,
    /// Size of /dev/shm in bytes.
    #[serde(default = "shm_bytes")]
    pub shm_bytes: u64,
    /// `oom_score_adj` of the engine.
    pub oom_score_adj: Option<i32>,
}

fn shm_bytes() -> u64 {
    64 << 30
}

impl Default for Container {
    fn default() -> Self {
        Self {
            gpus: false,
            devices: Vec::new(),
            capabilities: Vec::new(),
            ulimits: BTreeMap::new(),
            shm_bytes: shm_bytes(),
            oom_score_adj: None,
        }
    }
}

/// Memory that must be free before the engine starts: `serve.gpuMemoryUtilization` of all, and a margin. Unified memory
/// is the host's too: an engine that starts into a full one dies in its rendezvous and takes its peer along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryMargin {
    /// Bytes beside the engine's share.
    #[serde(default = "margin_bytes")]
    pub margin_bytes: u64,
    /// Seconds that the start waits for it before it fails.
    #[serde(default = "memory_wait_secs")]
    pub wait_secs: u32,
}

fn margin_bytes() -> u64 {
    3 << 30
}

fn memory_wait_secs() -> u32 {
    600
}

impl Default for MemoryMargin {
    fn default() -> Self {
        Self { margin_bytes: margin_bytes(), wait_secs: memory_wait_secs() }
    }
}

/// A declared check of a lane; the tool adds the addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LaneGate {
    /// Name, unique in the lane.
    pub name: String,
    /// Where it holds.
    pub scope: GateScope,
    /// Seconds until a gate that has not passed counts as failed.
    pub budget_secs: u32,
    /// Seconds between tries.
    #[serde(default = "interval_secs")]
    pub interval_secs: u32,
    /// What is checked.
    pub check: GateCheck,
}

fn interval_secs() -> u32 {
    2
}

/// What a lane's gate checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum GateCheck {
    /// A unit is active.
    Unit {
        /// Unit name with suffix.
        unit: String,
    },
    /// The API answers a GET with the status.
    Http {
        /// Path, e.g. `/health`.
        path: String,
        /// Expected status.
        status: u16,
    },
    /// A chat completion yields tokens.
    Tokens {
        /// User message.
        prompt: String,
        /// Most tokens asked for.
        max_tokens: u32,
        /// Fewest tokens that count.
        min_tokens: u32,
    },
    /// What `sparklane fabric verify` finds of one node holds: limits, rails, packets of the whole MTU to every other node,
    /// listeners, the engine's container. Nothing that compares nodes.
    Fabric {},
}

/// Times of a lane, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LaneBudgets {
    /// From start job to READY.
    pub start_secs: u32,
    /// From the vote to the commit.
    pub confirm_secs: u32,
    /// To drain before the engine is killed.
    pub stop_secs: u32,
    /// For each warm-up request [default: startSecs]; 0 warms nothing up.
    pub warmup_secs: Option<u32>,
}
