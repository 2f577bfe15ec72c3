//! The shipped lanes, evaluated by Nix.
#![allow(dead_code)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use sparklane_lane::Catalog;
use sparklane_lane::catalog::RawCatalog;

/// The repository.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// `nix/catalog.nix` as JSON. Needs nix-instantiate (Debian: nix-bin), which `cargo xtask test` installs.
pub fn raw() -> &'static RawCatalog {
    static RAW: OnceLock<RawCatalog> = OnceLock::new();
    RAW.get_or_init(|| {
        let output = Command::new("nix-instantiate")
            .args(["--eval", "--strict", "--json", "--arg", "prebuilt", "null"])
            .arg(root().join("nix/catalog.nix"))
            .output()
            .expect("nix-instantiate runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("a catalogue")
    })
}

/// The catalogue, which must be sound.
pub fn catalog() -> Catalog {
    let (catalog, problems) = Catalog::read(raw());
    assert!(!sparklane_lane::catalog::any_refused(&problems), "{problems:#?}");
    catalog
}
