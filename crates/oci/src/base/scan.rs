//! Reads layers: one pass over each tar, everything of use noted, nothing unpacked.
//!
//! A layer's scan is kept by its digest, so that a base of which one layer changed is not read again as a whole. Tars come from
//! outside: `..` is refused, sizes are bounded, nothing panics.

use std::collections::BTreeSet;
use std::io::{BufReader, Read};

use camino::Utf8Path;
use flate2::read::MultiGzDecoder;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::facts;
use super::index::{Library, Pyc, hashed};
use crate::digest::{self, Digest};
use crate::elf;
use crate::error::OciError;
use crate::layout::{Layout, write_atomic};
use crate::manifest::Manifest;
use crate::media::Compression;
use crate::tarball;

/// More entries than any image has.
const ENTRIES_MAX: usize = 4_000_000;
/// Longest path, as Linux has it.
const PATH_MAX: usize = 4096;
/// Longest text that is kept, in bytes.
const TEXT_MAX: u64 = 64 << 20;
/// Longest shared library that is looked into, in bytes.
const LIBRARY_MAX: u64 = 1 << 30;
/// Version of the kept scans' shape.
const CACHE: u32 = 2;

/// What a layer does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerScan {
    /// In the order of the tar.
    pub rows: Vec<Row>,
    /// Digest of the tar.
    pub diff_id: Digest,
}

/// One entry of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Path without leading slash.
    pub path: String,
    /// What happens there.
    pub act: Act,
}

/// What an entry does at its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// A directory.
    Directory(Attributes),
    /// A file.
    File(Attributes, Facts),
    /// A symbolic link with its target.
    Symlink(String),
    /// Another name of a file, by its path.
    Hardlink(String),
    /// A device, a pipe or a socket.
    Other,
    /// What lower layers have there goes.
    Whiteout,
    /// What lower layers have below goes.
    Opaque,
}

/// Attributes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What a file's bytes told.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Facts {
    /// Bytes.
    pub size: u64,
    /// SHA-256, by the rule of [`hashed`].
    pub sha256: Option<String>,
    /// The text of METADATA, RECORD and of what was asked for.
    pub text: Option<String>,
    /// Of a compiled module.
    pub pyc: Option<Pyc>,
    /// Of a shared library.
    pub library: Option<Library>,
    /// Version, when this is glibc.
    pub glibc: Option<String>,
}

/// Which texts are kept beside those of distributions.
pub type Keep = BTreeSet<String>;

/// Scans all layers of an image whose blobs a layout has; scans of before are taken from `cache`.
///
/// # Errors
/// When a layer is missing, is not the one its digest names, cannot be read, or leads out of the tree.
pub fn layers(
    layout: &Layout,
    manifest: &Manifest,
    keep: &Keep,
    cache: Option<&Utf8Path>,
) -> Result<Vec<LayerScan>, OciError> {
    let config = layout.config(manifest)?;
    let mut scans = Vec::with_capacity(manifest.layers.len());
    for (descriptor, diff_id) in manifest.layers.iter().zip(&config.diff_ids) {
        let at = cache.map(|dir| dir.join(cache_name(&descriptor.digest, keep)));
        if let Some(scan) = at.as_deref().and_then(read_cache).filter(|s| s.diff_id == *diff_id) {
            scans.push(scan);
            continue;
        }
        layout.prove_blob(descriptor)?;
        let (file, _) = layout.open_blob(&descriptor.digest)?;
        let what = format!("layer {}", descriptor.digest);
        let scan =
            layer(BufReader::with_capacity(1 << 20, file), keep).map_err(|why| OciError::document(&what, why))?;
        crate::manifest::check_digest(&format!("{what}, uncompressed,"), diff_id, scan.diff_id.clone())?;
        if let Some(at) = &at {
            write_cache(at, &scan)?;
        }
        scans.push(scan);
    }
    Ok(scans)
}

fn cache_name(layer: &Digest, keep: &Keep) -> String {
    let mut sum = Sha256::new();
    sum.update(CACHE.to_le_bytes());
    for path in keep {
        sum.update(path.as_bytes());
        sum.update([0]);
    }
    let sum = Digest::from_sha256(&sum.finalize().into());
    format!("{}-{}.json", layer.hex(), &sum.hex()[..16])
}

fn read_cache(path: &Utf8Path) -> Option<LayerScan> {
    // Damaged or of another version: read again.
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn write_cache(path: &Utf8Path, scan: &LayerScan) -> Result<(), OciError> {
    let dir = path.parent().unwrap_or(path);
    std::fs::create_dir_all(dir).map_err(OciError::io("make", dir))?;
    let bytes = serde_json::to_vec(scan).map_err(|e| OciError::document(path.as_str(), e.to_string()))?;
    write_atomic(path, &bytes)
}

/// Scans one layer, compressed as its first bytes say.
///
/// # Errors
/// When it is no tar, is compressed by zstd, or leads out of the tree.
pub fn layer(blob: impl Read, keep: &Keep) -> Result<LayerScan, String> {
    let mut blob = BufReader::new(blob);
    let head = std::io::BufRead::fill_buf(&mut blob).map_err(|e| e.to_string())?;
    match Compression::sniff(head) {
        Compression::Gzip => tar(MultiGzDecoder::new(blob), keep),
        Compression::None => tar(blob, keep),
        Compression::Zstd => Err("it is compressed by zstd, which this tool cannot read".into()),
    }
}

fn tar(stream: impl Read, keep: &Keep) -> Result<LayerScan, String> {
    let mut rows = Vec::new();
    let stream = Hashing { inner: stream, sum: Sha256::new() };
    let mut rest = tarball::each(
        stream,
        |e| e.to_string(),
        |entry| {
            rows.extend(row(entry, keep)?);
            if rows.len() > ENTRIES_MAX { Err(format!("it has more than {ENTRIES_MAX} entries")) } else { Ok(()) }
        },
    )?;
    // What follows the end mark belongs to the diff_id as well.
    std::io::copy(&mut rest, &mut std::io::sink()).map_err(|e| e.to_string())?;
    Ok(LayerScan { rows, diff_id: Digest::from_sha256(&rest.sum.finalize().into()) })
}

struct Hashing<R> {
    inner: R,
    sum: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(into)?;
        self.sum.update(&into[..n]);
        Ok(n)
    }
}

fn row<R: Read>(entry: &mut tar::Entry<'_, R>, keep: &Keep) -> Result<Option<Row>, String> {
    let raw = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    let Some(path) = plain(&raw)? else { return Ok(None) };
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path.as_str()));
    if name == ".wh..wh..opq" {
        return Ok(Some(Row { path: folder.to_owned(), act: Act::Opaque }));
    }
    if let Some(gone) = name.strip_prefix(".wh.") {
        if gone.is_empty() || gone.starts_with(".wh.") {
            // aufs keeps books in names of two prefixes; stores leave them out.
            return Ok(None);
        }
        let path = if folder.is_empty() { gone.to_owned() } else { format!("{folder}/{gone}") };
        return Ok(Some(Row { path, act: Act::Whiteout }));
    }
    let act = act(entry, &path, keep)?;
    Ok(Some(Row { path, act }))
}

fn act<R: Read>(entry: &mut tar::Entry<'_, R>, path: &str, keep: &Keep) -> Result<Act, String> {
    let header = entry.header();
    let number = |n: std::io::Result<u64>| u32::try_from(n.unwrap_or_default()).unwrap_or_default();
    let attributes = Attributes {
        mode: header.mode().unwrap_or(0o644) & 0o7777,
        uid: number(header.uid()),
        gid: number(header.gid()),
    };
    let kind = header.entry_type();
    let link = || {
        let bytes = entry.link_name_bytes().ok_or_else(|| format!("{path:?}: a link without target"))?;
        Ok::<String, String>(String::from_utf8_lossy(&bytes).into_owned())
    };
    if kind.is_dir() {
        Ok(Act::Directory(attributes))
    } else if kind.is_symlink() {
        Ok(Act::Symlink(link()?))
    } else if kind.is_hard_link() {
        let target = plain(&link()?)?.ok_or_else(|| format!("{path:?}: a link to the root"))?;
        Ok(Act::Hardlink(target))
    } else if kind.is_file() || kind.is_contiguous() {
        Ok(Act::File(attributes, read_facts(entry, path, keep)?))
    } else {
        Ok(Act::Other)
    }
}

/// A path without leading `/` and `./`; `None` for the root itself.
fn plain(raw: &str) -> Result<Option<String>, String> {
    if raw.len() > PATH_MAX {
        return Err(format!("a path of {} bytes", raw.len()));
    }
    let mut parts = Vec::new();
    for part in raw.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err(format!("{raw:?} leads out")),
            other => parts.push(other),
        }
    }
    Ok((!parts.is_empty()).then(|| parts.join("/")))
}

fn read_facts<R: Read>(entry: &mut tar::Entry<'_, R>, path: &str, keep: &Keep) -> Result<Facts, String> {
    let size = entry.size();
    let mut facts = Facts { size, ..Facts::default() };
    let name = path.rsplit('/').next().unwrap_or(path);
    let failed = |e: std::io::Error| format!("{path:?}: {e}");
    if path.ends_with(".pyc") {
        let mut head = Vec::new();
        entry.take(16).read_to_end(&mut head).map_err(failed)?;
        facts.pyc = Some(facts::pyc(&head));
        return Ok(facts);
    }
    let library = size <= LIBRARY_MAX && (name.ends_with(".so") || name.contains(".so."));
    let wanted = is_distribution_text(path) || keep.contains(path);
    if wanted && size > TEXT_MAX {
        return Err(format!("{path:?} has {size} bytes, too many for a text"));
    }
    if !(library || wanted || hashed(path, size)) {
        return Ok(facts);
    }
    let mut bytes = Vec::new();
    entry.take(size).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 != size {
        return Err(format!("{path:?} ends after {} of {size} bytes", bytes.len()));
    }
    if wanted || hashed(path, size) {
        facts.sha256 = Some(digest::of(&bytes).hex().to_owned());
    }
    if library {
        facts.library = look(&bytes);
        facts.glibc = (name == "libc.so.6").then(|| glibc(&bytes)).flatten();
    }
    if wanted {
        facts.text = String::from_utf8(bytes).ok();
    }
    Ok(facts)
}

/// METADATA or RECORD of a distribution.
fn is_distribution_text(path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else { return false };
    matches!(name, "METADATA" | "RECORD") && folder.ends_with(".dist-info")
}

/// What an ELF file calls itself.
fn look(bytes: &[u8]) -> Option<Library> {
    // A broken one is nothing that a loader finds.
    let elf = elf::read(bytes).ok().flatten()?;
    Some(Library { soname: elf.soname, machine: elf.machine })
}

/// glibc says its version in its banner.
fn glibc(bytes: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"release version ";
    let at = bytes.windows(BANNER.len()).position(|w| w == BANNER)? + BANNER.len();
    let version: String =
        bytes[at..].iter().take(8).map(|b| char::from(*b)).take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let version = version.trim_end_matches('.');
    (!version.is_empty()).then(|| version.to_owned())
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
