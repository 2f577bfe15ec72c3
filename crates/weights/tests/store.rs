//! Adopting, viewing, counting and collecting.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use std::os::unix::fs::{MetadataExt as _, symlink};

use camino::Utf8Path;
use sparklane_lane::WeightsManifest;
use sparklane_weights::adopt::{Means, adopt};
use sparklane_weights::proof::How;
use sparklane_weights::store::Presence;
use sparklane_weights::{Store, hfview};
use support::*;

/// A hub cache in either layout. The newer one keeps bytes outside the model's folder, under names that are no SHA-256.
fn hub_cache(root: &Utf8Path, plain: &Utf8Path, manifest: &WeightsManifest, new: bool) {
    let cached = root.join("models--org--tiny");
    let snapshot = cached.join("snapshots").join(&manifest.revision);
    let blobs = if new { root.join("blobs/ab") } else { cached.join("blobs") };
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(cached.join("blobs")).unwrap();
    for (n, file) in manifest.files.iter().enumerate() {
        let link = snapshot.join(&file.path);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        let name = if new { format!("xet-{n}") } else { file.sha256.clone() };
        std::fs::copy(plain.join(&file.path), blobs.join(&name)).unwrap();
        let target = if new {
            let stable = cached.join("blobs").join(&file.sha256);
            let _twice = symlink(blobs.join(&name), &stable);
            stable
        } else {
            blobs.join(&name)
        };
        symlink(target, link).unwrap();
    }
}

#[test]
fn plain_folders_and_both_cache_layouts_are_adopted() {
    let plain = folder();
    let manifest = model(&plain.path, &SOME);
    let (old, new) = (folder(), folder());
    hub_cache(&old.path, &plain.path, &manifest, false);
    hub_cache(&new.path, &plain.path, &manifest, true);
    let snapshot = old.path.join("models--org--tiny/snapshots").join(&manifest.revision);
    let model_folder = new.path.join("models--org--tiny");
    for source in [&plain.path, &old.path, &new.path, &snapshot, &model_folder] {
        let to = folder();
        let store = Store::at(&to.path);
        let staging = store.staging(&manifest, &|_| true).unwrap();
        let adopted = adopt(source, &manifest, &staging, false, &|_| true).unwrap();
        assert_eq!(adopted.missing, Vec::<String>::new(), "{source}");
        assert_eq!(adopted.files.len(), manifest.files.len());
        assert!(adopted.files.iter().all(|(_, means)| *means != Means::Copy));
        store.publish(&manifest, staging, How::Stream).unwrap();
        assert_exact(&store.folder(&manifest), &manifest);
        assert!(std::fs::symlink_metadata(store.folder(&manifest).join("config.json")).unwrap().is_file());
        assert_eq!(store.presence(&manifest).unwrap(), Presence::Proved(How::Stream));
    }
}

#[test]
fn equal_size_and_other_bytes_are_not_adopted_and_the_rest_is() {
    let (plain, to) = (folder(), folder());
    let manifest = model(&plain.path, &SOME);
    let mut bytes = std::fs::read(plain.path.join("encoding/y.py")).unwrap();
    bytes[0] ^= 1;
    std::fs::write(plain.path.join("encoding/y.py"), bytes).unwrap();
    std::fs::remove_file(plain.path.join("config.json")).unwrap();
    let store = Store::at(&to.path);
    let staging = store.staging(&manifest, &|_| true).unwrap();
    let adopted = adopt(&plain.path, &manifest, &staging, true, &|_| true).unwrap();
    assert_eq!(adopted.files.len(), manifest.files.len() - 2);
    assert!(adopted.missing.iter().any(|m| m.contains("y.py") && m.contains("sha256")), "{:?}", adopted.missing);
    assert!(adopted.missing.iter().any(|m| m.contains("config.json")));
    assert_eq!(staging.missing().len(), 2);
}

#[test]
fn writing_through_another_name_is_noticed_and_mending_leaves_that_name_alone() {
    let (plain, to) = (folder(), folder());
    let manifest = model(&plain.path, &SOME);
    let store = Store::at(&to.path);
    let staging = store.staging(&manifest, &|_| true).unwrap();
    let adopted = adopt(&plain.path, &manifest, &staging, false, &|_| true).unwrap();
    store.publish(&manifest, staging, How::Stream).unwrap();
    if adopted.files.iter().any(|(_, means)| *means == Means::HardLink) {
        let other = plain.path.join(&manifest.files[1].path);
        let mut bytes = std::fs::read(&other).unwrap();
        bytes[7] ^= 1;
        std::fs::write(&other, &bytes).unwrap();
        assert!(matches!(store.presence(&manifest).unwrap(), Presence::Unproved(_)));
        let bad = store.verify(&manifest, 2, &|_| true).unwrap();
        assert_eq!(bad.len(), 1);
        store.take_back(&manifest, &bad).unwrap();
        let good = folder();
        model(&good.path, &SOME);
        let sender = Sender::start(&good.path, &manifest, serve_options());
        pull(&store, &manifest, &sender.rails()).unwrap();
        assert_exact(&store.folder(&manifest), &manifest);
        assert_eq!(std::fs::read(&other).unwrap(), bytes);
    }
}

#[test]
fn the_view_has_forty_bytes_and_relative_links_that_survive_a_move() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &SOME);
    let store = Store::at(&to.path.join("weights"));
    assert!(hfview::make(&store, &manifest).is_err());
    let staging = store.staging(&manifest, &|_| true).unwrap();
    adopt(&from.path, &manifest, &staging, true, &|_| true).unwrap();
    store.publish(&manifest, staging, How::Stream).unwrap();
    for _again in 0..2 {
        hfview::make(&store, &manifest).unwrap();
    }
    std::fs::rename(to.path.join("weights"), to.path.join("moved")).unwrap();
    let cached = to.path.join("moved/hub/models--org--tiny");
    assert_eq!(std::fs::read(cached.join("refs/main")).unwrap(), manifest.revision.as_bytes());
    assert_exact(&cached.join("snapshots").join(&manifest.revision), &manifest);
}

#[test]
fn garbage_is_what_no_release_names() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &SOME);
    let mut other = manifest.clone();
    other.files.truncate(3);
    let store = Store::at(&to.path);
    for manifest in [&manifest, &other] {
        let staging = store.staging(manifest, &|_| true).unwrap();
        adopt(&from.path, manifest, &staging, true, &|_| true).unwrap();
        store.publish(manifest, staging, How::Stream).unwrap();
    }
    std::fs::create_dir(to.path.join("someone's@folder")).unwrap();
    let entries = store.entries().unwrap();
    assert_eq!(entries.len(), 3);
    assert!(entries.iter().any(|e| e.disk_bytes >= 14 * MIB as u64));
    let garbage = store.garbage(&[manifest.id()]).unwrap();
    assert_eq!(garbage.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), [other.store_name()]);
    store.remove(&garbage[0]).unwrap();
    assert_eq!(store.presence(&other).unwrap(), Presence::Absent);
    assert_eq!(store.presence(&manifest).unwrap(), Presence::Proved(How::Stream));
    assert!(store.garbage(&[manifest.id()]).unwrap().is_empty());
}

#[test]
fn a_fast_verify_reads_no_bytes() {
    let (from, to) = (folder(), folder());
    let manifest = model(&from.path, &SOME);
    let store = Store::at(&to.path);
    let staging = store.staging(&manifest, &|_| true).unwrap();
    adopt(&from.path, &manifest, &staging, true, &|_| true).unwrap();
    store.publish(&manifest, staging, How::Stream).unwrap();
    let path = store.folder(&manifest).join("config.json");
    let before = std::fs::metadata(&path).unwrap();
    // Other bytes, and the clock turned back: size, time and inode say nothing; only a deep look does.
    let bytes = vec![b'x'; before.len() as usize];
    std::fs::write(&path, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), before.ino());
    assert_eq!(store.presence(&manifest).unwrap(), Presence::Proved(How::Stream));
    assert_eq!(store.verify(&manifest, 2, &|_| true).unwrap().len(), 1);
    assert!(matches!(store.presence(&manifest).unwrap(), Presence::Unproved(_)));
}
