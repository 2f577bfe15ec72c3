use std::cell::{Cell, RefCell};

use sparklane_lane::generation::GateScope;

use super::*;
use crate::http::Response;

struct FakeClock(Cell<Duration>);

impl Clock for FakeClock {
    fn now(&self) -> Duration {
        self.0.get()
    }
    fn sleep(&self, time: Duration) {
        self.0.set(self.0.get() + time);
    }
}

type UnitScript = Box<dyn Fn(Duration) -> UnitState>;
type Answer = Box<dyn Fn(Duration) -> Result<Response, HttpError>>;

struct World {
    clock: FakeClock,
    unit: UnitScript,
    answer: Answer,
    asked: RefCell<Vec<Duration>>,
}

impl World {
    fn new(unit: UnitScript, answer: Answer) -> Self {
        Self { clock: FakeClock(Cell::new(Duration::from_secs(1000))), unit, answer, asked: RefCell::default() }
    }
    fn time(&self) -> Duration {
        self.clock.now().saturating_sub(Duration::from_secs(1000))
    }
}

impl UnitStates for World {
    fn state(&self, _: &str) -> Result<UnitState, String> {
        Ok((self.unit)(self.time()))
    }
}

impl Prober for World {
    fn get(&self, _: &str, _: Duration) -> Result<Response, HttpError> {
        self.asked.borrow_mut().push(self.time());
        (self.answer)(self.time())
    }
    fn post(&self, _: &str, _: &[u8], _: Duration) -> Result<Response, HttpError> {
        self.asked.borrow_mut().push(self.time());
        (self.answer)(self.time())
    }
}

fn unit(active: &str, sub: &str) -> UnitState {
    UnitState { active: active.into(), sub: sub.into(), load: "loaded".into(), ..UnitState::default() }
}

fn gate(kind: GateKind, budget: u32, interval: u32) -> Gate {
    Gate { name: "g".into(), scope: GateScope::Node, budget_secs: budget, interval_secs: interval, kind }
}

fn http() -> GateKind {
    GateKind::Http { url: "http://127.0.0.1:1/health".into(), status: 200 }
}

fn tokens() -> GateKind {
    GateKind::Tokens {
        url: "http://127.0.0.1:1".into(),
        model: "m".into(),
        prompt: "p".into(),
        max_tokens: 8,
        min_tokens: 1,
    }
}

fn run(world: &World, gate: &Gate) -> GateOutcome {
    let watch = ["sparklane-engine.service".to_owned()];
    let context = GateContext { units: world, prober: world, clock: &world.clock, watch: &watch };
    wait_gate(gate, &context, &mut |_| ControlFlow::Continue(()))
}

fn refused() -> Result<Response, HttpError> {
    Err(HttpError::Io("connection refused".into()))
}

fn ok(body: &[u8]) -> Result<Response, HttpError> {
    Ok(Response { status: 200, body: body.to_vec() })
}

#[test]
fn a_twenty_minute_start_passes_within_its_budget() {
    let minutes = Duration::from_secs(19 * 60);
    let world = World::new(
        Box::new(|_| unit("activating", "start")),
        Box::new(move |t| if t < minutes { refused() } else { ok(b"") }),
    );
    let outcome = run(&world, &gate(http(), 20 * 60, 5));
    assert!(outcome.passed(), "{outcome:?}");
    assert!((1_140_000..1_146_000).contains(&outcome.waited_ms), "{outcome:?}");
}

#[test]
fn scenario_13_a_failing_unit_ends_any_gate_within_a_second_of_a_20_minute_budget() {
    let dies = Duration::from_millis(1700);
    for kind in [http(), tokens(), GateKind::Unit { unit: "sparklane-engine.service".into() }] {
        for (active, sub) in [("failed", "failed"), ("activating", "auto-restart")] {
            let world = World::new(
                Box::new(move |t| if t < dies { unit("activating", "start") } else { unit(active, sub) }),
                Box::new(|_| refused()),
            );
            let outcome = run(&world, &gate(kind.clone(), 20 * 60, 60));
            assert!(matches!(outcome.result, GateResult::Failed(_)), "{outcome:?}");
            assert!(outcome.waited_ms < 2700, "{outcome:?}");
        }
    }
}

#[test]
fn a_restart_between_two_looks_is_seen_by_its_count() {
    let world = World::new(
        Box::new(|t| UnitState { restarts: 3 + u32::from(t.as_secs() >= 2), ..unit("activating", "start") }),
        Box::new(|_| refused()),
    );
    let outcome = run(&world, &gate(http(), 600, 5));
    assert!(matches!(outcome.result, GateResult::Failed(_)), "{outcome:?}");
    assert!(outcome.waited_ms <= 3000);
}

#[test]
fn a_unit_that_nothing_starts_ends_the_wait_but_a_queued_one_does_not() {
    let idle = World::new(Box::new(|_| unit("inactive", "dead")), Box::new(|_| refused()));
    let outcome = run(&idle, &gate(http(), 600, 5));
    assert!(matches!(outcome.result, GateResult::Failed(_)), "{outcome:?}");
    assert!(outcome.waited_ms < 4000);
    let queued = World::new(Box::new(|_| UnitState { job: true, ..unit("inactive", "dead") }), Box::new(|_| refused()));
    assert!(matches!(run(&queued, &gate(http(), 30, 5)).result, GateResult::TimedOut(_)));
}

#[test]
fn scenario_29_answers_without_tokens_fail_after_three_of_them() {
    let world = World::new(Box::new(|_| unit("active", "running")), Box::new(|_| ok(b"{\"choices\":[]}")));
    let outcome = run(&world, &gate(tokens(), 1200, 5));
    assert!(matches!(outcome.result, GateResult::Failed(_)), "{outcome:?}");
    assert_eq!((outcome.tries, outcome.waited_ms), (3, 10_000));
}

#[test]
fn the_budget_ends_the_wait_and_tries_keep_the_interval() {
    let world = World::new(Box::new(|_| unit("active", "running")), Box::new(|_| refused()));
    let outcome = run(&world, &gate(http(), 12, 5));
    assert_eq!(outcome.result, GateResult::TimedOut("http://127.0.0.1:1/health: connection refused".into()));
    assert_eq!(outcome.waited_ms, 12_000);
    let asked: Vec<u64> = world.asked.borrow().iter().map(Duration::as_secs).collect();
    assert_eq!(asked, [0, 5, 10]);
}

#[test]
fn a_zero_budget_still_tries_once() {
    let world = World::new(Box::new(|_| unit("active", "running")), Box::new(|_| ok(b"")));
    assert!(run(&world, &gate(http(), 0, 5)).passed());
    let world = World::new(Box::new(|_| unit("active", "running")), Box::new(|_| refused()));
    assert_eq!(run(&world, &gate(http(), 0, 5)).tries, 1);
}

#[test]
fn progress_counts_down_and_can_end_the_wait() {
    let world = World::new(Box::new(|_| unit("activating", "start")), Box::new(|_| refused()));
    let context = GateContext { units: &world, prober: &world, clock: &world.clock, watch: &[] };
    let mut told = vec![];
    let outcome = wait_gate(&gate(http(), 100, 5), &context, &mut |p| {
        told.push(p.left_secs);
        if p.left_secs <= 90 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(outcome.result, GateResult::Cancelled);
    assert_eq!((told.first(), told.last()), (Some(&100), Some(&90)));
}

#[test]
fn outcome_is_one_flat_json_object() {
    let outcome = GateOutcome { gate: "g".into(), result: GateResult::Failed("why".into()), waited_ms: 5, tries: 1 };
    let text = serde_json::to_string(&outcome).unwrap();
    assert_eq!(text, r#"{"gate":"g","result":"failed","detail":"why","waitedMs":5,"tries":1}"#);
    assert_eq!(serde_json::from_str::<GateOutcome>(&text).unwrap(), outcome);
}

#[test]
fn a_turn_looks_once_at_a_unit() {
    let looks = std::rc::Rc::new(Cell::new(0));
    let counted = looks.clone();
    let starts = Duration::from_secs(3);
    let world = World::new(
        Box::new(move |t| {
            counted.set(counted.get() + 1);
            if t < starts { unit("activating", "start") } else { unit("active", "running") }
        }),
        Box::new(|_| refused()),
    );
    let outcome = run(&world, &gate(GateKind::Unit { unit: "sparklane-engine.service".into() }, 60, 1));
    assert!(outcome.passed(), "{outcome:?}");
    // Watched and asked about, every half second from 0 to 3.
    assert_eq!(looks.get(), 7, "{outcome:?}");
}
