//! A serving head under its watchdog: warm-up before READY, and what bounces it.

#![allow(clippy::unwrap_used, clippy::panic)] // a test says what is wrong by failing

mod support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use sparklane_engine::run::EXIT_STUCK;
use sparklane_engine::state::State;

use support::{Bench, Free};

/// How the API answers.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Mode {
    Well,
    Hang,
    BusyHang,
    Refuse,
    Broken,
}

#[derive(Clone)]
struct Api {
    mode: Arc<Mutex<Mode>>,
    tokens: Arc<AtomicU32>,
    users: Arc<Mutex<Vec<String>>>,
}

impl Api {
    async fn serve(bench: &Bench) -> Self {
        let api = Self { mode: Arc::new(Mutex::new(Mode::Well)), tokens: Arc::default(), users: Arc::default() };
        let router = Router::new()
            .route("/health", get(|| async { "" }))
            .route("/metrics", get(metrics))
            .route("/v1/chat/completions", post(chat))
            .with_state(api.clone());
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", bench.generation.engine.api_port)).await.unwrap();
        tokio::spawn(axum::serve(listener, router).into_future());
        api
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }

    fn users(&self, user: &str) -> usize {
        self.users.lock().unwrap().iter().filter(|u| *u == user).count()
    }
}

async fn metrics(Shared(api): Shared<Api>) -> String {
    if *api.mode.lock().unwrap() == Mode::BusyHang {
        api.tokens.fetch_add(100, Ordering::Relaxed);
    }
    format!(
        "vllm:generation_tokens_total{{engine=\"0\"}} {}\nvllm:num_requests_running 12\n",
        api.tokens.load(Ordering::Relaxed)
    )
}

async fn chat(Shared(api): Shared<Api>, body: Json<Value>) -> Response {
    api.users.lock().unwrap().push(body["user"].as_str().unwrap_or_default().to_owned());
    let mode = *api.mode.lock().unwrap();
    match mode {
        Mode::Well => Json(json!({ "usage": { "completion_tokens": 2 } })).into_response(),
        Mode::Hang | Mode::BusyHang => std::future::pending().await,
        Mode::Refuse => (StatusCode::BAD_REQUEST, "no such model").into_response(),
        Mode::Broken => (StatusCode::INTERNAL_SERVER_ERROR, "").into_response(),
    }
}

fn bench() -> Bench {
    let mut bench = Bench::new("head");
    bench.generation.budgets.warmup_secs = 5;
    bench.generation.watchdog.canary_secs = 1;
    bench.generation.watchdog.canary_timeout_secs = 1;
    bench
}

async fn served(bench: &Bench) -> Api {
    bench.until("STATUS=container runs, engine starts").await;
    let api = Api::serve(bench).await;
    bench.until("READY=1").await;
    api
}

async fn until(bench: &Bench, what: &str, holds: impl Fn() -> bool) {
    for _ in 0..400 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: {:?}", bench.state());
}

#[tokio::test]
async fn warm_up_comes_before_ready_and_is_marked() {
    let mut bench = bench();
    bench.generation.engine.argv.extend(["--max-num-seqs".into(), "3".into()]);
    let script = async {
        let api = served(&bench).await;
        assert!(bench.heard("STATUS=warming up: a long prompt"));
        assert_eq!(api.users("sparklane-warmup"), 4 + 3);
        let warmup = bench.state().warmup.unwrap();
        assert_eq!((warmup.requests, warmup.tokens), (7, 14));
        until(&bench, "a canary", || bench.state().canary.is_some_and(|c| c.well > 0)).await;
        assert!(api.users("sparklane-watchdog") > 0);
        assert_eq!(bench.state().state, State::Serving);
        bench.stop.notify_one();
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    assert_eq!(result.unwrap(), 0);
}

#[tokio::test]
async fn an_engine_that_hangs_with_health_200_is_ended_with_evidence() {
    let bench = bench();
    let script = async { served(&bench).await.set(Mode::Hang) };
    let (result, ()) = tokio::join!(bench.run(), script);
    assert_eq!(result.unwrap(), EXIT_STUCK);
    let failure = bench.state().failure.unwrap();
    assert!(failure.why.contains("no token in time and none for anyone else: 12 requests run"), "{failure:?}");
    assert!(failure.evidence.is_some());
}

#[tokio::test]
async fn an_api_that_breaks_is_ended_and_one_that_never_warms_up_is_not_ready() {
    let bench = bench();
    let script = async { served(&bench).await.set(Mode::Broken) };
    let (result, ()) = tokio::join!(bench.run(), script);
    assert_eq!(result.unwrap(), EXIT_STUCK);

    let bench = self::bench();
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        Api::serve(&bench).await.set(Mode::Broken);
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    assert_eq!(result.unwrap(), EXIT_STUCK);
    assert!(!bench.heard("READY=1"));
    assert!(bench.state().failure.unwrap().why.contains("warm-up, a plain chat: HTTP 500"));
}

#[tokio::test]
async fn busy_refusing_and_guarded_engines_are_told_of_and_left_alone() {
    for (mode, guard, words) in [
        (Mode::BusyHang, Free(true), "12 requests run"),
        (Mode::Refuse, Free(true), "the API refuses the canary: HTTP 400"),
        (Mode::Hang, Free(false), "the watchdog does not act: someone deploys"),
    ] {
        let mut bench = bench();
        bench.guard = guard;
        let script = async {
            let api = served(&bench).await;
            api.set(mode);
            until(&bench, words, || bench.state().reason.is_some_and(|r| r.contains(words))).await;
            until(&bench, "more looks", || bench.state().canary.is_some_and(|c| c.odd >= 4)).await;
            assert_eq!(bench.state().state, State::Degraded, "{mode:?}");
            api.set(Mode::Well);
            until(&bench, "serving again", || bench.state().state == State::Serving).await;
            bench.stop.notify_one();
        };
        let (result, ()) = tokio::join!(bench.run(), script);
        assert_eq!(result.unwrap(), 0, "{mode:?}");
    }
}
