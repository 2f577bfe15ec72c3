//! Rules between keys: what a schema cannot say. Each rule is a small function from its input to problems.

mod cluster;
mod engine;
mod service;

use crate::cluster::Cluster;
use crate::problem::Problem;
use crate::render::Input;

type Rule = fn(&Input<'_>) -> Vec<Problem>;

const LANE_RULES: &[Rule] = &[
    engine::ranks_match_nodes,
    engine::capture_covers_decode,
    engine::speculation_is_known,
    engine::kv_pin_is_whole_blocks,
    engine::memory_is_enough,
    engine::batches_hold_sequences,
    engine::fence_is_within,
    engine::async_scheduling_is_said,
    engine::extra_args_are_extra,
    engine::executor_is_in_image,
    engine::rays_ports_are_free,
    service::description_is_a_line,
    service::served_name_is_plain,
    service::api_is_guarded,
    service::env_is_ours_to_set,
    service::env_means_something,
    service::env_is_harmless,
    service::env_is_no_secret,
    service::gates_make_sense,
    service::budgets_fit,
    service::waits_fit_the_start,
    service::watchdog_fits,
    service::drain_fits,
];

/// Checks a lane on a cluster.
#[must_use]
pub fn check(input: &Input<'_>) -> Vec<Problem> {
    LANE_RULES.iter().flat_map(|rule| rule(input)).collect()
}

/// Checks a cluster by itself.
#[must_use]
pub fn check_cluster(cluster: &Cluster) -> Vec<Problem> {
    cluster::RULES.iter().flat_map(|rule| rule(cluster)).collect()
}

/// True when the lane's image runs on all of the cluster's machines.
#[must_use]
pub fn fits(input: &Input<'_>) -> bool {
    input.cluster.nodes.values().all(|n| input.image.systems.contains(&n.system))
}

#[cfg(test)]
pub(crate) mod fixture {
    //! A sound lane to break one rule at a time.

    use serde_json::json;

    use crate::cluster::Cluster;
    use crate::image::ImageSpec;
    use crate::lane::Lane;
    use crate::problem::{Problem, Severity};
    use crate::reader::read;
    use crate::render::{Input, WeightsRef};
    use crate::weights::{WeightsFile, WeightsManifest};

    /// The parts of a lane's input, owned.
    pub(crate) struct Case {
        pub cluster: Cluster,
        pub lane: Lane,
        pub image: ImageSpec,
        pub weights: Option<WeightsRef>,
    }

    pub(crate) fn case() -> Case {
        let rail = |n: u8, host: u8| json!({"netdev": format!("rail{n}"), "rdma": format!("roce{n}"), "address": format!("10.0.{n}.{host}")});
        let node = |role: &str, rank: u8, host: u8| {
            json!({"role": role, "rank": rank, "system": "aarch64-linux", "host": format!("10.9.0.{host}"),
                   "rail1": rail(1, host), "rail2": rail(2, host), "memoryBytes": 100u64 << 30})
        };
        let cluster = json!({"name": "c", "description": "", "defaultLane": "l", "buildSystem": "x86_64-linux",
            "ssh": {"user": "operator"}, "nodes": {"head": node("head", 0, 1), "worker": node("worker", 1, 2)}});
        let lane = json!({"name": "l", "description": "", "image": "i", "executor": {"kind": "mp", "port": 25000},
            "model": {"path": "/models/m", "servedName": "m", "weights": "w"},
            "serve": {"tensorParallelSize": 2, "maxNumSeqs": 6, "maxCudagraphCaptureSize": 48, "gpuMemoryUtilization": 0.85,
                "asyncScheduling": true, "maxNumBatchedTokens": 8192,
                "speculativeConfig": {"method": "dspark", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}},
            "gates": [{"name": "tokens", "scope": "cluster", "budgetSecs": 20,
                "check": {"kind": "tokens", "prompt": "hi", "maxTokens": 8, "minTokens": 1}}],
            "budgets": {"startSecs": 900, "confirmSecs": 30, "stopSecs": 40}});
        let image = json!({"name": "i", "description": "", "reference": "r", "systems": ["aarch64-linux"], "vllm": "0.25.2",
            "serve": ["/usr/local/bin/vllm", "serve"], "ray": "/usr/local/bin/ray", "kvBlockBytes": 1000,
            "env": {"registered": ["NCCL_*"], "ignored": ["VLLM_OLD"], "forbidden": ["VLLM_BAD=1"]},
            "speculation": [{"method": "dspark", "min": 1, "max": 7, "sampling": ["probabilistic"]}]});
        let file = WeightsFile { path: "a".into(), size: 100 << 30, sha256: "0".repeat(64) };
        let manifest = WeightsManifest { model: "a/b".into(), revision: "0".repeat(40), files: vec![file] };
        let weights = Some(WeightsRef { name: "w".into(), manifest, id: "0".repeat(64) });
        Case { cluster: read(&cluster).unwrap(), lane: read(&lane).unwrap(), image: read(&image).unwrap(), weights }
    }

    impl Case {
        pub(crate) fn input(&self) -> Input<'_> {
            Input { cluster: &self.cluster, lane: &self.lane, image: &self.image, weights: self.weights.as_ref() }
        }

        /// Problems as (severity, path).
        pub(crate) fn found(&self) -> Vec<(Severity, String)> {
            brief(super::check(&self.input()))
        }
    }

    pub(crate) fn brief(problems: Vec<Problem>) -> Vec<(Severity, String)> {
        problems.into_iter().map(|p| (p.severity, p.path)).collect()
    }

    #[test]
    fn the_sound_lane_is_sound() {
        assert_eq!(case().found(), []);
        assert_eq!(super::check_cluster(&case().cluster), []);
    }
}
