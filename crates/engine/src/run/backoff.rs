//! How soon a failed engine is started again, and when a human is needed. Pure.
//!
//! Not left to systemd: its delay never shrinks again after a good day, and a unit that met its limit does not say why.

use std::time::Duration;

/// Failures that count, in seconds of time since boot.
const WINDOW_SECS: u64 = 3600;
/// Failures within the window after which the engine stays down.
pub const MOST: usize = 10;
const LONGEST: Duration = Duration::from_secs(60);

/// Leaves the failures that still count.
#[must_use]
pub fn recent(failures: &[u64], now: u64) -> Vec<u64> {
    failures.iter().copied().filter(|at| *at <= now && now - at < WINDOW_SECS).collect()
}

/// Seconds that are left of the pause after the last of these failures.
#[must_use]
pub fn left(failures: &[u64], now: u64) -> u64 {
    failures.last().map_or(0, |last| (last + pause(failures.len()).as_secs()).saturating_sub(now))
}

/// The pause before the next start: none after a single failure, then two seconds, doubled for each further one.
#[must_use]
pub fn pause(recent: usize) -> Duration {
    match u32::try_from(recent).unwrap_or(u32::MAX) {
        0 | 1 => Duration::ZERO,
        n => Duration::from_secs(1 << (n - 1).min(16)).min(LONGEST),
    }
}

/// True when starting again has been tried often enough.
#[must_use]
pub fn gives_up(recent: usize) -> bool {
    recent >= MOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute_and_then_a_human_is_needed() {
        let secs: Vec<u64> = (0..MOST).map(|n| pause(n).as_secs()).collect();
        assert_eq!(secs, [0, 0, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert!(!gives_up(MOST - 1) && gives_up(MOST));
        assert_eq!(pause(usize::MAX), LONGEST);
        assert_eq!((left(&[], 5), left(&[1, 2, 10], 12), left(&[1, 2, 10], 14), left(&[9], 9)), (0, 2, 0, 0));
    }

    #[test]
    fn an_hour_without_a_failure_forgets_them() {
        assert_eq!(recent(&[10, 3000, 3609, 3611], 3610), [3000, 3609]);
        assert!(recent(&[5], 3605).is_empty());
    }
}
