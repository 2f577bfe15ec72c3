//! Bytes per second, for threads that move them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A common limit of several threads; none without a rate.
#[derive(Debug)]
pub struct Pace {
    rate: Option<u64>,
    ready: Mutex<Instant>,
}

impl Pace {
    /// So many bytes per second, or as fast as it goes.
    #[must_use]
    pub fn new(rate: Option<u64>) -> Self {
        Self { rate, ready: Mutex::new(Instant::now()) }
    }

    /// Most bytes that are moved before [`Pace::take`] is asked again: a quarter second's, `usual` without a rate.
    #[must_use]
    pub fn piece(&self, usual: usize) -> usize {
        self.rate.map_or(usual, |rate| usize::try_from(rate / 4).unwrap_or(usual).clamp(4096, usual))
    }

    /// Waits until so many bytes may have been moved.
    pub fn take(&self, bytes: usize) {
        let Some(rate) = self.rate else { return };
        let micros = u128::from(bytes as u64) * 1_000_000 / u128::from(rate.max(1));
        let cost = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        let now = Instant::now();
        let until = {
            let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
            *ready = (*ready).max(now) + cost;
            *ready
        };
        std::thread::sleep(until.saturating_duration_since(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_one_rate() {
        let pace = Pace::new(Some(1 << 20));
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| pace.take(1 << 16));
            }
        });
        assert!(begin.elapsed() >= Duration::from_millis(240), "a quarter MiB at one MiB a second");
        assert_eq!(pace.piece(1 << 30), 1 << 18);
        assert_eq!(Pace::new(None).piece(7), 7);
        Pace::new(None).take(usize::MAX);
    }
}
