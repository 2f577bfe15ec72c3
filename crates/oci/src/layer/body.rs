//! Reading a file's bytes in pieces, checked against what was promised.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use flate2::{Crc, Decompress, FlushDecompress, Status};
use sha2::{Digest as _, Sha256};

use super::entry::{Body, Entry, Meta, Node, TreePath};
use super::error::LayerError;
use super::gzip::STORED;

/// Raw bytes read at once: whole stored blocks.
const PIECE: usize = 4 * STORED;

/// Takes a body as it is read.
pub trait Sink {
    /// Bytes as they lie in the source.
    ///
    /// # Errors
    /// The writer's behind.
    fn raw(&mut self, bytes: &[u8], last: bool) -> Result<(), LayerError>;
    /// Bytes of the file.
    ///
    /// # Errors
    /// The watcher's behind.
    fn plain(&mut self, bytes: &[u8]) -> Result<(), LayerError>;
}

/// CRC-32 and SHA-256 of the bytes that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums {
    /// CRC-32 as gzip has it.
    pub crc32: u32,
    /// SHA-256.
    pub sha256: [u8; 32],
}

/// Reads bodies. Keeps its buffers and the state of inflate between them.
pub struct Reader {
    inflate: Decompress,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Default for Reader {
    fn default() -> Self {
        Self { inflate: Decompress::new(false), input: vec![0; PIECE], output: vec![0; PIECE] }
    }
}

/// Where the raw bytes lie and what is promised.
struct Promise<'a> {
    source: &'a File,
    offset: u64,
    raw: u64,
    size: u64,
    crc32: Option<u32>,
    sha256: Option<[u8; 32]>,
}

impl Reader {
    /// Reads a body to its end.
    ///
    /// # Errors
    /// Bytes that are not what the body promises; the sink's errors.
    pub fn read(&mut self, entry: &Entry, body: &Body, sink: &mut impl Sink) -> Result<Sums, LayerError> {
        let (promise, deflated) = match body {
            Body::Bytes(bytes) => {
                sink.plain(bytes)?;
                let mut crc = Crc::new();
                crc.update(bytes);
                return Ok(Sums { crc32: crc.sum(), sha256: Sha256::digest(bytes).into() });
            }
            Body::Deflated { source, offset, compressed, size, crc32, sha256 } => {
                let (crc32, sha256) = (Some(*crc32), *sha256);
                (Promise { source, offset: *offset, raw: *compressed, size: *size, crc32, sha256 }, true)
            }
            Body::Stored { source, offset, size, crc32, sha256 } => {
                let (crc32, sha256) = (*crc32, *sha256);
                (Promise { source, offset: *offset, raw: *size, size: *size, crc32, sha256 }, false)
            }
        };
        let mut meter = Meter { sink, crc: Crc::new(), sha: Sha256::new(), bytes: 0, most: promise.size };
        let mut place = Place { entry, ended: !deflated };
        self.inflate.reset(false);
        let mut at = 0;
        while at < promise.raw {
            let length = usize::try_from(promise.raw - at).map_or(PIECE, |left| left.min(PIECE));
            let piece = &mut self.input[..length];
            promise.source.read_exact_at(piece, promise.offset + at).map_err(|e| place.unreadable(e))?;
            at += length as u64;
            meter.sink.raw(piece, at == promise.raw)?;
            if deflated {
                inflate(&mut self.inflate, piece, &mut self.output, &mut meter, &mut place)?;
            } else {
                meter.take(piece, &place)?;
            }
        }
        if !place.ended {
            return Err(place.wrong("its deflate stream ends before its end"));
        }
        meter.finish(&promise, &place)
    }
}

/// Inflates one piece to its end.
fn inflate<S: Sink>(
    state: &mut Decompress,
    mut piece: &[u8],
    output: &mut [u8],
    meter: &mut Meter<'_, S>,
    place: &mut Place<'_>,
) -> Result<(), LayerError> {
    loop {
        if place.ended {
            return if piece.is_empty() {
                Ok(())
            } else {
                Err(place.wrong("bytes follow the end of its deflate stream"))
            };
        }
        let (before_in, before_out) = (state.total_in(), state.total_out());
        let status = state.decompress(piece, output, FlushDecompress::None);
        let status = status.map_err(|e| place.wrong(format!("its deflate stream is broken: {e}")))?;
        // Both differences are at most the lengths of the slices.
        let (used, made) = ((state.total_in() - before_in) as usize, (state.total_out() - before_out) as usize);
        meter.take(&output[..made], place)?;
        piece = &piece[used..];
        place.ended = status == Status::StreamEnd;
        // With room left in the output, nothing more is to come out of what was read.
        if !place.ended && piece.is_empty() && made < output.len() {
            return Ok(());
        }
        if !place.ended && used == 0 && made == 0 {
            return Err(place.wrong("its deflate stream makes no progress"));
        }
    }
}

/// Which body is read, and whether its stream has ended.
struct Place<'a> {
    entry: &'a Entry,
    ended: bool,
}

impl Place<'_> {
    fn wrong(&self, why: impl Into<String>) -> LayerError {
        let (from, path) = (self.entry.from.clone(), self.entry.path.as_str().to_owned());
        LayerError::Body { from, path, why: why.into() }
    }

    fn unreadable(&self, source: io::Error) -> LayerError {
        LayerError::Read { from: self.entry.from.clone(), path: self.entry.path.as_str().to_owned(), source }
    }
}

/// Counts and hashes on the way to the sink.
struct Meter<'a, S> {
    sink: &'a mut S,
    crc: Crc,
    sha: Sha256,
    bytes: u64,
    most: u64,
}

impl<S: Sink> Meter<'_, S> {
    fn take(&mut self, bytes: &[u8], place: &Place<'_>) -> Result<(), LayerError> {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.most {
            return Err(place.wrong(format!("it has more than the {} bytes that were promised", self.most)));
        }
        self.crc.update(bytes);
        self.sha.update(bytes);
        self.sink.plain(bytes)
    }

    fn finish(self, promise: &Promise<'_>, place: &Place<'_>) -> Result<Sums, LayerError> {
        if self.bytes != promise.size {
            return Err(place.wrong(format!("it has {} bytes, {} were promised", self.bytes, promise.size)));
        }
        let sums = Sums { crc32: self.crc.sum(), sha256: self.sha.finalize().into() };
        if let Some(promised) = promise.crc32.filter(|c| *c != sums.crc32) {
            return Err(place.wrong(format!("it has CRC-32 {:08x}, {promised:08x} was promised", sums.crc32)));
        }
        if let Some(promised) = promise.sha256.filter(|s| *s != sums.sha256) {
            let [found, promised] = [sums.sha256, promised].map(|s| crate::Digest::from_sha256(&s));
            return Err(place.wrong(format!("it has {found}, {promised} was promised")));
        }
        Ok(sums)
    }
}

/// Bytes of a body.
#[must_use]
pub fn size(body: &Body) -> u64 {
    match body {
        Body::Bytes(bytes) => bytes.len() as u64,
        Body::Deflated { size, .. } | Body::Stored { size, .. } => *size,
    }
}

/// Whether two bodies hold the same bytes. Reads them where no SHA-256 was promised.
///
/// # Errors
/// A body that is read and is not what was promised.
pub fn same(first: &Entry, a: &Body, second: &Entry, b: &Body) -> Result<bool, LayerError> {
    Ok(size(a) == size(b) && sha256(first, a)? == sha256(second, b)?)
}

fn sha256(entry: &Entry, body: &Body) -> Result<[u8; 32], LayerError> {
    match body {
        // The promise is checked when the one that stays is written; of the other only the promise counts, as its wheel's
        // own hash was checked against the lock.
        Body::Deflated { sha256: Some(sum), .. } | Body::Stored { sha256: Some(sum), .. } => Ok(*sum),
        _ => Ok(Reader::default().read(entry, body, &mut Nowhere)?.sha256),
    }
}

struct Nowhere;

impl Sink for Nowhere {
    fn raw(&mut self, _: &[u8], _: bool) -> Result<(), LayerError> {
        Ok(())
    }

    fn plain(&mut self, _: &[u8]) -> Result<(), LayerError> {
        Ok(())
    }
}

/// A small body's bytes, checked; for what must be read before a layer is made of it.
///
/// # Errors
/// Bytes that are not what the body promises.
pub(crate) fn contents(from: &str, path: &str, body: &Body) -> Result<Vec<u8>, LayerError> {
    let mut gather = Gather { bytes: Vec::new(), most: usize::MAX };
    Reader::default().read(&nameless(from, path)?, body, &mut gather)?;
    Ok(gather.bytes)
}

/// The first bytes of a body, at most `count`, unchecked.
///
/// # Errors
/// A stream that is broken before that.
pub(crate) fn head(from: &str, path: &str, body: &Body, count: usize) -> Result<Vec<u8>, LayerError> {
    let mut gather = Gather { bytes: Vec::new(), most: count };
    let read = Reader::default().read(&nameless(from, path)?, body, &mut gather);
    if gather.bytes.len() < count {
        read?;
    }
    Ok(gather.bytes)
}

fn nameless(from: &str, path: &str) -> Result<Entry, LayerError> {
    let meta = Meta { mode: 0o644, uid: 0, gid: 0, mtime: 0 };
    let path = TreePath::new(path).map_err(|why| LayerError::entry(path, why))?;
    Ok(Entry { path, meta, node: Node::Directory, from: from.to_owned() })
}

/// Keeps the first bytes; ends the reading when it has them.
struct Gather {
    bytes: Vec<u8>,
    most: usize,
}

impl Sink for Gather {
    fn raw(&mut self, _: &[u8], _: bool) -> Result<(), LayerError> {
        Ok(())
    }

    fn plain(&mut self, bytes: &[u8]) -> Result<(), LayerError> {
        let take = bytes.len().min(self.most - self.bytes.len());
        self.bytes.extend(&bytes[..take]);
        if self.bytes.len() < self.most { Ok(()) } else { Err(LayerError::Write(io::ErrorKind::WriteZero.into())) }
    }
}
