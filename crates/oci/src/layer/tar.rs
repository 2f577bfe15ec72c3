//! Tar headers whose every byte is decided here: ustar where a path fits, else a PAX header with only `path`, `linkpath`
//! and `size` (R3, R5). No owner names, no devices, whole seconds.

use super::entry::Meta;
use super::error::LayerError;

/// Tar's unit; bodies are padded to it with zeros.
pub const BLOCK: usize = 512;

/// What ends an archive: two zero blocks and no further padding (R6).
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// The largest number of a field of eleven octal digits.
const ELEVEN: u64 = 0o77_777_777_777;
/// The largest owner that seven octal digits hold. Larger ones would need a PAX key that R5 does not allow.
const SEVEN: u32 = 0o7_777_777;
/// Name of PAX headers; as Python's tarfile has it.
const PAX_NAME: &[u8] = b"././@PaxHeader";

/// Kind and what belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// With bytes of the body.
    File(u64),
    /// Its path is written with a slash at the end.
    Directory,
    /// With the target; the mode is written as 0777.
    Symlink(&'a str),
}

/// Zeros between a body of `size` bytes and the next header.
#[must_use]
pub fn padding(size: u64) -> usize {
    (BLOCK - (size % BLOCK as u64) as usize) % BLOCK
}

/// Appends the header block of an entry, with a PAX header before it where one is needed.
///
/// # Errors
/// An owner or time that no header holds.
pub fn header(path: &str, meta: Meta, kind: Kind<'_>, out: &mut Vec<u8>) -> Result<(), LayerError> {
    if meta.uid > SEVEN || meta.gid > SEVEN || meta.mtime > ELEVEN {
        let why = format!("owner {}:{} or time {} does not fit a tar header", meta.uid, meta.gid, meta.mtime);
        return Err(LayerError::entry(path, why));
    }
    let path = if kind == Kind::Directory { format!("{path}/") } else { path.to_owned() };
    let (flag, mode, size, target) = match kind {
        Kind::File(size) => (b'0', meta.mode & 0o7777, size, ""),
        Kind::Directory => (b'5', meta.mode & 0o7777, 0, ""),
        Kind::Symlink(target) => (b'2', 0o777, 0, target),
    };
    let mut records = Vec::new();
    let name = split(&path).unwrap_or_else(|| {
        record("path", &path, &mut records);
        (b"", plain(&path, 100))
    });
    let link = if target.is_ascii() && target.len() <= 100 {
        target.as_bytes().to_vec()
    } else {
        record("linkpath", target, &mut records);
        plain(target, 100)
    };
    let written = if size > ELEVEN {
        record("size", &size.to_string(), &mut records);
        0
    } else {
        size
    };
    if !records.is_empty() {
        let meta = Meta { mode: 0o644, uid: 0, gid: 0, mtime: 0 };
        let length = records.len() as u64;
        block(&Fields { prefix: b"", name: PAX_NAME, link: b"", flag: b'x', size: length, mode: 0o644, meta }, out);
        out.extend(&records);
        out.extend(std::iter::repeat_n(0, padding(length)));
    }
    block(&Fields { prefix: name.0, name: &name.1, link: &link, flag, size: written, mode, meta }, out);
    Ok(())
}

/// Prefix and name of a path that fits ustar, split at the last possible slash.
fn split(path: &str) -> Option<(&[u8], Vec<u8>)> {
    let bytes = path.as_bytes();
    if !path.is_ascii() {
        return None;
    }
    if bytes.len() <= 100 {
        return Some((b"", bytes.to_vec()));
    }
    // The slash at a directory's end is part of the name.
    let slash = bytes.len().min(157) - 1;
    let slash = bytes[..slash].iter().rposition(|b| *b == b'/')?;
    let (prefix, name) = (&bytes[..slash], &bytes[slash + 1..]);
    (!prefix.is_empty() && name.len() <= 100).then(|| (prefix, name.to_vec()))
}

/// What readers that know no PAX see: the beginning, without bytes beyond ASCII.
fn plain(text: &str, most: usize) -> Vec<u8> {
    text.chars().map(|c| if c.is_ascii() { c as u8 } else { b'_' }).take(most).collect()
}

/// One PAX record: its own length in bytes, key and value.
fn record(key: &str, value: &str, out: &mut Vec<u8>) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    out.extend(format!("{length} {key}={value}\n").into_bytes());
}

struct Fields<'a> {
    prefix: &'a [u8],
    name: &'a [u8],
    link: &'a [u8],
    flag: u8,
    size: u64,
    mode: u32,
    meta: Meta,
}

fn block(fields: &Fields<'_>, out: &mut Vec<u8>) {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    let octal = |value: u64, digits: usize| format!("{value:0digits$o}\0").into_bytes();
    put(0, fields.name);
    put(100, &octal(fields.mode.into(), 7));
    put(108, &octal(fields.meta.uid.into(), 7));
    put(116, &octal(fields.meta.gid.into(), 7));
    put(124, &octal(fields.size, 11));
    put(136, &octal(fields.meta.mtime, 11));
    put(148, b"        ");
    put(156, &[fields.flag]);
    put(157, fields.link);
    put(257, b"ustar\x0000");
    put(329, &octal(0, 7));
    put(337, &octal(0, 7));
    put(345, fields.prefix);
    let sum: u64 = block.iter().map(|b| u64::from(*b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    out.extend(block);
}
