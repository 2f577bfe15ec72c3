//! The cluster file: the machines, their rails, and which of their files a generation manages (`nix/clusters/*.nix`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fabric::Fabric;
use crate::ids::{ClusterName, LaneName, NodeName, Role, System};

/// A cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cluster {
    /// Name; the file's name without `.nix`.
    pub name: ClusterName,
    /// One line for people.
    pub description: String,
    /// Lane that `deploy` takes when none is named.
    pub default_lane: LaneName,
    /// Releases kept on the nodes; every garbage collector reads it.
    #[serde(default = "keep_releases")]
    pub keep_releases: u32,
    /// System of the control host, where generations are built.
    pub build_system: System,
    /// How the control host reaches the nodes.
    pub ssh: Ssh,
    /// Public key, `name:base64`, that closures must be signed with; none means hashes only.
    pub trusted_key: Option<String>,
    /// The machines.
    #[schemars(extend("propertyNames" = {"format": "sparklane-node-name"}))]
    pub nodes: BTreeMap<NodeName, Node>,
    /// What these machines do not have; gates about it say `n/a: declared`, never `ok`.
    #[serde(default)]
    pub absent: Vec<Absent>,
    /// Files that generations manage on these machines.
    #[serde(default)]
    pub host: Host,
    /// How `sparklane fabric verify` judges these machines.
    #[serde(default)]
    pub fabric: Fabric,
}

fn keep_releases() -> u32 {
    5
}

/// How the control host reaches the nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ssh {
    /// User with sudo and no password.
    pub user: String,
    /// Further arguments of ssh.
    #[serde(default)]
    pub opts: Vec<String>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Node {
    /// Its role.
    pub role: Role,
    /// Its rank; the head is 0.
    pub rank: u32,
    /// Its system.
    pub system: System,
    /// Host name or address on the management network.
    pub host: String,
    /// First rail.
    pub rail1: Rail,
    /// Second rail.
    pub rail2: Rail,
    /// Memory that the engine can share out (`MemTotal`).
    pub memory_bytes: Option<u64>,
    /// Public host keys, `type base64`: the only ones that are believed then. None means that the control host's own
    /// `known_hosts` count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_keys: Vec<String>,
}

/// One RoCE link of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rail {
    /// Network device.
    pub netdev: String,
    /// RDMA device.
    pub rdma: Option<String>,
    /// IPv4 address.
    pub address: String,
    /// Prefix length of the subnet.
    #[serde(default = "prefix")]
    pub prefix: u8,
}

fn prefix() -> u8 {
    24
}

/// Something that machines of this kind normally have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Absent {
    /// GPUs.
    Gpu,
    /// RDMA devices.
    Rdma,
    /// A link speed that the driver reports.
    LinkSpeed,
    /// The right to raise RLIMIT_MEMLOCK or lower oom_score_adj.
    SysResource,
}

/// Files that generations manage on the machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Host {
    /// `sparklane-engine.service` and the drop-in that starts it at boot.
    #[serde(default = "yes")]
    pub unit: bool,
    /// tmpfiles.d for the folders the engine needs.
    #[serde(default = "yes")]
    pub tmpfiles: bool,
    /// netplan for the two rails, with this MTU; absent when someone else manages them.
    pub rails: Option<Rails>,
    /// sysctl.d; no file when empty.
    #[serde(default)]
    pub sysctl: BTreeMap<String, String>,
    /// limits.d and systemd's default for units: no bound on locked memory.
    #[serde(default)]
    pub memlock: bool,
    /// An nftables table of our own; absent when someone else guards the ports.
    pub firewall: Option<Firewall>,
}

fn yes() -> bool {
    true
}

impl Default for Host {
    fn default() -> Self {
        Self { unit: true, tmpfiles: true, rails: None, sysctl: BTreeMap::new(), memlock: false, firewall: None }
    }
}

/// How the rails are configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rails {
    /// MTU of both rails.
    pub mtu: u32,
}

/// What the table lets in. The ranks' ports are the lane's: they are reached over the rails, from the other nodes, only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Firewall {
    /// Networks (`192.168.1.0/24`, `fd00::/8`, single addresses) that may reach an API which the lane binds to more than
    /// loopback; when empty, whoever reaches that address.
    #[serde(default)]
    pub api_from: Vec<String>,
}

impl Cluster {
    /// Nodes by rank.
    #[must_use]
    pub fn by_rank(&self) -> Vec<(&NodeName, &Node)> {
        let mut nodes: Vec<_> = self.nodes.iter().collect();
        nodes.sort_by_key(|(name, node)| (node.rank, (*name).clone()));
        nodes
    }

    /// The node that serves the API and decides.
    #[must_use]
    pub fn head(&self) -> Option<(&NodeName, &Node)> {
        self.nodes.iter().find(|(_, n)| n.role.decides())
    }

    /// True when these machines have the thing.
    #[must_use]
    pub fn has(&self, thing: Absent) -> bool {
        !self.absent.contains(&thing)
    }
}
