//! The inside of `sparklane-engine.service`: this node's rank from the first check to its end.
//!
//! A head makes one attempt and ends with it; systemd starts it again. A worker whose rank was ended because another's is
//! gone waits for the head's next attempt in the same run: its unit did not fail.

pub mod backoff;
pub mod ending;
mod follow;
mod kernel;
mod prepare;
mod verdict;
mod view;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sparklane_lane::{Generation, Role};
use tokio::task::JoinSet;

use crate::docker::Client;
use crate::error::EngineError;
use crate::lines::{LineCutter, Tail};
use crate::memory::{gate, swap};
use crate::notify::Notify;
use crate::pair::{Advice, AttemptId, Pair, Rank};
use crate::phase::{Phase, PhaseTracker};
use crate::redact::{Redacted, Redactor};
use crate::state::{self, CanaryView, EngineState, Failure, State};
use crate::warm::Report;
use crate::watch::Guard;
use crate::{gpus, key, spec};

pub use ending::{EXIT_PEER, EXIT_STUCK, End, exit_code};

/// Lines of the log that a failure's evidence keeps; its report repeats fewer.
const TAIL: usize = 400;
/// Time between two looks at who waits for whom.
const LOOK: Duration = Duration::from_secs(1);
/// How much longer a start may take while it waits for others; told every [`LOOK`].
const WAIT_MORE: Duration = Duration::from_secs(30);
/// Beyond the lane's own budget, for systemd: our word comes first and says more.
const START_SLACK: Duration = Duration::from_secs(15);

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
    /// Where evidence of failures is kept.
    pub evidence: Option<PathBuf>,
    /// Path of this tool, mounted into the container.
    pub tool: String,
    /// The other nodes; `None` where the rank starts by itself.
    pub pair: Option<Pair>,
    /// What keeps the watchdog from acting.
    pub guard: Arc<dyn Guard>,
    /// The kernel's log, `/dev/kmsg` or a file of its form.
    pub kmsg: PathBuf,
    /// True when someone started the unit on purpose: earlier failures do not count then.
    pub on_purpose: bool,
}

/// How long docker's answers may take for a generation: its own stop time and some.
#[must_use]
pub fn patience(generation: &Generation) -> Duration {
    Duration::from_secs(u64::from(generation.engine.stop_secs) + 60)
}

/// Runs the engine until `stop` or its end; gives the exit code of the unit, see [`ending::code`].
///
/// # Errors
/// When the container could not be made or docker was lost; see [`EngineError::exit_code`].
pub async fn supervise(setup: Setup<'_>, stop: impl Future<Output = ()>) -> Result<u8, EngineError> {
    let mut stop = Box::pin(stop);
    let mut run = Run::new(setup);
    loop {
        let result = run.attempt(stop.as_mut()).await;
        run.tasks.abort_all();
        let exhibits = run.exhibits(&result).await;
        run.clean_up(&result).await;
        if let (Ok(End::Left(why)), Role::Worker) = (&result, run.role()) {
            tracing::warn!("this node's rank was ended: {why}; it waits for the head's next attempt");
            run.begin_again(why.clone());
            continue;
        }
        let code = run.verdict(&result, &exhibits).await;
        return result.map(|_| code);
    }
}

struct Run<'a> {
    setup: Setup<'a>,
    tracker: PhaseTracker,
    redactor: Redactor,
    key: Option<Redacted<String>>,
    cutter: LineCutter,
    tail: Tail,
    container_id: Option<String>,
    started: Instant,
    ready: bool,
    exit_code: Option<i64>,
    attempt: Option<AttemptId>,
    /// The attempt in which a worker's rank ended.
    spent: Option<AttemptId>,
    rank: Rank,
    /// True once the unit was asked to stop: what ends then did not fail.
    asked_to_stop: bool,
    /// What it waits for.
    waits: Option<String>,
    /// What another node's silence says.
    doubt: Option<String>,
    /// What the watchdog found.
    odd: Option<String>,
    swap: swap::Watch,
    /// That the machine swaps, in words.
    swaps: Option<String>,
    canary: Option<CanaryView>,
    warmup: Option<Report>,
    starts: u64,
    failure: Option<Failure>,
    /// When this launch failed, in seconds since boot.
    failures: Vec<u64>,
    /// See [`EngineState::notes`].
    notes: Vec<String>,
    /// The kernel's newest record when this attempt began.
    kernel_from: Option<u64>,
    /// The engine's metrics when the watchdog last found something odd.
    metrics: Option<String>,
    /// What was told last.
    shown: std::cell::Cell<State>,
    /// Warm-up and watchdog of this attempt.
    tasks: JoinSet<()>,
    /// The watchdog's leave to act, held until the end.
    leave: Option<Box<dyn std::any::Any + Send>>,
    /// True once the engine's processes were looked at, for whom the kernel would kill first.
    scores_seen: bool,
}

impl<'a> Run<'a> {
    fn new(setup: Setup<'a>) -> Self {
        let before = setup.state_file.as_deref().and_then(state::read);
        Self {
            tracker: PhaseTracker::new(setup.generation.role),
            redactor: Redactor::default(),
            key: None,
            cutter: LineCutter::default(),
            tail: Tail::new(TAIL),
            container_id: None,
            started: Instant::now(),
            ready: false,
            exit_code: None,
            attempt: None,
            spent: None,
            rank: Rank::Waiting,
            asked_to_stop: false,
            waits: None,
            doubt: None,
            odd: None,
            swap: swap::Watch::default(),
            swaps: None,
            canary: None,
            warmup: None,
            starts: before.as_ref().map_or(0, |b| b.starts) + 1,
            failures: failures(&setup, before.as_ref()),
            failure: before.and_then(|b| b.failure),
            notes: alone(&setup),
            kernel_from: None,
            metrics: None,
            shown: std::cell::Cell::default(),
            tasks: JoinSet::new(),
            leave: None,
            scores_seen: false,
            setup,
        }
    }

    fn role(&self) -> Role {
        self.setup.generation.role
    }

    /// One attempt from the checks to its end.
    async fn attempt(&mut self, mut stop: Pin<&mut impl Future<Output = ()>>) -> Result<End, EngineError> {
        self.look_at_kernel();
        self.publish();
        let begun = tokio::select! {
            biased;
            () = stop.as_mut() => None,
            begun = self.begin() => Some(begun),
        };
        match begun {
            None => {
                self.asked_to_stop = true;
                self.setup.notify.stopping();
                Ok(End::Stopped)
            }
            Some(Err(error)) => Err(error),
            Some(Ok(Begun::Over(why))) => Ok(End::Left(why)),
            Some(Ok(Begun::Runs(id))) => self.follow(&id, stop.as_mut()).await,
        }
    }

    /// Up to the running container: checks, container, the other ranks, start.
    async fn begin(&mut self) -> Result<Begun, EngineError> {
        self.rest().await;
        let id = self.create().await?;
        if let Some(why) = self.wait_turn().await {
            return Ok(Begun::Over(why));
        }
        self.say();
        self.setup.client.start(&id).await?;
        self.started = Instant::now();
        self.setup.notify.extend(self.start_budget() + START_SLACK);
        self.tracker.reach(Phase::Starting);
        self.publish();
        Ok(Begun::Runs(id))
    }

    /// The pause after failures.
    async fn rest(&mut self) {
        loop {
            let left = backoff::left(&self.failures, since_boot());
            if left == 0 {
                self.waits = None;
                return;
            }
            self.waits =
                Some(format!("{} failures in the last hour; it starts again in {left} s", self.failures.len()));
            self.setup.notify.extend(WAIT_MORE);
            self.publish();
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn create(&mut self) -> Result<String, EngineError> {
        let generation = self.setup.generation;
        let engine = &generation.engine;
        if let Some(file) = &engine.api_key_file {
            let key = key::read(Path::new(file))?;
            self.redactor = std::mem::take(&mut self.redactor).with(&key);
            self.key = Some(key);
        }
        let image = self.setup.client.image(&generation.image).await?;
        self.setup.client.remove_ours(&engine.container, engine.stop_secs).await?;
        prepare::check(generation)?;
        self.enough_memory().await?;
        if self.role().decides() {
            // From here on a worker may start: the container is made meanwhile.
            let random = |source| EngineError::Io { what: "get random bytes", source };
            self.attempt = Some(AttemptId::random().map_err(random)?);
            self.say();
        }
        let label = format!("{}/{}/{}", generation.cluster, generation.lane, generation.node);
        let extra = spec::Extra { image, tool: self.setup.tool.clone(), label };
        let mut body = spec::container(generation, &extra);
        if engine.gpus {
            body = gpus::handed_in(body, gpus::choose(&self.setup.client.info().await?));
        }
        let id = self.setup.client.create(&engine.container, body).await?;
        self.container_id = Some(id.clone());
        Ok(id)
    }

    /// An engine that starts into a full memory takes the others' attempt down with it, so this comes before they are told.
    async fn enough_memory(&mut self) -> Result<(), EngineError> {
        let Some(wanted) = self.setup.generation.engine.memory else { return Ok(()) };
        let mut tell = |short: &gate::Shortage| self.wait_for(format!("memory to be free: {short}"));
        gate::wait_for_memory(&wanted, Path::new(gate::MEMINFO), &mut tell).await?;
        self.waits = None;
        Ok(())
    }

    /// Waits until the other ranks are there to start with. Gives the reason when the attempt is over before it began.
    ///
    /// There is no deadline: a node that was switched off for a night comes back to a cluster that serves without a hand.
    async fn wait_turn(&mut self) -> Option<String> {
        let Some(mut news) = self.setup.pair.as_ref().map(Pair::news) else {
            self.rank = Rank::Running;
            return None;
        };
        if self.role() == Role::Worker {
            self.tell_ready();
        }
        loop {
            let pair = self.setup.pair.as_ref()?;
            match pair.advice(self.attempt, self.rank, self.spent) {
                Advice::Start(attempt) => {
                    self.attempt = Some(attempt);
                    self.rank = Rank::Running;
                    self.waits = None;
                    return None;
                }
                Advice::Leave(why) => return Some(why),
                Advice::Wait(why) | Advice::Doubt(why) => {
                    let trouble = pair.trouble().map_or_else(String::new, |words| format!("; {words}"));
                    self.wait_for(format!("{why}{trouble}"));
                }
                Advice::Stay => {}
            }
            tokio::select! {
                () = news.next() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    fn wait_for(&mut self, why: String) {
        self.setup.notify.extend(WAIT_MORE);
        self.waits = Some(why);
        self.publish();
    }

    fn start_budget(&self) -> Duration {
        Duration::from_secs(self.setup.generation.budgets.start_secs.into())
    }

    fn tell_ready(&mut self) {
        if !self.ready {
            self.ready = true;
            self.publish();
            self.setup.notify.ready();
        }
    }

    /// What `attempt` left over goes, for the next one.
    fn begin_again(&mut self, why: String) {
        self.spent = self.attempt.take().or(self.spent);
        self.rank = Rank::Waiting;
        self.tracker = PhaseTracker::new(self.role());
        self.cutter = LineCutter::default();
        self.container_id = None;
        self.exit_code = None;
        self.scores_seen = false;
        self.notes.clear();
        self.doubt = None;
        self.waits = Some(why);
        self.say();
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
}

/// Said where a rank has others and does not hear them.
fn alone(setup: &Setup<'_>) -> Vec<String> {
    let alone = setup.pair.is_none() && setup.generation.peers.len() > 1;
    let note = "no heartbeat key is on this node: its rank starts by itself and is not watched from the others; a deploy \
                with sparklane brings one";
    alone.then(|| note.to_owned()).into_iter().collect()
}

/// Failures of the same launch that still count.
fn failures(setup: &Setup<'_>, before: Option<&EngineState>) -> Vec<u64> {
    let same = |b: &&EngineState| b.other_than(setup.generation).is_none();
    let counted = before.filter(same).filter(|_| !setup.on_purpose).map_or(&[][..], |b| &b.failures);
    backoff::recent(counted, since_boot())
}

/// Seconds since boot, those of suspension too; no clock that someone sets.
fn since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or_default()
}

/// How far a beginning came.
enum Begun {
    /// The container of this id runs.
    Runs(String),
    /// The attempt was over before.
    Over(String),
}
