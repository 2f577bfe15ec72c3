//! A running container: its log, its end, the other ranks, the warm-up and the watchdog.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bollard::container::LogOutput;
use futures_util::{FutureExt as _, StreamExt as _};
use sparklane_lane::{Generation, Role};
use tokio::sync::mpsc;

use super::ending::End;
use super::{Run, prepare};
use crate::error::EngineError;
use crate::http::{Url, send};
use crate::memory::swap;
use crate::pair::{Advice, Pair};
use crate::phase::Phase;
use crate::warm::{self, Report};
use crate::watch::canary::{self, Api, Event};

const TICK: Duration = Duration::from_millis(200);
const HEALTH_TRY: Duration = Duration::from_secs(5);
/// Pause between two questions; a refused connection costs next to nothing.
const HEALTH_AGAIN: Duration = Duration::from_millis(50);
/// A worker whose log never names the rendezvous counts as started after this long.
const SETTLE: Duration = Duration::from_secs(60);
/// What a rank gets to end whose engine is of no use any more.
const LEAVE_SECS: u32 = 8;
/// How long a container that seems stuck gets to show that it is at its end.
const LAST_BREATH: Duration = Duration::from_secs(1);
/// Ticks between two looks at who is silent.
const LOOK_TICKS: u32 = 5;
/// Ticks between two looks at swap.
const SWAP_TICKS: u32 = swap::LOOK_SECS * 5;

type LogStream<'a> = dyn futures_util::Stream<Item = Result<LogOutput, bollard::errors::Error>> + Unpin + 'a;

/// What the warm-up tells.
enum Warmed {
    Shape(&'static str),
    Done(Result<Report, String>),
}

impl Run<'_> {
    pub(super) async fn follow(
        &mut self,
        id: &str,
        mut stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<End, EngineError> {
        let client = self.setup.client.clone();
        let mut ended = Box::pin(client.wait(id));
        let mut logs = client.logs(id, false);
        let mut open = true;
        let mut healthy = Box::pin(first_health(self.setup.generation).fuse());
        let mut news = self.setup.pair.as_ref().map(Pair::news);
        let mut warmed: Option<mpsc::Receiver<Warmed>> = None;
        let mut looks: Option<mpsc::Receiver<Event>> = None;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ticks = 0_u32;
        loop {
            let over = tokio::select! {
                () = stop.as_mut() => {
                    self.asked_to_stop = true;
                    self.stop(id, &mut logs, open, self.setup.generation.engine.stop_secs).await?;
                    return Ok(End::Stopped);
                }
                exit = ended.as_mut() => {
                    self.drain(&mut logs, open).await;
                    return exit.map(End::Exited);
                }
                item = logs.next(), if open => {
                    match item {
                        Some(Ok(output)) => self.output(&output),
                        _ => open = false,
                    }
                    None
                }
                () = healthy.as_mut(), if self.tracker.phase() < Phase::Serving => {
                    self.tracker.reach(Phase::Serving);
                    warmed = Some(self.warm());
                    None
                }
                Some(word) = next(&mut warmed) => {
                    let over = self.warmed(word);
                    if self.ready && looks.is_none() {
                        looks = self.watch();
                    }
                    over
                }
                Some(event) = next(&mut looks) => self.looked(event),
                () = heard(&mut news) => self.consider_pair(),
                _ = tick.tick() => {
                    if !open {
                        // docker was restarted, or the log's file turned over: go on from now.
                        logs = client.logs(id, true);
                        open = true;
                        tokio::time::sleep(TICK).await;
                    }
                    ticks = ticks.wrapping_add(1);
                    if !self.scores_seen && self.tracker.phase() >= Phase::Loaded {
                        self.scores_seen = true;
                        self.note_first_victims().await;
                    }
                    if ticks.is_multiple_of(SWAP_TICKS) {
                        self.look_at_swap();
                    }
                    let over = if ticks.is_multiple_of(LOOK_TICKS) { self.consider_pair() } else { None };
                    over.or_else(|| self.late())
                }
            };
            self.consider_worker();
            if let Some(over) = over {
                // An API that breaks off may be the first that is seen of a container's end, which says more.
                if matches!(over, End::Stuck(_))
                    && let Ok(exit) = tokio::time::timeout(LAST_BREATH, ended.as_mut()).await
                {
                    self.drain(&mut logs, open).await;
                    return exit.map(End::Exited);
                }
                self.stop(id, &mut logs, open, LEAVE_SECS).await?;
                return Ok(over);
            }
        }
    }

    /// What the other ranks make of it: this one is of no use without them.
    fn consider_pair(&mut self) -> Option<End> {
        let pair = self.setup.pair.as_ref()?;
        let (doubt, over) = match pair.advice(self.attempt, self.rank, self.spent) {
            Advice::Leave(why) => (self.doubt.take(), Some(End::Left(why))),
            Advice::Doubt(why) => (Some(why), None),
            _ => (None, None),
        };
        let first = self.doubt.is_none();
        if let Some(why) = doubt.as_ref().filter(|_| first) {
            tracing::warn!("{why}");
        }
        let changed = self.doubt != doubt;
        self.doubt = doubt;
        if changed || self.state() != self.shown.get() {
            self.publish();
        }
        over
    }

    /// A head that does not serve in its budget. systemd's own deadline is somewhat later and says less.
    fn late(&self) -> Option<End> {
        let budget = self.start_budget();
        let late = self.role().decides() && self.tracker.phase() < Phase::Serving && self.started.elapsed() > budget;
        late.then(|| End::Stuck(format!("it does not serve {} s after its start", budget.as_secs())))
    }

    /// A worker that starts by itself counts as started at the rendezvous, or when it has settled.
    fn consider_worker(&mut self) {
        let settled = self.started.elapsed() >= SETTLE;
        if self.role() == Role::Worker && (self.tracker.ready() || settled) {
            self.tell_ready();
        }
    }

    fn warm(&mut self) -> mpsc::Receiver<Warmed> {
        self.publish();
        let (tell, told) = mpsc::channel(4);
        let generation = self.setup.generation;
        let cap = Duration::from_secs(generation.budgets.warmup_secs.into());
        let Some(api) = self.api().filter(|_| !cap.is_zero()) else {
            let _room = tell.try_send(Warmed::Done(Ok(Report::default())));
            return told;
        };
        self.setup.notify.extend(self.start_budget() + cap + super::START_SLACK);
        let at_once = warm::at_once(&generation.engine.argv);
        self.tasks.spawn_blocking(move || {
            let shape = |name| drop(tell.blocking_send(Warmed::Shape(name)));
            let done = warm::run(&api, at_once, cap, &shape);
            drop(tell.blocking_send(Warmed::Done(done)));
        });
        told
    }

    fn warmed(&mut self, word: Warmed) -> Option<End> {
        match word {
            Warmed::Shape(name) => {
                self.setup.notify.extend(self.start_budget() + super::START_SLACK);
                self.setup.notify.status(&format!("warming up: {name}"));
                None
            }
            Warmed::Done(Err(why)) => Some(End::Stuck(why)),
            Warmed::Done(Ok(report)) => {
                if !report.refused.is_empty() {
                    tracing::warn!("the API refused a part of the warm-up: {}", report.refused.join("; "));
                }
                self.warmup = Some(report);
                self.tell_ready();
                None
            }
        }
    }

    fn watch(&mut self) -> Option<mpsc::Receiver<Event>> {
        let watchdog = self.setup.generation.watchdog;
        let api = self.api().filter(|_| watchdog.canary_secs > 0)?;
        let (task, events) = canary::watch(api, watchdog, self.setup.guard.clone());
        self.tasks.spawn(task);
        self.canary = Some(crate::state::CanaryView::default());
        Some(events)
    }

    fn looked(&mut self, event: Event) -> Option<End> {
        match event {
            Event::Bounce { why, leave, metrics } => {
                self.metrics = metrics;
                self.leave = Some(leave);
                Some(End::Stuck(why))
            }
            Event::Look { took, odd, metrics } => {
                self.metrics = metrics;
                let view = self.canary.get_or_insert_default();
                *(if odd.is_some() { &mut view.odd } else { &mut view.well }) += 1;
                view.last_millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                if odd.is_some() && odd != self.odd {
                    tracing::warn!("watchdog: {}", odd.as_deref().unwrap_or_default());
                }
                self.odd = odd;
                self.publish();
                None
            }
        }
    }

    fn api(&self) -> Option<Api> {
        let generation = self.setup.generation;
        let address = prepare::api_address(generation).filter(|_| self.role().decides())?;
        let url = Url { address, path: "/".to_owned() };
        Some(Api { url, model: generation.engine.served_model.clone(), key: self.key.clone() })
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

    async fn stop(&mut self, id: &str, logs: &mut LogStream<'_>, mut open: bool, secs: u32) -> Result<(), EngineError> {
        if self.asked_to_stop {
            self.setup.notify.stopping();
        }
        self.tracker.reach(Phase::Stopping);
        self.publish();
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
}

/// The next word of a channel; never, while there is none.
async fn next<T>(channel: &mut Option<mpsc::Receiver<T>>) -> Option<T> {
    match channel {
        Some(channel) => match channel.recv().await {
            None => std::future::pending().await,
            word => word,
        },
        None => std::future::pending().await,
    }
}

async fn heard(news: &mut Option<crate::pair::link::News>) {
    match news {
        Some(news) => news.next().await,
        None => std::future::pending().await,
    }
}

/// Ends with the first 200 of the head's `/health`; never on a worker. One question at a time, from a thread of its own.
async fn first_health(generation: &Generation) {
    let address = (generation.role == Role::Head).then(|| prepare::api_address(generation)).flatten();
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
