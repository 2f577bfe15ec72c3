//! The supervisor against a docker API that answers as told, over a real unix socket.

#![allow(clippy::unwrap_used, clippy::panic)] // a test says what is wrong by failing

use std::any::Any;
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
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
use sparklane_engine::run::{Setup, supervise};
use sparklane_engine::watch::Guard;
use sparklane_engine::{EngineError, state};
use sparklane_lane::Generation;
use tokio::sync::{Notify as Wake, mpsc};

const CONFIG: &str = "sha256:2222222222222222222222222222222222222222222222222222222222222222";
const MANIFEST: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";

/// What docker knows, and what the test tells its container to do.
#[derive(Default)]
struct Docker {
    images: Vec<String>,
    digests: Vec<(String, String)>,
    containers: HashMap<String, Value>,
    calls: Vec<String>,
    created: Option<Value>,
    exit: Option<i64>,
    exit_on_stop: i64,
    refuse_start: Option<(u16, String)>,
    logs: Vec<mpsc::UnboundedSender<Vec<u8>>>,
    history: Vec<u8>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Docker>>, Arc<Wake>);

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
    fn say(&self, line: &str) {
        let mut docker = self.0.lock().unwrap();
        docker.history.extend(frame(line));
        docker.logs.retain(|log| log.send(frame(line)).is_ok());
    }

    fn end(&self, code: i64) {
        let mut docker = self.0.lock().unwrap();
        docker.exit = Some(code);
        docker.logs.clear();
        drop(docker);
        self.1.notify_waiters();
    }

    fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().calls.clone()
    }
}

fn router(fake: Fake) -> Router {
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
struct Heard(Mutex<Vec<String>>);

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
struct Bench {
    dir: tempfile::TempDir,
    fake: Fake,
    heard: Arc<Heard>,
    generation: Generation,
    lines: Arc<Mutex<Vec<String>>>,
    stop: Arc<Wake>,
    guard: Free,
}

/// A guard that lets the watchdog act, or never.
#[derive(Clone, Copy)]
struct Free(bool);

impl Guard for Free {
    fn may_act(&self) -> Result<Box<dyn Any + Send>, String> {
        if self.0 { Ok(Box::new(())) } else { Err("someone deploys".into()) }
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Bench {
    fn new(role: &str) -> Self {
        let text = include_str!("../../../tests/fixtures/engine/generation.json");
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
        }
    }

    async fn run(&self) -> Result<u8, EngineError> {
        let socket = self.dir.path().join("docker.sock");
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
            pair: None,
            guard: Arc::new(self.guard),
        };
        let result = supervise(setup, self.stop.notified()).await;
        server.abort();
        result
    }

    fn state(&self) -> state::EngineState {
        state::read(&self.dir.path().join("run/engine.json")).unwrap()
    }

    fn heard(&self, what: &str) -> bool {
        self.heard.0.lock().unwrap().iter().any(|h| h == what)
    }

    async fn until(&self, what: &str) {
        let begin = Instant::now();
        while !self.heard(what) {
            assert!(begin.elapsed() < Duration::from_secs(10), "{what} not heard: {:?}", self.heard.0.lock().unwrap());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// An API that answers `/health` with 200.
    fn serve_health(&self) {
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

#[tokio::test]
async fn a_head_is_ready_when_health_answers_and_stops_on_request() {
    let bench = Bench::new("head");
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        bench.fake.say("(Worker pid=1) INFO distributed_init_method=tcp://10.0.0.1:25000 backend=gloo");
        bench.until("STATUS=waiting for the other ranks").await;
        bench.fake.say("Loading safetensors checkpoint shards:  50% Completed | 1/2");
        bench.until("STATUS=loading weights 50%").await;
        bench.fake.say("INFO:     Application startup complete.");
        bench.until("STATUS=starting the API").await;
        assert!(!bench.heard("READY=1"));
        bench.serve_health();
        bench.until("READY=1").await;
        assert!(bench.state().ready);
        bench.stop.notify_one();
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    assert_eq!(result.unwrap(), 0);
    assert!(bench.heard("STOPPING=1"));
    let lines = bench.lines.lock().unwrap().clone();
    assert_eq!(lines.last().map(String::as_str), Some("draining"), "what is said while draining is kept");
    let name = "sparklane-engine";
    let calls = bench.fake.calls();
    assert_eq!(calls[..3], [format!("create {name}"), format!("start {name}"), format!("stop {name} 20")]);
    assert!(bench.fake.0.lock().unwrap().containers.is_empty(), "{calls:?}");
    assert_eq!((bench.state().exit_code, bench.state().ready), (Some(0), false));
}

#[tokio::test]
async fn a_worker_is_ready_at_the_rendezvous() {
    let bench = Bench::new("worker");
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!bench.heard("READY=1"));
        bench
            .fake
            .say("INFO Launching vLLM (v0.32.0) headless multiproc executor, with head node address 10.0.0.1:25000");
        bench.until("READY=1").await;
        bench.stop.notify_one();
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    assert_eq!(result.unwrap(), 0);
}

#[tokio::test]
async fn exit_codes_are_kept_but_zero_and_usage() {
    for (container, unit) in [(0, 1), (2, 78), (1, 1), (3, 3), (137, 137), (78, 78)] {
        let bench = Bench::new("head");
        let script = async {
            bench.until("STATUS=container runs, engine starts").await;
            bench.fake.say("(EngineCore pid=85) ERROR Worker proc VllmWorker-1 died unexpectedly (exit code: -9)");
            bench.fake.end(container);
        };
        let (result, ()) = tokio::join!(bench.run(), script);
        assert_eq!(result.unwrap(), unit, "container {container}");
        let state = bench.state();
        assert_eq!(state.exit_code, Some(container));
        assert_eq!(state.cause.as_deref(), Some("a rank's process died"));
        assert!(!bench.heard("READY=1"));
        let said = bench.heard.0.lock().unwrap().last().cloned().unwrap();
        assert!(said.contains("code") && said.contains("a rank's process died"), "{said}");
        assert!(bench.fake.0.lock().unwrap().containers.is_empty(), "the ended container is removed");
    }
}

#[tokio::test]
async fn the_image_is_found_by_each_of_its_identities_and_refused_by_name() {
    for found in ["classic", "containerd", "pulled by digest", "missing"] {
        let bench = Bench::new("worker");
        {
            let mut docker = bench.fake.0.lock().unwrap();
            docker.images.clear();
            match found {
                "classic" => docker.images.push(CONFIG.into()),
                "containerd" => docker.images.push(MANIFEST.into()),
                "pulled by digest" => docker.digests.push(("sha256:99".into(), format!("r.example/x@{MANIFEST}"))),
                _ => docker.digests.push(("sha256:99".into(), "sparklane-sim:lab@sha256:0".into())),
            }
        }
        let ender = async {
            if found != "missing" {
                bench.until("STATUS=container runs, engine starts").await;
                bench.stop.notify_one();
            }
        };
        let (result, ()) = tokio::join!(bench.run(), ender);
        let used = bench.fake.0.lock().unwrap().created.as_ref().map(|c| c["Image"].clone());
        match found {
            "classic" => assert_eq!(used, Some(CONFIG.into())),
            "containerd" => assert_eq!(used, Some(MANIFEST.into())),
            "pulled by digest" => assert_eq!(used, Some("sha256:99".into())),
            _ => {
                let error = result.unwrap_err();
                assert_eq!(error.exit_code(), 78);
                let text = error.to_string();
                assert!(text.contains(CONFIG) && text.contains(MANIFEST) && text.contains("deploy"), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn stale_containers_of_ours_go_and_foreign_ones_are_refused() {
    let bench = Bench::new("worker");
    let ours = json!({ "dev.sparklane.generation": "x", "dev.sparklane.role": "engine" });
    bench.fake.0.lock().unwrap().containers.insert("old-name".into(), ours);
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        bench.stop.notify_one();
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    result.unwrap();
    assert_eq!(bench.fake.calls()[..2], ["stop old-name 20", "remove old-name"]);

    let bench = Bench::new("worker");
    bench.fake.0.lock().unwrap().containers.insert("sparklane-engine".into(), json!({ "other": "1" }));
    let error = bench.run().await.unwrap_err();
    assert_eq!(error.exit_code(), 78);
    assert!(bench.fake.0.lock().unwrap().containers.contains_key("sparklane-engine"));
    assert_eq!(bench.fake.calls(), Vec::<String>::new());
}

#[tokio::test]
async fn a_container_that_cannot_start_is_removed() {
    for (status, code) in [(400, 78), (500, 1)] {
        let bench = Bench::new("worker");
        bench.fake.0.lock().unwrap().refuse_start = Some((status, "exec: no such file".into()));
        let error = bench.run().await.unwrap_err();
        assert_eq!(error.exit_code(), code);
        assert!(error.to_string().contains("no such file"));
        assert!(bench.fake.0.lock().unwrap().containers.is_empty());
    }
}

#[tokio::test]
async fn a_taken_port_a_missing_device_and_a_folder_that_cannot_be_made_are_named() {
    let bench = Bench::new("head");
    let _taken = std::net::TcpListener::bind(("127.0.0.1", bench.generation.engine.api_port)).unwrap();
    let error = bench.run().await.unwrap_err();
    assert!(matches!(error, EngineError::PortTaken { .. }), "{error}");
    let mut bench = Bench::new("worker");
    bench.generation.engine.devices = vec!["/dev/no-such-device".into()];
    let error = bench.run().await.unwrap_err();
    assert_eq!((error.exit_code(), error.to_string().contains("/dev/no-such-device")), (1, true));
    let mut bench = Bench::new("worker");
    let mount = json!({"source": "/proc/no/such/folder", "target": "/x", "readOnly": false, "create": true});
    bench.generation.engine.mounts = vec![serde_json::from_value(mount).unwrap()];
    let error = bench.run().await.unwrap_err();
    assert!(error.to_string().contains("/proc/no/such/folder"));
}

#[tokio::test]
async fn folders_are_made_and_the_api_key_is_in_no_log_and_no_request() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut bench = Bench::new("worker");
    let cache = bench.dir.path().join("cache/lab-a");
    bench.generation.engine.cache_roots.insert("vllm".into(), cache.display().to_string());
    let key = bench.dir.path().join("key");
    std::fs::write(&key, "sk-test-key\n").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    bench.generation.engine.api_key_file = Some(key.display().to_string());
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        bench.fake.say("non-default args: {'api_key': ['sk-test-key']} Launching vLLM (v0.32.0)");
        bench.until("READY=1").await;
        bench.stop.notify_one();
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    result.unwrap();
    assert!(cache.is_dir());
    let created = bench.fake.0.lock().unwrap().created.clone().unwrap().to_string();
    assert!(!created.contains("sk-test-key"), "{created}");
    let said = bench.lines.lock().unwrap().join("\n");
    assert!(said.contains("[redacted]") && !said.contains("sk-test-key"), "{said}");
    // The same file, readable by others, is refused before anything starts.
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::remove_file(bench.dir.path().join("docker.sock")).unwrap();
    let error = bench.run().await.unwrap_err();
    assert_eq!(error.exit_code(), 78);
}
