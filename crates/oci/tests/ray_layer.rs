//! The layer of the real Ray closure. Needs its wheels (110 MB): `cargo xtask wheelhouse` puts them in the cache.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code)] // a test says what went wrong by panicking

use std::fs::File;
use std::io::{BufReader, BufWriter};

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_oci::elf::Collect;
use sparklane_oci::layer::{self, TreePath};
use sparklane_oci::wheel::{Interpreter, Lock, Site, install};

fn site(lock: &Lock) -> Result<Site, String> {
    let path = |p: &str| TreePath::new(p);
    Ok(Site {
        target: lock.target()?,
        site_packages: path("usr/local/lib/python3.12/dist-packages")?,
        bin: path("usr/local/bin")?,
        data: path("usr/local")?,
        headers: None,
        python: Interpreter::new("/usr/bin/python3")?,
        mtime: 1_700_000_000,
        pyc: false,
    })
}

/// Where `cargo xtask wheelhouse` puts wheels when it is not told otherwise.
fn wheelhouse() -> Utf8PathBuf {
    let base = std::env::var("SPARKLANE_CACHE").ok().filter(|v| !v.is_empty());
    Utf8PathBuf::from(base.unwrap_or_else(|| "/var/cache/sparklane".to_owned())).join("wheels")
}

#[test]
#[ignore = "needs 110 MB of wheels: cargo xtask wheelhouse && cargo test -p sparklane-oci --test ray_layer -- --ignored"]
fn the_layer_of_ray_has_its_golden_digest() {
    let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let lock = Lock::read(&root.join("images/ray-2.57.0-cp312-aarch64.lock.json")).unwrap();
    let wheels = lock.open(&wheelhouse()).unwrap();
    let site = site(&lock).unwrap();
    let installed = install(&wheels, &site).unwrap();
    assert_eq!(installed.distributions.len(), 57);
    let mut entries = installed.entries;
    entries.extend(layer::directories(
        &entries,
        |p| "usr/local/lib/python3.12/dist-packages".starts_with(p),
        site.mtime,
    ));
    let folder = tempfile::tempdir().unwrap();
    let blob = folder.path().join("layer.tar.gz");
    let mut collect = Collect::new(tempfile::tempfile().unwrap());
    let mut out = BufWriter::new(File::create(&blob).unwrap());
    let written = layer::write_watched(&entries, &mut out, &mut collect).unwrap();
    assert!(collect.found.iter().all(|(_, elf)| elf.machine == site.target.arch.elf()));
    let glibc = collect.found.iter().filter_map(|(_, elf)| elf.glibc).max();
    assert_eq!((collect.found.len(), glibc), (34, Some((2, 17))));
    // Independent of our reader.
    let decoder = flate2::read::MultiGzDecoder::new(BufReader::new(File::open(&blob).unwrap()));
    let mut archive = tar::Archive::new(decoder);
    let count = archive.entries().unwrap().filter(Result::is_ok).count();
    assert_eq!(count, written.entries);
    assert_eq!(written.size, 109_914_289);
    assert_eq!(written.digest.hex(), "c3928b4f1d44d07a4a503b5eef3cd6447e1598b39d69ad134dc9d6be27dae943");
}
