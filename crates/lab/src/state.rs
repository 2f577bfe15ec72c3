//! The record of a running lab, and the lock of whoever changes it.

use std::collections::BTreeMap;
use std::fs::File;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::error::{LabError, Result, Try};
use crate::paths::Paths;
use crate::process::Process;

/// What `state.json` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// False until the first `up` has ended: such a lab is made anew.
    pub complete: bool,
    /// The base root file system below every machine.
    pub base: Utf8PathBuf,
    /// The systemd-nspawn process of each machine.
    pub machines: BTreeMap<String, Process>,
    /// Size of each node's loop file system for /var/lib/sparklane, if it has one.
    pub state_size_mib: Option<u64>,
}

impl State {
    /// The record, or none where no lab was made.
    pub fn load(paths: &Paths) -> Result<Option<Self>> {
        let path = paths.state();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(LabError::Io { what: format!("read {path}"), source });
            }
        };
        // A torn record is a leftover of a killed `up`: the caller makes the lab anew.
        Ok(serde_json::from_str(&text).ok())
    }

    /// Writes the record in one step.
    pub fn save(&self, paths: &Paths) -> Result<()> {
        let path = paths.state();
        let temporary = path.with_extension("json.new");
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| LabError::BadFile { path: path.clone(), why: e.to_string() })?;
        std::fs::write(&temporary, text + "\n").trying(|| format!("write {temporary}"))?;
        std::fs::rename(&temporary, &path).trying(|| format!("rename {temporary}"))
    }
}

/// Held while a lab is changed; the kernel drops it when the holder dies.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "held for its drop")] File);

impl Lock {
    /// Takes the lock, waiting at most `wait`, or says who else could have it.
    pub fn within(paths: &Paths, wait: Duration) -> Result<Self> {
        let end = Instant::now() + wait;
        loop {
            match Self::take(paths) {
                Err(LabError::Busy(_)) if Instant::now() < end => std::thread::sleep(Duration::from_millis(100)),
                taken => return taken,
            }
        }
    }

    /// Takes the lock or says who else could have it.
    pub fn take(paths: &Paths) -> Result<Self> {
        let path = paths.lock();
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).trying(|| format!("make {parent}"))?;
        }
        let file = File::create(&path).trying(|| format!("open {path}"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(e) if e == rustix::io::Errno::WOULDBLOCK => Err(LabError::Busy(paths.dir().to_owned())),
            Err(e) => Err(LabError::Io { what: format!("lock {path}"), source: e.into() }),
        }
    }
}
