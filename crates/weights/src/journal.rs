//! What of a staging was proved: fixed records, each bound to its set and checked by itself.
//!
//! A record is written only after the bytes it speaks of are durable. A damaged or torn record is one that never was:
//! an older claim about the same file is still true, and without one the file starts anew. Nothing here is trusted as
//! the last word: the sha256 of a whole file is.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};

use crate::error::WeightsError;
use crate::hash::{BLOCK, Hasher, Midstate, Sha};

/// Bytes of a record.
pub const RECORD: usize = 64;
/// Bytes that the checksum covers.
const BODY: usize = 48;
/// Largest journal that is read: a record per 64 MiB and per file is far below.
const MAX_BYTES: u64 = 256 * 1024 * 1024;
const PART: [u8; 4] = *b"SLp1";
const DONE: [u8; 4] = *b"SLd1";
const SUSPECT: [u8; 4] = *b"SLs1";

/// What identifies a finished file's bytes without reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Inode.
    pub inode: u64,
}

/// What is proved about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The first bytes of its part are durable and have this hash state.
    Part(Midstate),
    /// Its part holds a whole file of the wrong sha256: only some ranges of it are to be fetched again.
    Suspect,
    /// The whole file had the right sha256 and looked like this.
    Done(Stamp),
}

/// The newest valid claim per file. Bytes of any kind are read; damage only makes claims fewer.
#[must_use]
pub fn parse(bytes: &[u8], set: &Sha) -> BTreeMap<u32, Claim> {
    let mut claims = BTreeMap::new();
    for record in bytes.chunks_exact(RECORD) {
        if let Some((file, claim)) = decode(record, set) {
            claims.insert(file, claim);
        }
    }
    claims
}

/// A record's bytes.
#[must_use]
pub fn encode(file: u32, claim: &Claim, set: &Sha) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    let (kind, len, rest) = match claim {
        Claim::Part(state) => (PART, state.len, state.state),
        Claim::Suspect => (SUSPECT, 0, [0; 32]),
        Claim::Done(stamp) => {
            let mut rest = [0; 32];
            rest[..8].copy_from_slice(&stamp.mtime_ns.to_be_bytes());
            rest[8..16].copy_from_slice(&stamp.inode.to_be_bytes());
            (DONE, stamp.size, rest)
        }
    };
    record[..4].copy_from_slice(&kind);
    record[4..8].copy_from_slice(&file.to_be_bytes());
    record[8..16].copy_from_slice(&len.to_be_bytes());
    record[16..BODY].copy_from_slice(&rest);
    let sum = checksum(&record[..BODY], set);
    record[BODY..].copy_from_slice(&sum);
    record
}

fn decode(record: &[u8], set: &Sha) -> Option<(u32, Claim)> {
    let (body, sum) = record.split_at_checked(BODY)?;
    if sum != checksum(body, set) {
        return None;
    }
    let file = u32::from_be_bytes(body.get(4..8)?.try_into().ok()?);
    let len = u64::from_be_bytes(body.get(8..16)?.try_into().ok()?);
    let rest = body.get(16..BODY)?;
    let claim = match body.get(..4)? {
        kind if kind == PART && len % BLOCK == 0 => Claim::Part(Midstate { len, state: rest.try_into().ok()? }),
        kind if kind == SUSPECT => Claim::Suspect,
        kind if kind == DONE => Claim::Done(Stamp {
            size: len,
            mtime_ns: i64::from_be_bytes(rest.get(..8)?.try_into().ok()?),
            inode: u64::from_be_bytes(rest.get(8..16)?.try_into().ok()?),
        }),
        _ => return None,
    };
    Some((file, claim))
}

fn checksum(body: &[u8], set: &Sha) -> [u8; RECORD - BODY] {
    let mut hasher = Hasher::new();
    hasher.update(&set.0);
    hasher.update(body);
    let mut sum = [0; RECORD - BODY];
    sum.copy_from_slice(&hasher.finish().0[..RECORD - BODY]);
    sum
}

/// The journal of one staging on disk.
#[derive(Debug)]
pub struct Journal {
    path: Utf8PathBuf,
    file: File,
    set: Sha,
    /// Length of whole records; a torn end behind it is overwritten.
    len: u64,
}

impl Journal {
    /// Opens or creates a journal, gives the claims that hold, and cuts off a torn end.
    ///
    /// # Errors
    /// When the file cannot be opened, read or made durable.
    pub fn open(path: &Utf8Path, set: &Sha) -> Result<(Self, BTreeMap<u32, Claim>), WeightsError> {
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(WeightsError::file("open", path))?;
        let mut bytes = Vec::new();
        (&mut file).take(MAX_BYTES).read_to_end(&mut bytes).map_err(WeightsError::file("read", path))?;
        let claims = parse(&bytes, set);
        let len = (bytes.len() - bytes.len() % RECORD) as u64;
        file.set_len(len).and_then(|()| file.sync_all()).map_err(WeightsError::file("cut", path))?;
        Ok((Self { path: path.to_owned(), file, set: *set, len }, claims))
    }

    /// Writes claims and makes them durable. The bytes they speak of must be durable already.
    ///
    /// # Errors
    /// When they cannot be written; none of them counts then.
    pub fn append(&mut self, claims: &[(u32, Claim)]) -> Result<(), WeightsError> {
        if claims.is_empty() {
            return Ok(());
        }
        let bytes: Vec<u8> = claims.iter().flat_map(|(file, claim)| encode(*file, claim, &self.set)).collect();
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            let _cut = self.file.set_len(self.len);
            return Err(WeightsError::file("write", &self.path)(error));
        }
        self.len += bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn claim() -> impl Strategy<Value = Claim> {
        prop_oneof![
            (0u64..1 << 40, any::<[u8; 32]>())
                .prop_map(|(blocks, state)| Claim::Part(Midstate { len: blocks * BLOCK, state })),
            Just(Claim::Suspect),
            (any::<u64>(), any::<i64>(), any::<u64>())
                .prop_map(|(size, mtime, inode)| { Claim::Done(Stamp { size, mtime_ns: mtime, inode }) }),
        ]
    }

    fn journal_of(records: &[(u32, Claim)], set: &Sha) -> Vec<u8> {
        records.iter().flat_map(|(file, claim)| encode(*file, claim, set)).collect()
    }

    proptest! {
        #[test]
        fn the_newest_claim_of_each_file_is_read_back(records in proptest::collection::vec((0u32..5, claim()), 0..20)) {
            let set = Sha::of(b"set");
            let claims = parse(&journal_of(&records, &set), &set);
            let wanted: BTreeMap<u32, Claim> = records.into_iter().collect();
            prop_assert_eq!(claims, wanted);
        }

        #[test]
        fn damage_never_makes_a_claim_that_was_not_written(
            records in proptest::collection::vec((0u32..5, claim()), 1..8),
            at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<prop::sample::Index>(),
        ) {
            let set = Sha::of(b"set");
            let mut bytes = journal_of(&records, &set);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            bytes.truncate(cut.index(bytes.len() + 1));
            for (file, claim) in parse(&bytes, &set) {
                prop_assert!(records.contains(&(file, claim)));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(parse(&bytes, &Sha::of(b"x")).is_empty());
        }
    }

    #[test]
    fn a_journal_of_another_set_says_nothing() {
        let claim = (0, Claim::Part(Midstate::start()));
        let bytes = journal_of(&[claim], &Sha::of(b"one"));
        assert!(parse(&bytes, &Sha::of(b"two")).is_empty());
        assert_eq!(parse(&bytes, &Sha::of(b"one")).len(), 1);
    }

    #[test]
    fn a_torn_end_is_cut_and_writing_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("journal");
        let set = Sha::of(b"set");
        let claim = Claim::Part(Midstate { len: 64, state: [7; 32] });
        let mut bytes = encode(1, &claim, &set).to_vec();
        bytes.extend_from_slice(&encode(2, &claim, &set)[..40]);
        std::fs::write(&path, &bytes).unwrap();
        let (mut journal, claims) = Journal::open(&path, &set).unwrap();
        assert_eq!(claims.len(), 1);
        journal.append(&[(3, claim)]).unwrap();
        let (_, claims) = Journal::open(&path, &set).unwrap();
        assert_eq!(claims.keys().copied().collect::<Vec<_>>(), [1, 3]);
    }
}
