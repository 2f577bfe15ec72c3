//! When to try again, and when to stop. What counts is progress, not time: 20 GB over a bad line may break often.

use std::time::Duration;

/// Bytes after which a broken transfer counts as having moved.
pub const PROGRESS_BYTES: u64 = 256 << 10;
/// Failures in a row, without progress between, after which it is given up.
pub const FAILURES: u32 = 6;
/// Longest wait that a server may ask for; one that wants more is given up.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// Counts failures without progress.
#[derive(Debug, Clone)]
pub struct Patience {
    first_wait: Duration,
    failures: u32,
}

impl Patience {
    /// Starts with a wait of `first_wait`, which doubles with each failure in a row.
    #[must_use]
    pub fn new(first_wait: Duration) -> Self {
        Self { first_wait, failures: 0 }
    }

    /// After a failure that came when `moved` bytes had come since the last: how long to wait, or `None` to give up.
    /// `asked` is the server's `Retry-After`, `jitter` 0 to 255, so that many nodes do not come back at once.
    pub fn failed(&mut self, moved: u64, asked: Option<Duration>, jitter: u8) -> Option<Duration> {
        if moved >= PROGRESS_BYTES {
            self.failures = 0;
        }
        self.failures += 1;
        if self.failures > FAILURES || asked.is_some_and(|a| a > RETRY_AFTER_MAX) {
            return None;
        }
        let wait = self.first_wait * 2u32.saturating_pow(self.failures - 1);
        let wait = wait.min(Duration::from_secs(30));
        let wait = wait + wait * u32::from(jitter) / 512;
        Some(asked.map_or(wait, |a| a.max(wait)))
    }
}

/// Parses `Retry-After`: seconds or a date; `now` is the wall clock in seconds.
#[must_use]
pub fn retry_after(text: &str, now: i64) -> Option<Duration> {
    if let Ok(secs) = text.trim().parse::<u32>() {
        return Some(Duration::from_secs(secs.into()));
    }
    let date = jiff::fmt::rfc2822::parse(text.trim()).ok()?;
    Some(Duration::from_secs(u64::try_from(date.timestamp().as_second() - now).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn waits_double_and_end() {
        let mut patience = Patience::new(100 * MS);
        let waits: Vec<_> = (0..8).map_while(|_| patience.failed(0, None, 0)).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200].map(|n| n * MS));
    }

    #[test]
    fn progress_begins_anew() {
        let mut patience = Patience::new(100 * MS);
        for _ in 0..100 {
            assert_eq!(patience.failed(PROGRESS_BYTES, None, 0), Some(100 * MS));
        }
        assert_eq!(patience.failed(PROGRESS_BYTES - 1, None, 0), Some(200 * MS));
    }

    #[test]
    fn the_server_may_ask_for_more_within_reason() {
        let mut patience = Patience::new(100 * MS);
        assert_eq!(patience.failed(0, Some(Duration::from_secs(7)), 0), Some(Duration::from_secs(7)));
        assert_eq!(patience.failed(0, Some(Duration::ZERO), 255), Some(200 * MS + 200 * MS * 255 / 512));
        assert_eq!(patience.failed(0, Some(Duration::from_secs(3600)), 0), None);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(retry_after(" 7 ", 0), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 50), Some(Duration::from_secs(10)));
        assert_eq!(retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 100), Some(Duration::ZERO));
        for text in ["", "-1", "soon", "99999999999"] {
            assert_eq!(retry_after(text, 0), None, "{text:?}");
        }
    }
}
