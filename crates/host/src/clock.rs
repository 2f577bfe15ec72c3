//! `CLOCK_BOOTTIME` and the boot id. The wall clock decides nothing (design.md section 5).

use rustix::time::{ClockId, clock_gettime};
use sparklane_txn::{Clock, Instant};

/// The clock of this boot.
#[derive(Debug, Clone)]
pub struct BootClock {
    boot: String,
}

impl BootClock {
    /// Reads the boot id once; it cannot change while we live.
    #[must_use]
    pub fn new() -> Self {
        // Where /proc hides it, every process start counts as a new boot: deadlines err to "passed", never to "open".
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map_or_else(|_| format!("unknown-{}", std::process::id()), |id| id.trim().to_owned());
        Self { boot }
    }
}

impl Default for BootClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for BootClock {
    fn now(&self) -> Instant {
        let now = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let millis = seconds * 1000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000;
        Instant { boot: self.boot.clone(), millis }
    }
}
