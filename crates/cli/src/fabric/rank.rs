//! The node's side of a measurement: `sparklane node bench` and `node bench-keep`.

use std::io::Read as _;
use std::time::Duration;

use futures_util::StreamExt as _;
use sparklane_engine::docker::{self, Client};
use sparklane_engine::spec::{self, Extra};
use sparklane_fabric::bench::{self, Answer, MOST, Request};
use sparklane_host::units::{Systemd, Units as _};
use sparklane_host::{HostError, HostPaths, closure, profile};
use sparklane_lane::Generation;
use sparklane_txn::plan::ENGINE_UNIT;

/// Name of the measurement's container.
const CONTAINER: &str = "sparklane-bench";
/// Most bytes of a log that are handed back.
const MOST_LOG: usize = 512 * 1024;
/// Most bytes of a log that are held while the rank runs.
const MOST_HELD: usize = 8 * 1024 * 1024;
/// Largest request or record that is read.
const MAX_REQUEST: u64 = 4 * 1024 * 1024;
/// Longest wait for one answer of docker; its stop waits 5 s.
const DOCKER_WAIT: Duration = Duration::from_secs(60);
/// Where measurements are kept.
const EVIDENCE: &str = "evidence";

fn refused(why: impl std::fmt::Display) -> HostError {
    HostError::Refused(why.to_string())
}

fn stdin() -> Result<String, HostError> {
    let mut text = String::new();
    std::io::stdin().take(MAX_REQUEST).read_to_string(&mut text).map_err(HostError::file("read", "-"))?;
    Ok(text)
}

/// Runs this node's rank of one arm, as the request on stdin says.
///
/// # Errors
/// When the engine runs, nothing is deployed, the memory would not do, or docker refuses.
pub fn bench(paths: &HostPaths) -> Result<Answer, HostError> {
    let request: Request =
        serde_json::from_str(&stdin()?).map_err(|e| refused(format!("not a request of this tool's version: {e}")))?;
    if Systemd.status(ENGINE_UNIT)?.is_up() {
        return Err(refused(format!(
            "the engine has the GPU: stop it on every node first (sudo systemctl stop {ENGINE_UNIT})"
        )));
    }
    let side =
        profile::current(paths)?.ok_or_else(|| refused("nothing is deployed: a measurement uses the deployed lane"))?;
    let generation = closure::generation(&paths.in_store(&side.path))?;
    fits(&request)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(refused)?;
    runtime.block_on(rank(&generation, &request)).map_err(refused)
}

/// On unified memory the message, NCCL's buffers and the page cache share one memory.
fn fits(request: &Request) -> Result<(), HostError> {
    let largest = request.sizes.iter().copied().max().unwrap_or(0);
    if largest == 0 || largest > MOST {
        return Err(refused(format!("a message of {largest} bytes is outside 1 to {MOST}")));
    }
    let meminfo = std::fs::read_to_string("/proc/meminfo").map_err(HostError::file("read", "/proc/meminfo"))?;
    let free =
        meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse::<u64>().ok());
    match free {
        Some(kb) if kb.saturating_mul(1024) < largest.saturating_mul(4) => Err(refused(format!(
            "{} MiB are free, a message of {} MiB wants four times its size",
            kb >> 10,
            largest >> 20
        ))),
        _ => Ok(()),
    }
}

async fn rank(generation: &Generation, request: &Request) -> Result<Answer, sparklane_engine::EngineError> {
    let client = Client::connect(docker::SOCKET, DOCKER_WAIT).await?;
    let image = client.image(&generation.image).await?;
    client.remove(CONTAINER).await?;
    let extra = Extra { image, label: format!("{}/{}", generation.lane, generation.node), ..Extra::default() };
    let body = spec::bench(generation, &extra, &request.argv, &bench::environment(generation, request));
    let id = client.create(CONTAINER, body).await?;
    let ran = run(&client, &id, request).await;
    let removed = client.remove(&id).await;
    let answer = ran?;
    removed.map(|()| answer)
}

async fn run(client: &Client, id: &str, request: &Request) -> Result<Answer, sparklane_engine::EngineError> {
    client.start(id).await?;
    let (mut logs, mut log) = (client.logs(id, false), Vec::new());
    let read = async {
        while let Some(Ok(piece)) = logs.next().await {
            let bytes = piece.into_bytes();
            let room = MOST_HELD.saturating_sub(log.len()).min(bytes.len());
            log.extend_from_slice(bytes.get(..room).unwrap_or_default());
        }
        client.wait(id).await
    };
    let ended = tokio::time::timeout(Duration::from_secs(request.timeout_secs), read).await;
    let log = bench::kept(&String::from_utf8_lossy(&log), MOST_LOG);
    match ended {
        Ok(exit) => Ok(Answer { code: Some(exit?.code), timed_out: false, log }),
        Err(_) => {
            client.stop(id, 5).await?;
            Ok(Answer { code: None, timed_out: true, log })
        }
    }
}

/// Keeps the record on stdin as evidence, and gives its path.
///
/// # Errors
/// When it is no JSON, or cannot be written.
pub fn keep(paths: &HostPaths) -> Result<String, HostError> {
    let text = stdin()?;
    let record: serde_json::Value = serde_json::from_str(&text).map_err(|e| refused(format!("no record: {e}")))?;
    let time = record.get("time").and_then(serde_json::Value::as_str).unwrap_or_default();
    let stamp: String = time.chars().filter(char::is_ascii_alphanumeric).take(15).collect();
    if stamp.is_empty() {
        return Err(refused("a record without its time"));
    }
    let folder = paths.state.join(EVIDENCE);
    std::fs::create_dir_all(&folder).map_err(HostError::file("make", &folder))?;
    let path = folder.join(format!("fabric-bench-{stamp}.json"));
    sparklane_durable::write(&path, text.as_bytes(), 0o644).map_err(refused)?;
    Ok(path.to_string())
}
