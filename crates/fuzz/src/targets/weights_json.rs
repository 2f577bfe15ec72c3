//! Documents about weights: the hub's answer, our manifest, proofs and requests.

use sparklane_lane::WeightsManifest;
use sparklane_lane::weights::WeightsFile;
use sparklane_weights::hub::api;
use sparklane_weights::proof::Proof;
use sparklane_weights::transfer::Receipt;
use sparklane_weights::{Blob, BlobSet};

fn check(manifest: &WeightsManifest) {
    let text = manifest.to_text();
    let again = WeightsManifest::parse(&text).expect("what was read can be written and read");
    assert_eq!((again.id(), again.to_text(), again.bytes()), (manifest.id(), text, manifest.bytes()));
    assert!(crate::input::stays_below(&manifest.store_name()) && !manifest.store_name().contains('/'));
    let set = BlobSet::of_manifest(manifest).expect("a manifest without problems is a set");
    assert_eq!((set.id().to_string(), set.bytes(), set.blobs().len()), (manifest.id(), manifest.bytes(), manifest.files.len()));
    assert!(set.blobs().iter().all(|blob| crate::input::stays_below(&blob.path)));
}

/// One input.
pub fn run(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(manifest) = WeightsManifest::parse(text)
    {
        check(&manifest);
    }
    if let Ok(revision) = api::parse(data) {
        let file = |s: &api::Sibling| {
            let lfs = s.lfs.as_ref()?;
            Some(WeightsFile { path: s.rfilename.clone(), size: lfs.size, sha256: lfs.sha256.clone() })
        };
        let files = revision.siblings.iter().filter_map(file).collect();
        let manifest = WeightsManifest { model: "org/name".into(), revision: revision.sha.clone(), files };
        if manifest.problems().is_empty() {
            check(&manifest);
        }
    }
    if let Some(proof) = Proof::parse(data) {
        assert_eq!(Proof::parse(&proof.bytes().expect("it can be written")).map(|p| p.sum), Some(proof.sum));
    }
    if let Ok(set) = serde_json::from_slice::<Vec<Blob>>(data).map_err(drop).and_then(|b| BlobSet::new(b).map_err(drop)) {
        assert!(set.blobs().iter().all(|blob| crate::input::stays_below(&blob.path)));
    }
    if let Ok(receipt) = serde_json::from_slice::<Receipt>(data) {
        let again = serde_json::to_vec(&receipt).expect("it can be written");
        assert_eq!(serde_json::from_slice::<Receipt>(&again).expect("and read"), receipt);
    }
}
