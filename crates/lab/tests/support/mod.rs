//! Starts simulators and asks them things, with nothing but the standard library.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, where a failure shall end the test")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A captured file.
pub fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/engine").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A port that nobody listens on now.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeSet<String>,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

/// Names of the headers in a captured or received head.
pub fn header_names(head: &str) -> BTreeSet<String> {
    head.lines().skip(1).filter_map(|l| Some(l.split_once(':')?.0.to_lowercase())).collect()
}

/// One request on its own connection.
pub fn ask(port: u16, method: &str, path: &str, body: &str) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| std::io::Error::other("no head"))?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let mut headers = header_names(head);
    // Ours alone: we asked for it.
    headers.remove("connection");
    let body = if headers.contains("transfer-encoding") { unchunk(body) } else { body.to_owned() };
    Ok(Answer { status, headers, head: head.to_owned(), body })
}

fn unchunk(mut text: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        out += &rest[..size];
        text = rest[size..].trim_start_matches("\r\n");
    }
    out
}

/// A running simulator; killed when dropped.
pub struct Sim {
    child: Child,
    pub port: u16,
    log: PathBuf,
}

impl Sim {
    /// Starts `serve` with `arguments`, a blank between two.
    pub fn start(arguments: &str) -> Self {
        let port = free_port();
        let log = std::env::temp_dir().join(format!("sparklane-sim-{}-{port}.log", std::process::id()));
        let file = std::fs::File::create(&log).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_sparklane-sim"))
            .args(["serve", "/models/tiny", "--served-model-name", "tiny", "--host", "127.0.0.1"])
            .args(["--port", &port.to_string(), "--sim-stop-secs", "0.1"])
            .args(arguments.split_whitespace())
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self { child, port, log }
    }

    /// Two ranks that serve.
    pub fn pair(arguments: &str) -> (Self, Self) {
        let both = format!("--tensor-parallel-size 2 --nnodes 2 --master-addr 127.0.0.1 --master-port {}", free_port());
        let head = Self::start(&format!("{both} --node-rank 0 {arguments}"));
        let worker = Self::start(&format!("{both} --node-rank 1 --headless {arguments}"));
        head.wait_healthy();
        (head, worker)
    }

    pub fn wait_healthy(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.health() != Some(200) {
            assert!(Instant::now() < end, "not healthy; log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Status of `/health`; none when nobody listens.
    pub fn health(&self) -> Option<u16> {
        ask(self.port, "GET", "/health", "").ok().map(|a| a.status)
    }

    pub fn post(&self, path: &str, body: &str) -> Answer {
        ask(self.port, "POST", path, body).unwrap_or_else(|e| panic!("{e}; log:\n{}", self.log()))
    }

    pub fn chat(&self, more: &str) -> Answer {
        let body = format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"hello there"}}]{more}}}"#);
        self.post("/v1/chat/completions", &body)
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Exit code, waited for at most `seconds`.
    pub fn exit_code(&mut self, seconds: u64) -> Option<i32> {
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("still runs after {seconds} s; log:\n{}", self.log())
    }

    pub fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.log);
    }
}

/// The keys and kinds of a JSON value, values left out: two answers of one API have the same shape.
pub fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(fields.iter().map(|(k, v)| (k.clone(), shape(v))).collect()),
        // All items of a list have one shape here.
        Value::Array(items) => Value::Array(items.first().map(shape).into_iter().collect()),
        Value::String(_) => "text".into(),
        Value::Number(_) => "number".into(),
        Value::Bool(_) => "bool".into(),
        Value::Null => Value::Null,
    }
}

/// The events of a stream.
pub fn events(body: &str) -> Vec<&str> {
    body.lines().filter_map(|l| l.strip_prefix("data: ")).collect()
}

/// Series of an exposition: name and label names.
pub fn series(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|l| l.starts_with("vllm:"))
        .filter_map(|l| l.rsplit_once(' '))
        .map(|(series, _)| {
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            // Values may hold anything but a quote: every second part is a value.
            let names: Vec<&str> = labels.split('"').step_by(2).map(|l| l.trim_matches(['=', ',', '}'])).collect();
            format!("{name} {}", names.join(" "))
        })
        .collect()
}
