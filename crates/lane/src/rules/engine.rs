//! Rules about what the engine is told.

use crate::formulas::{capture_size, kv_blocks, memory_budget};
use crate::image::SpeculationRange;
use crate::lane::Executor;
use crate::problem::{Problem, closest};
use crate::render::{ACTOR_PORTS, Input, NEXT_PORTS, OTHER_PORTS, flags_of};

/// Every node is one rank: tensor × pipeline parallel size = nodes.
pub(super) fn ranks_match_nodes(input: &Input<'_>) -> Vec<Problem> {
    let serve = &input.lane.serve;
    let tensor = u64::from(serve.tensor_parallel_size.unwrap_or(1));
    let ranks = tensor * u64::from(serve.pipeline_parallel_size.unwrap_or(1));
    let nodes = input.cluster.nodes.len() as u64;
    if ranks == nodes {
        return Vec::new();
    }
    vec![Problem::error("serve.tensorParallelSize", format!("makes {ranks} ranks, the cluster has {nodes} nodes"))]
}

/// A batch larger than the largest captured one runs without CUDA graphs.
pub(super) fn capture_covers_decode(input: &Input<'_>) -> Vec<Problem> {
    let serve = &input.lane.serve;
    let (Some(capture), Some(seqs)) = (serve.max_cudagraph_capture_size, serve.max_num_seqs) else {
        return Vec::new();
    };
    let Some(series) = input.image.vllm_series() else {
        return Vec::new();
    };
    let draft = serve.speculative_config.as_ref().map_or(0, |s| s.num_speculative_tokens);
    let needed = capture_size(series, seqs, draft);
    if u64::from(capture) >= needed {
        return Vec::new();
    }
    let what = format!("is {capture}: {seqs} sequences with {draft} drafted tokens leave CUDA graphs");
    vec![Problem::warning("serve.maxCudagraphCaptureSize", what).suggest(format!("use {needed}"))]
}

/// Method, depth and draft sampling are ones that the image can do.
pub(super) fn speculation_is_known(input: &Input<'_>) -> Vec<Problem> {
    let Some(wanted) = &input.lane.serve.speculative_config else {
        return Vec::new();
    };
    let at = "serve.speculativeConfig";
    let known = &input.image.speculation;
    let Some(range) = known.iter().find(|r| r.method == wanted.method) else {
        let names: Vec<&str> = known.iter().map(|r| r.method.as_str()).collect();
        let what = format!("image {} knows: {}", input.image.name, names.join(", "));
        let problem = Problem::error(format!("{at}.method"), what);
        return vec![match closest(&wanted.method, names) {
            Some(near) => problem.suggest(format!("did you mean `{near}`?")),
            None => problem,
        }];
    };
    let mut problems = Vec::new();
    let SpeculationRange { min, max, sampling, .. } = range;
    let depth = wanted.num_speculative_tokens;
    if !(*min..=*max).contains(&depth) {
        let what = format!("is {depth}, image {} allows {min} to {max}", input.image.name);
        problems.push(Problem::error(format!("{at}.num_speculative_tokens"), what));
    }
    if wanted.draft_sample_method.is_some_and(|m| !sampling.contains(&m)) {
        let what = format!("is not known to work on image {}", input.image.name);
        problems.push(Problem::error(format!("{at}.draft_sample_method"), what));
    }
    problems
}

/// A pinned KV cache is cut into blocks; what no block fills is lost.
pub(super) fn kv_pin_is_whole_blocks(input: &Input<'_>) -> Vec<Problem> {
    let (Some(pinned), Some(block)) = (input.lane.serve.kv_cache_memory_bytes, input.image.kv_block_bytes) else {
        return Vec::new();
    };
    let at = "serve.kvCacheMemoryBytes";
    match kv_blocks(pinned, block) {
        Some((0, _)) | None => vec![Problem::error(at, format!("is less than one block of {block} bytes"))],
        Some((_, 0)) => Vec::new(),
        Some((blocks, unused)) => {
            vec![Problem::note(at, format!("is {blocks} blocks of {block} bytes; {unused} bytes stay unused"))]
        }
    }
}

/// Weights and pinned KV cache of a rank stay within the share of the memory that the engine may use.
pub(super) fn memory_is_enough(input: &Input<'_>) -> Vec<Problem> {
    let serve = &input.lane.serve;
    let Some(share) = serve.gpu_memory_utilization else {
        return Vec::new();
    };
    if !(share > 0.0 && share <= 1.0) {
        return vec![Problem::error(
            "serve.gpuMemoryUtilization",
            format!("is {share}, expected more than 0, at most 1"),
        )];
    }
    let ranks = input.cluster.nodes.len().max(1) as u64;
    let weights = input.weights.map_or(0, |w| w.manifest.bytes()) / ranks;
    let pinned = serve.kv_cache_memory_bytes.unwrap_or(0);
    let needed = weights.saturating_add(pinned);
    let Some(memory) = input.cluster.nodes.values().filter_map(|n| n.memory_bytes).min() else {
        return Vec::new();
    };
    let budget = memory_budget(memory, share);
    if needed <= budget {
        return Vec::new();
    }
    let at =
        if serve.kv_cache_memory_bytes.is_some() { "serve.kvCacheMemoryBytes" } else { "serve.gpuMemoryUtilization" };
    let what = format!(
        "needs {needed} bytes per node (weights {weights}, KV cache {pinned}), {share} of the smallest node is {budget}"
    );
    vec![Problem::error(at, what)]
}

/// vLLM refuses a step that cannot hold one token of every sequence.
pub(super) fn batches_hold_sequences(input: &Input<'_>) -> Vec<Problem> {
    let serve = &input.lane.serve;
    let mut problems = Vec::new();
    for (key, value) in [("maxNumSeqs", serve.max_num_seqs), ("maxNumBatchedTokens", serve.max_num_batched_tokens)] {
        if value == Some(0) {
            problems.push(Problem::error(format!("serve.{key}"), "is 0"));
        }
    }
    if let (Some(seqs), Some(tokens)) = (serve.max_num_seqs, serve.max_num_batched_tokens)
        && tokens < seqs
    {
        let what = format!("is {tokens}, less than maxNumSeqs {seqs}");
        problems.push(Problem::error("serve.maxNumBatchedTokens", what));
    }
    problems
}

/// Clients are told to stay below it, so it has to be one that they can reach.
pub(super) fn fence_is_within(input: &Input<'_>) -> Vec<Problem> {
    let most = input.lane.serve.max_model_len.unwrap_or(u64::MAX);
    let fence = input.lane.model.fence_tokens.filter(|fence| *fence == 0 || *fence > most);
    let what = |fence| format!("is {fence}, not between 1 and the longest sequence {most}");
    fence.map(|fence| Problem::error("model.fenceTokens", what(fence))).into_iter().collect()
}

/// Since 0.26 leaving the flag out turns asynchronous scheduling on.
pub(super) fn async_scheduling_is_said(input: &Input<'_>) -> Vec<Problem> {
    let three_valued = input.image.vllm_series().is_some_and(|series| series >= (0, 26));
    if !three_valued || input.lane.serve.async_scheduling.is_some() {
        return Vec::new();
    }
    let what = format!("is absent, which vLLM {} takes for true", input.image.vllm);
    vec![Problem::warning("serve.asyncScheduling", what).suggest("say true or false")]
}

/// Flags that the tool renders, from keys or from the cluster, cannot be repeated: the engine takes the last one.
pub(super) fn extra_args_are_extra(input: &Input<'_>) -> Vec<Problem> {
    const FROM_ELSEWHERE: [(&str, &str); 11] = [
        ("--served-model-name", "model.servedName"),
        ("--host", "api.host"),
        ("--port", "api.port"),
        ("--api-key", "api.keyFile"),
        ("--distributed-executor-backend", "executor.kind"),
        ("--nnodes", "the cluster's nodes"),
        ("--node-rank", "the node's rank"),
        ("--master-addr", "the head's rail 1"),
        ("--master-port", "executor.port"),
        ("--headless", "the node's role"),
        ("--model", "model.path"),
    ];
    let serve = &input.lane.serve;
    let keyed = flags_of(serve);
    let mut problems = Vec::new();
    for (n, arg) in serve.extra_args.iter().enumerate() {
        let at = format!("serve.extraArgs[{n}]");
        let flag = arg.split('=').next().unwrap_or(arg);
        if let Some((_, source)) = FROM_ELSEWHERE.iter().find(|(name, _)| *name == flag) {
            problems.push(Problem::error(at, format!("{flag} comes from {source}")));
        } else if flag.starts_with("--") && keyed.iter().any(|k| k == flag) {
            problems.push(Problem::error(at, format!("{flag} is set by a key of serve")));
        }
    }
    problems
}

/// A Ray lane needs Ray in its image; vLLM's own multi-node start is there from 0.21 on.
pub(super) fn executor_is_in_image(input: &Input<'_>) -> Vec<Problem> {
    match input.lane.executor {
        Executor::Ray { .. } if input.image.ray.is_none() => {
            vec![Problem::error("executor.kind", format!("is ray, image {} has no ray", input.image.name))]
        }
        _ => Vec::new(),
    }
}

/// Ray's fixed ports are free of each other's and of the API's.
pub(super) fn rays_ports_are_free(input: &Input<'_>) -> Vec<Problem> {
    let Executor::Ray { port, .. } = input.lane.executor else {
        return Vec::new();
    };
    let own = port..=port.saturating_add(NEXT_PORTS.len() as u16);
    let others = OTHER_PORTS.into_iter().chain([input.lane.api.port, input.lane.watchdog.port]);
    let taken = others.into_iter().find(|p| own.contains(p));
    let what = match taken {
        Some(taken) => format!("is {port}: it and the five ports above it are Ray's, {taken} is taken"),
        None if ACTOR_PORTS.contains(own.start()) || ACTOR_PORTS.contains(own.end()) => {
            format!("is {port}: Ray's actors have {} to {}", ACTOR_PORTS.start(), ACTOR_PORTS.end())
        }
        None if port < 1024 || own.end() - own.start() < NEXT_PORTS.len() as u16 => {
            format!("is {port}, expected 1024 to {}", u16::MAX - NEXT_PORTS.len() as u16)
        }
        None => return Vec::new(),
    };
    vec![Problem::error("executor.port", what)]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::case;
    use crate::lane::DraftSample;
    use crate::problem::Severity::{Error, Note, Warning};

    #[test]
    fn ranks() {
        let mut case = case();
        case.lane.serve.tensor_parallel_size = Some(4);
        assert_eq!(case.found(), [(Error, "serve.tensorParallelSize".into())]);
    }

    #[test]
    fn capture() {
        let mut case = case();
        case.lane.serve.max_cudagraph_capture_size = Some(24);
        assert_eq!(case.found(), [(Warning, "serve.maxCudagraphCaptureSize".into())]);
        case.image.vllm = "0.21.0".into();
        assert_eq!(case.found(), []);
        case.lane.serve.max_cudagraph_capture_size = Some(23);
        assert_eq!(case.found(), [(Warning, "serve.maxCudagraphCaptureSize".into())]);
    }

    #[test]
    fn speculation() {
        let mut case = case();
        let config = case.lane.serve.speculative_config.as_mut().unwrap();
        config.num_speculative_tokens = 8;
        config.draft_sample_method = Some(DraftSample::Greedy);
        case.lane.serve.max_cudagraph_capture_size = None;
        let at = "serve.speculativeConfig";
        assert_eq!(
            case.found(),
            [(Error, format!("{at}.num_speculative_tokens")), (Error, format!("{at}.draft_sample_method"))]
        );
        case.lane.serve.speculative_config.as_mut().unwrap().method = "dsprak".into();
        let problems = super::speculation_is_known(&case.input());
        assert_eq!(problems[0].suggestion.as_deref(), Some("did you mean `dspark`?"));
    }

    #[test]
    fn kv_pin() {
        let mut case = case();
        case.lane.serve.kv_cache_memory_bytes = Some(1500);
        assert_eq!(case.found(), [(Note, "serve.kvCacheMemoryBytes".into())]);
        case.lane.serve.kv_cache_memory_bytes = Some(2000);
        assert_eq!(case.found(), []);
        case.lane.serve.kv_cache_memory_bytes = Some(999);
        assert_eq!(case.found(), [(Error, "serve.kvCacheMemoryBytes".into())]);
    }

    #[test]
    fn memory() {
        let mut case = case();
        // 50 GiB of weights per node; 35 GiB more is all that 0.85 of 100 GiB leaves.
        case.image.kv_block_bytes = None;
        case.lane.serve.kv_cache_memory_bytes = Some(35 << 30);
        assert_eq!(case.found(), []);
        case.lane.serve.kv_cache_memory_bytes = Some((35 << 30) + 1);
        assert_eq!(case.found(), [(Error, "serve.kvCacheMemoryBytes".into())]);
        case.lane.serve.gpu_memory_utilization = Some(1.2);
        assert_eq!(case.found(), [(Error, "serve.gpuMemoryUtilization".into())]);
    }

    #[test]
    fn fences() {
        for fence in [0, 4097] {
            let mut case = case();
            case.lane.serve.max_model_len = Some(4096);
            case.lane.model.fence_tokens = Some(fence);
            assert_eq!(case.found(), [(Error, "model.fenceTokens".into())]);
        }
    }

    #[test]
    fn batches() {
        let mut case = case();
        case.lane.serve.max_num_batched_tokens = Some(5);
        assert_eq!(case.found(), [(Error, "serve.maxNumBatchedTokens".into())]);
    }

    #[test]
    fn async_scheduling() {
        let mut case = case();
        case.lane.serve.async_scheduling = None;
        assert_eq!(case.found(), []);
        case.image.vllm = "0.26.0".into();
        assert_eq!(case.found(), [(Warning, "serve.asyncScheduling".into())]);
    }

    #[test]
    fn extra_args() {
        let mut case = case();
        case.lane.serve.extra_args =
            ["--new-flag", "3", "--master-addr=1.2.3.4", "--max-num-seqs"].map(Into::into).to_vec();
        assert_eq!(case.found(), [(Error, "serve.extraArgs[2]".into()), (Error, "serve.extraArgs[3]".into())]);
    }

    #[test]
    fn executor() {
        let mut case = case();
        case.lane.executor = crate::lane::Executor::Ray { port: 6379, join_secs: 60 };
        assert_eq!(case.found(), []);
        case.image.ray = None;
        assert_eq!(case.found(), [(Error, "executor.kind".into())]);
    }

    #[test]
    fn ray_ports() {
        let mut case = case();
        for (port, bad) in
            [(6379, false), (8260, true), (7995, true), (7994, false), (20_500, true), (65_531, true), (80, true)]
        {
            case.lane.executor = crate::lane::Executor::Ray { port, join_secs: 60 };
            let found = if bad { vec![(Error, "executor.port".into())] } else { vec![] };
            assert_eq!(case.found(), found, "{port}");
        }
    }
}
