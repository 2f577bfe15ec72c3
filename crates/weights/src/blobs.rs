//! A set of named blobs, each with size and sha256: what a transfer moves and a staging receives.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sparklane_lane::WeightsManifest;
use sparklane_lane::weights::bad_path;

use crate::error::WeightsError;
use crate::hash::{Hasher, Sha};

/// One blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Blob {
    /// Path below the set's folder.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// sha256.
    pub sha256: Sha,
}

/// A set of blobs with distinct, safe paths, and its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobSet {
    id: Sha,
    blobs: Vec<Blob>,
}

impl BlobSet {
    /// The blobs of a weights manifest; the set's id is the manifest's.
    ///
    /// # Errors
    /// When the manifest has a problem that its reader would have refused.
    pub fn of_manifest(manifest: &WeightsManifest) -> Result<Self, WeightsError> {
        if let Some(problem) = manifest.problems().first() {
            return Err(WeightsError::Refused(format!("manifest of {}: {problem}", manifest.model)));
        }
        let blob = |f: &sparklane_lane::weights::WeightsFile| {
            let sha256 = f.sha256.parse().map_err(|e| WeightsError::Refused(format!("{}: {e}", f.path)))?;
            Ok(Blob { path: f.path.clone(), size: f.size, sha256 })
        };
        let mut blobs: Vec<Blob> = manifest.files.iter().map(blob).collect::<Result<_, WeightsError>>()?;
        // Ends of a transfer name files by number; an id that does not know the order must not leave it open.
        blobs.sort_by(|a, b| a.path.cmp(&b.path));
        let id = manifest.id().parse().map_err(|e| WeightsError::Refused(format!("manifest: {e}")))?;
        Ok(Self { id, blobs })
    }

    /// A set of any blobs, as of an image; its id is the sha256 of its lines.
    ///
    /// # Errors
    /// When a path leaves the folder or stands twice, or sizes do not fit into a file.
    pub fn new(mut blobs: Vec<Blob>) -> Result<Self, WeightsError> {
        blobs.sort_by(|a, b| a.path.cmp(&b.path));
        let mut seen = BTreeSet::new();
        let mut hasher = Hasher::new();
        hasher.update(b"sparklane blobs 1\n");
        for blob in &blobs {
            if let Some(why) = bad_path(&blob.path) {
                return Err(WeightsError::Refused(format!("blob {:?} {why}", blob.path)));
            }
            if !seen.insert(blob.path.as_str()) {
                return Err(WeightsError::Refused(format!("blob {:?} is listed twice", blob.path)));
            }
            if blob.size > i64::MAX as u64 {
                return Err(WeightsError::Refused(format!("blob {:?} is too large", blob.path)));
            }
            hasher.update(format!("{} {} {}\n", blob.sha256, blob.size, blob.path).as_bytes());
        }
        Ok(Self { id: hasher.finish(), blobs })
    }

    /// The set's id, which both ends of a transfer name.
    #[must_use]
    pub fn id(&self) -> Sha {
        self.id
    }

    /// The blobs by path; their places are the numbers that both ends of a transfer use.
    #[must_use]
    pub fn blobs(&self) -> &[Blob] {
        &self.blobs
    }

    /// A blob by its number.
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&Blob> {
        self.blobs.get(index as usize)
    }

    /// Bytes of all blobs.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blobs.iter().fold(0, |sum, b| sum.saturating_add(b.size))
    }

    /// Numbers and blobs.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Blob)> {
        self.blobs.iter().enumerate().map(|(n, blob)| (u32::try_from(n).unwrap_or(u32::MAX), blob))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_paths_whatever_the_order_of_a_text() {
        let blob = |path: &str| Blob { path: path.into(), size: 1, sha256: Sha::of(path.as_bytes()) };
        let one = BlobSet::new(vec![blob("b"), blob("a"), blob("c/d")]).unwrap();
        let two = BlobSet::new(vec![blob("c/d"), blob("b"), blob("a")]).unwrap();
        assert_eq!(one, two);
        assert_eq!(one.get(0).unwrap().path, "a");
        assert!(BlobSet::new(vec![blob("a"), blob("a")]).is_err());
        assert!(BlobSet::new(vec![blob("../a")]).is_err());
        let huge = Blob { size: u64::MAX, ..blob("h") };
        assert!(BlobSet::new(vec![huge]).is_err());
    }
}
