//! Where blobs come from: trait [`BlobSource`]. A registry is one source, another node over the rails is one (the weights
//! part has it).

use std::io::{BufRead, Read as _};

use crate::digest::Digest;
use crate::error::OciError;
use crate::layout::Layout;
use crate::manifest::Descriptor;
use crate::registry::{Event, Pulled};

/// Longest line that is read: an order names the blobs of an image.
const LINE_MAX: u64 = 1 << 20;

/// What kind of document is asked for: a registry keeps manifests apart from blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A manifest or an index.
    Manifest,
    /// A blob that is small, i.e. a config.
    Blob,
}

/// Something that has blobs.
pub trait BlobSource {
    /// A document by digest, proved.
    ///
    /// # Errors
    /// When the source has it not, or fails.
    fn document(&mut self, kind: Kind, digest: &Digest) -> Result<Vec<u8>, OciError>;

    /// Brings blobs that the layout has not.
    ///
    /// # Errors
    /// No room, or the source fails; what came is kept.
    fn fetch(&mut self, layout: &Layout, wanted: &[Descriptor], progress: &dyn Fn(Event)) -> Result<Pulled, OciError>;
}

/// No source: what is not here already is nowhere.
#[derive(Debug, Clone, Copy)]
pub struct Nowhere;

impl BlobSource for Nowhere {
    fn document(&mut self, _: Kind, digest: &Digest) -> Result<Vec<u8>, OciError> {
        Err(nowhere(digest))
    }

    fn fetch(&mut self, layout: &Layout, wanted: &[Descriptor], _: &dyn Fn(Event)) -> Result<Pulled, OciError> {
        match wanted.iter().find(|d| !layout.has(&d.digest)) {
            Some(missing) => Err(nowhere(&missing.digest)),
            None => Ok(Pulled { present: wanted.len() as u64, ..Pulled::default() }),
        }
    }
}

fn nowhere(digest: &Digest) -> OciError {
    let why = "neither the closure nor this node has it, and the image's reference names no registry; \
               bring it with sparklane image pull or sparklane image adopt";
    OciError::document(format!("blob {digest}"), why)
}

/// A line without its end; `None` at the end of the stream.
///
/// # Errors
/// When it is too long, cut off, not text, or the stream breaks.
pub fn read_line(from: &mut impl BufRead) -> Result<Option<String>, OciError> {
    let mut bytes = Vec::new();
    from.take(LINE_MAX).read_until(b'\n', &mut bytes).map_err(OciError::io("read", "-"))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.pop() != Some(b'\n') {
        return Err(OciError::document("line", "it is too long, or the other side ended within it"));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| OciError::document("line", "it is no text"))
}
