//! The engine: seats, tokens, and how it ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::args::Config;
use crate::fail::{Fail, Fails};
use crate::metrics::{Finished, Metrics};
use crate::peer::{Dead, Peers};

/// What the engine does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Takes requests.
    Serving,
    /// Lets running requests end, takes no new ones; `/health` stays 200.
    Draining,
    /// Cuts running requests short.
    Stopping,
    /// A rank has died.
    Dead,
}

/// The engine behind the API.
#[derive(Debug)]
pub struct Engine {
    /// The command line.
    pub config: Config,
    /// Failure modes.
    pub fails: Fails,
    life: watch::Sender<Life>,
    metrics: Mutex<Metrics>,
    seats: Arc<Semaphore>,
    peers: tokio::sync::Mutex<Peers>,
}

impl Engine {
    /// An engine that has loaded.
    pub fn new(config: Config, fails: Fails, peers: Peers) -> Arc<Self> {
        let name = config.served.first().cloned().unwrap_or_default();
        Arc::new(Self {
            seats: Arc::new(Semaphore::new(config.max_num_seqs.max(1))),
            config,
            fails,
            life: watch::Sender::new(Life::Serving),
            metrics: Mutex::new(Metrics::new(name)),
            peers: tokio::sync::Mutex::new(peers),
        })
    }

    /// What it does now.
    pub fn life(&self) -> Life {
        *self.life.borrow()
    }

    /// Changes what it does; death is final.
    pub fn set_life(&self, life: Life) {
        self.life.send_if_modified(|now| {
            let change = *now != Life::Dead && *now != life;
            if change {
                *now = life;
            }
            change
        });
    }

    /// Waits until a rank has died.
    pub async fn died(&self) {
        self.until(|l| l == Life::Dead).await;
    }

    async fn until(&self, wanted: impl Fn(Life) -> bool) {
        // The sender lives as long as we do, so this cannot fail.
        let _ = self.life.subscribe().wait_for(|l| wanted(*l)).await;
    }

    /// The counters.
    pub fn metrics(&self) -> MutexGuard<'_, Metrics> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while a request runs or waits.
    pub fn busy(&self) -> bool {
        let metrics = self.metrics();
        metrics.running + metrics.waiting > 0
    }

    /// Queues a request and gives it a seat.
    pub async fn begin(self: &Arc<Self>, prompt_tokens: u64, wanted: u64) -> Result<Run, Dead> {
        let waiting = Waiting::new(self);
        let seat = tokio::select! {
            seat = self.seats.clone().acquire_owned() => seat.map_err(|_| Dead)?,
            () = self.died() => return Err(Dead),
        };
        drop(waiting);
        let mut metrics = self.metrics();
        metrics.running += 1;
        metrics.prompt(prompt_tokens);
        drop(metrics);
        let wanted = if self.fails.has(&Fail::NoTokens) { 0 } else { wanted };
        Ok(Run {
            engine: self.clone(),
            _seat: seat,
            prompt_tokens,
            wanted,
            made: 0,
            begun: Instant::now(),
            first: Duration::ZERO,
            aborted: false,
        })
    }

    async fn step(&self) -> Result<(), Dead> {
        if self.fails.has(&Fail::Hang) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(self.config.token).await;
        let peer_died = self.fails.has(&Fail::PeerDeath);
        let result = if peer_died { Err(Dead) } else { self.peers.lock().await.step().await };
        if result.is_err() {
            self.set_life(Life::Dead);
        }
        result
    }
}

/// Counts a request as waiting until dropped.
struct Waiting<'a>(&'a Engine);

impl<'a> Waiting<'a> {
    fn new(engine: &'a Engine) -> Self {
        engine.metrics().waiting += 1;
        Self(engine)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.metrics().waiting -= 1;
    }
}

/// A request that has a seat.
#[derive(Debug)]
pub struct Run {
    engine: Arc<Engine>,
    _seat: OwnedSemaphorePermit,
    prompt_tokens: u64,
    wanted: u64,
    made: u64,
    begun: Instant,
    first: Duration,
    aborted: bool,
}

const WORDS: [&str; 16] = [
    "The", " sky", " is", " blue", " and", " the", " sea", " is", " deep", ";", " the", " answer", " is", " two",
    " of", " four.",
];

impl Run {
    /// The next token's text; none at the end.
    pub async fn next(&mut self) -> Result<Option<&'static str>, Dead> {
        if self.made >= self.wanted {
            return Ok(None);
        }
        let engine = self.engine.clone();
        tokio::select! {
            biased;
            () = engine.until(|l| l == Life::Dead) => return Err(Dead),
            () = engine.until(|l| l == Life::Stopping) => {
                self.aborted = true;
                return Ok(None);
            }
            done = engine.step() => done?,
        }
        if self.made == 0 {
            self.first = self.begun.elapsed();
        }
        let word = WORDS[usize::try_from(self.made % WORDS.len() as u64).unwrap_or_default()];
        self.made += 1;
        engine.metrics().token();
        Ok(Some(if engine.fails.has(&Fail::Garble) { "\u{fffd}\u{fffd}!" } else { word }))
    }

    /// How many tokens were made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Length of the prompt.
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// Counts the end and says why it came; `limit` is the request's own bound.
    pub fn finish(&self, limit: u64) -> &'static str {
        let reason = match (self.aborted, self.made >= limit) {
            (true, _) => "abort",
            (false, true) => "length",
            (false, false) => "stop",
        };
        self.engine.metrics().finish(Finished {
            reason,
            prompt_tokens: self.prompt_tokens,
            generation_tokens: self.made,
            first_token: self.first,
            total: self.begun.elapsed(),
        });
        reason
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.engine.metrics().running -= 1;
    }
}
