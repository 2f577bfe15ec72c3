//! From entries to a finished layer, in one pass and in pieces: the blob's digest, its diff_id and every file's check come
//! from the same reading.

use std::io::{self, BufWriter, Write};

use super::body::{self, Reader, Sink, Sums};
use super::entry::{Body, Entry, Node};
use super::error::LayerError;
use super::{gzip, order, tar};
use crate::digest::{Digest, Hasher, HashingWriter};

/// A finished layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Digest of the blob.
    pub digest: Digest,
    /// Bytes of the blob.
    pub size: u64,
    /// Digest of the tar inside (R17).
    pub diff_id: Digest,
    /// Bytes of the tar inside.
    pub uncompressed: u64,
    /// Entries in it, each path once.
    pub entries: usize,
}

/// Sees every file's bytes while a layer is written, so that nobody inflates a body twice.
pub trait Watch {
    /// A file begins.
    ///
    /// # Errors
    /// What ends the writing.
    fn begin(&mut self, entry: &Entry) -> Result<(), LayerError>;
    /// Its next bytes; they are checked only by the time [`Watch::end`] is called.
    ///
    /// # Errors
    /// What ends the writing.
    fn piece(&mut self, bytes: &[u8]) -> Result<(), LayerError>;
    /// The file is whole and what was promised.
    ///
    /// # Errors
    /// What ends the writing.
    fn end(&mut self, entry: &Entry, sha256: &[u8; 32]) -> Result<(), LayerError>;
}

/// Nobody looks.
impl Watch for () {
    fn begin(&mut self, _: &Entry) -> Result<(), LayerError> {
        Ok(())
    }

    fn piece(&mut self, _: &[u8]) -> Result<(), LayerError> {
        Ok(())
    }

    fn end(&mut self, _: &Entry, _: &[u8; 32]) -> Result<(), LayerError> {
        Ok(())
    }
}

/// Writes a layer. Sorts, merges what two bring alike, checks every body against what was promised.
///
/// # Errors
/// Entries that break a rule, before a byte is written; a body that is not what was promised, after which what was written
/// is no layer.
pub fn write_layer(entries: &[Entry], out: &mut impl Write) -> Result<Written, LayerError> {
    write_watched(entries, out, &mut ())
}

/// As [`write_layer`], with somebody who sees every file.
///
/// # Errors
/// Those of [`write_layer`] and the watcher's.
pub fn write_watched(entries: &[Entry], out: &mut impl Write, watch: &mut impl Watch) -> Result<Written, LayerError> {
    let entries = order::arrange(entries)?;
    let mut layer = Layer::new(out, watch);
    let mut reader = Reader::default();
    for entry in &entries {
        layer.entry(entry, &mut reader)?;
    }
    layer.finish(entries.len())
}

/// Most bytes of headers and small files that gather before a member is made of them.
const GATHERED: usize = 1 << 20;

struct Layer<'a, W: Write, H> {
    out: BufWriter<HashingWriter<&'a mut W>>,
    watch: &'a mut H,
    diff: Hasher,
    encoder: gzip::Encoder,
    /// Tar bytes of our own that wait for the next member.
    waiting: Vec<u8>,
    member: Vec<u8>,
}

impl<'a, W: Write, H: Watch> Layer<'a, W, H> {
    fn new(out: &'a mut W, watch: &'a mut H) -> Self {
        let out = BufWriter::with_capacity(1 << 18, HashingWriter::new(out));
        let (waiting, member) = (Vec::new(), Vec::new());
        Self { out, watch, diff: Hasher::new(), encoder: gzip::Encoder::default(), waiting, member }
    }

    fn entry(&mut self, entry: &Entry, reader: &mut Reader) -> Result<(), LayerError> {
        let path = entry.path.as_str();
        match &entry.node {
            Node::Directory => tar::header(path, entry.meta, tar::Kind::Directory, &mut self.waiting)?,
            Node::Symlink(target) => tar::header(path, entry.meta, tar::Kind::Symlink(target), &mut self.waiting)?,
            Node::File(body) => {
                let size = body::size(body);
                tar::header(path, entry.meta, tar::Kind::File(size), &mut self.waiting)?;
                self.watch.begin(entry)?;
                let sums = self.body(entry, body, size, reader)?;
                self.watch.end(entry, &sums.sha256)?;
                self.waiting.extend(std::iter::repeat_n(0, tar::padding(size)));
            }
        }
        if self.waiting.len() >= GATHERED { self.flush() } else { Ok(()) }
    }

    /// A file's bytes: ours gather with the headers; a deflate stream or a stored file is a member of its own. An empty
    /// file has none (R15).
    fn body(&mut self, entry: &Entry, body: &Body, size: u64, reader: &mut Reader) -> Result<Sums, LayerError> {
        let mode = match body {
            Body::Bytes(_) => Mode::Gather,
            _ if size == 0 => Mode::Nothing,
            Body::Deflated { .. } => Mode::Copy,
            Body::Stored { .. } => Mode::Store,
        };
        let alone = matches!(mode, Mode::Copy | Mode::Store);
        if alone {
            self.flush()?;
            self.put(&gzip::HEADER)?;
        }
        let sums = reader.read(entry, body, &mut Piece { layer: self, mode })?;
        if alone {
            self.put(&gzip::trailer(sums.crc32, size))?;
        }
        Ok(sums)
    }

    /// Makes a member of what waits.
    fn flush(&mut self) -> Result<(), LayerError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        self.diff.update(&self.waiting);
        self.encoder.member(&self.waiting, &mut self.member);
        self.out.write_all(&self.member).map_err(LayerError::Write)?;
        self.waiting.clear();
        self.member.clear();
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), LayerError> {
        self.out.write_all(bytes).map_err(LayerError::Write)
    }

    fn finish(mut self, entries: usize) -> Result<Written, LayerError> {
        self.waiting.extend(tar::END);
        self.flush()?;
        let inner = self.out.into_inner().map_err(|e| LayerError::Write(e.into_error()))?;
        let (out, digest, size) = inner.into_parts();
        io::Write::flush(out).map_err(LayerError::Write)?;
        Ok(Written { digest, size, diff_id: self.diff.digest(), uncompressed: self.diff.bytes(), entries })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Gather,
    Nothing,
    Copy,
    Store,
}

struct Piece<'l, 'a, W: Write, H> {
    layer: &'l mut Layer<'a, W, H>,
    mode: Mode,
}

impl<W: Write, H: Watch> Sink for Piece<'_, '_, W, H> {
    fn raw(&mut self, bytes: &[u8], last: bool) -> Result<(), LayerError> {
        match self.mode {
            Mode::Gather | Mode::Nothing => Ok(()),
            Mode::Copy => self.layer.put(bytes),
            Mode::Store => {
                let mut blocks = bytes.chunks(gzip::STORED).peekable();
                while let Some(block) = blocks.next() {
                    // A block has at most STORED bytes, which is the largest u16.
                    let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
                    self.layer.put(&gzip::stored_head(length, last && blocks.peek().is_none()))?;
                    self.layer.put(block)?;
                }
                Ok(())
            }
        }
    }

    fn plain(&mut self, bytes: &[u8]) -> Result<(), LayerError> {
        if self.mode == Mode::Gather {
            self.layer.waiting.extend(bytes);
        } else {
            self.layer.diff.update(bytes);
        }
        self.layer.watch.piece(bytes)
    }
}
