//! `sparklane engine`: the inside of `sparklane-engine.service`.

use std::any::Any;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use miette::IntoDiagnostic as _;
use sparklane_engine::docker::{Client, SOCKET};
use sparklane_engine::memory::kmsg::KMSG;
use sparklane_engine::pair::Pair;
use sparklane_engine::run::{Setup, patience, supervise};
use sparklane_engine::watch::{self, Guard};
use sparklane_engine::{EngineError, evidence, load, notify, state};
use sparklane_host::lock;
use sparklane_host::paths::HostPaths;
use sparklane_host::units::{self, Units as _};
use sparklane_lane::Generation;
use sparklane_lane::generation::PEER_KEYS;

use sparklane_txn::plan::ENGINE_UNIT;

use crate::watchdog;

/// Run, stop or look at this node's engine container.
#[derive(Debug, ClapArgs)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the engine of the current generation in the foreground (what sparklane-engine.service does).
    Run(Target),
    /// Stop and remove this node's engine container.
    Stop(Target),
    /// Show what the engine is doing.
    Status {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Keep the watchdog from starting the engine anew, until `resume` or a reboot; it goes on looking.
    Pause(watchdog::Pause),
    /// Let the watchdog act again.
    Resume,
    /// List what was kept of the last failures on this node.
    Evidence(watchdog::Evidence),
}

#[derive(Debug, ClapArgs)]
struct Target {
    /// Profile whose generation is run.
    #[arg(long, default_value = load::PROFILE)]
    profile: PathBuf,
    /// Socket of docker.
    #[arg(long, default_value = SOCKET)]
    docker: String,
    /// The kernel's log.
    #[arg(long, env = "SPARKLANE_KMSG", default_value = KMSG)]
    kmsg: PathBuf,
}

/// Runs the subcommand.
///
/// # Errors
/// What failed, for people; `engine run` reports by itself and gives its exit code.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    match args.command {
        Command::Run(target) => Ok(engine_run(&target)),
        Command::Stop(target) => engine_stop(&target),
        Command::Status { json } => engine_status(json),
        Command::Pause(args) => watchdog::pause(&args),
        Command::Resume => watchdog::resume(),
        Command::Evidence(args) => watchdog::evidence(&args),
    }
}

fn engine_run(target: &Target) -> ExitCode {
    // Asked before the event loop runs: the bus has one of its own.
    let on_purpose = units::Systemd.status(ENGINE_UNIT).is_ok_and(|unit| unit.restarts == 0);
    match block_on(run_unit(target, on_purpose)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let code = error.exit_code();
            tracing::error!("{error}");
            notify::Notify::status(&notify::Systemd, &error.to_string());
            ExitCode::from(code)
        }
    }
}

fn block_on<T>(future: impl Future<Output = Result<T, EngineError>>) -> Result<T, EngineError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| EngineError::Io { what: "start the event loop", source })?;
    let result = runtime.block_on(future);
    // A health check may still wait for its answer; nobody needs it.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

async fn run_unit(target: &Target, on_purpose: bool) -> Result<u8, EngineError> {
    use tokio::signal::unix::{SignalKind, signal};
    let no_signals = |source| EngineError::Io { what: "watch for signals", source };
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let _alive = tokio::spawn(notify::keep_alive());
    let generation = load::generation(&target.profile)?;
    let profile = camino::Utf8PathBuf::from(target.profile.display().to_string());
    crate::weights::gate::check(&generation, &profile).map_err(|why| EngineError::Generation {
        path: profile.into_string(),
        why: format!("{}: {why}", generation.node),
    })?;
    let client = Client::connect(&target.docker, patience(&generation)).await?;
    let tool = std::env::current_exe().map_err(|source| EngineError::Io { what: "find this program", source })?;
    let mut sink = |line: &str| {
        // A closed journal must not end the engine.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    };
    let setup = Setup {
        generation: &generation,
        client,
        notify: &notify::Systemd,
        sink: &mut sink,
        state_file: Some(PathBuf::from(state::STATE_FILE)),
        evidence: Some(PathBuf::from(evidence::FOLDER)),
        tool: tool.display().to_string(),
        pair: pair(&generation)?,
        guard: Arc::new(NodeGuard),
        kmsg: target.kmsg.clone(),
        on_purpose,
    };
    supervise(setup, stop).await
}

/// The other nodes, where there are some and a key was staged.
fn pair(generation: &Generation) -> Result<Option<Pair>, EngineError> {
    let pair = Pair::open(generation, PathBuf::from(PEER_KEYS));
    let pair = pair.map_err(|why| EngineError::KeyFile { path: PEER_KEYS.to_owned(), why: why.to_string() })?;
    Ok(pair)
}

/// The watchdog acts neither while it is paused nor while someone deploys, and nobody deploys while it acts.
struct NodeGuard;

impl Guard for NodeGuard {
    fn may_act(&self) -> Result<Box<dyn Any + Send>, String> {
        if let Some(paused) = watch::paused(Path::new(watch::PAUSE_FILE)) {
            return Err(paused);
        }
        let lock = lock::take(&HostPaths::system(), "the watchdog", None, Duration::ZERO);
        lock.map(|lock| Box::new(lock) as Box<dyn Any + Send>).map_err(|error| error.to_string())
    }
}

fn engine_stop(target: &Target) -> miette::Result<ExitCode> {
    let stop = async {
        let generation = load::generation(&target.profile)?;
        let client = Client::connect(&target.docker, patience(&generation)).await?;
        client.remove_ours(&generation.engine.container, generation.engine.stop_secs).await
    };
    block_on(stop).into_diagnostic()?;
    Ok(ExitCode::SUCCESS)
}

fn engine_status(json: bool) -> miette::Result<ExitCode> {
    if let Err(error) = std::fs::File::open(state::STATE_FILE)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        // "No engine ran" would be a guess.
        return Err(miette::miette!("{}: {error}. Ask as root: sudo sparklane engine status", state::STATE_FILE));
    }
    let file = Path::new(state::STATE_FILE);
    let known = state::read(file);
    if known.is_none() && file.exists() {
        return Err(miette::miette!(
            "{}: it is damaged; the next start of the engine writes it anew",
            state::STATE_FILE
        ));
    }
    if json {
        println!("{}", serde_json::to_string(&known).into_diagnostic()?);
    } else if let Some(now) = &known {
        let percent = now.percent.map(|p| format!(" {p}%")).unwrap_or_default();
        println!("{} ({}) lane {}: {}{percent}", now.node, now.role, now.lane, now.phase.words());
        if !Path::new(&format!("/proc/{}", now.pid)).exists() {
            println!(
                "that was the last word of supervisor {}, which is gone; see: systemctl status sparklane-engine",
                now.pid
            );
        }
        if let Some(paused) = watch::paused(Path::new(watch::PAUSE_FILE)) {
            println!("the watchdog does not act: {paused}");
        }
        if let Some(reason) = &now.reason {
            println!("{reason}");
        }
        if let Some(failure) = &now.failure {
            println!("last failure since boot: {}", failure.why);
            if let Some(evidence) = &failure.evidence {
                println!("evidence: {evidence}");
            }
        }
        if let Some(cause) = &now.cause {
            println!("the log says: {cause}");
        }
        if let Some(code) = now.exit_code {
            println!("container exit code: {code}");
        }
    } else {
        println!("no engine ran since boot");
    }
    Ok(ExitCode::SUCCESS)
}
