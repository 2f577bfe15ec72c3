//! The environment of a rank.

use std::collections::BTreeMap;

use super::{Input, STATE};
use crate::cluster::{Absent, Node};
use crate::image::EnvMeaning;
use crate::lane::{Executor, Lane};

/// Compile caches: the variable that moves each, and the name of its folder. A cache made by one image's sources must
/// never be read by another's, so each lane has its own.
pub const CACHE_KINDS: [(&str, &str); 4] = [
    ("FLASHINFER_WORKSPACE_BASE", "flashinfer"),
    ("TILELANG_CACHE_DIR", "tilelang"),
    ("TRITON_CACHE_DIR", "triton"),
    ("VLLM_CACHE_ROOT", "vllm"),
];

/// Names that follow from the cluster or the lane's name and that no lane may set.
pub const SET_BY_TOOL: [&str; 11] = [
    "VLLM_HOST_IP",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "HF_HUB_OFFLINE",
    "FLASHINFER_WORKSPACE_BASE",
    "TILELANG_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "VLLM_CACHE_ROOT",
    "RAY_memory_monitor_refresh_ms",
    "RAY_worker_oom_score_adjustment",
];

/// What Ray must be told on every node. Its memory monitor takes the GPU's share of a unified memory for a leak, and it
/// offers its workers, which are the ranks, to the kernel as first victims.
pub const RAY_ENV: [(&str, &str); 2] =
    [("RAY_memory_monitor_refresh_ms", "0"), ("RAY_worker_oom_score_adjustment", "0")];

/// Renders the environment of one node: the image's layout, the lane's wishes, then the facts of the cluster.
pub(super) fn render(input: Input<'_>, node: &Node) -> BTreeMap<String, String> {
    let Input { cluster, lane, image, .. } = input;
    let mut env = image.environment.clone();
    let wishes = lane.env.iter().filter(|(name, _)| image.env_meaning(name) != EnvMeaning::Ignored);
    env.extend(wishes.map(|(name, value)| (name.clone(), value.clone())));
    let mut set = |name: &str, value: String| env.insert(name.to_owned(), value);
    set("VLLM_HOST_IP", node.rail1.address.clone());
    set("NCCL_SOCKET_IFNAME", node.rail1.netdev.clone());
    set("GLOO_SOCKET_IFNAME", node.rail1.netdev.clone());
    set("HF_HUB_OFFLINE", "1".to_owned());
    if cluster.has(Absent::Rdma) {
        let devices: Vec<&str> = [&node.rail1, &node.rail2].into_iter().filter_map(|r| r.rdma.as_deref()).collect();
        set("NCCL_IB_HCA", devices.join(","));
    }
    for (variable, kind) in CACHE_KINDS {
        set(variable, cache_target(kind));
    }
    if let Executor::Ray { .. } = lane.executor {
        env.extend(RAY_ENV.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    env
}

/// Cache folders on the node by kind.
pub(super) fn cache_roots(lane: &Lane) -> BTreeMap<String, String> {
    CACHE_KINDS.iter().map(|(_, kind)| ((*kind).to_owned(), format!("{STATE}/cache/{}/{kind}", lane.name))).collect()
}

/// Where a cache is in the container.
pub(super) fn cache_target(kind: &str) -> String {
    format!("/cache/{kind}")
}
