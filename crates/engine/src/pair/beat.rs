//! One heartbeat and its sealed form on the wire. Pure.
//!
//! A datagram is `SLB1`, one byte with the number of seals, the seals (8 bytes that name a key, 32 bytes HMAC-SHA256 over
//! what follows them) and the beat as JSON. It is sealed with every key that the sender has, so that nodes which got
//! their keys at different times still understand each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ring::hmac;
use serde::{Deserialize, Serialize};
use sparklane_lane::{ClusterName, NodeName};

use super::keys::Key;
use crate::phase::Phase;

/// Longest datagram that is sent or looked at, in bytes; it fits the rails' MTU of 9000.
pub const MAX_DATAGRAM: usize = 8192;
const MAGIC: &[u8; 4] = b"SLB1";
const NAME: usize = 8;
const SEAL: usize = NAME + 32;

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(u64);

        impl $name {
            /// A new one, at random.
            ///
            /// # Errors
            /// When the kernel gives no random bytes.
            pub fn random() -> std::io::Result<Self> {
                let mut bytes = [0; 8];
                rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
                Ok(Self(u64::from_le_bytes(bytes)))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;
            fn try_from(text: String) -> Result<Self, String> {
                let hex = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
                let id = u64::from_str_radix(&text, 16).ok().filter(|_| hex);
                id.map(Self).ok_or_else(|| format!("{text:?} is not 16 hex digits"))
            }
        }
    };
}

random_id! {
    /// One run of a supervisor.
    RunId
}
random_id! {
    /// One attempt of the cluster to start its ranks together; the head makes it.
    AttemptId
}

/// What a node's rank does in an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rank {
    /// It was not started.
    Waiting,
    /// Its container starts or runs.
    Running,
    /// It ended.
    Ended,
}

/// What a node says of its rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Saying {
    /// The attempt that the node began (head) or joined (worker).
    pub attempt: Option<AttemptId>,
    /// What its rank does in it.
    pub rank: Rank,
    /// The attempt in which its rank ran last, for a worker that waits again.
    pub spent: Option<AttemptId>,
    /// How far its rank has come.
    pub phase: Phase,
    /// True while it is ready for work: a head answers requests, a worker has loaded.
    pub serving: bool,
    /// Why its rank ended or was never started.
    pub reason: Option<String>,
}

impl Default for Saying {
    fn default() -> Self {
        Self { attempt: None, rank: Rank::Waiting, spent: None, phase: Phase::Preparing, serving: false, reason: None }
    }
}

/// What a supervisor tells the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Beat {
    /// The cluster.
    pub cluster: ClusterName,
    /// The sender.
    pub node: NodeName,
    /// The sender's run.
    pub run: RunId,
    /// Counts up within a run.
    pub number: u64,
    /// Runs that the sender has heard: of each node the one that it hears, and one that may follow it. A beat that does not
    /// name the receiver's run may be an old one, played again.
    pub heard: BTreeMap<NodeName, BTreeSet<RunId>>,
    /// What all ranks together run: `Generation::serves`.
    pub serves: String,
    /// What its rank does.
    #[serde(flatten)]
    pub says: Saying,
}

/// Why a datagram is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Not one of ours, or cut short.
    #[error("it is no heartbeat")]
    Form,
    /// None of its seals is by a key that is here.
    #[error("it is sealed with keys that this node does not have")]
    UnknownKey,
    /// A seal by a known key does not fit.
    #[error("its seal does not fit")]
    Forged,
}

/// The datagram of a beat.
///
/// # Errors
/// When it would be longer than [`MAX_DATAGRAM`], or cannot be written as JSON.
pub fn seal(keys: &[Key], beat: &Beat) -> std::io::Result<Vec<u8>> {
    let body = serde_json::to_vec(beat)?;
    let count = u8::try_from(keys.len()).map_err(std::io::Error::other)?;
    let mut bytes = [&MAGIC[..], &[count]].concat();
    for key in keys {
        bytes.extend(key.name());
        bytes.extend(hmac::sign(key.hmac(), &body).as_ref());
    }
    bytes.extend(body);
    if bytes.len() > MAX_DATAGRAM {
        return Err(std::io::Error::other("the heartbeat is too long"));
    }
    Ok(bytes)
}

/// The beat of a datagram, proved by one of the keys.
///
/// # Errors
/// See [`Refused`].
pub fn open(keys: &[Key], bytes: &[u8]) -> Result<Beat, Refused> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(Refused::Form)?;
    let (&count, rest) = rest.split_first().ok_or(Refused::Form)?;
    let (seals, body) = rest.split_at_checked(usize::from(count) * SEAL).ok_or(Refused::Form)?;
    let known = seals.chunks_exact(SEAL).find_map(|seal| {
        let (name, tag) = seal.split_at(NAME);
        keys.iter().find(|key| key.name() == name).map(|key| (key, tag))
    });
    let (key, tag) = known.ok_or(Refused::UnknownKey)?;
    hmac::verify(key.hmac(), body, tag).map_err(|_| Refused::Forged)?;
    serde_json::from_slice(body).map_err(|_| Refused::Form)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn key(byte: u8) -> Key {
        Key::new(&[byte; 32])
    }

    pub(crate) fn beat(node: &str) -> Beat {
        Beat {
            cluster: "lab".parse().unwrap(),
            node: node.parse().unwrap(),
            run: RunId::random().unwrap(),
            number: 1,
            heard: BTreeMap::new(),
            serves: "s".into(),
            says: Saying::default(),
        }
    }

    #[test]
    fn one_common_key_is_enough() {
        let sent = beat("head");
        let bytes = seal(&[key(1), key(2)], &sent).unwrap();
        assert_eq!(open(&[key(2), key(3)], &bytes), Ok(sent.clone()));
        assert_eq!(open(&[key(3)], &bytes), Err(Refused::UnknownKey));
        assert_eq!(open(&[], &bytes), Err(Refused::UnknownKey));
        let unsealed = seal(&[], &sent).unwrap();
        assert_eq!(open(&[key(1)], &unsealed), Err(Refused::UnknownKey));
    }

    #[test]
    fn ids_are_16_hex_digits() {
        for bad in ["", "1", "+000000000000001", "00000000000000001", "000000000000000g"] {
            assert!(RunId::try_from(bad.to_owned()).is_err(), "{bad}");
        }
        assert_eq!(RunId::try_from("00000000000000ff".to_owned()).unwrap().to_string(), "00000000000000ff");
    }

    proptest::proptest! {
        #[test]
        fn bytes_of_anyone_are_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
            proptest::prop_assert!(open(&[key(1)], &bytes).is_err());
            let mut ours = MAGIC.to_vec();
            ours.extend(&bytes);
            proptest::prop_assert!(open(&[key(1)], &ours).is_err());
        }

        #[test]
        fn a_changed_bit_is_refused(at: proptest::sample::Index, bit in 0..8_u8) {
            let mut bytes = seal(&[key(1)], &beat("head")).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            proptest::prop_assert!(open(&[key(1)], &bytes).is_err());
        }
    }
}
