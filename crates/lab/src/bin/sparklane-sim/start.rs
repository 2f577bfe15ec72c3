//! From the command line to a loaded rank, with vLLM's log lines on the way.

use std::process::ExitCode;
use std::time::Duration;

use crate::args::Config;
use crate::fail::{Fail, Fails};
use crate::log::{Who, error, info};
use crate::peer::{Dead, Head, Peers};

/// The rank ended before it served: with this exit code.
pub struct Ended(pub ExitCode);

impl From<Dead> for Ended {
    fn from(_: Dead) -> Self {
        eprintln!("RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}");
        Self(ExitCode::from(1))
    }
}

/// Ends when a crash is asked for in this phase.
pub fn crash(fails: &Fails, phase: &'static str) -> Result<(), Ended> {
    if fails.has(&Fail::CrashAt(phase)) {
        eprintln!("RuntimeError: sparklane-sim: asked to crash at {phase}");
        return Err(Dead.into());
    }
    Ok(())
}

/// The lines up to the rendezvous.
pub fn announce(config: &Config, fails: &Fails) -> Result<(), Ended> {
    let who = if config.rank == 0 { Who::Api } else { Who::Main };
    if config.rank == 0 {
        info(who, "api_utils.py:347", "       █     █     █▄   ▄█");
        info(who, "api_utils.py:347", " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0");
        info(who, "api_utils.py:347", &format!("  █▄█▀ █     █     █     █  model   {}", config.model));
        info(who, "api_utils.py:286", &format!("non-default args: {:?}", redacted(config)));
    }
    crash(fails, "start")?;
    if let Some(lines) = fails.exit_lines() {
        println!("Traceback (most recent call last):");
        eprintln!("{}", lines.replace("{model}", &config.model));
        return Err(Ended(ExitCode::from(1)));
    }
    info(who, "model.py:733", "Resolved architecture: SparklaneSimulator");
    info(who, "model.py:2152", &format!("Using max model len {}", config.max_model_len));
    let (address, port) = &config.master;
    if config.rank == 0 {
        let text = format!("Initializing a V1 LLM engine (v0.32.0) with config: model='{}'", config.model);
        info(Who::Core, "core.py:133", &text);
        let text = format!(
            "DP group leader: node_rank=0, node_rank_within_dp=0, master_addr={address}, mq_connect_ip={address} (local), \
             world_size={}, local_world_size=1",
            config.nodes
        );
        info(Who::Core, "multiproc_executor.py:153", &text);
    } else {
        let text = format!(
            "Launching vLLM (v0.32.0) headless multiproc executor, with head node address {address}:{port} for \
             torch.distributed process group."
        );
        info(who, "serve.py:224", &text);
    }
    crash(fails, "wait-peer")?;
    let text = format!(
        "world_size={} rank={} local_rank=0 distributed_init_method=tcp://{address}:{port} backend=gloo",
        config.nodes, config.rank
    );
    info(Who::Worker, "parallel_state.py:1906", &text);
    Ok(())
}

/// The flags for the log; keys never enter it.
fn redacted(config: &Config) -> Vec<(&String, Vec<&str>)> {
    let hide = |name: &str| name == "--api-key";
    config
        .given
        .iter()
        .map(|(name, values)| (name, values.iter().map(|v| if hide(name) { "REDACTED" } else { v.as_str() }).collect()))
        .collect()
}

/// Loads after the rendezvous: weights 60 %, KV cache 20 %, warm-up 20 % of the time.
pub async fn load(config: &Config, fails: &Fails) -> Result<(), Ended> {
    let (rank, nodes) = (config.rank, config.nodes);
    let worker = Who::Rank(rank);
    let text = format!(
        "rank {rank} in world size {nodes} is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank {rank}, ETP rank 0, \
         EP rank N/A, EPLB rank N/A"
    );
    info(Who::Worker, "parallel_state.py:2350", &text);
    info(worker, "cpu_model_runner.py:68", &format!("Starting to load model {}...", config.model));
    crash(fails, "load-weights")?;
    let weights = config.load.mul_f64(0.6) + fails.slow();
    for shard in 0..=3_u32 {
        if rank == 0 {
            let percent = shard * 100 / 3;
            eprintln!(
                "Loading safetensors checkpoint shards: {percent:3}% Completed | {shard}/3 [00:00<00:00, 1.00it/s]"
            );
        }
        if shard < 3 {
            tokio::time::sleep(weights / 3).await;
        }
    }
    info(worker, "default_loader.py:501", &format!("Loading weights took {:.2} seconds", weights.as_secs_f32()));
    crash(fails, "kv-cache")?;
    tokio::time::sleep(config.load.mul_f64(0.2)).await;
    info(worker, "cpu_worker.py:260", "Explicitly set (0.06/23.54) GiB for KV cache on node 0.");
    if rank == 0 {
        let length = config.max_model_len;
        let text =
            format!("CPU KV cache size: 131,072 tokens, Maximum concurrency for {length} tokens per request: 64.00x");
        info(Who::Core, "kv_cache_utils.py:2327", &text);
    }
    crash(fails, "warmup")?;
    tokio::time::sleep(config.load.mul_f64(0.2)).await;
    if !config.given.contains_key("--enforce-eager") {
        info(worker, "gpu_model_runner.py:5401", "Graph capturing finished in 0 secs, took 0.00 GiB");
    }
    Ok(())
}

/// Rank 0 up to the moment it can serve.
pub async fn head(config: &Config, fails: &Fails) -> Result<Peers, Ended> {
    announce(config, fails)?;
    let mut peers = Peers::wait(config.master.1, config.nodes).await.map_err(|e| {
        eprintln!("torch.distributed.DistNetworkError: the server socket has failed to listen: {e}");
        Ended(ExitCode::from(1))
    })?;
    load(config, fails).await?;
    if peers.loaded().await.is_err() {
        error(
            Who::Core,
            "multiproc_executor.py:315",
            "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
        );
        return Err(Dead.into());
    }
    info(Who::Core, "core.py:402", "init engine (profile, create kv cache, warmup model) took 0.83 s");
    info(Who::Api, "entry.py:136", "Supported tasks: ['generate']");
    Ok(peers)
}

/// Any other rank, up to its end.
pub async fn headless(config: &Config, fails: &Fails) -> Result<(), Ended> {
    announce(config, fails)?;
    let mut head = Head::join(&config.master, config.rank).await;
    tokio::select! {
        loaded = load(config, fails) => loaded?,
        () = async { while !head.gone().await { tokio::time::sleep(Duration::from_millis(50)).await } } => {
            return Err(Dead.into());
        }
    }
    head.loaded().await?;
    tokio::select! {
        () = head.serve() => Ok(()),
        () = death(fails) => {
            let text = format!("Worker proc VllmWorker-{} died unexpectedly (exit code: -9), shutting down executor.", config.rank);
            error(Who::Main, "multiproc_executor.py:315", &text);
            // vLLM's code for it is 0.
            Ok(())
        }
    }
}

/// Waits until a test asks for this rank's death.
async fn death(fails: &Fails) {
    while !fails.has(&Fail::PeerDeath) && !fails.has(&Fail::CrashAt("serving")) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
