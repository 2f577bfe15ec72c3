//! What was proved of a published folder, so that a preflight need not read 167 GB again.
//!
//! The record is signed by its content: a changed byte of it makes it no record, and a file whose size, modification
//! time or inode is another makes it a record of something else.

use std::fs;

use camino::Utf8Path;
use serde::{Deserialize, Serialize};

use crate::blobs::BlobSet;
use crate::error::WeightsError;
use crate::hash::Sha;
use crate::journal::Stamp;
use crate::read;

/// How the bytes were proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// Hashed as they were written.
    Stream,
    /// Read back from the disk and hashed.
    Deep,
}

/// One proved file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProofFile {
    /// Path below the folder.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Inode.
    pub inode: u64,
}

/// The record of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proof {
    /// Id of the manifest whose bytes these are.
    pub manifest: Sha,
    /// How they were proved.
    pub how: How,
    /// The files, in the manifest's order.
    pub files: Vec<ProofFile>,
    /// sha256 of the rest.
    pub sum: Sha,
}

impl Proof {
    /// A record of a set's files.
    #[must_use]
    pub fn new(set: &BlobSet, how: How, stamps: &[Stamp]) -> Self {
        let file = |(blob, stamp): (&crate::Blob, &Stamp)| ProofFile {
            path: blob.path.clone(),
            size: stamp.size,
            mtime_ns: stamp.mtime_ns,
            inode: stamp.inode,
        };
        let files = set.blobs().iter().zip(stamps).map(file).collect();
        let mut proof = Self { manifest: set.id(), how, files, sum: Sha([0; 32]) };
        proof.sum = proof.content();
        proof
    }

    fn content(&self) -> Sha {
        let rest = serde_json::to_vec(&(self.manifest, self.how, &self.files)).unwrap_or_default();
        Sha::of(&rest)
    }

    /// Reads a record; `None` when there is none, or it is not whole.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let proof: Self = serde_json::from_slice(bytes).ok()?;
        (proof.sum == proof.content()).then_some(proof)
    }

    /// The record's bytes.
    ///
    /// # Errors
    /// Never in practice; the type has nothing that JSON cannot hold.
    pub fn bytes(&self) -> Result<Vec<u8>, WeightsError> {
        serde_json::to_vec(self).map_err(|e| WeightsError::Failed(format!("proof: {e}")))
    }

    /// What keeps the record from being true of the folder now; empty when it is.
    #[must_use]
    pub fn differences(&self, set: &BlobSet, dir: &Utf8Path) -> Vec<String> {
        if self.manifest != set.id() || self.files.len() != set.blobs().len() {
            return vec![format!("the record is of manifest {}", self.manifest)];
        }
        let mut found = Vec::new();
        for (blob, file) in set.blobs().iter().zip(&self.files) {
            let path = dir.join(&file.path);
            let why = match fs::symlink_metadata(&path) {
                _ if blob.path != file.path || blob.size != file.size => "the record is of another file".to_owned(),
                Ok(meta) if !meta.is_file() => "is no regular file".to_owned(),
                Ok(meta) => {
                    let now = read::stamp_of(&meta);
                    if now.size != file.size {
                        format!("has {} bytes, not {}", now.size, file.size)
                    } else if now.inode != file.inode {
                        "was replaced since it was proved".to_owned()
                    } else if now.mtime_ns != file.mtime_ns {
                        "was written to since it was proved".to_owned()
                    } else {
                        continue;
                    }
                }
                Err(error) => error.to_string(),
            };
            found.push(format!("{path}: {why}"));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_record_with_one_changed_byte_is_none() {
        let blob = crate::Blob { path: "a".into(), size: 3, sha256: Sha::of(b"abc") };
        let set = BlobSet::new(vec![blob]).unwrap();
        let stamp = Stamp { size: 3, mtime_ns: 5, inode: 9 };
        let bytes = Proof::new(&set, How::Stream, &[stamp]).bytes().unwrap();
        let good = Proof::parse(&bytes).unwrap();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(Proof::parse(&bad).is_none_or(|p| p == good), "{at}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Proof::parse(&bytes).is_none());
        }
    }
}
