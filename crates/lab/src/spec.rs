//! The fixed facts of a lab: its machines, networks and packages.

use serde::Serialize;

use crate::error::{LabError, Result};

/// A program of this host that the lab uses, and the Debian package that brings it.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Its file name.
    pub name: &'static str,
    /// Its package in Debian.
    pub package: &'static str,
}

/// All programs that the lab uses.
pub const PROGRAMS: &[Program] = &[
    Program { name: "systemd-nspawn", package: "systemd-container" },
    Program { name: "mmdebstrap", package: "mmdebstrap" },
    Program { name: "ip", package: "iproute2" },
    Program { name: "nsenter", package: "util-linux" },
    Program { name: "setsid", package: "util-linux" },
    Program { name: "mount", package: "mount" },
    Program { name: "mkfs.ext4", package: "e2fsprogs" },
    Program { name: "ssh-keygen", package: "openssh-client" },
    Program { name: "git", package: "git" },
];

/// Packages in the machines, beyond Debian's `minbase`.
pub const PACKAGES: &[&str] = &[
    "systemd",
    "systemd-sysv",
    "dbus",
    "docker.io",
    "docker-cli",
    "nix-bin",
    "nix-setup-systemd",
    "openssh-server",
    "openssh-client",
    "sudo",
    "netplan.io",
    "network-manager",
    "python3-minimal",
    "git",
    "nftables",
    "iproute2",
    "iputils-ping",
    "procps",
    "ca-certificates",
    "libnss-myhostname",
    "less",
    "kmod",
    "curl",
];

/// Debian release of the machines.
pub const SUITE: &str = "trixie";

/// Unprivileged login that deploys; may use sudo without a password.
pub const OPERATOR: &str = "operator";

/// This host's address on the management network.
pub const HOST_ADDRESS: &str = "10.77.0.254";

/// A network of the lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Management: all machines and this host.
    Mgmt,
    /// First rail: head and worker.
    Rail1,
    /// Second rail: head and worker.
    Rail2,
}

impl Network {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Mgmt, Self::Rail1, Self::Rail2];

    /// Name of the network and of the interface in each machine.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mgmt => "mgmt",
            Self::Rail1 => "rail1",
            Self::Rail2 => "rail2",
        }
    }

    /// Largest packet.
    #[must_use]
    pub fn mtu(self) -> u32 {
        if self == Self::Mgmt { 1500 } else { 9000 }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Mgmt => "10.77.0",
            Self::Rail1 => "10.77.1",
            Self::Rail2 => "10.77.2",
        }
    }
}

/// One machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeSpec {
    /// Host name.
    pub name: &'static str,
    /// Last number of its addresses.
    pub host_number: u8,
    /// True where lanes run (docker, rails).
    pub serves: bool,
}

/// The three machines.
#[must_use]
pub fn nodes() -> [NodeSpec; 3] {
    [
        NodeSpec { name: "control", host_number: 1, serves: false },
        NodeSpec { name: "head", host_number: 10, serves: true },
        NodeSpec { name: "worker", host_number: 11, serves: true },
    ]
}

/// The machine called `name`.
pub fn node(name: &str) -> Result<NodeSpec> {
    nodes().into_iter().find(|n| n.name == name).ok_or_else(|| LabError::UnknownNode(name.to_owned()))
}

impl NodeSpec {
    /// Its networks.
    #[must_use]
    pub fn networks(&self) -> &'static [Network] {
        if self.serves { &Network::ALL } else { &[Network::Mgmt] }
    }

    /// Its address on `network`.
    #[must_use]
    pub fn address(&self, network: Network) -> String {
        format!("{}.{}", network.prefix(), self.host_number)
    }

    /// Its network namespace on this host.
    #[must_use]
    pub fn netns(&self) -> String {
        format!("sl-{}", self.name)
    }
}

/// One cable end: a machine's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LinkEnd {
    /// The machine.
    pub node: &'static str,
    /// The network that its interface is on.
    pub network: Network,
}

/// The cable ends that a link's name means, e.g. `head:rail1`, `worker:rails`, `rails`, `mgmt`.
pub fn parse_link(text: &str) -> Result<Vec<LinkEnd>> {
    let unknown = || LabError::UnknownLink(text.to_owned());
    let (only, network) = match text.split_once(':') {
        Some((name, network)) => (Some(node(name).map_err(|_| unknown())?.name), network),
        None => (None, text),
    };
    let wanted: Vec<Network> = match network {
        "rails" => vec![Network::Rail1, Network::Rail2],
        name => Network::ALL.into_iter().filter(|n| n.name() == name).collect(),
    };
    let ends: Vec<LinkEnd> = nodes()
        .iter()
        .filter(|n| only.is_none_or(|name| name == n.name))
        .flat_map(|n| n.networks().iter().map(|network| LinkEnd { node: n.name, network: *network }))
        .filter(|end| wanted.contains(&end.network))
        .collect();
    if ends.is_empty() { Err(unknown()) } else { Ok(ends) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names() {
        let names = |text: &str| -> Vec<String> {
            parse_link(text).unwrap().iter().map(|e| format!("{}:{}", e.node, e.network.name())).collect()
        };
        assert_eq!(names("head:rail1"), ["head:rail1"]);
        assert_eq!(names("worker:rails"), ["worker:rail1", "worker:rail2"]);
        assert_eq!(names("rails"), ["head:rail1", "head:rail2", "worker:rail1", "worker:rail2"]);
        assert_eq!(names("mgmt"), ["control:mgmt", "head:mgmt", "worker:mgmt"]);
        for bad in ["control:rail1", "rail3", "x:mgmt", "", "head:"] {
            assert!(parse_link(bad).is_err(), "{bad}");
        }
    }
}
