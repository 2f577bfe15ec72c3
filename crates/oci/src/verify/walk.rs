//! One pass over a layer blob: its digest, its diff_id and what it holds.

use std::io::{self, BufReader, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest as _, Sha256};

use crate::digest::{Digest, Hasher, PIECE};
use crate::error::OciError;
use crate::media::Compression;
use crate::tarball;

/// More entries than any layer has; a bound for what an attacker can make us remember.
const ITEMS_MAX: usize = 4_000_000;
/// Longest RECORD that is kept, in bytes.
const TEXT_MAX: u64 = 32 << 20;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file with the SHA-256 of its bytes.
    File([u8; 32]),
    /// A symbolic link with its target.
    Symlink(String),
    /// A hard link with the path that it shares the file of.
    Hardlink(String),
    /// A device, a pipe.
    Other,
}

/// One entry of a layer as it is in the tar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The path as written, but for a directory's last slash. Bytes that are no UTF-8 are escaped.
    pub path: String,
    /// What it is.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Seconds since 1970.
    pub mtime: u64,
    /// Bytes of a file.
    pub size: u64,
    /// True when a name of owner or group is written.
    pub named: bool,
    /// Keys of its PAX header.
    pub pax: Vec<String>,
    /// The bytes, of a distribution's RECORD only.
    pub text: Option<Vec<u8>>,
}

/// A layer that was read to its end.
#[derive(Debug, Clone)]
pub struct Walked {
    /// Digest of the blob.
    pub digest: Digest,
    /// Bytes of the blob.
    pub size: u64,
    /// Digest of the tar inside.
    pub diff_id: Digest,
    /// Bytes of the tar inside.
    pub bytes: u64,
    /// How the blob is compressed, by its bytes.
    pub compression: Compression,
    /// Its entries in their order.
    pub items: Vec<Item>,
    /// Bytes between the last entry's end and the end of the stream; 1024 when the tar ends as ours do (R6).
    pub tail: u64,
}

/// Reads a layer.
///
/// # Errors
/// When it is neither tar nor gzip, is cut short, has bytes after its last gzip member, or cannot be read.
pub fn walk(what: &str, blob: impl Read) -> Result<Walked, OciError> {
    let bad = |e: io::Error| OciError::document(what, e.to_string());
    let (compression, decoder) = open(blob).map_err(bad)?;
    let (mut items, mut end) = (Vec::new(), 0);
    let mut inner = tarball::each(Hashing { inner: decoder, hasher: Hasher::new() }, bad, |entry| {
        if items.len() >= ITEMS_MAX {
            return Err(OciError::document(what, format!("it has more than {ITEMS_MAX} entries")));
        }
        end = entry.raw_file_position() + entry.size().next_multiple_of(512);
        items.push(item(entry).map_err(bad)?);
        Ok(())
    })?;
    io::copy(&mut inner, &mut io::sink()).map_err(bad)?;
    let (diff_id, bytes) = (inner.hasher.digest(), inner.hasher.bytes());
    let mut raw = inner.inner.into_raw();
    // Only a plain tar can have something left; it was read by the copy above.
    io::copy(&mut raw, &mut io::sink()).map_err(bad)?;
    let (digest, size) = (raw.hasher.digest(), raw.hasher.bytes());
    Ok(Walked { digest, size, diff_id, bytes, compression, items, tail: bytes.saturating_sub(end) })
}

fn item(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<Item> {
    let path = text(&entry.path_bytes());
    let target = entry.link_name_bytes().map(|t| text(&t)).unwrap_or_default();
    let pax = match entry.pax_extensions()? {
        None => Vec::new(),
        Some(found) => found.map(|e| e.map(|e| text(e.key_bytes()))).collect::<io::Result<_>>()?,
    };
    let header = entry.header();
    let name = |bytes: Option<&[u8]>| bytes.is_some_and(|b| !b.is_empty());
    let named = name(header.username_bytes()) || name(header.groupname_bytes());
    let old = header.as_old();
    let mode = number(&old.mode, header.mode().map(u64::from))? & 0o7777;
    let (uid, gid) = (number(&old.uid, header.uid())?, number(&old.gid, header.gid())?);
    let mtime = number(&old.mtime, header.mtime())?;
    let mode = u32::try_from(mode).unwrap_or_default();
    let kind = header.entry_type();
    let (mut size, mut kept) = (0, None);
    let kind = match kind {
        tar::EntryType::Directory => Kind::Directory,
        tar::EntryType::Symlink => Kind::Symlink(target),
        tar::EntryType::Link => Kind::Hardlink(target),
        tar::EntryType::Regular | tar::EntryType::Continuous => {
            size = entry.size();
            let mut record = (path.ends_with(".dist-info/RECORD") && size <= TEXT_MAX).then(Vec::new);
            let sum = hash(entry, record.as_mut())?;
            kept = record;
            Kind::File(sum)
        }
        _ => Kind::Other,
    };
    let path = path.strip_suffix('/').map_or(path.clone(), str::to_owned);
    Ok(Item { path, kind, mode, uid, gid, mtime, size, named, pax, text: kept })
}

fn hash(mut from: impl Read, mut keep: Option<&mut Vec<u8>>) -> io::Result<[u8; 32]> {
    let mut sum = Sha256::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            return Ok(sum.finalize().into());
        }
        sum.update(&buffer[..n]);
        if let Some(keep) = keep.as_deref_mut() {
            keep.extend(&buffer[..n]);
        }
    }
}

/// A field that is blank counts as 0, as unpackers have it.
fn number(field: &[u8], read: io::Result<u64>) -> io::Result<u64> {
    if field.iter().all(|b| matches!(b, 0 | b' ')) { Ok(0) } else { read }
}

/// Bytes as text; what is no UTF-8 is escaped, so that two names never become one.
fn text(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| bytes.escape_ascii().to_string(), str::to_owned)
}

/// Passes bytes on and keeps their digest.
struct Hashing<R> {
    inner: R,
    hasher: Hasher,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..n]);
        Ok(n)
    }
}

type Raw<R> = Hashing<io::Chain<Cursor<Vec<u8>>, R>>;

enum Decoder<R: Read> {
    Plain(BufReader<Raw<R>>),
    Gzip(Box<MultiGzDecoder<BufReader<Raw<R>>>>),
}

impl<R: Read> Decoder<R> {
    fn into_raw(self) -> Raw<R> {
        match self {
            Self::Plain(reader) => reader.into_inner(),
            Self::Gzip(decoder) => decoder.into_inner().into_inner(),
        }
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(reader) => reader.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
        }
    }
}

/// Chooses by the first bytes, as consumers do, not by the media type.
fn open<R: Read>(mut blob: R) -> io::Result<(Compression, Decoder<R>)> {
    let mut head = Vec::with_capacity(4);
    blob.by_ref().take(4).read_to_end(&mut head)?;
    let compression = Compression::sniff(&head);
    let raw = Hashing { inner: Cursor::new(head).chain(blob), hasher: Hasher::new() };
    let reader = BufReader::with_capacity(PIECE, raw);
    match compression {
        Compression::None => Ok((compression, Decoder::Plain(reader))),
        Compression::Gzip => Ok((compression, Decoder::Gzip(Box::new(MultiGzDecoder::new(reader))))),
        Compression::Zstd => Err(io::Error::other("it is compressed with zstd, which is not looked into")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn tar_of(names: &[&str]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for name in names {
            let mut header = tar::Header::new_ustar();
            header.set_size(3);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, &b"abc"[..]).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn plain_and_gzip_of_many_members_give_one_diff_id() {
        let tar = tar_of(&["a", "b/c"]);
        let plain = walk("x", &tar[..]).unwrap();
        let blob = [gzip(&tar[..700]), gzip(&tar[700..])].concat();
        let packed = walk("x", &blob[..]).unwrap();
        assert_eq!((plain.compression, packed.compression), (Compression::None, Compression::Gzip));
        assert_eq!(plain.diff_id, crate::digest::of(&tar));
        assert_eq!((&plain.diff_id, &plain.items, plain.tail), (&packed.diff_id, &packed.items, 1024));
        assert_eq!((packed.digest, packed.size), (crate::digest::of(&blob), blob.len() as u64));
        let abc: [u8; 32] = Sha256::digest(b"abc").into();
        assert_eq!(plain.items.iter().map(|i| i.path.as_str()).collect::<Vec<_>>(), ["a", "b/c"]);
        assert_eq!(plain.items[0].kind, Kind::File(abc));
    }

    /// Facts, section 3: some stores refuse bytes after the gzip stream, others do not; we do.
    #[test]
    fn bytes_after_the_last_member_are_refused() {
        let blob = [gzip(&tar_of(&["a"])), vec![0; 100]].concat();
        assert!(walk("x", &blob[..]).is_err());
    }

    /// Issue row 32 (container-libs#391): the diff_id is over all bytes, whatever follows the end of the tar.
    #[test]
    fn row_32_padding_after_the_end_counts_for_the_diff_id() {
        for padding in [0, 100, 512, 9216] {
            let tar = [tar_of(&["a"]), vec![0; padding]].concat();
            let found = walk("x", &gzip(&tar)[..]).unwrap();
            assert_eq!((found.diff_id, found.tail), (crate::digest::of(&tar), 1024 + padding as u64));
        }
        // umoci writes tars without the two blocks.
        let short = &tar_of(&["a"])[..1024];
        assert_eq!(walk("x", short).unwrap().tail, 0);
    }

    #[test]
    fn what_is_cut_is_refused() {
        let blob = gzip(&tar_of(&["a", "b", "c"]));
        for cut in [5, 20, blob.len() - 9, blob.len() - 1] {
            assert!(walk("x", &blob[..cut]).is_err(), "{cut}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..3000), at in 0_usize..2048) {
            let _ = walk("x", &bytes[..]);
            let mut tar = tar_of(&["a", "b"]);
            if let (Some(byte), Some(new)) = (tar.get_mut(at), bytes.first()) {
                *byte = *new;
            }
            let _ = walk("x", &tar[..]);
            let _ = walk("x", &gzip(&tar)[..]);
        }
    }
}
