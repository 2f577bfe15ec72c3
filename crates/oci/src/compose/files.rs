//! Plain files whose content someone supplies, and paths that go.

use std::fs::File;
use std::sync::Arc;

use camino::Utf8Path;

use super::edits::{Parts, stale};
use super::spec::{Files, PlainFile, absolute, mode};
use crate::base::paths::{Kind, Overlay};
use crate::digest;
use crate::layer::entry::{Body, Entry, Meta, Node};

/// Longest content that is held in memory, in bytes; longer ones are read while the layer is written.
const HELD: u64 = 32 << 20;

/// The entries of a files layer; relative sources are below `sources`.
///
/// # Errors
/// When a source is missing or not the one that its hash names, does not hold what it must, or a removed path is not there.
pub fn parts(files: &Files, overlay: &Overlay<'_>, sources: &Utf8Path, epoch: u64) -> Result<Parts, String> {
    let mut parts = Parts::default();
    for file in &files.files {
        let at = |why: String| format!("file {}: {why}", file.path);
        let path = absolute(&file.path).map_err(at)?;
        let body = body(file, sources).map_err(at)?;
        let meta = Meta { mode: mode(&file.mode).map_err(at)?, uid: 0, gid: 0, mtime: epoch };
        let from = format!("file {}", file.path);
        parts.why.push(format!("{from}: sha256 {}", file.sha256));
        let real = overlay.resolve(path.as_str()).map_err(at)?;
        for pyc in overlay.base().map(|index| stale(index, &real)).unwrap_or_default() {
            parts.why.push(format!("/{pyc} goes: it could be taken instead of the new source"));
            parts.removes.push((pyc, from.clone()));
        }
        parts.entries.push(Entry { path, meta, node: Node::File(body), from });
    }
    for path in &files.removes {
        let plain = absolute(path)?;
        let real = overlay.resolve(plain.as_str())?;
        if overlay.base().is_some() && overlay.at(&real) == Some(Kind::Gone) {
            continue;
        }
        parts.why.push(format!("{path} goes"));
        parts.removes.push((plain.as_str().to_owned(), "removal".into()));
    }
    Ok(parts)
}

fn body(file: &PlainFile, sources: &Utf8Path) -> Result<Body, String> {
    let source = sources.join(&file.source);
    let failed = |e: std::io::Error| format!("{source}: {e}");
    let open = File::open(&source).map_err(failed)?;
    let size = open.metadata().map_err(failed)?.len();
    let (found, _) = digest::of_reader(&open).map_err(failed)?;
    if found.hex() != file.sha256 {
        return Err(format!("{source} has sha256 {}, not {}", found.hex(), file.sha256));
    }
    if size > HELD && file.asserts.is_empty() {
        let sha256 = Some(bytes_of(&file.sha256)?);
        return Ok(Body::Stored { source: Arc::new(open), offset: 0, size, crc32: None, sha256 });
    }
    let bytes = std::fs::read(&source).map_err(failed)?;
    if digest::of(&bytes).hex() != file.sha256 {
        return Err(format!("{source} changed while it was read"));
    }
    for assert in &file.asserts {
        let count = count(&bytes, assert.text.as_bytes());
        if count != assert.count {
            return Err(format!("{:?} is in it {count} times, not {}", assert.text, assert.count));
        }
    }
    Ok(Body::Bytes(bytes))
}

fn bytes_of(hex: &str) -> Result<[u8; 32], String> {
    let bad = || format!("{hex:?} is no SHA-256");
    let mut out = [0; 32];
    for (i, byte) in out.iter_mut().enumerate() {
        let pair = hex.get(2 * i..2 * i + 2).ok_or_else(bad)?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
    }
    Ok(out)
}

/// How often a text is in bytes, not overlapping.
fn count(bytes: &[u8], text: &[u8]) -> usize {
    let (mut at, mut found) = (0, 0);
    while !text.is_empty() && at + text.len() <= bytes.len() {
        let here = bytes[at..].starts_with(text);
        found += usize::from(here);
        at += if here { text.len() } else { 1 };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compose::spec::Assert;

    fn files(sha256: &str, count: usize) -> Files {
        let asserts = vec![Assert { text: "RadixGroup".into(), count }];
        let file = PlainFile {
            path: "/opt/env/x.cuh".into(),
            source: "x.cuh".into(),
            sha256: sha256.into(),
            mode: "0644".into(),
            asserts,
        };
        Files { files: vec![file], removes: vec!["/opt/cache".into()] }
    }

    #[test]
    fn content_is_proved_before_it_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        let text = "RadixGroup x RadixGroup\n";
        std::fs::write(root.join("x.cuh"), text).unwrap();
        let sum = digest::of(text.as_bytes()).hex().to_owned();
        let overlay = Overlay::new(None);
        let good = parts(&files(&sum, 2), &overlay, root, 1).unwrap();
        assert_eq!((good.entries.len(), good.removes[0].0.as_str()), (1, "opt/cache"));
        assert!(parts(&files(&sum, 4), &overlay, root, 1).unwrap_err().contains("2 times, not 4"));
        assert!(parts(&files(&"0".repeat(64), 2), &overlay, root, 1).unwrap_err().contains(&sum));
        assert!(parts(&files(&sum, 2), &overlay, &root.join("none"), 1).is_err());
        assert_eq!(bytes_of(&"0f".repeat(32)), Ok([15; 32]));
    }
}
