//! What receiver and sender say. Every message travels sealed and authenticated in a [`super::channel::Channel`]; the
//! bytes of an extent follow their answer, plain or sealed. All numbers are big-endian.

use super::sched::Want;
use crate::buffer::EXTENT;
use crate::hash::Sha;

/// Version of the protocol; both ends must have the same.
pub const VERSION: u8 = 1;
/// Hashes of extents in one answer: they fit into one message.
pub const MAX_HASHES: u32 = 1024;
/// Longest text of a refusal.
const MAX_TEXT: usize = 2048;

/// What the receiver says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The set that it wants.
    pub set: Sha,
}

/// What the sender answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The set that it has.
    pub set: Sha,
    /// Key of AES-128-GCM, when extents travel sealed.
    pub seal: Option<[u8; 16]>,
}

/// What a receiver asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// The bytes of an extent.
    Get(Want),
    /// The sha256 of each of `count` extents from an offset on.
    Hashes {
        /// Number of the file.
        file: u32,
        /// First byte.
        offset: u64,
        /// How many.
        count: u32,
    },
    /// That many bytes of nothing, to measure the rail.
    Probe {
        /// Bytes, at most [`EXTENT`].
        len: u32,
    },
    /// The receiver has everything.
    Bye,
}

/// What a sender answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The bytes of this extent follow.
    Data(Want),
    /// Hashes of extents.
    Hashes(Vec<Sha>),
    /// Bytes of nothing follow.
    Probe {
        /// Bytes.
        len: u32,
    },
    /// It cannot be answered, and why: the source changed, is gone or cannot be read.
    Refused(String),
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_at_checked(N)?;
        self.0 = rest;
        head.try_into().ok()
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }
    fn want(&mut self) -> Option<Want> {
        let want = Want { file: self.u32()?, offset: self.u64()?, len: self.u32()? };
        let fits =
            want.len > 0 && want.len as usize <= EXTENT && want.offset.checked_add(u64::from(want.len)).is_some();
        fits.then_some(want)
    }
    fn end<T>(&self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}

fn put_want(out: &mut Vec<u8>, want: &Want) {
    out.extend(want.file.to_be_bytes());
    out.extend(want.offset.to_be_bytes());
    out.extend(want.len.to_be_bytes());
}

impl Hello {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        [&[VERSION][..], &self.set.0].concat()
    }

    /// Reads it; `None` when it is none of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let [version] = bytes.take()?;
        let hello = Self { set: Sha(bytes.take()?) };
        bytes.end(hello).filter(|_| version == VERSION)
    }
}

impl Welcome {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let seal: &[u8] = self.seal.as_ref().map_or(&[], |key| key.as_slice());
        [&[VERSION][..], &self.set.0, seal].concat()
    }

    /// Reads it; `None` when it is none of this version.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let [version] = bytes.take()?;
        let set = Sha(bytes.take()?);
        let seal = if bytes.0.is_empty() { None } else { Some(bytes.take()?) };
        bytes.end(Self { set, seal }).filter(|_| version == VERSION)
    }
}

impl Request {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        match self {
            Self::Get(want) => {
                out.push(1);
                put_want(&mut out, want);
            }
            Self::Hashes { file, offset, count } => {
                out.push(2);
                out.extend(file.to_be_bytes());
                out.extend(offset.to_be_bytes());
                out.extend(count.to_be_bytes());
            }
            Self::Probe { len } => {
                out.push(3);
                out.extend(len.to_be_bytes());
            }
            Self::Bye => out.push(4),
        }
        out
    }

    /// Reads it; `None` when it is no request.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let [kind] = bytes.take()?;
        let request = match kind {
            1 => Self::Get(bytes.want()?),
            2 => {
                let (file, offset, count) = (bytes.u32()?, bytes.u64()?, bytes.u32()?);
                if count == 0 || count > MAX_HASHES {
                    return None;
                }
                Self::Hashes { file, offset, count }
            }
            3 => Self::Probe { len: bytes.u32().filter(|len| *len as usize <= EXTENT)? },
            4 => Self::Bye,
            _ => return None,
        };
        bytes.end(request)
    }
}

impl Answer {
    /// Its bytes. A long refusal is cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        match self {
            Self::Data(want) => {
                out.push(1);
                put_want(&mut out, want);
            }
            Self::Hashes(hashes) => {
                out.push(2);
                out.extend(hashes.iter().flat_map(|sha| sha.0));
            }
            Self::Probe { len } => {
                out.push(3);
                out.extend(len.to_be_bytes());
            }
            Self::Refused(text) => {
                out.push(4);
                out.extend(text.bytes().take(MAX_TEXT));
            }
        }
        out
    }

    /// Reads it; `None` when it is no answer.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut bytes = Bytes(bytes);
        let [kind] = bytes.take()?;
        let answer = match kind {
            1 => Self::Data(bytes.want()?),
            2 => {
                let rest = bytes.rest();
                if rest.len() % 32 != 0 || rest.len() / 32 > MAX_HASHES as usize {
                    return None;
                }
                Self::Hashes(rest.chunks_exact(32).filter_map(|c| c.try_into().ok().map(Sha)).collect())
            }
            3 => Self::Probe { len: bytes.u32().filter(|len| *len as usize <= EXTENT)? },
            4 => {
                let text = bytes.rest();
                if text.len() > MAX_TEXT {
                    return None;
                }
                // It is shown to people: nothing that steers a terminal.
                let clean = |c: char| if c.is_control() { ' ' } else { c };
                Self::Refused(String::from_utf8_lossy(text).chars().map(clean).collect())
            }
            _ => return None,
        };
        bytes.end(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn want() -> impl Strategy<Value = Want> {
        (any::<u32>(), 0..u64::MAX / 2, 1u32..=1 << 20).prop_map(|(file, offset, len)| Want { file, offset, len })
    }

    fn request() -> impl Strategy<Value = Request> {
        prop_oneof![
            want().prop_map(Request::Get),
            (any::<u32>(), any::<u64>(), 1..=MAX_HASHES).prop_map(|(file, offset, count)| Request::Hashes {
                file,
                offset,
                count
            }),
            (0u32..=1 << 20).prop_map(|len| Request::Probe { len }),
            Just(Request::Bye),
        ]
    }

    fn answer() -> impl Strategy<Value = Answer> {
        prop_oneof![
            want().prop_map(Answer::Data),
            proptest::collection::vec(any::<[u8; 32]>().prop_map(Sha), 0..40).prop_map(Answer::Hashes),
            (0u32..=1 << 20).prop_map(|len| Answer::Probe { len }),
            "[a-z ]{0,80}".prop_map(Answer::Refused),
        ]
    }

    proptest! {
        #[test]
        fn what_is_said_is_understood(request in request(), answer in answer(), set: [u8; 32], seal: Option<[u8; 16]>) {
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
            prop_assert_eq!(Answer::decode(&answer.encode()), Some(answer));
            let welcome = Welcome { set: Sha(set), seal };
            prop_assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
            let hello = Hello { set: Sha(set) };
            prop_assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), kind in 0u8..6) {
            let bytes = [&[kind][..], &bytes].concat();
            let _request = Request::decode(&bytes);
            let _answer = Answer::decode(&bytes);
            let _hello = Hello::decode(&bytes);
            let _welcome = Welcome::decode(&bytes);
        }
    }

    #[test]
    fn an_extent_that_wraps_is_no_request() {
        let want = Want { file: 0, offset: u64::MAX, len: 1 };
        assert_eq!(Request::decode(&Request::Get(want).encode()), None);
        let want = Want { file: 0, offset: 0, len: (1 << 20) + 1 };
        assert_eq!(Request::decode(&Request::Get(want).encode()), None);
    }
}
