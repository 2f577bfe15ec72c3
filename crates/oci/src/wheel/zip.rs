//! A strict reader of zip's central directory (R14, R31, R32): what a wheel does not need is refused with words, as every
//! leniency of a reader is a way to show two readers two archives.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::{WheelError, path};
use crate::layer::entry::Body;

/// Most bytes of a central directory that are read.
const DIRECTORY: u64 = 64 << 20;
const END: usize = 22;
const CENTRAL: usize = 46;
const LOCAL: usize = 30;
/// The flags that are allowed: how hard the compressor tried (bits 1 and 2), and names in UTF-8 (bit 11).
const ALLOWED: u16 = 0x0806;
const UTF8: u16 = 0x0800;

/// How a member lies in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// As it is.
    Stored,
    /// Raw deflate.
    Deflated,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name, checked; a directory's without the slash at the end.
    pub name: String,
    /// Whether it is a directory.
    pub directory: bool,
    /// Whether any x bit is set (R11).
    pub executable: bool,
    /// How it lies there.
    pub method: Method,
    /// CRC-32 of the file.
    pub crc32: u32,
    /// Bytes in the archive.
    pub compressed: u64,
    /// Bytes of the file.
    pub size: u64,
    /// Where its bytes begin.
    pub offset: u64,
}

/// An archive whose directory was read and checked. Members are in the directory's order.
#[derive(Debug, Clone)]
pub struct Archive {
    file: Arc<File>,
    name: String,
    members: Vec<Member>,
}

impl Archive {
    /// Reads the directory of an archive; `name` is for messages.
    ///
    /// # Errors
    /// An unreadable file, or whatever is not needed in a wheel.
    pub fn open(file: Arc<File>, name: impl Into<String>) -> Result<Self, WheelError> {
        let name = name.into();
        let read = Read { file: &file, name: &name };
        let length = file.metadata().map_err(|source| read.unreadable(source))?.len();
        let members = read.members(length)?;
        Ok(Self { file, name, members })
    }

    /// The members, directories too.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The file that `name` names.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|m| m.name == name && !m.directory)
    }

    /// A member's bytes as a layer takes them.
    #[must_use]
    pub fn body(&self, member: &Member, sha256: Option<[u8; 32]>) -> Body {
        let (source, offset, size) = (Arc::clone(&self.file), member.offset, member.size);
        match member.method {
            Method::Stored => Body::Stored { source, offset, size, crc32: Some(member.crc32), sha256 },
            Method::Deflated => {
                let (compressed, crc32) = (member.compressed, member.crc32);
                Body::Deflated { source, offset, compressed, size, crc32, sha256 }
            }
        }
    }

    /// A small member's bytes, checked against its size and CRC-32.
    ///
    /// # Errors
    /// More than `most` bytes; bytes that are not what the directory promises.
    pub fn read(&self, member: &Member, most: u64) -> Result<Vec<u8>, WheelError> {
        if member.size > most {
            let why = format!("it has {} bytes, at most {most} are read", member.size);
            return Err(WheelError::refused(&self.name, &member.name, why));
        }
        Ok(crate::layer::contents(&self.name, &member.name, &self.body(member, None))?)
    }
}

impl Archive {
    /// The first bytes of a member, at most `count`; unchecked, to tell kinds of files apart.
    ///
    /// # Errors
    /// A broken member.
    pub fn head(&self, member: &Member, count: usize) -> Result<Vec<u8>, WheelError> {
        Ok(crate::layer::head(&self.name, &member.name, &self.body(member, None), count)?)
    }
}

struct Read<'a> {
    file: &'a File,
    name: &'a str,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

impl Read<'_> {
    fn unreadable(&self, source: std::io::Error) -> WheelError {
        WheelError::Read { path: self.name.into(), source }
    }

    fn refuse<T>(&self, part: impl Into<String>, why: impl Into<String>) -> Result<T, WheelError> {
        Err(WheelError::refused(self.name, part, why))
    }

    fn bytes(&self, at: u64, length: usize) -> Result<Vec<u8>, WheelError> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, at).map_err(|source| self.unreadable(source))?;
        Ok(bytes)
    }

    fn members(&self, length: u64) -> Result<Vec<Member>, WheelError> {
        let (directory, count, begin) = self.directory(length)?;
        let mut members = Vec::new();
        let mut spans = Vec::new();
        let mut rest = directory.as_slice();
        for _ in 0..count {
            let (header, member) = self.central(&mut rest)?;
            let (member, span) = self.local(header, member, begin)?;
            spans.push(span);
            members.push(member);
        }
        if !rest.is_empty() {
            return self.refuse("zip directory", "bytes follow its last row");
        }
        spans.sort_unstable();
        if spans.windows(2).any(|two| two[0].1 > two[1].0) {
            return self.refuse("zip", "two members share bytes");
        }
        let mut names = HashSet::new();
        if let Some(twice) = members.iter().find(|m| !names.insert(m.name.as_str())) {
            return self.refuse(&twice.name, "it is in the archive twice");
        }
        Ok(members)
    }

    /// The directory's bytes, its rows and where it begins.
    fn directory(&self, length: u64) -> Result<(Vec<u8>, u16, u64), WheelError> {
        let Some(at) = length.checked_sub(END as u64) else { return self.refuse("zip", "too short") };
        let end = self.bytes(at, END)?;
        if end[..4] != *b"PK\x05\x06" || u16_at(&end, 20) != 0 {
            return self.refuse("zip", "it does not end with the end of a zip directory without a comment");
        }
        let [disk, of, here, count] = [4, 6, 8, 10].map(|i| u16_at(&end, i));
        let [size, begin] = [12, 16].map(|i| u32_at(&end, i));
        if [disk, of, here, count].contains(&u16::MAX) || [size, begin].contains(&u32::MAX) {
            return self.refuse("zip", "it is in the zip64 format, which is not read");
        }
        if disk != 0 || of != 0 || here != count {
            return self.refuse("zip", "it is one of several parts");
        }
        let (size, begin) = (u64::from(size), u64::from(begin));
        if begin + size != at {
            return self.refuse("zip", "its directory is not where its end says, or something lies between them");
        }
        if size > DIRECTORY {
            return self.refuse("zip directory", format!("it has {size} bytes, at most {DIRECTORY} are read"));
        }
        Ok((self.bytes(begin, usize::try_from(size).unwrap_or(0))?, count, begin))
    }

    /// The next row of the directory.
    fn central<'d>(&self, rest: &mut &'d [u8]) -> Result<(Header<'d>, Member), WheelError> {
        let header = Header::central(rest);
        let Some(header) = header else { return self.refuse("zip directory", "it is cut off or has a foreign row") };
        let Ok(text) = std::str::from_utf8(header.name) else {
            return self.refuse(String::from_utf8_lossy(header.name), "its name is not UTF-8");
        };
        let (name, directory) = text.strip_suffix('/').map_or((text, false), |name| (name, true));
        if let Err(why) = path::check(name) {
            return self.refuse("zip", why);
        }
        let refuse = |why: &str| self.refuse(text, why);
        match header.flags {
            f if f & 0x2041 != 0 => return refuse("it is encrypted"),
            f if f & 8 != 0 => return refuse("its size stands behind it (a data descriptor), which is not read"),
            f if f & !ALLOWED != 0 => return refuse("it has flags that a wheel does not need"),
            f if f & UTF8 == 0 && !text.is_ascii() => return refuse("its name is in an unknown character set"),
            _ => {}
        }
        if header.compressed == u32::MAX || header.size == u32::MAX || header.offset == u32::MAX {
            return refuse("it is in the zip64 format, which is not read");
        }
        if let Err(why) = extra(header.extra, None) {
            return refuse(why);
        }
        let method = match header.method {
            0 if header.compressed == header.size => Method::Stored,
            0 => return refuse("it is stored, but its two sizes differ"),
            8 => Method::Deflated,
            other => return refuse(&format!("compression method {other} is not read (only stored and deflated are)")),
        };
        match (header.kind, directory) {
            (0, _) | (0o10, false) | (0o4, true) => {}
            (0o12, _) => return refuse("it is a symlink, which no wheel should have"),
            _ => return refuse("its kind of file does not fit its name"),
        }
        if directory && header.size != 0 {
            return refuse("it is a directory with bytes");
        }
        let member = Member {
            name: name.to_owned(),
            directory,
            executable: header.executable,
            method,
            crc32: header.crc32,
            compressed: header.compressed.into(),
            size: header.size.into(),
            offset: 0,
        };
        Ok((header, member))
    }

    /// The header in front of a member says the same as the directory; gives where the member's bytes begin and what it
    /// takes up.
    fn local(&self, header: Header<'_>, member: Member, end: u64) -> Result<(Member, (u64, u64)), WheelError> {
        let at = u64::from(header.offset);
        let length = LOCAL + header.name.len();
        if at + length as u64 > end {
            return self.refuse(&member.name, "it lies outside of the archive");
        }
        let local = self.bytes(at, length)?;
        let same = local[..4] == *b"PK\x03\x04"
            && u16_at(&local, 6) == header.flags
            && u16_at(&local, 8) == header.method
            && [14, 18, 22].map(|i| u32_at(&local, i)) == [header.crc32, header.compressed, header.size]
            && usize::from(u16_at(&local, 26)) == header.name.len()
            && local[LOCAL..] == *header.name;
        if !same {
            return self.refuse(&member.name, "its own header differs from the zip directory");
        }
        let extra_length = usize::from(u16_at(&local, 28));
        let offset = at + length as u64 + extra_length as u64;
        let behind = offset + member.compressed;
        if behind > end {
            return self.refuse(&member.name, "it lies outside of the archive");
        }
        let sizes = [member.size.to_le_bytes(), member.compressed.to_le_bytes()].concat();
        if let Err(why) = extra(&self.bytes(at + length as u64, extra_length)?, Some(&sizes)) {
            return self.refuse(&member.name, why);
        }
        Ok((Member { offset, ..member }, (at, behind)))
    }
}

/// A row of the directory.
struct Header<'d> {
    flags: u16,
    method: u16,
    crc32: u32,
    compressed: u32,
    size: u32,
    offset: u32,
    /// The upper four bits of a Unix mode; 0 if there are none.
    kind: u32,
    executable: bool,
    name: &'d [u8],
    extra: &'d [u8],
}

impl<'d> Header<'d> {
    /// Takes a row off the front.
    fn central(rest: &mut &'d [u8]) -> Option<Self> {
        let (fixed, behind) = rest.split_at_checked(CENTRAL)?;
        if fixed[..4] != *b"PK\x01\x02" || u16_at(fixed, 34) != 0 {
            return None;
        }
        let (name, behind) = behind.split_at_checked(u16_at(fixed, 28).into())?;
        let (extra, behind) = behind.split_at_checked(u16_at(fixed, 30).into())?;
        let (_, behind) = behind.split_at_checked(u16_at(fixed, 32).into())?;
        *rest = behind;
        // The upper half of the attributes is a Unix mode; makers for other systems leave it zero.
        let mode = u32_at(fixed, 38) >> 16;
        let [crc32, compressed, size, offset] = [16, 20, 24, 42].map(|i| u32_at(fixed, i));
        let (flags, method) = (u16_at(fixed, 8), u16_at(fixed, 10));
        let (kind, executable) = (mode >> 12, mode & 0o111 != 0);
        Some(Self { flags, method, crc32, compressed, size, offset, kind, executable, name, extra })
    }
}

/// Extra fields: those that change a name or a size are refused, the others (times, owners) do not count. In front of a
/// member some writers repeat its `sizes` in a zip64 field; that says nothing new.
fn extra(mut rest: &[u8], sizes: Option<&[u8]>) -> Result<(), &'static str> {
    while !rest.is_empty() {
        let length = 4 + usize::from(u16_at(rest, 2));
        let (field, behind) = rest.split_at_checked(length).ok_or("its extra fields are cut off")?;
        match u16_at(field, 0) {
            0x0001 if sizes != field.get(4..) => return Err("it is in the zip64 format, which is not read"),
            0x7075 => return Err("an extra field gives it another name"),
            _ => {}
        }
        rest = behind;
    }
    Ok(())
}
