//! What is checked of the machines and the cable between them, and how much each finding weighs (`fabric` in
//! `nix/clusters/*.nix`).

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A check of `sparklane fabric verify`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// The node answers with its facts.
    Facts,
    /// The NIC is on the PCI bus, with its full width.
    Nic,
    /// The rail's netdev exists and is driven by the NIC's driver.
    Netdev,
    /// The rail's link is up.
    Link,
    /// The rail's link speed.
    Speed,
    /// The rail's MTU.
    Mtu,
    /// The rail has its address, and the other rail has not.
    Address,
    /// The two rails of a node are in different subnets.
    Subnets,
    /// The default route is not on a rail.
    DefaultRoute,
    /// Both halves of the cage with the cable are up.
    Halves,
    /// The rail's RDMA device exists and is active.
    Rdma,
    /// The RDMA device belongs to the rail's netdev.
    RdmaMap,
    /// `active_mtu` of the RDMA port.
    RdmaMtu,
    /// A RoCE v2 GID for the rail's IPv4 address.
    Gid,
    /// `NCCL_IB_HCA` and `NCCL_IB_GID_INDEX` of the deployed lane name the rails' devices.
    Nccl,
    /// `/dev/infiniband` is there.
    Infiniband,
    /// A packet of the whole MTU, not to be fragmented, gets through.
    Jumbo,
    /// Locked memory of systemd's units.
    MemlockUnit,
    /// Locked memory of an ssh login.
    MemlockLogin,
    /// Locked memory inside the engine's container.
    MemlockContainer,
    /// Logins come through OpenSSH.
    Login,
    /// The GPU's driver answers.
    Gpu,
    /// The GPU's device files are inside the engine's container.
    GpuContainer,
    /// The kernel has the contiguous memory that registration needs.
    Cma,
    /// The nodes' clocks agree.
    Clock,
    /// Kernel lines about the NIC.
    Kernel,
    /// The nftables table that the generation wants stands as it was loaded.
    Firewall,
    /// Nobody listens where nobody should.
    Listeners,
    /// The machines do not differ: system, driver, firmware, docker.
    Parity,
    /// What is deployed does not differ: tool, lane, image, weights, NCCL's environment.
    Release,
}

/// All checks, in the order of the table.
pub const CHECKS: [Check; 30] = [
    Check::Facts,
    Check::Nic,
    Check::Netdev,
    Check::Link,
    Check::Speed,
    Check::Mtu,
    Check::Address,
    Check::Subnets,
    Check::DefaultRoute,
    Check::Halves,
    Check::Rdma,
    Check::RdmaMap,
    Check::RdmaMtu,
    Check::Gid,
    Check::Nccl,
    Check::Infiniband,
    Check::Jumbo,
    Check::MemlockUnit,
    Check::MemlockLogin,
    Check::MemlockContainer,
    Check::Login,
    Check::Gpu,
    Check::GpuContainer,
    Check::Cma,
    Check::Clock,
    Check::Kernel,
    Check::Firewall,
    Check::Listeners,
    Check::Parity,
    Check::Release,
];

impl fmt::Display for Check {
    /// Its name in the cluster file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => f.pad(&name),
            _ => Err(fmt::Error),
        }
    }
}

/// How much a finding weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// It is shown and fails the command.
    Fail,
    /// It is shown.
    Warn,
    /// It is not judged; the row says so.
    Ignore,
}

/// How packets reach a listener.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

/// A listener that this cluster's owner knows of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedListener {
    /// Port.
    pub port: u16,
    /// `tcp` or `udp`.
    #[serde(default)]
    pub protocol: Transport,
    /// Address it may be bound to; any when absent.
    pub address: Option<String>,
    /// Name of its process (at most 15 bytes, as the kernel keeps it); any when absent.
    pub process: Option<String>,
    /// Why it is there, for whoever reads the file next.
    pub reason: String,
}

/// How the machines and the cable are judged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fabric {
    /// Other weights than the usual, by the name of the check.
    #[serde(default)]
    pub severity: BTreeMap<Check, Severity>,
    /// Whether `deploy` first verifies what it does not change itself, and refuses when something failed.
    #[serde(default)]
    pub preflight: bool,
    /// Listeners that may be there beside ours, sshd and those on loopback.
    #[serde(default)]
    pub listeners: Vec<AllowedListener>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_is_in_the_table_once_and_in_order() {
        assert!(CHECKS.windows(2).all(|w| w[0] < w[1]));
        assert_eq!(CHECKS.last(), Some(&Check::Release));
        assert_eq!(Check::MemlockUnit.to_string(), "memlock-unit");
    }
}
