//! systemd over D-Bus, behind a small trait.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use zbus::{OwnedObjectPath, Variant};

use crate::bus;
use crate::error::HostError;

/// `ActiveState` and what explains it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnitStatus {
    /// `active`, `activating`, `inactive`, `failed`, ….
    pub active: String,
    /// `running`, `start`, `auto-restart`, ….
    pub sub: String,
    /// Microseconds of `CLOCK_MONOTONIC` when it became active; 0 when it is not.
    pub active_since: u64,
    /// `Result` of a service: `success`, `exit-code`, `timeout`, ….
    pub result: String,
    /// The unit's own status line (`STATUS=`).
    pub text: String,
    /// How often systemd started it again since it was started on purpose.
    #[serde(default)]
    pub restarts: u32,
}

impl UnitStatus {
    /// True when the unit runs or is on its way.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.active.as_str(), "active" | "activating" | "reloading")
    }
}

/// The part of systemd that a transaction needs.
pub trait Units {
    /// How a unit is.
    ///
    /// # Errors
    /// When systemd cannot be asked. An unknown unit is `inactive`, not an error.
    fn status(&self, unit: &str) -> Result<UnitStatus, HostError>;
    /// Queues a start and returns.
    ///
    /// # Errors
    /// When the job is refused.
    fn start(&self, unit: &str) -> Result<(), HostError>;
    /// Stops a unit and waits until it is down.
    ///
    /// # Errors
    /// When the job is refused or the unit is not down in `secs`.
    fn stop(&self, unit: &str, secs: u64) -> Result<(), HostError>;
    /// `daemon-reload`.
    ///
    /// # Errors
    /// When it is refused.
    fn reload(&self) -> Result<(), HostError>;
    /// Starts `argv` as a transient service of this name, restarted when it is killed.
    ///
    /// # Errors
    /// When the unit exists or is refused.
    fn spawn(&self, unit: &str, description: &str, argv: &[String]) -> Result<(), HostError>;
}

const DEST: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const ROOT: &str = "/org/freedesktop/systemd1";
/// Longest wait for one answer of the bus; switch-to-configuration-ng uses the same.
const BUS_TIMEOUT: Duration = Duration::from_secs(25);

/// The system's own manager.
#[derive(Debug, Clone, Copy, Default)]
pub struct Systemd;

type Property = (String, zbus::OwnedVariant);

impl Systemd {
    /// One call on a fresh connection: a transaction makes a few dozen, and a connection kept over a
    /// `daemon-reexec` or a bus restart would be one more thing to lose.
    fn call<B, R>(path: &str, interface: &str, method: &str, body: &B) -> Result<R, HostError>
    where
        B: serde::Serialize + zbus::zvariant::DynamicType,
        R: serde::de::DeserializeOwned + zbus::zvariant::Type,
    {
        let asked = bus::call((DEST, path, interface, method), body, BUS_TIMEOUT);
        asked.map_err(|text| HostError::Systemd(format!("{method}: {text}")))
    }

    /// `DefaultLimitMEMLOCK` of the manager in bytes, which units without a limit of their own get; `u64::MAX` for none.
    ///
    /// # Errors
    /// When systemd cannot be asked.
    pub fn default_memlock(&self) -> Result<u64, HostError> {
        let get = (MANAGER, "DefaultLimitMEMLOCK");
        let value: zbus::OwnedVariant = Self::call(ROOT, "org.freedesktop.DBus.Properties", "Get", &get)?;
        value.downcast_ref::<u64>().map_err(|e| HostError::Systemd(format!("DefaultLimitMEMLOCK: {e}")))
    }

    fn properties(path: &str, interface: &str) -> Result<Vec<Property>, HostError> {
        let all: std::collections::HashMap<String, zbus::OwnedVariant> =
            Self::call(path, "org.freedesktop.DBus.Properties", "GetAll", &(interface,))?;
        Ok(all.into_iter().collect())
    }
}

fn text(properties: &[Property], name: &str) -> String {
    let value = properties.iter().find(|(n, _)| n == name).map(|(_, v)| v);
    value.and_then(|v| v.downcast_ref::<String>().ok()).unwrap_or_default()
}

fn number(properties: &[Property], name: &str) -> u64 {
    let value = properties.iter().find(|(n, _)| n == name).map(|(_, v)| v);
    value.and_then(|v| v.downcast_ref::<u64>().ok()).unwrap_or_default()
}

fn count(properties: &[Property], name: &str) -> u32 {
    let value = properties.iter().find(|(n, _)| n == name).map(|(_, v)| v);
    value.and_then(|v| v.downcast_ref::<u32>().ok()).unwrap_or_default()
}

/// Capabilities of a transaction's process, by number (capability(7)): it places files of other owners (CHOWN 0,
/// DAC_OVERRIDE 1, FOWNER 3, FSETID 4), ends programs it started (KILL 5), loads nftables and network sysctls (NET_ADMIN 12),
/// and for the gate `fabric` sends echoes (NET_RAW 13), reads others' /proc (SYS_PTRACE 19) and the kernel's log (SYSLOG 34).
const CAPABILITIES: [u32; 9] = [0, 1, 3, 4, 5, 12, 13, 19, 34];

/// What a transaction's process cannot do. It writes /etc, the profile and its state, talks to systemd, and to the head over
/// ssh, so most of the file system stays open to it (`systemd-analyze security`: docs/operations.md).
fn sandbox() -> Vec<(&'static str, Variant<'static>)> {
    let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<String>>();
    let capabilities = CAPABILITIES.iter().fold(0_u64, |all, number| all | 1 << number);
    vec![
        ("CapabilityBoundingSet", Variant::from(capabilities)),
        ("DeviceAllow", Variant::from(vec![("/dev/kmsg".to_owned(), "r".to_owned())])),
        ("DevicePolicy", Variant::from("closed")),
        ("LockPersonality", Variant::from(true)),
        ("MemoryDenyWriteExecute", Variant::from(true)),
        ("NoNewPrivileges", Variant::from(true)),
        ("PrivateMounts", Variant::from(true)),
        ("PrivateTmp", Variant::from(true)),
        ("ProtectClock", Variant::from(true)),
        ("ProtectControlGroups", Variant::from(true)),
        ("ProtectHome", Variant::from("read-only")),
        ("ProtectHostname", Variant::from(true)),
        ("ProtectKernelModules", Variant::from(true)),
        ("ProtectSystem", Variant::from("yes")),
        ("RestrictAddressFamilies", Variant::from((true, words(&["AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"])))),
        // CLONE_NEWUTS, which needs a capability that is not there. systemd (257) writes 0, no namespace at all, as nothing into the
        // unit's file, and our own daemon-reload would then read that as no restriction.
        ("RestrictNamespaces", Variant::from(0x0400_0000_u64)),
        ("RestrictRealtime", Variant::from(true)),
        ("RestrictSUIDSGID", Variant::from(true)),
        ("SystemCallArchitectures", Variant::from(words(&["native"]))),
        // EPERM.
        ("SystemCallErrorNumber", Variant::from(1_i32)),
        ("SystemCallFilter", Variant::from((true, words(&["@system-service"])))),
        ("UMask", Variant::from(0o022_u32)),
    ]
}

impl Units for Systemd {
    fn status(&self, unit: &str) -> Result<UnitStatus, HostError> {
        let path: OwnedObjectPath = Self::call(ROOT, MANAGER, "LoadUnit", &(unit,))?;
        let of_unit = Self::properties(path.as_str(), "org.freedesktop.systemd1.Unit")?;
        let of_service = if unit.ends_with(".service") {
            Self::properties(path.as_str(), "org.freedesktop.systemd1.Service")?
        } else {
            Vec::new()
        };
        let active = text(&of_unit, "ActiveState");
        let active_since = if active == "active" { number(&of_unit, "ActiveEnterTimestampMonotonic") } else { 0 };
        Ok(UnitStatus {
            active,
            sub: text(&of_unit, "SubState"),
            active_since,
            result: text(&of_service, "Result"),
            text: text(&of_service, "StatusText"),
            restarts: count(&of_service, "NRestarts"),
        })
    }

    fn start(&self, unit: &str) -> Result<(), HostError> {
        // A unit that hit its start limit would refuse the new lane for the old one's failures.
        let _was_fine: Result<(), HostError> = Self::call(ROOT, MANAGER, "ResetFailedUnit", &(unit,));
        let _job: OwnedObjectPath = Self::call(ROOT, MANAGER, "StartUnit", &(unit, "replace"))?;
        Ok(())
    }

    fn stop(&self, unit: &str, secs: u64) -> Result<(), HostError> {
        let stopped: Result<OwnedObjectPath, HostError> = Self::call(ROOT, MANAGER, "StopUnit", &(unit, "replace"));
        match stopped {
            Ok(_) => {}
            Err(HostError::Systemd(why)) if why.contains("not loaded") || why.contains("NoSuchUnit") => return Ok(()),
            Err(error) => return Err(error),
        }
        let until = Instant::now() + Duration::from_secs(secs);
        loop {
            let status = self.status(unit)?;
            if matches!(status.active.as_str(), "inactive" | "failed") {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(HostError::Systemd(format!("{unit} is still {} after {secs} s", status.active)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn reload(&self) -> Result<(), HostError> {
        Self::call(ROOT, MANAGER, "Reload", &())
    }

    fn spawn(&self, unit: &str, description: &str, argv: &[String]) -> Result<(), HostError> {
        let Some(program) = argv.first() else {
            return Err(HostError::Systemd("nothing to start".into()));
        };
        let exec = vec![(program.clone(), argv.to_vec(), false)];
        let properties: Vec<(&str, Variant<'_>)> = vec![
            ("Description", Variant::from(description)),
            ("ExecStart", Variant::from(exec)),
            ("Type", Variant::from("exec")),
            // Killed or crashed: a new process reads the journal and ends the transaction.
            ("Restart", Variant::from("on-failure")),
            // A stop by hand would leave the node between two lanes with nobody who ends it; a shutdown still may.
            ("RefuseManualStop", Variant::from(true)),
            ("RestartUSec", Variant::from(200_000_u64)),
            ("StartLimitBurst", Variant::from(20_u32)),
            ("CollectMode", Variant::from("inactive-or-failed")),
        ];
        let properties = [properties, sandbox()].concat();
        let aux: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        let _job: OwnedObjectPath = Self::call(ROOT, MANAGER, "StartTransientUnit", &(unit, "fail", properties, aux))?;
        Ok(())
    }
}
