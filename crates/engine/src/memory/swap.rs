//! Swap thrash: a node whose memory fills over hours serves ever slower and says nothing (docs/gotchas.md T12). Pure.
//!
//! Thresholds are those of the mp recipe's later metrics watch (facts: mp-kit.md section 9): what lies in swap untouched is
//! no harm, pages that move are.

use super::gate::bytes;

/// Time between two looks, in seconds: the thresholds are for as long.
pub const LOOK_SECS: u32 = 45;
/// Less in swap than this is ordinary.
const PARKED_BYTES: u64 = 1 << 30;
/// Pages moved in one look that are told when they move in [`LOOKS`] looks in a row.
const STEADY_PAGES: u64 = 256;
const LOOKS: u32 = 3;
/// Pages moved in one look that are told at once.
const STORM_PAGES: u64 = 4096;

/// What the kernel says of swap now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Bytes in swap.
    pub used: u64,
    /// Pages moved in and out since boot.
    pub moved: u64,
}

impl Sample {
    /// Reads the texts of `/proc/meminfo` (kB are KiB there) and `/proc/vmstat`.
    #[must_use]
    pub fn parse(meminfo: &str, vmstat: &str) -> Option<Self> {
        let swap = |name| bytes(meminfo, name);
        let pages = |name: &str| {
            let rest = vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            rest.trim().parse::<u64>().ok()
        };
        Some(Self {
            used: swap("SwapTotal")?.saturating_sub(swap("SwapFree")?),
            moved: pages("pswpin")?.saturating_add(pages("pswpout")?),
        })
    }
}

/// Compares looks.
#[derive(Debug, Default)]
pub struct Watch {
    last: Option<Sample>,
    steady: u32,
}

impl Watch {
    /// Words when the machine swaps; nothing when it does not, or not any more.
    pub fn look(&mut self, now: Sample) -> Option<String> {
        let before = self.last.replace(now)?;
        let moved = now.moved.saturating_sub(before.moved);
        self.steady = if moved > STEADY_PAGES { self.steady.saturating_add(1) } else { 0 };
        let thrashes = now.used > PARKED_BYTES && (moved > STORM_PAGES || self.steady >= LOOKS);
        let mib = now.used >> 20;
        thrashes.then(|| format!("the machine swaps: {moved} pages moved in {LOOK_SECS} s, {mib} MiB are in swap"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(looks: &[(u64, u64)]) -> Vec<bool> {
        let mut watch = Watch::default();
        looks.iter().map(|&(gib, moved)| watch.look(Sample { used: gib << 30, moved }).is_some()).collect()
    }

    #[test]
    fn what_moves_is_told_and_what_is_parked_is_not() {
        assert_eq!(told(&[(9, 1_000_000), (9, 1_000_000), (9, 1_000_100)]), [false; 3], "parked");
        assert_eq!(told(&[(2, 0), (2, 4097), (2, 4097)]), [false, true, false], "a storm, and its end");
        assert_eq!(told(&[(2, 0), (2, 300), (2, 600), (2, 900), (2, 901)]), [false, false, false, true, false]);
        assert_eq!(told(&[(0, 0), (0, 90_000)]), [false; 2], "little in swap");
        assert_eq!(told(&[(2, 9000), (2, 0)]), [false; 2], "a counter that went back");
    }

    #[test]
    fn the_kernels_text_is_read() {
        let meminfo = "MemTotal:       100 kB\nSwapCached: 1 kB\nSwapTotal:     4096 kB\nSwapFree:      1024 kB\n";
        let vmstat = "pswpin 3\npswpinx 9\npswpout 4\n";
        assert_eq!(Sample::parse(meminfo, vmstat), Some(Sample { used: 3072 * 1024, moved: 7 }));
        let here = |name: &str| std::fs::read_to_string(format!("/proc/{name}")).unwrap();
        assert!(Sample::parse(&here("meminfo"), &here("vmstat")).is_some(), "this kernel's own");
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(meminfo in ".*", vmstat in ".*", looks: Vec<(u64, u64)>) {
            let _ = Sample::parse(&meminfo, &vmstat);
            let mut watch = Watch::default();
            for (used, moved) in looks {
                let _ = watch.look(Sample { used, moved });
            }
        }
    }
}
