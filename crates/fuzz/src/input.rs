//! What several targets need: bytes as a file, a folder in memory, a zip archive, and the input cut into parts.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

/// Bytes as a file that lives in memory.
///
/// # Panics
/// When the kernel gives none.
#[must_use]
pub fn file(bytes: &[u8]) -> Arc<File> {
    let file = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).expect("a file in memory");
    let file = File::from(file);
    file.write_all_at(bytes, 0).expect("room in memory");
    Arc::new(file)
}

/// A folder of this process in memory, emptied.
///
/// # Panics
/// When it cannot be made.
#[must_use]
pub fn folder() -> Utf8PathBuf {
    let path = Utf8PathBuf::from(format!("/dev/shm/sparklane-fuzz-{}", std::process::id()));
    match std::fs::remove_dir_all(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{path}: {error}"),
        _ => std::fs::create_dir(&path).expect("a folder in memory"),
    }
    path
}

/// Parts of an input: lines that begin with `== ` name what follows them.
#[must_use]
pub fn parts(mut data: &[u8]) -> Vec<(String, &[u8])> {
    const MARK: &[u8] = b"\n== ";
    data = data.strip_prefix(&MARK[1..]).unwrap_or(data);
    let mut found = Vec::new();
    loop {
        let end = data.windows(MARK.len()).position(|w| w == MARK);
        let (part, rest) = end.map_or((data, None), |end| (&data[..end], Some(&data[end + MARK.len()..])));
        let line = part.iter().position(|b| *b == b'\n').unwrap_or(part.len());
        let name = String::from_utf8_lossy(&part[..line]).into_owned();
        found.push((name, part.get(line + 1..).unwrap_or_default()));
        let Some(rest) = rest else { return found };
        data = rest;
    }
}

/// Where links of sysfs lead to, from a device's folder.
const LINKS: [&str; 2] = ["../../../devices/", "../../../bus/pci/drivers/"];

/// Writes files below a folder; names that leave it, and those that the kernel refuses, are passed over. `-> TARGET` as a
/// file's text makes it a link.
pub fn tree(base: &Utf8Path, files: &[(String, &[u8])]) {
    for (name, bytes) in files {
        if !stays_below(name) || name.contains('\0') {
            continue;
        }
        let path = base.join(name);
        let _made = path.parent().map(std::fs::create_dir_all);
        let target = bytes.strip_prefix(b"-> ").and_then(|t| std::str::from_utf8(t).ok()).map(str::trim_end);
        // A link that leads elsewhere would have the machine's own files read.
        let below = |target: &str| LINKS.iter().any(|begin| target.strip_prefix(begin).is_some_and(stays_below));
        let _written = match target.filter(|target| below(target)) {
            Some(target) => std::os::unix::fs::symlink(target, &path),
            None => std::fs::write(&path, bytes),
        };
    }
}

/// A file of an archive.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether they are deflated.
    pub deflate: bool,
}

/// An archive of these files, as Python's zipfile writes it.
///
/// # Panics
/// When it is beyond what the format holds.
#[must_use]
pub fn zip(parts: &[Part]) -> Vec<u8> {
    let short = |n: usize| u16::try_from(n).expect("few and short names").to_le_bytes();
    let long = |n: usize| u32::try_from(n).expect("a small archive").to_le_bytes();
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for part in parts {
        let mut crc = flate2::Crc::new();
        crc.update(&part.bytes);
        let raw = if part.deflate { deflated(&part.bytes) } else { part.bytes.clone() };
        let (flags, method) = (if part.name.is_ascii() { 0_u16 } else { 0x800 }, if part.deflate { 8_u16 } else { 0 });
        let mut common = Vec::new();
        for number in [20, flags, method, 0, 0x21] {
            common.extend(number.to_le_bytes());
        }
        common.extend(crc.sum().to_le_bytes());
        common.extend(long(raw.len()));
        common.extend(long(part.bytes.len()));
        common.extend(short(part.name.len()));
        common.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&common);
        directory.extend([0; 6]);
        directory.extend((0o100_644_u32 << 16).to_le_bytes());
        directory.extend(long(out.len()));
        directory.extend(part.name.as_bytes());
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend(part.name.as_bytes());
        out.extend(raw);
    }
    let begin = out.len();
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(short(parts.len()));
    out.extend(short(parts.len()));
    out.extend(long(directory.len()));
    out.extend(long(begin));
    out.extend([0, 0]);
    out
}

fn deflated(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("room in memory");
    encoder.finish().expect("room in memory")
}

/// True for a path that stays below the folder it is joined to: no empty, `.` or `..` component, not absolute.
#[must_use]
pub fn stays_below(path: &str) -> bool {
    !path.split('/').any(|part| matches!(part, "" | "." | ".."))
}
