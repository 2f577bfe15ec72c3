//! What a node needs of us before its first transaction: the tool as a GC root and the boot unit.

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_lane::TxnId;

use crate::closure;
use crate::error::HostError;
use crate::files;
use crate::paths::HostPaths;
use crate::peer_keys;
use crate::units::Units;

/// Name of the boot unit.
pub const RESOLVE_UNIT: &str = "sparklane-resolve.service";

/// Seconds for a unit without a process to be down.
const STOP_SECS: u64 = 10;

/// The boot unit. Its sandbox is that of a transaction's own unit ([`crate::units`]), as it does the same work: ends an open transaction before the lane starts. Its failure keeps the lane down (in doubt).
const RESOLVE: &str = "\
[Unit]
Description=sparklane: end an open transaction before the lane starts
Before=sparklane-engine.service
RequiresMountsFor=/nix /var/lib/sparklane

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/nix/var/nix/gcroots/sparklane/tool/bin/sparklane txn resolve --boot
RuntimeDirectory=sparklane
RuntimeDirectoryPreserve=yes
CapabilityBoundingSet=CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_FSETID CAP_KILL CAP_NET_ADMIN CAP_NET_RAW CAP_SYSLOG CAP_SYS_PTRACE
DeviceAllow=/dev/kmsg r
DevicePolicy=closed
LockPersonality=yes
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
PrivateMounts=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=read-only
ProtectHostname=yes
ProtectKernelModules=yes
ProtectSystem=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallErrorNumber=EPERM
SystemCallFilter=@system-service

[Install]
WantedBy=multi-user.target
";

fn unit(paths: &HostPaths) -> Utf8PathBuf {
    paths.managed("/etc/systemd/system").join(RESOLVE_UNIT)
}

fn wants(paths: &HostPaths) -> Utf8PathBuf {
    paths.managed("/etc/systemd/system/multi-user.target.wants").join(RESOLVE_UNIT)
}

/// The GC root that keeps a staged closure.
#[must_use]
pub fn txn_root(paths: &HostPaths, txn: &TxnId) -> Utf8PathBuf {
    paths.gcroots.join(format!("txn-{txn}"))
}

/// Lets go of closures whose staging ended before its transaction began, so that no folder names them. Call with the lock
/// held: a staging that is under way has its root before its folder.
///
/// # Errors
/// When a root cannot be removed.
pub fn drop_stray_roots(paths: &HostPaths) -> Result<(), HostError> {
    let entries = paths.gcroots.read_dir_utf8().into_iter().flatten().flatten();
    for entry in entries {
        let txn = entry.file_name().strip_prefix("txn-").and_then(|id| id.parse::<TxnId>().ok());
        if txn.is_some_and(|txn| !paths.txn(&txn).exists()) {
            files::remove(entry.path())?;
        }
    }
    Ok(())
}

/// Makes the closure's tool the node's tool: what the boot unit and later questions run.
///
/// # Errors
/// When the link cannot be written.
pub fn tool(paths: &HostPaths, closure: &Utf8Path) -> Result<(), HostError> {
    let tool = closure::tool(closure)?;
    let link = paths.tool();
    if std::fs::read_link(&link).is_ok_and(|at| at.as_os_str() == tool.as_str()) {
        return Ok(());
    }
    if is_folder(&link) {
        return Err(HostError::Refused(in_the_way(&link)));
    }
    files::link_atomic(&link, tool.as_str())
}

fn is_folder(link: &Utf8Path) -> bool {
    link.symlink_metadata().is_ok_and(|found| found.is_dir())
}

fn in_the_way(link: &Utf8Path) -> String {
    format!("{link} is a folder where a link of ours belongs: sudo mv {link} /root/, then deploy")
}

/// Why the node's tool cannot be run by its name; `None` when it can. Without it nothing ends a transaction at boot, and
/// `sparklane txn resolve` is not where it is said to be.
#[must_use]
pub fn tool_trouble(paths: &HostPaths) -> Option<String> {
    let link = paths.tool();
    let Ok(target) = link.read_link_utf8() else {
        return Some(if is_folder(&link) {
            in_the_way(&link)
        } else if link.symlink_metadata().is_ok() {
            format!("{link} is no link")
        } else {
            format!("{link} is missing")
        });
    };
    let there = target.as_str().parse().is_ok_and(|at| paths.in_store(&at).join("bin/sparklane").is_file());
    (!there).then(|| format!("{link} leads to {target}, which has no bin/sparklane"))
}

/// Installs tool and boot unit where they are missing or old, before the first change of a transaction.
///
/// # Errors
/// When a file cannot be written or systemd does not reload.
pub fn install(paths: &HostPaths, closure: &Utf8Path, units: &dyn Units) -> Result<(), HostError> {
    tool(paths, closure)?;
    let unit = unit(paths);
    let fresh = std::fs::read(&unit).is_ok_and(|bytes| bytes == RESOLVE.as_bytes());
    if !fresh {
        files::write_atomic(&unit, RESOLVE.as_bytes(), 0o644)?;
    }
    if std::fs::symlink_metadata(wants(paths)).is_err() {
        files::link_atomic(&wants(paths), &format!("../{RESOLVE_UNIT}"))?;
    }
    if fresh { Ok(()) } else { units.reload() }
}

/// Removes tool and boot unit after a first deployment that was taken back: nothing is left behind.
///
/// # Errors
/// When a file does not go.
pub fn uninstall(paths: &HostPaths, units: &dyn Units) -> Result<(), HostError> {
    if !unit(paths).exists() {
        return Ok(());
    }
    // It did its work and counts as active since; in the boot unit itself it is still `activating`, and must go on.
    if units.status(RESOLVE_UNIT)?.active == "active" {
        units.stop(RESOLVE_UNIT, STOP_SECS)?;
    }
    files::remove(&wants(paths))?;
    files::remove(&unit(paths))?;
    files::remove(&paths.tool())?;
    peer_keys::forget(paths)?;
    units.reload()
}
