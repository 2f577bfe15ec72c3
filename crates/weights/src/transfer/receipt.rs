//! What a transfer says at its end, for people and programs.

use serde::{Deserialize, Serialize};

use super::rail::Probe;
use crate::hash::Sha;

/// One way's share.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WayReceipt {
    /// Its name, e.g. `rail1`.
    pub name: String,
    /// What it delivered before the transfer, when it was measured.
    pub probe: Option<Probe>,
    /// Bytes of extents that arrived over it.
    pub bytes: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Why the last one was lost.
    pub last_error: Option<String>,
}

/// A range that was wrong and fetched again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RepairReceipt {
    /// Path of the file.
    pub path: String,
    /// First bytes of the ranges.
    pub offsets: Vec<u64>,
    /// Bytes of the ranges.
    pub bytes: u64,
}

/// The receipt of one receiver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Receipt {
    /// Id of the set.
    pub set: Sha,
    /// Files of the set.
    pub files: u64,
    /// Bytes of the set.
    pub bytes: u64,
    /// Bytes that were there and proved before.
    pub had: u64,
    /// Bytes that arrived, those twice included.
    pub fetched: u64,
    /// Duration.
    pub millis: u64,
    /// Milliseconds from the start to the first byte.
    pub first_byte_millis: Option<u64>,
    /// Longest time without a byte, milliseconds.
    pub longest_pause_millis: u64,
    /// Each way's share.
    pub ways: Vec<WayReceipt>,
    /// Ranges that were wrong.
    pub repaired: Vec<RepairReceipt>,
    /// How files were written: `direct` or `buffered`.
    pub writes: String,
    /// Page cache of the node before and after, bytes (`Cached` of /proc/meminfo).
    pub cached: (u64, u64),
    /// CPU time of this process, milliseconds.
    pub cpu_millis: u64,
    /// Most memory that this process had, bytes.
    pub peak_bytes: u64,
}

/// `Cached` of /proc/meminfo in bytes; 0 where there is none.
#[must_use]
pub fn cached() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Cached:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Most memory that this process had, bytes (`VmHWM` of /proc/self/status).
#[must_use]
pub fn peak_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// CPU time of this process so far in milliseconds.
#[must_use]
pub fn cpu_millis() -> u64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name may hold spaces; numbers follow its closing bracket. utime and stime are fields 14 and 15 (proc(5)).
    let after = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    // USER_HZ is 100 on every architecture that Linux has had since 2.6.
    ticks * 10
}
