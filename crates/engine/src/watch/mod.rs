//! The watchdog of a serving head: canary requests, what they and the metrics mean, and when the pair is started anew.
//!
//! A 200 of `/health` proves nothing (`engine-real.md`), a slow answer proves nothing either: an engine whose seats are all
//! taken is busy, not stuck. [`triage`] tells these apart; [`canary`] asks.

pub mod canary;
pub mod metrics;
pub mod triage;

use std::any::Any;
use std::path::Path;

/// While this file is there, the watchdog looks but does not act. It is gone after a reboot.
pub const PAUSE_FILE: &str = "/run/sparklane/watchdog-paused";

/// What keeps the watchdog from acting.
pub trait Guard: Send + Sync {
    /// Asks for leave to start the engine anew, and holds off everyone else while the answer lives.
    ///
    /// # Errors
    /// Why not now, e.g. a deploy is under way.
    fn may_act(&self) -> Result<Box<dyn Any + Send>, String>;
}

/// Why the watchdog is paused, if it is: the file may say who did it and why.
#[must_use]
pub fn paused(file: &Path) -> Option<String> {
    match std::fs::read(file) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
            let text: String = text.chars().filter(|c| !c.is_control()).collect();
            let text = text.trim();
            Some(if text.is_empty() { "it is paused".to_owned() } else { format!("it is paused ({text})") })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        // A file that cannot be read is there: whoever put it there meant it.
        Err(error) => Some(format!("it is paused ({}: {error})", file.display())),
    }
}
