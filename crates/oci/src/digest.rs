//! Digests of bytes. Only sha256: every registry and both docker stores name blobs by it.

use std::io::{self, Read, Write};

use sha2::{Digest as _, Sha256};
pub use sparklane_lane::ids::Digest;

/// Piece in which streams are read.
pub(crate) const PIECE: usize = 1 << 20;

/// Digest of bytes in memory.
#[must_use]
pub fn of(bytes: &[u8]) -> Digest {
    Digest::from_sha256(&Sha256::digest(bytes).into())
}

/// Digest and length of a stream.
///
/// # Errors
/// The reader's.
pub fn of_reader(mut reader: impl Read) -> io::Result<(Digest, u64)> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; PIECE];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok((hasher.digest(), hasher.bytes())),
            Ok(n) => hasher.update(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// A digest in the making.
#[derive(Debug, Clone, Default)]
pub struct Hasher {
    state: Sha256,
    bytes: u64,
}

impl Hasher {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// Bytes taken so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The digest of what was taken so far.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::from_sha256(&self.state.clone().finalize().into())
    }
}

/// Passes bytes on and keeps their digest and number.
#[derive(Debug)]
pub struct HashingWriter<W> {
    inner: W,
    hasher: Hasher,
}

impl<W: Write> HashingWriter<W> {
    /// In front of `inner`.
    pub fn new(inner: W) -> Self {
        Self { inner, hasher: Hasher::new() }
    }

    /// Bytes passed so far.
    pub fn bytes(&self) -> u64 {
        self.hasher.bytes()
    }

    /// Digest of the bytes passed so far.
    pub fn digest(&self) -> Digest {
        self.hasher.digest()
    }

    /// The writer behind, with digest and number of the bytes that went to it.
    pub fn into_parts(self) -> (W, Digest, u64) {
        let (digest, bytes) = (self.hasher.digest(), self.hasher.bytes());
        (self.inner, digest, bytes)
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn digests_are_the_published_ones() {
        assert_eq!(of(b"").as_str(), EMPTY);
        assert_eq!(of(b"abc").as_str(), ABC);
        assert_eq!(of(b"abc").hex(), &ABC[7..]);
        assert_eq!(of_reader(&b"abc"[..]).unwrap(), (of(b"abc"), 3));
    }

    #[test]
    fn the_writer_counts_what_it_passed() {
        let mut writer = HashingWriter::new(Vec::new());
        writer.write_all(b"ab").unwrap();
        writer.write_all(b"c").unwrap();
        assert_eq!((writer.bytes(), writer.digest().as_str()), (3, ABC));
        assert_eq!(writer.into_parts(), (b"abc".to_vec(), of(b"abc"), 3));
    }
}
