//! Synthetic wheels for tests.

use std::io::Write as _;
use std::sync::Arc;

use super::record::Row;
use super::{Wheel, WheelError};

/// A member to be: name, bytes, Unix mode, whether deflated.
#[derive(Clone)]
pub struct Part {
    pub name: String,
    pub bytes: Vec<u8>,
    pub mode: u32,
    pub deflate: bool,
}

/// A wheel to be; the last parts are its metadata.
#[derive(Clone)]
pub struct Make {
    pub file: String,
    pub parts: Vec<Part>,
}

pub fn part(name: &str, bytes: impl AsRef<[u8]>) -> Part {
    Part { name: name.to_owned(), bytes: bytes.as_ref().to_vec(), mode: 0o100_664, deflate: true }
}

pub fn sha(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest as _;
    sha2::Sha256::digest(bytes).into()
}

impl Make {
    pub fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let mut parts: Vec<Part> = files.iter().map(|(n, b)| part(n, b)).collect();
        let info = format!("{name}-1.0.dist-info");
        parts.push(part(
            &format!("{info}/METADATA"),
            format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\ntext\n"),
        ));
        let about = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
        parts.push(part(&format!("{info}/WHEEL"), about));
        Self { file: format!("{name}-1.0-py3-none-any.whl"), parts }.recorded()
    }

    pub fn info(&self) -> String {
        let mut parts = self.file.split('-');
        format!("{}-{}.dist-info", parts.next().unwrap(), parts.next().unwrap())
    }

    /// With a RECORD that tells the truth.
    pub fn recorded(mut self) -> Self {
        let record = format!("{}/RECORD", self.info());
        self.parts.retain(|p| p.name != record);
        let row =
            |p: &Part| Row { path: p.name.clone(), sha256: Some(sha(&p.bytes)), size: Some(p.bytes.len() as u64) };
        let mut rows: Vec<Row> = self.parts.iter().filter(|p| !p.name.ends_with('/')).map(row).collect();
        rows.push(Row { path: record.clone(), sha256: None, size: None });
        self.parts.push(part(&record, super::record::write(&rows)));
        self
    }

    pub fn with(mut self, part: Part) -> Self {
        self.parts.push(part);
        self.recorded()
    }

    /// With the text of a part changed, and no new RECORD.
    pub fn edit(mut self, name: &str, from: &str, to: &str) -> Self {
        let part = self.parts.iter_mut().find(|p| p.name.ends_with(name)).unwrap();
        let text = String::from_utf8(part.bytes.clone()).unwrap();
        assert!(text.contains(from), "{text}");
        part.bytes = text.replacen(from, to, 1).into_bytes();
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        zip(&self.parts)
    }

    pub fn open(&self) -> Result<Wheel, WheelError> {
        open(&self.bytes(), &self.file)
    }

    pub fn refused(&self) -> String {
        self.open().unwrap_err().to_string()
    }
}

pub fn open(bytes: &[u8], file: &str) -> Result<Wheel, WheelError> {
    let mut source = tempfile::tempfile().unwrap();
    source.write_all(bytes).unwrap();
    Wheel::open(Arc::new(source), file)
}

/// An archive as Python's zipfile writes it.
pub fn zip(parts: &[Part]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for part in parts {
        let mut crc = flate2::Crc::new();
        crc.update(&part.bytes);
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&part.bytes).unwrap();
        let raw = if part.deflate { encoder.finish().unwrap() } else { part.bytes.clone() };
        let mut common = Vec::new();
        let flags: u16 = if part.name.is_ascii() { 0 } else { 0x800 };
        for number in [20, flags, if part.deflate { 8 } else { 0 }, 0, 0x21] {
            common.extend(number.to_le_bytes());
        }
        for number in [crc.sum(), raw.len() as u32, part.bytes.len() as u32] {
            common.extend(number.to_le_bytes());
        }
        common.extend((part.name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&common);
        directory.extend([0; 6]);
        directory.extend((part.mode << 16).to_le_bytes());
        directory.extend((out.len() as u32).to_le_bytes());
        directory.extend(part.name.as_bytes());
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend(part.name.as_bytes());
        out.extend(raw);
    }
    let begin = out.len() as u32;
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend((parts.len() as u16).to_le_bytes());
    out.extend((parts.len() as u16).to_le_bytes());
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(begin.to_le_bytes());
    out.extend([0, 0]);
    out
}
