//! A bound on bytes per second that all connections share.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that may be taken at once after a pause.
const BURST_MILLIS: u64 = 200;

/// A shared rate limit.
#[derive(Debug)]
pub struct Limit {
    rate: Option<u64>,
    /// When the next byte may be asked for.
    free_at: Mutex<Instant>,
}

impl Limit {
    /// A limit in bytes per second; `None` is none.
    #[must_use]
    pub fn new(rate: Option<u64>) -> Self {
        Self { rate: rate.filter(|r| *r > 0), free_at: Mutex::new(Instant::now()) }
    }

    /// How long to wait before asking for `bytes`.
    #[must_use]
    pub fn reserve(&self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(Duration::from_millis(BURST_MILLIS)).unwrap_or(now);
        let start = (*free_at).max(earliest);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        *free_at = start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4));
        start.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_over_time_is_the_rate() {
        let start = Instant::now();
        let limit = Limit::new(Some(1_000_000));
        let mut now = start;
        for _ in 0..50 {
            now += limit.reserve(100_000, now);
        }
        let secs = (now - start).as_secs_f64();
        assert!((4.6..=5.0).contains(&secs), "{secs}");
        assert_eq!(Limit::new(None).reserve(u64::MAX, now), Duration::ZERO);
    }
}
