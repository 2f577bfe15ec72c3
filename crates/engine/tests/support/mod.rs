//! docker's API that answers as told, over a real unix socket, and one supervisor before it.

#![allow(dead_code)] // each test file uses its part

use std::any::Any;
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use sparklane_engine::docker::Client;
use sparklane_engine::notify::Notify;
use sparklane_engine::pair::Pair;
use sparklane_engine::run::{Setup, supervise};
use sparklane_engine::watch::Guard;
use sparklane_engine::{EngineError, state};
use sparklane_lane::Generation;
use tokio::sync::{Notify as Wake, mpsc};

pub const CONFIG: &str = "sha256:2222222222222222222222222222222222222222222222222222222222222222";
pub const MANIFEST: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";

/// What docker knows, and what the test tells its container to do.
#[derive(Default)]
pub struct Docker {
    pub images: Vec<String>,
    pub digests: Vec<(String, String)>,
    pub containers: HashMap<String, Value>,
    pub calls: Vec<String>,
    pub created: Option<Value>,
    pub exit: Option<i64>,
    pub exit_on_stop: i64,
    pub refuse_start: Option<(u16, String)>,
    pub logs: Vec<mpsc::UnboundedSender<Vec<u8>>>,
    pub history: Vec<u8>,
}

#[derive(Clone, Default)]
pub struct Fake(pub Arc<Mutex<Docker>>, pub Arc<Wake>);

fn error(status: u16, message: &str) -> Response {
    (StatusCode::from_u16(status).unwrap(), Json(json!({ "message": message }))).into_response()
}

fn frame(line: &str) -> Vec<u8> {
    let text = format!("{line}\n");
    let mut bytes = vec![1, 0, 0, 0];
    bytes.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

impl Fake {
    pub fn say(&self, line: &str) {
        let mut docker = self.0.lock().unwrap();
        docker.history.extend(frame(line));
        docker.logs.retain(|log| log.send(frame(line)).is_ok());
    }

    pub fn end(&self, code: i64) {
        let mut docker = self.0.lock().unwrap();
        docker.exit = Some(code);
        docker.logs.clear();
        drop(docker);
        self.1.notify_waiters();
    }

    pub fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().calls.clone()
    }
}

pub fn router(fake: Fake) -> Router {
    let api = Router::new()
        .route("/images/{name}/json", get(image))
        .route("/images/json", get(images))
        .route("/containers/json", get(list))
        .route("/containers/create", post(create))
        .route("/containers/{id}/json", get(inspect))
        .route("/containers/{id}/start", post(start))
        .route("/containers/{id}/stop", post(stop))
        .route("/containers/{id}/wait", post(wait))
        .route("/containers/{id}/logs", get(logs))
        .route("/containers/{id}", delete(remove))
        .with_state(fake);
    Router::new()
        .route("/version", get(|| async { Json(json!({ "ApiVersion": "1.45", "MinAPIVersion": "1.24" })) }))
        .nest("/v1.45", api.clone())
        .merge(api)
}

async fn image(State(fake): State<Fake>, Path(name): Path<String>) -> Response {
    let docker = fake.0.lock().unwrap();
    if docker.images.contains(&name) {
        Json(json!({ "Id": name })).into_response()
    } else {
        error(404, "no such image")
    }
}

async fn images(State(fake): State<Fake>) -> Response {
    let docker = fake.0.lock().unwrap();
    let row = |(id, digest): &(String, String)| {
        json!({"Id": id, "ParentId": "", "RepoTags": [], "RepoDigests": [digest], "Created": 0, "Size": 0,
               "SharedSize": 0, "Labels": {}, "Containers": 0})
    };
    Json(docker.digests.iter().map(row).collect::<Vec<_>>()).into_response()
}

async fn list(State(fake): State<Fake>, Query(query): Query<HashMap<String, String>>) -> Response {
    assert!(query["filters"].contains("dev.sparklane.role=engine"), "{query:?}");
    let docker = fake.0.lock().unwrap();
    let ours = docker.containers.iter().filter(|(_, labels)| labels.get("dev.sparklane.role").is_some());
    Json(ours.map(|(id, _)| json!({ "Id": id })).collect::<Vec<_>>()).into_response()
}

async fn create(State(fake): State<Fake>, Query(query): Query<HashMap<String, String>>, body: Json<Value>) -> Response {
    let mut docker = fake.0.lock().unwrap();
    let name = query["name"].clone();
    docker.calls.push(format!("create {name}"));
    docker.containers.insert(name.clone(), body["Labels"].clone());
    docker.created = Some(body.0);
    docker.exit = None;
    (StatusCode::CREATED, Json(json!({ "Id": name, "Warnings": [] }))).into_response()
}

async fn inspect(State(fake): State<Fake>, Path(id): Path<String>) -> Response {
    let docker = fake.0.lock().unwrap();
    let Some(labels) = docker.containers.get(&id) else { return error(404, "no such container") };
    let state = json!({ "Running": docker.exit.is_none(), "ExitCode": docker.exit.unwrap_or(0), "OOMKilled": false });
    Json(json!({ "Id": id, "Config": { "Labels": labels }, "State": state })).into_response()
}

async fn start(State(fake): State<Fake>, Path(id): Path<String>) -> Response {
    let mut docker = fake.0.lock().unwrap();
    docker.calls.push(format!("start {id}"));
    match docker.refuse_start.clone() {
        Some((status, message)) => error(status, &message),
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn stop(
    State(fake): State<Fake>,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let (ended, code) = {
        let mut docker = fake.0.lock().unwrap();
        docker.calls.push(format!("stop {id} {}", query["t"]));
        (docker.exit.is_some(), docker.exit_on_stop)
    };
    if ended {
        return StatusCode::NOT_MODIFIED.into_response();
    }
    fake.say("draining");
    fake.end(code);
    StatusCode::NO_CONTENT.into_response()
}

async fn wait(State(fake): State<Fake>) -> Response {
    loop {
        let woken = fake.1.notified();
        let exit = fake.0.lock().unwrap().exit;
        if let Some(code) = exit {
            return Json(json!({ "StatusCode": code })).into_response();
        }
        woken.await;
    }
}

async fn logs(State(fake): State<Fake>) -> Response {
    let (send, receive) = mpsc::unbounded_channel();
    let mut docker = fake.0.lock().unwrap();
    let _ = send.send(docker.history.clone());
    if docker.exit.is_none() {
        docker.logs.push(send);
    }
    let stream = futures_util::stream::unfold(receive, |mut receive| async {
        receive.recv().await.map(|bytes| (Ok::<_, std::io::Error>(Bytes::from(bytes)), receive))
    });
    Response::builder()
        .header("content-type", "application/vnd.docker.multiplexed-stream")
        .body(Body::from_stream(stream))
        .unwrap()
}

async fn remove(State(fake): State<Fake>, Path(id): Path<String>) -> Response {
    let mut docker = fake.0.lock().unwrap();
    docker.calls.push(format!("remove {id}"));
    docker.containers.remove(&id);
    StatusCode::NO_CONTENT.into_response()
}

#[derive(Default)]
pub struct Heard(pub Mutex<Vec<String>>);

impl Notify for Heard {
    fn status(&self, line: &str) {
        self.0.lock().unwrap().push(format!("STATUS={line}"));
    }
    fn ready(&self) {
        self.0.lock().unwrap().push("READY=1".into());
    }
    fn stopping(&self) {
        self.0.lock().unwrap().push("STOPPING=1".into());
    }
    fn extend(&self, _: Duration) {}
}

/// One run with its world.
pub struct Bench {
    pub dir: tempfile::TempDir,
    pub fake: Fake,
    pub heard: Arc<Heard>,
    pub generation: Generation,
    pub lines: Arc<Mutex<Vec<String>>>,
    pub stop: Arc<Wake>,
    pub guard: Free,
    /// Folder of the heartbeats' keys; none there: the rank starts by itself.
    pub keys: PathBuf,
}

/// A guard that lets the watchdog act, or never.
#[derive(Clone, Copy)]
pub struct Free(pub bool);

impl Guard for Free {
    fn may_act(&self) -> Result<Box<dyn Any + Send>, String> {
        if self.0 { Ok(Box::new(())) } else { Err("someone deploys".into()) }
    }
}

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Bench {
    pub fn new(role: &str) -> Self {
        let text = include_str!("../../../../tests/fixtures/engine/generation.json");
        let mut value: Value = serde_json::from_str(text).unwrap();
        value["role"] = role.into();
        value["engine"]["apiPort"] = free_port().into();
        let fake = Fake::default();
        fake.0.lock().unwrap().images.push(CONFIG.to_owned());
        Self {
            dir: tempfile::tempdir().unwrap(),
            fake,
            heard: Arc::default(),
            generation: serde_json::from_value(value).unwrap(),
            lines: Arc::default(),
            stop: Arc::default(),
            guard: Free(true),
            keys: PathBuf::from("/nonexistent"),
        }
    }

    pub async fn run(&self) -> Result<u8, EngineError> {
        self.run_started(false).await
    }

    pub async fn run_started(&self, on_purpose: bool) -> Result<u8, EngineError> {
        let socket = self.dir.path().join("docker.sock");
        let _before = std::fs::remove_file(&socket);
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let server = tokio::spawn(axum::serve(listener, router(self.fake.clone())).into_future());
        let client = Client::connect(socket.to_str().unwrap(), Duration::from_secs(10)).await.unwrap();
        let lines = self.lines.clone();
        let mut sink = move |line: &str| lines.lock().unwrap().push(line.to_owned());
        let setup = Setup {
            generation: &self.generation,
            client,
            notify: &*self.heard,
            sink: &mut sink,
            state_file: Some(self.dir.path().join("run/engine.json")),
            evidence: Some(self.dir.path().join("evidence")),
            tool: "/tool".into(),
            pair: Pair::open(&self.generation, self.keys.clone()).unwrap(),
            guard: Arc::new(self.guard),
            kmsg: self.dir.path().join("kmsg"),
            on_purpose,
        };
        let result = supervise(setup, self.stop.notified()).await;
        server.abort();
        result
    }

    pub fn state(&self) -> state::EngineState {
        state::read(&self.dir.path().join("run/engine.json")).unwrap()
    }

    pub fn heard(&self, what: &str) -> bool {
        self.heard.0.lock().unwrap().iter().any(|h| h == what)
    }

    pub async fn until(&self, what: &str) {
        let begin = Instant::now();
        while !self.heard(what) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{what} not heard: {:?}", self.heard.0.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// An API that answers `/health` with 200.
    pub fn serve_health(&self) {
        let listener = std::net::TcpListener::bind(("127.0.0.1", self.generation.engine.api_port)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            }
        });
    }
}
