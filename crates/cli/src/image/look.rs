//! What `inspect`, `diff` and `verify` share: which image of which layout is meant.

use camino::Utf8PathBuf;
use sparklane_oci::{Digest, Layout, OciError};

use super::common::STORE;

/// An image of a layout folder.
#[derive(Debug, Clone, clap::Args)]
pub struct Which {
    /// Layout folder.
    #[arg(long, value_name = "DIR", default_value = STORE)]
    pub layout: Utf8PathBuf,
    /// Further layout folder with blobs that the first has not, e.g. the base's.
    #[arg(long, value_name = "DIR")]
    pub base: Vec<Utf8PathBuf>,
}

impl Which {
    /// The layout.
    pub fn open(&self) -> Result<Layout, OciError> {
        open(&self.layout, &self.base)
    }
}

/// A layout that reads blobs from others too.
pub fn open(layout: &Utf8PathBuf, base: &[Utf8PathBuf]) -> Result<Layout, OciError> {
    Ok(base.iter().fold(Layout::open(layout)?, |l, base| l.with_shared(base)))
}

/// The image that is named, or the only one.
pub fn choose(layout: &Layout, name: Option<&str>) -> Result<Digest, OciError> {
    let all = layout.list()?;
    let fits = |(called, d): &&(Option<String>, sparklane_oci::Descriptor)| {
        name.is_none_or(|n| called.as_deref() == Some(n) || d.digest.as_str() == n)
    };
    match all.iter().filter(fits).collect::<Vec<_>>().as_slice() {
        [(_, one)] => Ok(one.digest.clone()),
        found => {
            let names: Vec<String> =
                all.iter().map(|(n, d)| n.clone().unwrap_or_else(|| d.digest.to_string())).collect();
            let why = format!("{} images fit; name one of: {}", found.len(), names.join(", "));
            Err(OciError::document(layout.root().as_str(), why))
        }
    }
}
