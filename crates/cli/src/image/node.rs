//! The node's side of staging an image: `sparklane node image-state | image-stage | image-serve`.

use std::io::{BufReader, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sparklane_host::{HostError, HostPaths, closure, profile};
use sparklane_oci::docker::{Docker, SOCKET, StoreKind};
use sparklane_oci::node::{From, Order, Said, StagedImage, Wanted, Watch};
use sparklane_oci::registry::{Credentials, Event, Http, PullOptions, Registry, RegistryError, RepoSource, Timeouts};
use sparklane_oci::source::{Nowhere, read_line};
use sparklane_oci::{Digest, Layout, OciError, Reference, node};
use sparklane_weights::agent;
use sparklane_weights::images::{self, ImageServeRequest, RailSource};
use tokio::runtime::Runtime;

use super::common::{STORE, size};

/// How often a sign of life is given.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// What `image-state` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The store docker uses.
    pub store: StoreKind,
    /// True when docker has the image under the right number.
    pub present: bool,
}

fn refused(error: impl std::fmt::Display) -> HostError {
    HostError::Refused(error.to_string())
}

/// A runtime for docker's connection.
pub fn runtime() -> Result<Runtime, OciError> {
    let made = tokio::runtime::Builder::new_current_thread().enable_all().build();
    made.map_err(|e| RegistryError::Setup(format!("no runtime: {e}")).into())
}

/// Whether docker has the image whose digests are on stdin.
pub fn state() -> Result<State, HostError> {
    let line = read_line(&mut std::io::stdin().lock()).map_err(refused)?.unwrap_or_default();
    let wanted: Wanted = serde_json::from_str(&line).map_err(|e| refused(format!("no image: {e}")))?;
    let look = async {
        let docker = Docker::connect(SOCKET).await?;
        let present = docker.find(&wanted.manifest, &wanted.config).await?.is_some();
        Ok(State { store: docker.kind, present })
    };
    runtime().and_then(|r| r.block_on(look)).map_err(refused)
}

/// A node's images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The store docker uses.
    pub store: StoreKind,
    /// What the current generation runs.
    pub wanted: Option<sparklane_lane::generation::Image>,
    /// What docker calls that, if it has it under the number that is right for its store.
    pub docker: Option<Digest>,
    /// Digests under which docker pulled it.
    pub repo_digests: Vec<String>,
    /// What the engine's container runs, as docker calls it.
    pub running: Option<Digest>,
    /// Images of the node's layout.
    pub layout: Vec<Listed>,
    /// Bytes of the layout's blobs.
    pub layout_bytes: u64,
}

/// An image of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// Its name.
    pub name: Option<String>,
    /// Its manifest's digest.
    pub manifest: Digest,
    /// True when all its blobs are there with their sizes.
    pub complete: bool,
}

/// Looks at this node's images.
pub fn report(paths: &HostPaths) -> Result<Report, HostError> {
    let current = profile::current(paths)?;
    let generation = current.map(|side| closure::generation(&paths.in_store(&side.path))).transpose()?;
    let container = generation.as_ref().map(|g| g.engine.container.clone());
    let wanted = generation.map(|g| g.image);
    let look = async {
        let docker = Docker::connect(SOCKET).await?;
        let both = wanted.as_ref().and_then(|i| i.manifest.as_ref().zip(i.config.as_ref()));
        let found = match both {
            Some((manifest, config)) => docker.find(manifest, config).await?,
            None => None,
        };
        let running = match &container {
            Some(name) => docker.running(name).await?,
            None => None,
        };
        Ok((docker.kind, found, running))
    };
    let (store, found, running) = runtime().and_then(|r| r.block_on(look)).map_err(refused)?;
    let (layout, layout_bytes) = listed().map_err(refused)?;
    let repo_digests = found.as_ref().map_or_else(Vec::new, |f| f.repo_digests.clone());
    Ok(Report { store, wanted, docker: found.map(|f| f.id), repo_digests, running, layout, layout_bytes })
}

fn listed() -> Result<(Vec<Listed>, u64), OciError> {
    let Ok(layout) = Layout::open(STORE) else { return Ok((Vec::new(), 0)) };
    let row = |(name, d): (Option<String>, sparklane_oci::Descriptor)| {
        let complete = layout.manifest(&d.digest).is_ok_and(|m| layout.missing(&m).is_empty());
        Listed { name, manifest: d.digest, complete }
    };
    let rows = layout.list()?.into_iter().map(row).collect();
    Ok((rows, layout.blobs()?.iter().map(|(_, size)| size).sum()))
}

/// Sends the blobs of an image to other nodes over the rails, as the request on stdin says, until stdin closes.
pub fn serve() -> Result<(), HostError> {
    let layout = Layout::open_or_create(STORE).map_err(refused)?;
    let (request, stop) = agent::request::<ImageServeRequest>().map_err(refused)?;
    images::serve(&layout, &request, &stop, &agent::to_stdout).map_err(refused)
}

/// Carries out the order on stdin. What happens goes to stderr, a JSON line each.
pub fn stage() -> ExitCode {
    let lines = Lines::default();
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(HEARTBEAT);
            say(&Said::Event(String::new()));
        }
    });
    match carry_out(&lines) {
        Ok(staged) => {
            say(&Said::Staged(staged));
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(&Said::Failed(error.to_string()));
            ExitCode::from(1)
        }
    }
}

fn carry_out(watch: &Lines) -> Result<StagedImage, OciError> {
    let mut stdin = BufReader::with_capacity(1 << 20, std::io::stdin());
    let line = read_line(&mut stdin)?.unwrap_or_default();
    let order: Order = serde_json::from_str(&line).map_err(|e| OciError::document("order", e.to_string()))?;
    let layout = Layout::open_or_create(STORE)?;
    let runtime = runtime()?;
    let docker = runtime.block_on(Docker::connect(SOCKET))?;
    match &order.from {
        From::Rails { key, rails, blobs } => {
            let stop = until_closed(stdin);
            let mut source = RailSource::new(&key.0, rails, blobs, order.rate, &stop)?;
            node::stage(&layout, (&docker, &runtime), &order, &mut source, watch)
        }
        From::Here => node::stage(&layout, (&docker, &runtime), &order, &mut Nowhere, watch),
        From::Registry { plain_http, auth_file } => {
            let credentials = auth_file.as_deref().map(Credentials::read).transpose()?.unwrap_or_default();
            let http = Http::new(Timeouts::default(), plain_http.clone())?;
            let reference: Reference = order.wanted.reference.parse()?;
            let repo = Registry { http, credentials }.repo(&reference)?;
            let options = PullOptions { rate: order.rate, ..PullOptions::default() };
            let mut source = RepoSource::new(repo, options)?;
            node::stage(&layout, (&docker, &runtime), &order, &mut source, watch)
        }
    }
}

/// A flag that is set when stdin ends: the connection that the order came over is gone.
fn until_closed(mut stdin: BufReader<std::io::Stdin>) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    std::thread::spawn(move || {
        while matches!(read_line(&mut stdin), Ok(Some(_))) {}
        ended.store(true, Ordering::Relaxed);
    });
    stop
}

/// One line; who listened may be gone, and the work goes on all the same.
fn say(line: &Said) {
    if let Ok(mut bytes) = serde_json::to_vec(line) {
        bytes.push(b'\n');
        let _sent = std::io::stderr().lock().write_all(&bytes);
    }
}

/// Sums bytes up, so that a line comes every other second and not every piece.
#[derive(Default)]
struct Lines {
    moved: Mutex<(u64, Option<Instant>)>,
}

impl Watch for Lines {
    fn say(&self, text: &str) {
        say(&Said::Event(text.to_owned()));
    }

    fn blob(&self, event: Event) {
        match event {
            Event::Begin { digest, size: bytes, have } => {
                let here = if have > 0 { format!(", {} are here", size(have)) } else { String::new() };
                self.say(&format!("blob {} of {}{here}", super::common::short(&digest), size(bytes)));
            }
            Event::Bytes { count, .. } => {
                let Ok(mut moved) = self.moved.lock() else { return };
                moved.0 += count;
                if moved.1.is_none_or(|at| at.elapsed() >= Duration::from_secs(2)) {
                    moved.1 = Some(Instant::now());
                    say(&Said::Event(format!("{} came", size(moved.0))));
                }
            }
            Event::Restart { digest, why } => {
                self.say(&format!("blob {} from its beginning: {why}", super::common::short(&digest)));
            }
            Event::Retry { digest, why, .. } => {
                self.say(&format!("blob {} again: {why}", super::common::short(&digest)));
            }
            Event::Done { .. } => {}
        }
    }
}
