//! What one node is. Collected on the node, judged on the control host.

mod files;
pub mod kmsg;
mod login;
pub mod netlink;
mod owners;
mod root;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::thread::ScopedJoinHandle;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

pub use files::{Files, Gid, Netdev, Pci, Rdma, System, read as read_files};
pub use root::Root;

use sparklane_lane::fabric::Transport;

use crate::error::FabricError;
use crate::ping::{Ping, Target};

/// Where a recorded tree holds what no file of the machine tells ([`Live`] as JSON).
pub const RECORD: &str = "sparklane-live.json";

/// A node's facts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeFacts {
    /// Version of the tool that collected them.
    pub tool: String,
    /// What files tell.
    pub files: Files,
    /// What the kernel, systemd and docker tell when asked.
    pub live: Live,
    /// What was done and not only read: packets over the rails.
    pub pings: Vec<Ping>,
    /// Milliseconds that collecting took.
    pub millis: u64,
}

/// What no file tells.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Live {
    /// Addresses of all netdevs (rtnetlink).
    pub addresses: Vec<Address>,
    /// Routes of the main table (rtnetlink).
    pub routes: Vec<Route>,
    /// Sockets that anybody may write to (sock_diag): TCP that listens, UDP that is not connected.
    pub listeners: Vec<Listener>,
    /// systemd's `DefaultLimitMEMLOCK`; `None` when it could not be asked.
    pub unit_memlock: Option<Limit>,
    /// The session that the facts were asked through.
    pub login: Login,
    /// docker, when it answers.
    pub docker: Option<Docker>,
    /// Firmware as fwupd knows it: device and version; `None` where it was not asked, or is not installed.
    pub firmware: Option<BTreeMap<String, String>>,
    /// What is deployed.
    pub generation: Option<Deployed>,
    /// The wall clock when the facts were complete, in milliseconds since 1970.
    pub unix_millis: u64,
    /// What could not be asked, and why.
    pub unread: Vec<String>,
}

/// An address of a netdev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The netdev.
    pub netdev: String,
    /// The address.
    pub address: IpAddr,
    /// Prefix length.
    pub prefix: u8,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Route {
    /// The netdev packets leave by.
    pub netdev: String,
    /// `None` for the default route.
    pub destination: Option<IpAddr>,
    /// Prefix length of the destination.
    pub prefix: u8,
    /// The next hop.
    pub gateway: Option<IpAddr>,
}

/// A socket that anybody may write to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listener {
    /// TCP, where a record does not say.
    #[serde(default)]
    pub protocol: Transport,
    /// The address it is bound to.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// User id of its owner.
    pub uid: u32,
    /// Name of the process that holds it, as the kernel keeps it; `None` when it is none of this pid namespace.
    pub process: Option<String>,
    /// The container its process is in, by docker's id.
    pub container: Option<String>,
}

/// A resource limit in bytes; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Limit {
    /// The soft limit, which counts.
    pub bytes: Option<u64>,
}

/// How the facts were asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Login {
    /// What let the session in: `sshd`, `tailscaled`; `None` when it came another way.
    pub via: Option<String>,
    /// Locked memory of the session's first process.
    pub memlock: Option<Limit>,
}

/// docker as it answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Docker {
    /// Its version.
    pub version: String,
    /// The engine's container, when it runs.
    pub container: Option<Container>,
}

/// A running container of ours, looked at from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// docker's id.
    pub id: String,
    /// Locked memory of its first process.
    pub memlock: Option<Limit>,
    /// GPU device files in it (`/dev/nvidia…`).
    pub gpu_devices: Vec<String>,
    /// `/etc/nccl.conf` in it, which overrides what the lane does not set.
    pub nccl_conf: bool,
}

/// What is deployed on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Deployed {
    /// The lane.
    pub lane: String,
    /// Manifest digest of the image.
    pub image: Option<String>,
    /// Id of the weights' manifest.
    pub weights: Option<String>,
    /// `NCCL_…` of the engine's environment.
    pub nccl: BTreeMap<String, String>,
    /// Where the API listens.
    pub api: Option<(String, u16)>,
    /// Ports of the ranks' rendezvous or of Ray.
    pub ports: Vec<u16>,
    /// UDP port of the supervisors' heartbeats.
    pub heartbeats: Option<u16>,
    /// The nftables table that the generation wants; `None` when it wants none.
    pub firewall: Option<Firewall>,
}

/// A table of our own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Firewall {
    /// What is wrong with it; `None` when it stands as it was loaded.
    pub trouble: Option<String>,
    /// What mends that.
    pub remedy: String,
}

/// What the collector needs others for: systemd, docker, the profile.
pub trait Ask: Sync {
    /// systemd's `DefaultLimitMEMLOCK` in bytes, `u64::MAX` for no limit.
    ///
    /// # Errors
    /// Why it is not known.
    fn unit_memlock(&self) -> Result<u64, String>;
    /// docker's version, and the id and first process of the engine's container when it runs.
    ///
    /// # Errors
    /// Why it does not answer.
    fn docker(&self) -> Result<(String, Option<(String, u32)>), String>;
    /// Firmware as fwupd knows it; `None` where it is not installed, or not to be asked.
    ///
    /// # Errors
    /// Why it does not answer.
    fn firmware(&self) -> Result<Option<BTreeMap<String, String>>, String>;
    /// What is deployed; `None` when nothing is.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn generation(&self) -> Result<Option<Deployed>, String>;
}

/// Collects the facts of this machine.
///
/// # Errors
/// When the kernel does not answer at all.
pub fn collect(tool: &str, targets: &[Target], kmsg: Option<&str>, ask: &dyn Ask) -> Result<NodeFacts, FabricError> {
    let begin = std::time::Instant::now();
    let root = Root::new("/");
    std::thread::scope(|scope| {
        let pings = scope.spawn(|| crate::ping::all(targets));
        let generation = scope.spawn(|| ask.generation());
        let docker = scope.spawn(|| ask_docker(&root, ask));
        let systemd = scope.spawn(|| ask.unit_memlock());
        let firmware = scope.spawn(|| ask.firmware());
        let files = read_files(&root, kmsg);
        let netlink::Found { addresses, routes, sockets } = netlink::ask(&files.index_of())?;
        let mut unread = Vec::new();
        let generation = known("generation", generation, &mut unread).flatten();
        let docker = known("docker", docker, &mut unread);
        let unit_memlock = known("systemd", systemd, &mut unread);
        let firmware = known("fwupd", firmware, &mut unread).flatten();
        let live = Live {
            addresses,
            routes,
            listeners: owners::of(&root, sockets),
            unit_memlock: unit_memlock.map(|bytes| Limit { bytes: (bytes != u64::MAX).then_some(bytes) }),
            login: login::of(&root, std::process::id()),
            docker,
            firmware,
            generation,
            unix_millis: now(),
            unread,
        };
        let pings = pings.join().unwrap_or_default();
        let millis = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(NodeFacts { tool: tool.to_owned(), files, live: Live { unix_millis: now(), ..live }, pings, millis })
    })
}

/// A thread's answer; why there is none is told.
fn known<T>(what: &str, thread: ScopedJoinHandle<'_, Result<T, String>>, unread: &mut Vec<String>) -> Option<T> {
    let answer = thread.join().unwrap_or_else(|_| Err("its thread died".into()));
    answer.map_err(|why| unread.push(format!("{what}: {why}"))).ok()
}

/// Reads the facts of a recorded tree.
///
/// # Errors
/// When its record of what no file tells is missing or not readable.
pub fn recorded(tool: &str, root: &Root) -> Result<NodeFacts, FabricError> {
    let path = root.path(RECORD);
    let bad = |why: String| FabricError::Record { path: path.clone(), why };
    let bytes = std::fs::read(&path).map_err(|e| bad(format!("{e}; the tree needs it beside its sys and proc")))?;
    let record: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
    // What `sparklane node facts` prints is such a record too.
    let live = Live::deserialize(record.get("live").unwrap_or(&record)).map_err(|e| bad(e.to_string()))?;
    Ok(NodeFacts { tool: tool.to_owned(), files: read_files(root, None), live, pings: Vec::new(), millis: 0 })
}

fn ask_docker(root: &Root, ask: &dyn Ask) -> Result<Docker, String> {
    let (version, running) = ask.docker()?;
    let look = |(id, pid): (String, u32)| Container {
        id,
        memlock: login::memlock(root, pid),
        gpu_devices: root
            .list(&format!("proc/{pid}/root/dev"))
            .into_iter()
            .filter(|n| n.starts_with("nvidia"))
            .collect(),
        nccl_conf: root.exists(&format!("proc/{pid}/root/etc/nccl.conf")),
    };
    Ok(Docker { version, container: running.map(look) })
}

fn now() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "two machines are compared by it")]
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
