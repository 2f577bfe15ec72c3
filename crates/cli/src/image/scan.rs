//! The tree index beside a pin, which `pin` and `adopt` make of an image whose blobs are here.

use sparklane_oci::base::{TreeIndex, scan, tree};
use sparklane_oci::layout::write_atomic;
use sparklane_oci::pin::TREE;
use sparklane_oci::registry::Resolved;
use sparklane_oci::{Layout, Manifest, OciError, Pin};

use camino::Utf8Path;

/// Whether the layers are read, and what is kept of them.
#[derive(Debug, Clone, clap::Args)]
pub struct Scan {
    /// Also index the image's tree (paths, distributions, python, libraries), which layers on top of it need.
    #[arg(long)]
    pub scan: bool,
    /// File of the image whose text --scan keeps, because an edit changes it; repeat it for more.
    #[arg(long, value_name = "PATH", requires = "scan")]
    pub keep: Vec<String>,
}

/// Writes a pin with the tree index of an image whose blobs are in the layout.
pub fn write_scanned(
    mut pin: Pin,
    found: &Resolved,
    layout: &Layout,
    pins: &Utf8Path,
    keep: &[String],
) -> Result<Pin, OciError> {
    let index = index(layout, &found.manifest, keep)?;
    pin.tree = Some(index.digest()?);
    let dir = pin.folder(pins);
    std::fs::create_dir_all(&dir).map_err(OciError::io("make", &dir))?;
    write_atomic(&dir.join(TREE), &index.to_bytes()?)?;
    pin.write(pins, found)?;
    Ok(pin)
}

/// Writes a pin without reading layers; one that is there already keeps the tree index that was made of these very layers.
pub fn write_unscanned(mut pin: Pin, found: &Resolved, pins: &Utf8Path) -> Result<Pin, OciError> {
    if let Ok(old) = Pin::read(&pin.folder(pins))
        && old.manifest == pin.manifest
    {
        pin.tree = old.tree;
    }
    pin.write(pins, found)?;
    Ok(pin)
}

/// The merged tree; scans of layers are kept beside the layout's blobs.
fn index(layout: &Layout, manifest: &Manifest, keep: &[String]) -> Result<TreeIndex, OciError> {
    let keep = keep.iter().map(|path| path.trim_start_matches('/').to_owned()).collect();
    let cache = layout.root().join("scans");
    std::fs::create_dir_all(&cache).map_err(OciError::io("make", &cache))?;
    let scans = scan::layers(layout, manifest, &keep, Some(&cache))?;
    let layers = manifest.layers.iter().map(|d| d.digest.clone()).collect();
    tree::merge(layers, scans, &keep).map_err(|why| OciError::document(format!("image {}", manifest.digest()), why))
}
