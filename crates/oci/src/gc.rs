//! What may go from a node's layout: images that no kept release names, blobs that no listed image has, dead downloads.

use std::collections::BTreeSet;
use std::fs::{self, File};

use camino::Utf8PathBuf;
use rustix::fs::FlockOperation;
use serde::Serialize;

use crate::digest::Digest;
use crate::error::OciError;
use crate::layout::{Layout, REF_NAME};
use crate::manifest::{Document, Manifest};

/// The annotation of an image that was taken from a docker store: nowhere else may it be had again.
pub const ADOPTED: &str = "dev.sparklane.adopted";

/// What would go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Manifests that leave the list, with their names.
    pub images: Vec<(Digest, Option<String>)>,
    /// Blobs that nobody needs then, with their sizes.
    pub blobs: Vec<(Digest, u64)>,
    /// Downloads that nobody continues: their images are not wanted.
    pub partial: Vec<Utf8PathBuf>,
}

impl Plan {
    /// Bytes that become free.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blobs.iter().map(|(_, size)| size).sum()
    }

    /// True when nothing would go.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.images.is_empty() && self.blobs.is_empty() && self.partial.is_empty()
    }
}

/// Plans without touching anything. `keep` are manifest digests; adopted images stay unless `adopted_too`.
///
/// # Errors
/// When the list or a kept manifest cannot be read: then nothing is known to be superfluous.
pub fn plan(layout: &Layout, keep: &BTreeSet<Digest>, adopted_too: bool) -> Result<Plan, OciError> {
    let mut plan = Plan::default();
    let mut needed = BTreeSet::new();
    for entry in layout.index()?.manifests {
        let adopted = entry.annotations.contains_key(ADOPTED) && !adopted_too;
        if keep.contains(&entry.digest) || adopted {
            need(layout, &entry.digest, &mut needed)?;
        } else {
            plan.images.push((entry.digest, entry.annotations.get(REF_NAME).cloned()));
        }
    }
    // A release's image whose download has not ended is listed nowhere yet.
    for digest in keep.iter().filter(|d| layout.own_path(d).exists()) {
        need(layout, digest, &mut needed)?;
    }
    plan.blobs = layout.blobs()?.into_iter().filter(|(digest, _)| !needed.contains(digest)).collect();
    let dir = layout.partial_dir();
    if let Ok(entries) = dir.read_dir_utf8() {
        let names = entries.flatten().map(|e| e.path().to_owned());
        let wanted = |path: &Utf8PathBuf| {
            let digest = path.file_name().and_then(|n| format!("sha256:{n}").parse::<Digest>().ok());
            digest.is_some_and(|d| needed.contains(&d))
        };
        plan.partial = names.filter(|path| !wanted(path) && !is_held(path)).collect();
    }
    // Receptions that were never finished; one that goes on holds the staging lock, which a collection takes too.
    if let Ok(entries) = layout.receiving_dir().read_dir_utf8() {
        plan.partial.extend(entries.flatten().map(|e| e.path().to_owned()));
    }
    plan.partial.sort();
    Ok(plan)
}

fn need(layout: &Layout, digest: &Digest, needed: &mut BTreeSet<Digest>) -> Result<(), OciError> {
    needed.insert(digest.clone());
    match Document::parse(None, layout.read_document(digest)?)? {
        Document::Manifest(manifest) => needed.extend(blobs(&manifest)),
        Document::Index(index) => {
            for entry in index.manifests.iter().filter(|d| layout.own_path(&d.digest).exists()) {
                if needed.insert(entry.digest.clone()) {
                    need(layout, &entry.digest, needed)?;
                }
            }
        }
    }
    Ok(())
}

fn blobs(manifest: &Manifest) -> impl Iterator<Item = Digest> + '_ {
    manifest.blobs().into_iter().map(|d| d.digest.clone())
}

/// True while some process fills the file.
fn is_held(path: &Utf8PathBuf) -> bool {
    let Ok(file) = File::open(path) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
}

/// Carries a plan out: first the list, then the blobs, so that what is listed is whole at every moment.
///
/// # Errors
/// The system's; what is left then is superfluous still.
pub fn carry_out(layout: &Layout, plan: &Plan) -> Result<(), OciError> {
    for (digest, _) in &plan.images {
        layout.remove_entry(digest)?;
    }
    let blobs = plan.blobs.iter().map(|(digest, _)| layout.own_path(digest));
    for path in blobs.chain(plan.partial.iter().cloned()) {
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        match removed {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(OciError::io("remove", path)(e)),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::digest::of;
    use crate::fetch::entry;
    use crate::layout::scratch as layout;
    use crate::manifest::Config;
    use crate::media;

    /// An image of a layer that all share and one of its own.
    fn put(layout: &Layout, name: &str, adopted: bool) -> Digest {
        let layers = [b"shared".as_slice(), name.as_bytes()];
        let ids: Vec<String> = layers.iter().map(|l| layout.write_blob(l).unwrap().to_string()).collect();
        let config = json!({ "os": "linux", "architecture": "arm64", "rootfs": { "diff_ids": ids } }).to_string();
        let row = |media: &str, b: &[u8]| json!({ "mediaType": media, "digest": of(b).as_str(), "size": b.len() });
        let rows: Vec<_> = layers.iter().map(|l| row(media::OCI_LAYER_TAR, l)).collect();
        let manifest = json!({ "schemaVersion": 2, "mediaType": media::OCI_MANIFEST, "config": row(media::OCI_CONFIG, config.as_bytes()), "layers": rows });
        let manifest = Manifest::parse(None, manifest.to_string().into_bytes()).unwrap();
        layout.write_blob(config.as_bytes()).unwrap();
        layout.write_blob(manifest.bytes()).unwrap();
        let mut row = entry(&manifest, &Config::parse(config.into_bytes()).unwrap(), name);
        if adopted {
            row["annotations"][ADOPTED] = json!("x");
        }
        layout.put_entry(&row).unwrap();
        manifest.digest().clone()
    }

    #[test]
    fn what_releases_name_stays_with_all_its_blobs() {
        let (_dir, layout) = layout();
        let (kept, gone, adopted) =
            (put(&layout, "kept", false), put(&layout, "gone", false), put(&layout, "mine", true));
        std::fs::write(layout.partial_dir().join(of(b"dead").hex()), b"half").unwrap();
        std::fs::create_dir_all(layout.receiving_dir().join("abc/parts")).unwrap();
        let keep = BTreeSet::from([kept.clone(), of(b"a release whose image is elsewhere")]);
        let plan = plan(&layout, &keep, false).unwrap();
        assert_eq!(plan.images, [(gone.clone(), Some("gone".into()))]);
        let names: Vec<&Digest> = plan.blobs.iter().map(|(d, _)| d).collect();
        assert_eq!(names.len(), 3, "manifest, config and its own layer");
        assert!(!names.contains(&&of(b"shared")) && !names.contains(&&kept) && !names.contains(&&adopted));
        assert_eq!(plan.partial.len(), 2);
        carry_out(&layout, &plan).unwrap();
        assert!(!layout.receiving_dir().join("abc").exists());
        assert_eq!(layout.list().unwrap().len(), 2);
        for digest in [&kept, &adopted] {
            let manifest = layout.manifest(digest).unwrap();
            manifest.blobs().into_iter().for_each(|d| layout.prove_blob(d).unwrap());
        }
        assert!(super::plan(&layout, &keep, false).unwrap().is_empty());
        assert_eq!(super::plan(&layout, &keep, true).unwrap().images.len(), 1);
    }

    #[test]
    fn nothing_goes_when_a_kept_manifest_is_damaged() {
        let (_dir, layout) = layout();
        let kept = put(&layout, "kept", false);
        std::fs::write(layout.own_path(&kept), b"{}").unwrap();
        assert!(plan(&layout, &BTreeSet::from([kept]), false).is_err());
    }
}
