//! `sparklane-sim`: an engine without a model that keeps vLLM's contract, for the lab.
//!
//! Two ranks with their rendezvous, load phases with vLLM's log lines, the OpenAI API, `/metrics` under vLLM's names, vLLM's
//! exit codes (0 when a rank died!) and failure modes on demand. What it answers was captured from a real vLLM 0.32.0;
//! `tests/sim_conformance.rs` replays that.

mod answer;
mod api;
mod args;
mod bench;
mod engine;
mod fail;
mod log;
mod metrics;
mod peer;
mod start;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Config, Usage};
use crate::engine::{Engine, Life};
use crate::fail::{Fail, Fails};
use crate::log::{Who, error, info, server};
use crate::start::Ended;

const HELP: &str =
    "sparklane-sim serve MODEL [vLLM's flags] [--sim-load-secs S] [--sim-stop-secs S] [--sim-token-ms MS] \
[--sim-fail MODE]... [--sim-fail-file FILE]

Failure modes (also read live, one or more words, from /sim/fail):
  slow-load[=SECS]  crash-at-{start,wait-peer,load-weights,kv-cache,warmup,serving}  no-tokens  garble  hang  refuse  full  peer-death
  missing-model  bad-config  too-long  corrupt-shard  missing-shard  kv-too-small";

fn main() -> ExitCode {
    let argv: Vec<String> = std::env::args().skip(1).collect();
    match argv.first().map(String::as_str) {
        Some("nccl-bench") => return bench::run(&argv[1..]),
        Some("serve") if !argv.iter().any(|a| a == "--help" || a == "-h") => {}
        Some("--version" | "-v") => {
            println!("0.32.0");
            return ExitCode::SUCCESS;
        }
        Some("--help" | "-h" | "serve") => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    }
    let config = match Config::parse(&argv[1..]) {
        Ok(config) => config,
        Err(Usage(text)) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("sparklane-sim: no runtime: {e}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(run(config));
    // Connections that hang are no reason to stay.
    runtime.shutdown_background();
    code
}

/// Waits for SIGTERM or SIGINT; as process 1 of a container we get them only when we ask for them.
async fn told_to_stop() {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

async fn run(config: Config) -> ExitCode {
    let fails = Fails::new(config.fails.clone(), config.fail_file.clone().into());
    let mut stop = std::pin::pin!(told_to_stop());
    if config.rank > 0 || config.headless {
        return tokio::select! {
            ended = start::headless(&config, &fails) => ended.map_or_else(|Ended(code)| code, |()| ExitCode::SUCCESS),
            () = &mut stop => {
                let text = "[shutdown] Executor: waiting for worker exit count=1";
                info(Who::Main, "multiproc_executor.py:479", text);
                tokio::time::sleep(config.stop).await;
                ExitCode::SUCCESS
            }
        };
    }
    // vLLM takes its port first, and listens on it last.
    let socket = match bind(&config) {
        Ok(socket) => socket,
        Err(e) => {
            eprintln!("OSError: [Errno {}] {e}", e.raw_os_error().unwrap_or(0));
            return ExitCode::from(1);
        }
    };
    let peers = tokio::select! {
        peers = start::head(&config, &fails) => match peers {
            Ok(peers) => peers,
            Err(Ended(code)) => return code,
        },
        () = &mut stop => return ExitCode::SUCCESS,
    };
    let engine = Engine::new(config, fails, peers);
    let listener = match socket.listen(1024) {
        Ok(listener) => listener,
        Err(e) => {
            eprintln!("OSError: {e}");
            return ExitCode::from(1);
        }
    };
    info(
        Who::Api,
        "entry.py:140",
        &format!("Starting vLLM server on http://{}:{}", engine.config.host, engine.config.port),
    );
    info(Who::Api, "launcher.py:186", "Available routes are:");
    for (path, methods) in api::ROUTES {
        info(Who::Api, "launcher.py:195", &format!("Route: {path}, Methods: {methods}"));
    }
    server(&format!("Started server process [{}]", std::process::id()));
    server("Waiting for application startup.");
    server("Application startup complete.");
    // Its own task: it goes on answering while this one shuts down.
    let router = api::router(engine.clone());
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });
    tokio::select! {
        result = serving => {
            eprintln!("sparklane-sim: the server ended: {result:?}");
            ExitCode::from(1)
        }
        () = &mut stop => shut_down(&engine).await,
        () = engine.died() => dead(&engine).await,
        () = crash(&engine) => dead(&engine).await,
    }
}

fn bind(config: &Config) -> std::io::Result<TcpSocket> {
    let address = format!("{}:{}", config.host, config.port);
    let address = address.parse().map_err(|_| std::io::Error::other(format!("{address} is no address")))?;
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Waits until a test asks for the engine's death.
async fn crash(engine: &Arc<Engine>) {
    while !engine.fails.has(&Fail::CrashAt("serving")) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A rank has died: running requests get 500, and a second later the exit code is 0.
async fn dead(engine: &Arc<Engine>) -> ExitCode {
    engine.set_life(Life::Dead);
    let text = "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.";
    error(Who::Core, "multiproc_executor.py:315", text);
    let text = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the \
                root cause.";
    error(Who::Api, "async_llm.py:906", text);
    tokio::time::sleep(Duration::from_secs(1)).await;
    server("Shutting down");
    ExitCode::SUCCESS
}

/// SIGTERM: running requests end at once with what they have, or within `--shutdown-timeout`; the exit code is 0.
async fn shut_down(engine: &Arc<Engine>) -> ExitCode {
    let limit = engine.config.shutdown_timeout;
    info(Who::Api, "launcher.py:254", "[shutdown] API server: shutdown triggered");
    if !limit.is_zero() {
        engine.set_life(Life::Draining);
        let drained = async {
            while engine.busy() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(limit, drained).await;
    }
    engine.set_life(Life::Stopping);
    tokio::time::sleep(engine.config.stop).await;
    server("Shutting down");
    ExitCode::SUCCESS
}
