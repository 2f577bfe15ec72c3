//! SHA-256 whose state can be kept and taken up again, so that a transfer resumes without reading what it proved.
//!
//! sha2 0.10 cannot serialise its hasher; it offers the compression function, and `block-buffer` (behind it anyway) the
//! splitting into blocks. What is ours is eight words, a length and the padding's place.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::compress256;
use sha2::digest::block_buffer::EagerBuffer;
use sha2::digest::typenum::U64;

/// Bytes of a block; states are kept at multiples of it only.
pub const BLOCK: u64 = 64;

/// Initial state (FIPS 180-4, section 5.3.3).
const START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha(pub [u8; 32]);

impl Sha {
    /// The digest of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }
}

impl fmt::Display for Sha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a sha256 (64 hex digits)")]
pub struct BadSha(String);

impl FromStr for Sha {
    type Err = BadSha;
    fn from_str(text: &str) -> Result<Self, BadSha> {
        let bad = || BadSha(text.chars().take(80).collect());
        let digit = |b: u8| match b {
            b'0'..=b'9' => Some(b - b'0'),
            b'a'..=b'f' => Some(b - b'a' + 10),
            _ => None,
        };
        let bytes = text.as_bytes();
        if bytes.len() != 64 {
            return Err(bad());
        }
        let mut sha = [0; 32];
        for (byte, pair) in sha.iter_mut().zip(bytes.chunks_exact(2)) {
            let &[high, low] = pair else { return Err(bad()) };
            *byte = digit(high).zip(digit(low)).map(|(h, l)| h << 4 | l).ok_or_else(bad)?;
        }
        Ok(Self(sha))
    }
}

impl TryFrom<String> for Sha {
    type Error = BadSha;
    fn try_from(text: String) -> Result<Self, BadSha> {
        text.parse()
    }
}

impl From<Sha> for String {
    fn from(sha: Sha) -> Self {
        sha.to_string()
    }
}

/// The state of a hash after `len` bytes, a multiple of [`BLOCK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Midstate {
    /// Bytes hashed.
    pub len: u64,
    /// The eight words, big-endian.
    pub state: [u8; 32],
}

impl Midstate {
    /// The state before the first byte.
    #[must_use]
    pub fn start() -> Self {
        Self { len: 0, state: to_bytes(&START) }
    }
}

/// A running SHA-256.
#[derive(Clone)]
pub struct Hasher {
    state: [u32; 8],
    len: u64,
    buffer: EagerBuffer<U64>,
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Self::new()
    }
}

impl Hasher {
    /// A hash of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self { state: START, len: 0, buffer: EagerBuffer::default() }
    }

    /// Goes on where a kept state was.
    #[must_use]
    pub fn resume(from: &Midstate) -> Self {
        let mut state = [0; 8];
        for (word, bytes) in state.iter_mut().zip(from.state.chunks_exact(4)) {
            *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        Self { state, len: from.len, buffer: EagerBuffer::default() }
    }

    /// Takes further bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        let state = &mut self.state;
        self.buffer.digest_blocks(bytes, |blocks| compress256(state, blocks));
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True before the first byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The state to keep; `None` within a block.
    #[must_use]
    pub fn midstate(&self) -> Option<Midstate> {
        self.len.is_multiple_of(BLOCK).then(|| Midstate { len: self.len, state: to_bytes(&self.state) })
    }

    /// The digest.
    #[must_use]
    pub fn finish(mut self) -> Sha {
        let state = &mut self.state;
        self.buffer.len64_padding_be(self.len.wrapping_mul(8), |block| compress256(state, std::slice::from_ref(block)));
        Sha(to_bytes(&self.state))
    }
}

fn to_bytes(words: &[u32; 8]) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (four, word) in bytes.chunks_exact_mut(4).zip(words) {
        four.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sha2::{Digest as _, Sha256};

    #[test]
    fn known_digests() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Sha::of(b"").to_string(), empty);
        assert_eq!(empty.parse::<Sha>().unwrap(), Sha::of(b""));
        assert!("E3".repeat(32).parse::<Sha>().is_err());
        assert!("é".repeat(32).parse::<Sha>().is_err());
    }

    proptest! {
        #[test]
        fn any_split_and_any_resume_gives_what_sha2_gives(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
            cuts in proptest::collection::vec(0usize..2000, 0..6),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(bytes.len())).collect();
            cuts.push(bytes.len());
            cuts.sort_unstable();
            let (mut hasher, mut at) = (Hasher::new(), 0);
            for cut in cuts {
                hasher.update(&bytes[at..cut]);
                at = cut;
                if let Some(kept) = hasher.midstate() {
                    prop_assert_eq!(kept.len, cut as u64);
                    hasher = Hasher::resume(&kept);
                }
            }
            prop_assert_eq!(hasher.finish().0.to_vec(), Sha256::digest(&bytes).to_vec());
        }
    }
}
