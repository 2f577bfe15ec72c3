//! The start gate: `MemAvailable` ≥ the engine's share of `MemTotal` and a margin, or no start.
//!
//! An engine that starts into a full memory dies in its rendezvous and takes its peer's attempt with it; the recipe that this
//! replaces waits 600 s and then starts all the same.

use std::path::Path;
use std::time::Duration;

use sparklane_lane::generation::MemoryGate;
use tokio::time::Instant;

use crate::error::EngineError;

/// Where the kernel tells.
pub const MEMINFO: &str = "/proc/meminfo";
const POLL: Duration = Duration::from_secs(5);

/// Memory of a node, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What a new process could have without swapping.
    pub available: u64,
}

impl Memory {
    /// Reads the text of `/proc/meminfo` (kB are KiB there).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(Self { total: bytes(text, "MemTotal")?, available: bytes(text, "MemAvailable")? })
    }
}

/// A field of `/proc/meminfo`.
pub(super) fn bytes(meminfo: &str, name: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What is missing, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// What there is.
    pub memory: Memory,
    /// What must be available.
    pub needed: u64,
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Memory { total, available } = self.memory;
        write!(f, "{} of {} are available, {} are needed", gib(available), gib(total), gib(self.needed))
    }
}

fn gib(bytes: u64) -> String {
    let tenths = u128::from(bytes) * 10 / (1 << 30);
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

/// What the gate asks of a node; nothing when it is there.
#[must_use]
pub fn shortage(gate: &MemoryGate, memory: Memory) -> Option<Shortage> {
    let share = u128::from(memory.total) * u128::from(gate.share_ppm) / 1_000_000;
    let needed = u64::try_from(share).unwrap_or(u64::MAX).saturating_add(gate.margin_bytes);
    (memory.available < needed).then_some(Shortage { memory, needed })
}

/// Waits until the memory is free, at most the gate's time. `tell` hears of each look that found too little.
///
/// # Errors
/// [`EngineError::MemoryShort`] after the gate's time, [`EngineError::Io`] when the kernel does not tell.
pub async fn wait_for_memory(
    gate: &MemoryGate,
    meminfo: &Path,
    tell: &mut dyn FnMut(&Shortage),
) -> Result<(), EngineError> {
    let read = || std::fs::read_to_string(meminfo);
    wait(gate, &read, POLL, tell).await
}

async fn wait(
    gate: &MemoryGate,
    read: &dyn Fn() -> std::io::Result<String>,
    poll: Duration,
    tell: &mut dyn FnMut(&Shortage),
) -> Result<(), EngineError> {
    let limit = Duration::from_secs(gate.wait_secs.into());
    let deadline = Instant::now() + limit;
    let io = |source| EngineError::Io { what: "read how much memory is available", source };
    loop {
        let text = read().map_err(io)?;
        let memory = Memory::parse(&text).ok_or_else(|| io(std::io::ErrorKind::InvalidData.into()))?;
        let Some(shortage) = shortage(gate, memory) else { return Ok(()) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(EngineError::MemoryShort { secs: gate.wait_secs, shortage: shortage.to_string() });
        }
        tell(&shortage);
        tokio::time::sleep(poll.min(left)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SPARK: u64 = 121 << 30;

    fn gate(wait_secs: u32) -> MemoryGate {
        MemoryGate { share_ppm: 850_000, margin_bytes: 3 << 30, wait_secs }
    }

    fn text(available: u64) -> String {
        format!("MemTotal:       {} kB\nMemFree:  1 kB\nMemAvailable:   {} kB\n", SPARK / 1024, available / 1024)
    }

    #[test]
    fn the_kernels_text_is_read() {
        let own = std::fs::read_to_string(MEMINFO).unwrap();
        let memory = Memory::parse(&own).unwrap();
        assert!(memory.available > 0 && memory.available < memory.total);
        let available = 7 << 30;
        assert_eq!(Memory::parse(&text(available)), Some(Memory { total: SPARK, available }));
        for bad in ["", "MemTotal: 1 kB", "MemTotal: x kB\nMemAvailable: 1 kB", "MemTotal: 1\nMemAvailable: 1"] {
            assert_eq!(Memory::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn share_and_margin_count() {
        // 0.85 of 121 GiB and 3 GiB.
        let needed = SPARK * 85 / 100 + (3 << 30);
        let of = |available| shortage(&gate(0), Memory { total: SPARK, available });
        assert_eq!(of(needed), None);
        let short = of(needed - 1).unwrap();
        assert_eq!(short.needed, needed);
        assert_eq!(short.to_string(), "105.8 GiB of 121.0 GiB are available, 105.8 GiB are needed");
        let most = MemoryGate { share_ppm: u32::MAX, margin_bytes: u64::MAX, wait_secs: 0 };
        assert!(shortage(&most, Memory { total: u64::MAX, available: 0 }).is_some());
    }

    #[tokio::test]
    async fn it_waits_and_then_fails() {
        let looks = Cell::new(0_u64);
        let read = || {
            looks.set(looks.get() + 1);
            Ok(text(if looks.get() < 3 { 1 << 30 } else { SPARK }))
        };
        let mut told = 0;
        wait(&gate(60), &read, Duration::ZERO, &mut |_| told += 1).await.unwrap();
        assert_eq!((looks.get(), told), (3, 2));

        let error = wait(&gate(0), &|| Ok(text(1 << 30)), POLL, &mut |_| ()).await.unwrap_err();
        assert_eq!(error.exit_code(), super::super::EXIT_MEMORY);
        assert!(error.to_string().contains("1.0 GiB of 121.0 GiB are available"), "{error}");
        let silent = wait(&gate(0), &|| Ok(String::new()), POLL, &mut |_| ()).await.unwrap_err();
        assert_eq!(silent.exit_code(), 1);
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_the_reader(text in "(MemTotal|MemAvailable)?:? ?[0-9]{0,30} ?(kB)?\\PC{0,20}") {
            let _ = Memory::parse(&text);
        }
    }
}
