//! The node's side: `sparklane node facts`.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Read as _};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sparklane_engine::docker;
use sparklane_fabric::facts::{Ask, Deployed, Firewall, NodeFacts, collect};
use sparklane_fabric::ping::Target;
use sparklane_host::units::Systemd;
use sparklane_host::{HostError, HostPaths, closure, firewall, fwupd, profile};
use sparklane_lane::Generation;
use sparklane_lane::render::FIREWALL;

/// What to do beside reading.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Request {
    /// Packets to send.
    pub targets: Vec<Target>,
    /// Whether fwupd is asked; it may have to be started for that.
    pub firmware: bool,
    /// Kernel log to read in place of `/dev/kmsg`.
    pub kmsg: Option<String>,
}

/// Largest request that is read.
const MAX_REQUEST: u64 = 1024 * 1024;
/// Longest wait for docker.
const DOCKER_WAIT: Duration = Duration::from_secs(5);

/// Collects this node's facts.
///
/// # Errors
/// When the request is not understood or the kernel does not answer.
pub fn facts(paths: &HostPaths) -> Result<NodeFacts, HostError> {
    let request = request()?;
    let version = env!("CARGO_PKG_VERSION");
    let found = collect(version, &request.targets, request.kmsg.as_deref(), &Here { paths, fwupd: request.firmware });
    found.map_err(|e| HostError::Refused(e.to_string()))
}

/// Collects what the gate `fabric` judges: no firmware, which is the same before and after a start.
///
/// # Errors
/// When the kernel does not answer at all.
pub fn own_facts(targets: &[Target]) -> Result<NodeFacts, String> {
    let here = Here { paths: &HostPaths::system(), fwupd: false };
    collect(env!("CARGO_PKG_VERSION"), targets, None, &here).map_err(|e| e.to_string())
}

/// Someone at a terminal, or nothing on stdin, wants facts alone.
fn request() -> Result<Request, HostError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(Request::default());
    }
    let mut text = String::new();
    stdin.take(MAX_REQUEST).read_to_string(&mut text).map_err(HostError::file("read", "-"))?;
    if text.trim().is_empty() {
        return Ok(Request::default());
    }
    serde_json::from_str(&text).map_err(|e| HostError::Refused(format!("not a request of this tool's version: {e}")))
}

/// This machine's systemd, docker and profile.
struct Here<'a> {
    paths: &'a HostPaths,
    fwupd: bool,
}

impl Ask for Here<'_> {
    fn unit_memlock(&self) -> Result<u64, String> {
        Systemd.default_memlock().map_err(|e| e.to_string())
    }

    fn docker(&self) -> Result<(String, Option<(String, u32)>), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
        let ask = async {
            let client = docker::Client::connect(docker::SOCKET, DOCKER_WAIT).await?;
            Ok((client.version().await?, client.running_engine().await?))
        };
        runtime.block_on(ask).map_err(|e: sparklane_engine::EngineError| e.to_string())
    }

    fn firmware(&self) -> Result<Option<BTreeMap<String, String>>, String> {
        if self.fwupd { fwupd::devices() } else { Ok(None) }
    }

    fn generation(&self) -> Result<Option<Deployed>, String> {
        let current = profile::current(self.paths).map_err(|e| e.to_string())?;
        let Some(side) = current else { return Ok(None) };
        let generation = closure::generation(&self.paths.in_store(&side.path)).map_err(|e| e.to_string())?;
        let mut found = deployed(&generation);
        if let Some(wanted) = &mut found.firewall {
            wanted.trouble = firewall::trouble(self.paths, &generation);
        }
        Ok(Some(found))
    }
}

/// What checks need of a generation.
pub fn deployed(generation: &Generation) -> Deployed {
    let engine = &generation.engine;
    let nccl = engine.env.iter().filter(|(name, _)| name.starts_with("NCCL_"));
    let serves = generation.role.decides();
    Deployed {
        lane: generation.lane.to_string(),
        image: generation.image.manifest.as_ref().map(ToString::to_string),
        weights: generation.weights.as_ref().map(|w| w.manifest.clone()),
        nccl: nccl.map(|(name, value)| (name.clone(), value.clone())).collect(),
        api: serves.then(|| (engine.api_host.clone(), engine.api_port)),
        ports: ports(&engine.argv, engine.ray.as_ref().map(|ray| ray.gcs.as_str())),
        heartbeats: Some(generation.watchdog.port),
        firewall: generation
            .files
            .contains_key(FIREWALL)
            .then(|| Firewall { trouble: None, remedy: firewall::REMEDY.to_owned() }),
    }
}

/// Ports at which ranks meet: `--master-port N`, and that of Ray's GCS.
fn ports(argv: &[String], gcs: Option<&str>) -> Vec<u16> {
    let pairs = argv.iter().zip(argv.iter().skip(1));
    let master = pairs.filter(|(flag, _)| *flag == "--master-port").map(|(_, value)| value.as_str());
    let ray = gcs.and_then(|gcs| gcs.rsplit_once(':')).map(|(_, port)| port);
    master.chain(ray).filter_map(|port| port.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ports_of_the_ranks_are_found_in_both_ways_of_launching() {
        let argv = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        assert_eq!(ports(&argv(&["vllm", "serve", "m", "--port", "8000", "--master-port", "25000"]), None), [25000]);
        assert_eq!(ports(&argv(&["vllm", "serve", "m"]), Some("10.0.0.1:6379")), [6379]);
    }
}
