//! Waiting for gates: declared checks with a budget and an interval.
//!
//! The wait never sleeps through a failure: every half second it looks whether a unit it depends on failed, and ends then,
//! whatever the budget. Time comes from a [`Clock`], so long budgets are tested in no time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sparklane_lane::generation::{Gate, GateKind};

use crate::http::HttpError;
use crate::judge::{Verdict, judge_tokens};
use crate::probe::{Prober, chat_body};
use crate::systemd::{UnitState, UnitStates};

/// How often units are looked at, whatever the gate's interval.
const UNIT_TICK: Duration = Duration::from_millis(500);
/// The shortest time between two tries.
const SHORTEST: Duration = Duration::from_millis(50);
/// How long one HTTP try may take.
const HTTP_TRY: Duration = Duration::from_secs(5);
/// How long one completion may take: first requests compile kernels.
const TOKENS_TRY: Duration = Duration::from_secs(300);
/// Bad answers in a row that end a gate.
const BAD_LIMIT: u32 = 3;
/// How long a unit may sit inactive without a job: a start job may not be queued yet.
const IDLE_GRACE: Duration = Duration::from_secs(2);

/// Time as the wait sees it.
pub trait Clock {
    /// Time since some fixed moment; never goes back.
    fn now(&self) -> Duration;
    /// Lets time pass.
    fn sleep(&self, time: Duration);
}

/// The machine's clock.
#[derive(Debug, Clone, Copy)]
pub struct RealClock(Instant);

impl Default for RealClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// What a wait works with.
pub struct GateContext<'a> {
    /// systemd.
    pub units: &'a dyn UnitStates,
    /// The API.
    pub prober: &'a dyn Prober,
    /// Time.
    pub clock: &'a dyn Clock,
    /// Units whose failure ends any gate at once, e.g. `sparklane-engine.service`.
    pub watch: &'a [String],
}

/// Told while a gate is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Gate's name.
    pub gate: String,
    /// Why it does not hold yet.
    pub waiting_for: String,
    /// Seconds of the budget left.
    pub left_secs: u64,
}

/// How a gate ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result", content = "detail")]
pub enum GateResult {
    /// It holds.
    Passed(String),
    /// It cannot hold any more.
    Failed(String),
    /// The budget ran out; what was seen last.
    TimedOut(String),
    /// The caller ended the wait.
    Cancelled,
}

/// The record of one gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GateOutcome {
    /// Gate's name.
    pub gate: String,
    /// How it ended.
    #[serde(flatten)]
    pub result: GateResult,
    /// Milliseconds waited.
    pub waited_ms: u64,
    /// Tries made.
    pub tries: u32,
}

impl GateOutcome {
    /// True when the gate holds.
    #[must_use]
    pub fn passed(&self) -> bool {
        matches!(self.result, GateResult::Passed(_))
    }
}

/// Tries a gate once. `left` bounds how long the try may take.
#[must_use]
pub fn check(kind: &GateKind, units: &dyn UnitStates, prober: &dyn Prober, left: Duration) -> Verdict {
    match kind {
        GateKind::Unit { unit } => match units.state(unit) {
            Ok(state) if state.active == "active" => Verdict::Pass(format!("{unit} is active")),
            Ok(state) => Verdict::NotYet(unit_words(unit, &state)),
            Err(why) => Verdict::NotYet(why),
        },
        GateKind::Http { url, status } => match prober.get(url, left.min(HTTP_TRY)) {
            Ok(response) if response.status == *status => Verdict::Pass(format!("{url} answered {status}")),
            Ok(response) => Verdict::NotYet(format!("{url} answered {}, {status} wanted", response.status)),
            Err(error) => no_answer(url, &error),
        },
        GateKind::Fabric { cluster } => prober.fabric(cluster),
        GateKind::Tokens { url, model, prompt, max_tokens, min_tokens } => {
            let url = format!("{}/v1/chat/completions", url.trim_end_matches('/'));
            match prober.post(&url, &chat_body(model, prompt, *max_tokens), left.min(TOKENS_TRY)) {
                Ok(response) => judge_tokens(response.status, &response.body, *min_tokens),
                Err(error) => no_answer(&url, &error),
            }
        }
    }
}

fn no_answer(url: &str, error: &HttpError) -> Verdict {
    match error {
        HttpError::Url(_) => Verdict::Bad(error.to_string()),
        other => Verdict::NotYet(format!("{url}: {other}")),
    }
}

fn unit_words(unit: &str, state: &UnitState) -> String {
    if state.status_text.is_empty() {
        format!("{unit} is {} ({})", state.active, state.sub)
    } else {
        format!("{unit}: {}", state.status_text)
    }
}

/// Units a gate depends on, with their restart count when the wait began.
struct Watch<'a> {
    units: Vec<(&'a str, Option<u32>, Option<Duration>)>,
}

impl<'a> Watch<'a> {
    fn new(gate: &'a Gate, watch: &'a [String]) -> Self {
        let own = match &gate.kind {
            GateKind::Unit { unit } => Some(unit.as_str()),
            _ => None,
        };
        let mut names: Vec<&str> = own.into_iter().chain(watch.iter().map(String::as_str)).collect();
        names.dedup();
        Self { units: names.into_iter().map(|n| (n, None, None)).collect() }
    }

    /// Why one of the units ended the wait, if so.
    fn failure(&mut self, states: &dyn UnitStates, now: Duration) -> Option<String> {
        for (unit, baseline, idle_since) in &mut self.units {
            let Ok(state) = states.state(unit) else {
                continue;
            };
            let baseline = *baseline.get_or_insert(state.restarts);
            if let Some(why) = state.failure(baseline) {
                return Some(format!("{unit} {why}"));
            }
            if !state.idle() {
                *idle_since = None;
            } else if now.saturating_sub(*idle_since.get_or_insert(now)) >= IDLE_GRACE {
                return Some(format!("{unit} is not running and nothing is starting it"));
            }
        }
        None
    }
}

/// One look at each unit per turn, however many questions are about it: a look is a process, and nodes are busy while an
/// engine starts.
struct Look<'a> {
    units: &'a dyn UnitStates,
    seen: RefCell<BTreeMap<String, Result<UnitState, String>>>,
}

impl<'a> Look<'a> {
    fn new(units: &'a dyn UnitStates) -> Self {
        Self { units, seen: RefCell::default() }
    }
}

impl UnitStates for Look<'_> {
    fn state(&self, unit: &str) -> Result<UnitState, String> {
        self.seen.borrow_mut().entry(unit.to_owned()).or_insert_with(|| self.units.state(unit)).clone()
    }
}

/// Waits until a gate holds, cannot hold, runs out of its budget, or `progress` breaks.
pub fn wait_gate(
    gate: &Gate,
    context: &GateContext<'_>,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> GateOutcome {
    let begin = context.clock.now();
    let mut tries = 0;
    let result = wait(gate, context, &mut tries, progress);
    let waited = context.clock.now().saturating_sub(begin);
    GateOutcome {
        gate: gate.name.clone(),
        result,
        waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
        tries,
    }
}

fn wait(
    gate: &Gate,
    context: &GateContext<'_>,
    tries: &mut u32,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> GateResult {
    let clock = context.clock;
    let end = clock.now() + Duration::from_secs(u64::from(gate.budget_secs));
    let interval = Duration::from_secs(u64::from(gate.interval_secs)).max(SHORTEST);
    let mut watch = Watch::new(gate, context.watch);
    let mut last = "not tried".to_owned();
    let mut next_try = clock.now();
    let mut bad = 0;
    loop {
        let look = Look::new(context.units);
        if let Some(why) = watch.failure(&look, clock.now()) {
            return GateResult::Failed(why);
        }
        let now = clock.now();
        let left = end.saturating_sub(now);
        // A budget of zero still gets one try.
        if left.is_zero() && *tries > 0 {
            return GateResult::TimedOut(last);
        }
        if now >= next_try {
            *tries += 1;
            match check(&gate.kind, &look, context.prober, left.max(Duration::from_secs(1))) {
                Verdict::Pass(words) => return GateResult::Passed(words),
                Verdict::NotYet(why) => (last, bad) = (why, 0),
                Verdict::Bad(why) => {
                    bad += 1;
                    if bad >= BAD_LIMIT {
                        return GateResult::Failed(why);
                    }
                    last = why;
                }
            }
            next_try = clock.now() + interval;
        }
        let left = end.saturating_sub(clock.now());
        let told = Progress { gate: gate.name.clone(), waiting_for: last.clone(), left_secs: left.as_secs() };
        if progress(&told).is_break() {
            return GateResult::Cancelled;
        }
        clock.sleep(UNIT_TICK.min(interval).min(left.max(Duration::from_millis(1))));
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
