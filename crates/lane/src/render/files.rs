//! The managed files: text that systemd, netplan and friends read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Input, STATE, firewall};
use crate::cluster::{Host, Node, Rails};
use crate::generation::{Engine, FileKind};

/// Path of the engine's unit.
pub const ENGINE_UNIT: &str = "/etc/systemd/system/sparklane-engine.service";
/// Path of the drop-in that starts the engine at boot; a managed file cannot be a wants link.
pub const DROP_IN: &str = "/etc/systemd/system/multi-user.target.d/50-sparklane.conf";
const NETPLAN: &str = "/etc/netplan/60-sparklane-rails.yaml";
const SYSCTL: &str = "/etc/sysctl.d/60-sparklane.conf";
const LIMITS: &str = "/etc/security/limits.d/60-sparklane.conf";
const MANAGER: &str = "/etc/systemd/system.conf.d/60-sparklane.conf";
const TMPFILES: &str = "/etc/tmpfiles.d/60-sparklane.conf";
const MADE_BY: &str = "# Made by sparklane; a change by hand stops the next deploy.\n";

/// A managed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// What it says.
    pub content: String,
    /// Permission bits.
    pub mode: u32,
    /// What reads it.
    pub kind: FileKind,
}

/// Renders the files that the cluster lets a generation manage.
pub(super) fn render(input: Input<'_>, node: &Node, engine: &Engine) -> BTreeMap<String, Rendered> {
    let host: &Host = &input.cluster.host;
    let mut files = BTreeMap::new();
    let mut add = |path: &str, mode: u32, kind: FileKind, body: String| {
        files.insert(path.to_owned(), Rendered { content: format!("{MADE_BY}{body}"), mode, kind });
    };
    if host.unit {
        let unit = engine_unit(input.lane.budgets.start_secs, engine.stop_secs, host.firewall.is_some());
        add(ENGINE_UNIT, 0o644, FileKind::Unit, unit);
        add(DROP_IN, 0o644, FileKind::Unit, "[Unit]\nWants=sparklane-engine.service\n".to_owned());
    }
    if let Some(wanted) = &host.firewall {
        add(firewall::FIREWALL, 0o644, FileKind::Firewall, firewall::script(input, node, wanted));
        add(firewall::FIREWALL_UNIT, 0o644, FileKind::Unit, firewall::UNIT.to_owned());
    }
    if host.tmpfiles {
        add(TMPFILES, 0o644, FileKind::Tmpfiles, tmpfiles());
    }
    if let Some(rails) = host.rails {
        // netplan wants its files unreadable for others.
        add(NETPLAN, 0o600, FileKind::Netplan, netplan(node, rails));
    }
    if !host.sysctl.is_empty() {
        let body = host.sysctl.iter().map(|(key, value)| format!("{key} = {value}\n")).collect();
        add(SYSCTL, 0o644, FileKind::Sysctl, body);
    }
    if host.memlock {
        let body = "* soft memlock unlimited\n* hard memlock unlimited\n".to_owned();
        add(LIMITS, 0o644, FileKind::Limits, body);
        // limits.d is PAM's: units get the manager's default, which daemon-reload reads anew.
        add(MANAGER, 0o644, FileKind::Unit, "[Manager]\nDefaultLimitMEMLOCK=infinity\n".to_owned());
    }
    files
}

/// Seconds that systemd waits beyond the engine's own drain before it kills.
const STOP_SLACK_SECS: u32 = 20;

/// Seconds that systemd waits beyond the lane's budget: the supervisor's own word comes first and says more.
const START_SLACK_SECS: u32 = 15;

/// Seconds of a supervisor's silence after which systemd ends it: more than the 180 that a hung journald has, as a supervisor
/// that cannot write its log for so long is not what hangs.
const WATCHDOG_SECS: u32 = 300;

// Without the default dependencies no target waits for the engine: a head that waits for a node which is off for a night
// must not keep its machine from having booted.
fn engine_unit(start_secs: u32, stop_secs: u32, firewall: bool) -> String {
    let stop = stop_secs.saturating_add(STOP_SLACK_SECS);
    let start = start_secs.saturating_add(START_SLACK_SECS);
    let firewall =
        if firewall { "Requires=sparklane-firewall.service\nAfter=sparklane-firewall.service\n" } else { "" };
    format!(
        "\
[Unit]
Description=sparklane engine
DefaultDependencies=no
Conflicts=shutdown.target
Before=shutdown.target
Requires=sysinit.target
Requires=sparklane-resolve.service
{firewall}After=sysinit.target basic.target
After=sparklane-resolve.service docker.service network-online.target
Wants=network-online.target
RequiresMountsFor=/nix {STATE}
StartLimitIntervalSec=600
StartLimitBurst=60

[Service]
Type=notify
NotifyAccess=main
ExecStart=/nix/var/nix/profiles/sparklane/bin/sparklane engine run
ExecStopPost=-/nix/var/nix/profiles/sparklane/bin/sparklane engine stop
Restart=on-failure
RestartSec=1
RestartPreventExitStatus=78 79
TimeoutStartSec={start}
TimeoutStopSec={stop}
WatchdogSec={WATCHDOG_SECS}
WatchdogSignal=SIGKILL
KillMode=mixed
{HARDENING}"
    )
}

// What is left is what the engine's supervisor needs: the docker socket, its state, /proc and the kernel log.
// CAP_SYSLOG is for the last: an out-of-memory kill is told apart there.
const HARDENING: &str = "\
CapabilityBoundingSet=CAP_SYSLOG
DeviceAllow=/dev/kmsg r
DevicePolicy=closed
LockPersonality=yes
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
PrivateMounts=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
ReadWritePaths=-/var/lib/sparklane -/run/sparklane
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0077
";

/// Folders that must be there before anything of ours runs. Those of a lane are made with its container, so that this
/// file does not change with the lane.
fn tmpfiles() -> String {
    format!("d /run/sparklane 0755 root root -\nd {STATE} 0755 root root -\n")
}

fn netplan(node: &Node, rails: Rails) -> String {
    let mut text = "network:\n  version: 2\n  ethernets:\n".to_owned();
    for rail in [&node.rail1, &node.rail2] {
        let _ = write!(
            text,
            "    {}:\n      addresses: [{}/{}]\n      mtu: {}\n      dhcp4: false\n      dhcp6: false\n      link-local: []\n      optional: true\n",
            rail.netdev, rail.address, rail.prefix, rails.mtu,
        );
    }
    text
}
