//! Buffers that `O_DIRECT` takes: aligned, of one size, and only so many of them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Alignment that every block device accepts.
pub const ALIGN: usize = 4096;
/// Bytes of an extent: what one request asks for, and what a buffer holds.
pub const EXTENT: usize = 1024 * 1024;

/// A buffer of [`EXTENT`] bytes at an aligned address. It goes back to its pool when dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    /// Bytes in use.
    len: usize,
    pool: Option<Arc<Shared>>,
}

impl Buffer {
    /// A buffer of its own, of no pool.
    #[must_use]
    pub fn new() -> Self {
        let bytes = vec![0; EXTENT + ALIGN];
        let start = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { bytes, start, len: 0, pool: None }
    }

    /// All of it.
    pub fn whole(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + EXTENT]
    }

    /// Says how many bytes are in use.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(EXTENT);
    }

    /// The bytes in use.
    #[must_use]
    pub fn used(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The bytes in use and zeros up to the next multiple of [`ALIGN`], for a direct write at a file's end.
    pub fn padded(&mut self) -> &[u8] {
        let end = self.len.next_multiple_of(ALIGN).min(EXTENT);
        let (start, len) = (self.start, self.len);
        self.bytes[start + len..start + end].fill(0);
        &self.bytes[start..start + end]
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            let bytes = std::mem::take(&mut self.bytes);
            pool.give(bytes, self.start);
        }
    }
}

/// A bounded set of buffers.
#[derive(Debug, Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    freed: Condvar,
    most: usize,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<(Vec<u8>, usize)>,
    made: usize,
}

impl Shared {
    fn give(&self, bytes: Vec<u8>, start: usize) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).free.push((bytes, start));
        self.freed.notify_one();
    }
}

impl Pool {
    /// A pool of at most `most` buffers.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::default(), freed: Condvar::new(), most: most.max(1) }) }
    }

    /// A buffer, waiting at most `wait` for one.
    #[must_use]
    pub fn take(&self, wait: Duration) -> Option<Buffer> {
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let none = |s: &mut State| s.free.is_empty() && s.made >= self.shared.most;
        let (mut state, _) =
            self.shared.freed.wait_timeout_while(state, wait, none).unwrap_or_else(PoisonError::into_inner);
        let pool = Some(Arc::clone(&self.shared));
        if let Some((bytes, start)) = state.free.pop() {
            return Some(Buffer { bytes, start, len: 0, pool });
        }
        if state.made >= self.shared.most {
            return None;
        }
        state.made += 1;
        drop(state);
        let mut buffer = Buffer::new();
        buffer.pool = pool;
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_bounded_and_come_back() {
        let pool = Pool::new(2);
        let mut one = pool.take(Duration::ZERO).unwrap();
        assert_eq!(one.whole().as_ptr().align_offset(ALIGN), 0);
        let _two = pool.take(Duration::ZERO).unwrap();
        assert!(pool.take(Duration::ZERO).is_none());
        drop(one);
        let mut again = pool.take(Duration::ZERO).unwrap();
        again.whole()[..3].copy_from_slice(b"abc");
        again.whole()[3] = 9;
        again.set_len(3);
        assert_eq!(again.used(), b"abc");
        assert_eq!(again.padded().len(), ALIGN);
        assert_eq!(again.padded()[3], 0);
    }
}
