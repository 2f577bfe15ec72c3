//! The inside of `sparklane-engine.service`: one container from creation to end.

use std::future::Future;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::{Duration, Instant};

use bollard::container::LogOutput;
use futures_util::{FutureExt as _, StreamExt as _};
use sparklane_lane::{Generation, Role};

use crate::docker::{Client, Exit};
use crate::error::{EXIT_CONFIG, EngineError};
use crate::http::{Url, reachable, send};
use crate::lines::{LineCutter, Tail};
use crate::notify::Notify;
use crate::phase::{Phase, PhaseTracker};
use crate::redact::Redactor;
use crate::state::{self, EngineState};
use crate::{entry, key, spec};

const TICK: Duration = Duration::from_millis(200);
const HEALTH_TRY: Duration = Duration::from_secs(5);
/// Pause between two questions; a refused connection costs next to nothing.
const HEALTH_AGAIN: Duration = Duration::from_millis(50);
/// A worker whose log never names the rendezvous counts as started after this long.
const SETTLE: Duration = Duration::from_secs(60);
/// Lines of the log that a failure report repeats.
const TAIL: usize = 20;

/// What one run works with.
pub struct Setup<'a> {
    /// What to run.
    pub generation: &'a Generation,
    /// docker.
    pub client: Client,
    /// systemd.
    pub notify: &'a dyn Notify,
    /// Where the engine's lines go, redacted.
    pub sink: &'a mut dyn FnMut(&str),
    /// Where the state is written.
    pub state_file: Option<PathBuf>,
    /// Path of this tool, for lanes with a key file.
    pub tool: String,
}

/// How long docker's answers may take for a generation: its own stop time and some.
#[must_use]
pub fn patience(generation: &Generation) -> Duration {
    Duration::from_secs(u64::from(generation.engine.stop_secs) + 60)
}

/// Runs the engine until `stop` or its end; gives the exit code of the unit.
///
/// 0 only when `stop` asked for the end. A container that ends with 0 by itself failed (vLLM does so when a rank dies), so
/// that becomes 1; its usage error 2 becomes 78, which systemd does not restart; any other code is kept.
///
/// # Errors
/// When the container could not be made or docker was lost; see [`EngineError::exit_code`].
pub async fn supervise(setup: Setup<'_>, stop: impl Future<Output = ()>) -> Result<u8, EngineError> {
    let mut stop = Box::pin(stop);
    let mut run = Run::new(setup);
    run.publish();
    let made = tokio::select! {
        biased;
        () = stop.as_mut() => None,
        made = run.bring_up() => Some(made),
    };
    let result = match made {
        None => {
            run.setup.notify.stopping();
            Ok(End::Stopped)
        }
        Some(Err(error)) => Err(error),
        Some(Ok(id)) => run.follow(&id, stop.as_mut()).await,
    };
    run.clean_up(&result).await;
    let code = run.verdict(&result);
    result.map(|_| code)
}

enum End {
    Stopped,
    Exited(Exit),
}

struct Run<'a> {
    setup: Setup<'a>,
    tracker: PhaseTracker,
    redactor: Redactor,
    cutter: LineCutter,
    tail: Tail,
    container_id: Option<String>,
    started: Instant,
    ready: bool,
    exit_code: Option<i64>,
}

impl<'a> Run<'a> {
    fn new(setup: Setup<'a>) -> Self {
        let tracker = PhaseTracker::new(setup.generation.role);
        Self {
            setup,
            tracker,
            redactor: Redactor::default(),
            cutter: LineCutter::default(),
            tail: Tail::new(TAIL),
            container_id: None,
            started: Instant::now(),
            ready: false,
            exit_code: None,
        }
    }

    /// Tells systemd and the state file where we are.
    fn publish(&self) {
        self.setup.notify.status(&self.tracker.status_line());
        let Some(path) = &self.setup.state_file else {
            return;
        };
        let generation = self.setup.generation;
        let now = EngineState {
            lane: generation.lane.clone(),
            launch: generation.launch().unwrap_or_default(),
            node: generation.node.clone(),
            role: generation.role,
            container: generation.engine.container.clone(),
            container_id: self.container_id.clone(),
            phase: self.tracker.phase(),
            percent: self.tracker.percent(),
            ready: self.ready,
            cause: self.tracker.cause().map(str::to_owned),
            exit_code: self.exit_code,
            pid: std::process::id(),
        };
        state::write(path, &now);
    }

    async fn bring_up(&mut self) -> Result<String, EngineError> {
        let generation = self.setup.generation;
        let engine = &generation.engine;
        if let Some(file) = &engine.api_key_file {
            self.redactor = std::mem::take(&mut self.redactor).with(&key::read(Path::new(file))?);
        }
        let image = self.setup.client.image(&generation.image).await?;
        self.setup.client.remove_ours(&engine.container, engine.stop_secs).await?;
        folders(generation)?;
        devices(generation)?;
        if generation.role == Role::Head {
            port_free(generation)?;
        }
        let label = format!("{}/{}/{}", generation.cluster, generation.lane, generation.node);
        let extra = spec::Extra { image, tool: self.setup.tool.clone(), label };
        let id = self.setup.client.create(&engine.container, spec::container(generation, &extra)).await?;
        self.container_id = Some(id.clone());
        self.setup.client.start(&id).await?;
        self.started = Instant::now();
        self.tracker.reach(Phase::Starting);
        self.publish();
        Ok(id)
    }

    /// Leaves no container behind, however far the run came.
    async fn clean_up(&self, result: &Result<End, EngineError>) {
        let removed = match (&self.container_id, result) {
            (Some(id), _) => self.setup.client.remove(id).await,
            (None, Err(EngineError::ForeignContainer { .. })) => Ok(()),
            // Cut short before the id was known: it may exist all the same.
            (None, _) => self.setup.client.remove_ours(&self.setup.generation.engine.container, 0).await,
        };
        if let Err(error) = removed {
            tracing::warn!(%error, "the engine's container could not be removed");
        }
    }

    async fn follow(&mut self, id: &str, mut stop: Pin<&mut impl Future<Output = ()>>) -> Result<End, EngineError> {
        let client = self.setup.client.clone();
        let mut ended = Box::pin(client.wait(id));
        let mut logs = client.logs(id, false);
        let mut open = true;
        let mut healthy = Box::pin(first_health(self.setup.generation).fuse());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.as_mut() => {
                    self.stop(id, &mut logs, open).await?;
                    return Ok(End::Stopped);
                }
                exit = ended.as_mut() => {
                    self.drain(&mut logs, open).await;
                    return exit.map(End::Exited);
                }
                item = logs.next(), if open => match item {
                    Some(Ok(output)) => {
                        self.output(&output);
                        self.consider_ready();
                    }
                    _ => open = false,
                },
                () = healthy.as_mut(), if !self.ready => {
                    self.tracker.reach(Phase::Serving);
                    self.consider_ready();
                }
                _ = tick.tick() => {
                    if !open {
                        // docker was restarted, or the log's file turned over: go on from now.
                        logs = client.logs(id, true);
                        open = true;
                        tokio::time::sleep(TICK).await;
                    }
                    self.consider_ready();
                }
            }
        }
    }

    /// Says READY once: a head that serves, a worker that waits for its peers or has settled.
    fn consider_ready(&mut self) {
        let settled = self.setup.generation.role == Role::Worker && self.started.elapsed() >= SETTLE;
        if !self.ready && (self.tracker.ready() || settled) {
            self.ready = true;
            self.publish();
            self.setup.notify.ready();
        }
    }

    fn output(&mut self, output: &LogOutput) {
        let bytes = match output {
            LogOutput::StdOut { message } | LogOutput::StdErr { message } | LogOutput::Console { message } => message,
            LogOutput::StdIn { .. } => return,
        };
        let mut changed = false;
        let Self { cutter, redactor, tail, tracker, setup, .. } = self;
        cutter.push(bytes, &mut |line| {
            let line = redactor.apply(line);
            changed |= tracker.line(&line);
            tail.push(&line);
            (setup.sink)(&line);
        });
        if changed {
            self.publish();
        }
    }

    /// Takes what the log still holds after the container's end.
    async fn drain(&mut self, logs: &mut LogStream<'_>, open: bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(1);
        while open && let Ok(Some(Ok(output))) = tokio::time::timeout_at(deadline, logs.next()).await {
            self.output(&output);
        }
        let Self { cutter, redactor, tail, tracker, setup, .. } = self;
        cutter.flush(&mut |line| {
            let line = redactor.apply(line);
            tracker.line(&line);
            tail.push(&line);
            (setup.sink)(&line);
        });
    }

    async fn stop(&mut self, id: &str, logs: &mut LogStream<'_>, mut open: bool) -> Result<(), EngineError> {
        self.setup.notify.stopping();
        self.tracker.reach(Phase::Stopping);
        self.publish();
        let secs = self.setup.generation.engine.stop_secs;
        let client = self.setup.client.clone();
        let mut stopped = Box::pin(client.stop(id, secs));
        loop {
            tokio::select! {
                result = stopped.as_mut() => {
                    result?;
                    break;
                }
                item = logs.next(), if open => match item {
                    Some(Ok(output)) => self.output(&output),
                    _ => open = false,
                },
            }
        }
        self.drain(logs, open).await;
        self.exit_code = self.setup.client.state(id).await?.and_then(|s| s.exit_code);
        if self.exit_code == Some(137) {
            tracing::warn!(secs, "the engine did not stop in its time and was killed");
        }
        Ok(())
    }

    /// Says how it ended and turns it into the unit's exit code.
    fn verdict(&mut self, result: &Result<End, EngineError>) -> u8 {
        let mut last = None;
        let code = match result {
            Ok(End::Stopped) => 0,
            Ok(End::Exited(exit)) => {
                self.exit_code = Some(exit.code);
                let words = exit_words(exit, self.tracker.cause());
                last = Some(format!("the engine {words}"));
                let tail = self.tail.lines().join("\n  | ");
                tracing::error!("the engine {words}; its last lines:\n  | {tail}");
                exit_code(exit.code)
            }
            Err(error) => error.exit_code(),
        };
        self.ready = false;
        self.tracker.reach(Phase::Ended);
        self.publish();
        if let Some(words) = last {
            self.setup.notify.status(&words);
        }
        code
    }
}

type LogStream<'a> = dyn futures_util::Stream<Item = Result<LogOutput, bollard::errors::Error>> + Unpin + 'a;

/// The unit's exit code for a container that ended without being asked to.
#[must_use]
pub fn exit_code(container: i64) -> u8 {
    match container {
        0 => 1,
        // Usage, and a program that is not there or none: of the lane, so no restart mends it.
        2 | 126 | 127 => EXIT_CONFIG,
        code => u8::try_from(code).unwrap_or(1),
    }
}

fn exit_words(exit: &Exit, cause: Option<&str>) -> String {
    let mut words = match exit.code {
        0 => "ended by itself with code 0, which counts as a failure (a rank died?)".to_owned(),
        2 => "refused its command line (code 2)".to_owned(),
        code => entry::judge::words(code).map_or_else(|| format!("ended with code {code}"), str::to_owned),
    };
    if exit.oom {
        words.push_str(", killed by the kernel for memory");
    }
    if !exit.error.is_empty() {
        words.push_str(&format!(", docker says: {}", exit.error));
    }
    if let Some(cause) = cause {
        words.push_str(&format!("; the log says: {cause}"));
    }
    words
}

/// Ends with the first 200 of the head's `/health`; never on a worker. One question at a time, from a thread of its own.
async fn first_health(generation: &Generation) {
    let address = (generation.role == Role::Head).then(|| api_address(generation)).flatten();
    let Some(address) = address else { return std::future::pending().await };
    let url = Url { address, path: "/health".to_owned() };
    loop {
        let url = url.clone();
        let ask = move || send(&url, None, None, HEALTH_TRY).is_ok_and(|r| r.status == 200);
        if tokio::task::spawn_blocking(ask).await.unwrap_or(false) {
            return;
        }
        tokio::time::sleep(HEALTH_AGAIN).await;
    }
}

fn api_address(generation: &Generation) -> Option<SocketAddr> {
    let host = generation.engine.api_host.as_str();
    let ip: IpAddr = if host == "localhost" { [127, 0, 0, 1].into() } else { host.parse().ok()? };
    Some(SocketAddr::new(reachable(ip), generation.engine.api_port))
}

/// A foreign listener would both keep the engine from its port and answer our health checks in its place.
fn port_free(generation: &Generation) -> Result<(), EngineError> {
    let host = &generation.engine.api_host;
    let Some(address) = api_address(generation) else {
        let why = format!("engine.apiHost {host:?} is no address");
        return Err(EngineError::Generation { path: "generation.json".to_owned(), why });
    };
    match TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
        Ok(_) => Err(EngineError::PortTaken { address: address.to_string() }),
        Err(_) => Ok(()),
    }
}

/// Makes what is to be made. Whether the other sources are there is docker's to say: the unit cannot see all it can.
fn folders(generation: &Generation) -> Result<(), EngineError> {
    let engine = &generation.engine;
    let made = engine.mounts.iter().filter(|m| m.create).map(|m| &m.source).chain(engine.cache_roots.values());
    for path in made {
        std::fs::create_dir_all(path).map_err(|source| EngineError::Folder { path: path.clone(), source })?;
    }
    Ok(())
}

fn devices(generation: &Generation) -> Result<(), EngineError> {
    match generation.engine.devices.iter().find(|path| !Path::new(path).exists()) {
        Some(path) => Err(EngineError::Device { path: path.clone() }),
        None => Ok(()),
    }
}
