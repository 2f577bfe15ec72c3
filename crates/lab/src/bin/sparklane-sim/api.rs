//! The HTTP API.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::answer::{self, Frame, Kind};
use crate::engine::{Engine, Life, Run};
use crate::fail::Fail;
use crate::peer::Dead;

/// Our routes, as vLLM lists them in its log.
pub const ROUTES: [(&str, &str); 8] = [
    ("/load", "GET"),
    ("/version", "GET"),
    ("/health", "GET"),
    ("/metrics", "GET"),
    ("/v1/models", "GET"),
    ("/ping", "GET"),
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
];

/// Length of an answer whose request sets none.
const NATURAL_LENGTH: u64 = 16;

const ENGINE_DIED: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";

type Engines = State<Arc<Engine>>;
/// An answer that says no.
type Refusal = Box<Response>;

/// All routes.
pub fn router(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/ping", get(health).post(health))
        .route("/load", get(|| async { json_answer(StatusCode::OK, &json!({ "server_load": 0 })) }))
        .route("/version", get(|| async { json_answer(StatusCode::OK, &json!({ "version": "0.32.0" })) }))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(text))
        .fallback(|| async { json_answer(StatusCode::NOT_FOUND, &json!({ "detail": "Not Found" })) })
        .method_not_allowed_fallback(|| async {
            json_answer(StatusCode::METHOD_NOT_ALLOWED, &json!({ "detail": "Method Not Allowed" }))
        })
        .layer(middleware::from_fn_with_state(engine.clone(), around))
        .with_state(engine)
}

/// What holds for every answer: the key, the headers, the count and the access log.
async fn around(State(engine): Engines, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let mut answer = if path.starts_with("/v1/") && !has_key(&engine, &request) {
        json_answer(StatusCode::UNAUTHORIZED, &json!({ "error": "Unauthorized" }))
    } else {
        next.run(request).await
    };
    let headers = answer.headers_mut();
    headers.insert(header::SERVER, HeaderValue::from_static("uvicorn"));
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    let status = answer.status();
    let handler = if ROUTES.iter().any(|(p, _)| *p == path) { path.as_str() } else { "none" };
    // The server's own counters leave out the probes, as vLLM's do.
    if !matches!(handler, "/health" | "/metrics" | "/ping" | "/version" | "/load") {
        engine.metrics().answered(handler, &method, status.as_u16());
    }
    crate::log::server(&format!("\"{method} {path} HTTP/1.1\" {status}"));
    answer
}

fn has_key(engine: &Engine, request: &Request) -> bool {
    let keys = &engine.config.api_keys;
    let given = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let given = given.and_then(|v| v.strip_prefix("Bearer "));
    keys.is_empty() || given.is_some_and(|g| keys.iter().any(|k| k == g))
}

fn json_answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn health(State(engine): Engines) -> StatusCode {
    if engine.life() == Life::Dead { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}

async fn metrics(State(engine): Engines) -> Response {
    let full = engine.fails.has(&Fail::Full);
    let mut metrics = engine.metrics();
    metrics.full = full;
    let text = metrics.render();
    drop(metrics);
    ([(header::CONTENT_TYPE, "text/plain; version=1.0.0; charset=utf-8")], text).into_response()
}

async fn models(State(engine): Engines) -> Response {
    json_answer(StatusCode::OK, &answer::models(&engine.config))
}

async fn chat(State(engine): Engines, body: Bytes) -> Response {
    generate(engine, Kind::Chat, &body).await.unwrap_or_else(|refusal| *refusal)
}

async fn text(State(engine): Engines, body: Bytes) -> Response {
    generate(engine, Kind::Text, &body).await.unwrap_or_else(|refusal| *refusal)
}

/// What a request asks for.
struct Ask {
    model: String,
    prompt_tokens: u64,
    limit: Option<u64>,
    wanted: u64,
    stream: bool,
    include_usage: bool,
}

fn bad_request(message: &str, kind: &str, param: &str) -> Refusal {
    let body = answer::error(message, kind, Some(param), 400);
    Box::new(json_answer(StatusCode::BAD_REQUEST, &body))
}

/// Answers of a pydantic check.
fn invalid(kind: &str, place: &str, message: &str, more: &str) -> Refusal {
    let text = format!("1 validation error:\n  {{'type': '{kind}', 'loc': '{place}', 'msg': '{message}', {more}}}");
    bad_request(&text, "Bad Request", place)
}

fn read(engine: &Engine, kind: Kind, body: &[u8]) -> Result<Ask, Refusal> {
    let body: Value = serde_json::from_slice(body).map_err(|e| {
        let place = format!("body.{}", e.column());
        let more = "'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}";
        invalid("json_invalid", &place, "JSON decode error", more)
    })?;
    let field = if kind == Kind::Chat { "messages" } else { "prompt" };
    let Some(prompt) = body.get(field) else {
        let items = body.as_object().map_or(0, serde_json::Map::len);
        let more = format!("'input': '<dict of {items} items>'");
        return Err(invalid("missing", &format!("body.{field}"), "Field required", &more));
    };
    let config = &engine.config;
    let served = config.served.first().cloned().unwrap_or_default();
    let model = body["model"].as_str().map_or_else(|| served.clone(), str::to_owned);
    if !config.served.contains(&model) {
        let text = format!("The model `{model}` does not exist. Valid aliases: {}.", config.served.join(", "));
        let body = answer::error(&text, "NotFoundError", Some("model"), 404);
        return Err(Box::new(json_answer(StatusCode::NOT_FOUND, &body)));
    }
    let limit = body["max_completion_tokens"].as_u64().or(body["max_tokens"].as_u64());
    if let Some(asked) = limit.filter(|l| *l > config.max_model_len) {
        let most = config.max_model_len;
        let text = format!(
            "max_tokens={asked} cannot be greater than max_model_len={most}. Please request fewer output tokens. \
             (parameter=max_tokens, value={asked})"
        );
        return Err(bad_request(&text, "BadRequestError", "max_tokens"));
    }
    let natural = if body["ignore_eos"] == true { u64::MAX } else { NATURAL_LENGTH };
    Ok(Ask {
        model,
        prompt_tokens: count_words(prompt).max(1),
        limit,
        wanted: natural.min(limit.unwrap_or(config.max_model_len)),
        stream: body["stream"] == true,
        include_usage: body["stream_options"]["include_usage"] == true,
    })
}

/// One word, one token: every text inside the prompt counts.
fn count_words(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.split_whitespace().count() as u64,
        Value::Array(items) => items.iter().map(count_words).sum(),
        Value::Object(fields) => fields.values().map(count_words).sum(),
        Value::Number(_) => 1,
        _ => 0,
    }
}

fn died(message: &str) -> Refusal {
    let body = answer::error(message, "InternalServerError", None, 500);
    Box::new(json_answer(StatusCode::INTERNAL_SERVER_ERROR, &body))
}

async fn generate(engine: Arc<Engine>, kind: Kind, body: &[u8]) -> Result<Response, Refusal> {
    let ask = read(&engine, kind, body)?;
    if engine.fails.has(&Fail::Refuse) {
        return Err(bad_request("refused on demand", "BadRequestError", "model"));
    }
    match engine.life() {
        Life::Serving => {}
        Life::Draining => return Err(died("cannot schedule new futures after shutdown")),
        Life::Stopping | Life::Dead => return Err(died(ENGINE_DIED)),
    }
    let frame = Frame::new(kind, &engine.config, ask.model.clone());
    if ask.stream {
        return Ok(stream(engine, frame, ask));
    }
    let whole = async {
        let mut run = engine.begin(ask.prompt_tokens, ask.wanted).await?;
        let mut text = String::new();
        while let Some(word) = run.next().await? {
            text += word;
        }
        let reason = run.finish(ask.limit.unwrap_or(u64::MAX));
        Ok::<_, Dead>(frame.full(&text, reason, (run.prompt_tokens(), run.made())))
    };
    whole.await.map(|body| json_answer(StatusCode::OK, &body)).map_err(|Dead| died(ENGINE_DIED))
}

/// Server-sent events. The client's going away drops the receiver, which ends the generation.
fn stream(engine: Arc<Engine>, frame: Frame, ask: Ask) -> Response {
    let (events, receiver) = mpsc::channel::<String>(1);
    tokio::spawn(async move {
        let gone = events.clone();
        tokio::select! {
            () = gone.closed() => {}
            result = feed(&engine, &frame, &ask, &events) => {
                if result.is_err() {
                    let body = answer::error(ENGINE_DIED, "InternalServerError", None, 500);
                    let _ = events.send(event(&body)).await;
                }
                let _ = events.send("data: [DONE]\n\n".to_owned()).await;
            }
        }
    });
    let chunks = futures_util::stream::unfold(receiver, |mut receiver| async {
        let event = receiver.recv().await?;
        Some((Ok::<_, Infallible>(event), receiver))
    });
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(chunks)).into_response()
}

fn event(body: &Value) -> String {
    format!("data: {body}\n\n")
}

async fn feed(engine: &Arc<Engine>, frame: &Frame, ask: &Ask, events: &mpsc::Sender<String>) -> Result<(), Dead> {
    // A failed send means that the client went away; the caller ends this then.
    let send = async |body: Value| events.send(event(&body)).await.map_err(|_| Dead);
    let mut run: Run = engine.begin(ask.prompt_tokens, ask.wanted).await?;
    if frame.kind == Kind::Chat {
        send(frame.role()).await?;
    }
    let limit = ask.limit.unwrap_or(u64::MAX);
    loop {
        let word = run.next().await?;
        let last = word.is_none() || run.made() >= ask.wanted;
        let reason = last.then(|| run.finish(limit));
        send(frame.token(word.unwrap_or_default(), reason, ask.include_usage)).await?;
        if last {
            break;
        }
    }
    if ask.include_usage {
        send(frame.usage((run.prompt_tokens(), run.made()))).await?;
    }
    Ok(())
}
