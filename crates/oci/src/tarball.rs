//! Entries of a tar from outside, one after the other, in bounded memory.
//!
//! The crate `tar` reads long names and PAX headers whole, however long they say they are: of a layer that packs well, some
//! megabytes would become as many gigabytes. And a sparse file's bytes need not be there at all: a kilobyte could claim to
//! hold more zeroes than anyone can hash. No builder of images writes one.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// Most bytes between one entry's content and the next one's: its header, long names, PAX records.
const BETWEEN_MAX: u64 = 4 << 20;

/// A reader that ends in an error where too much is read at once.
pub(crate) struct Metered<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(into)?;
        let left = self.left.get().checked_sub(n as u64);
        self.left.set(left.ok_or_else(|| io::Error::other(format!("a header of more than {BETWEEN_MAX} bytes")))?);
        Ok(n)
    }
}

/// Shows every entry to `take`, and gives the reader back, at what follows the end mark. `broken` words what is wrong with the
/// tar itself.
///
/// # Errors
/// What `take` says; a stream that is no tar; headers beyond all measure; a sparse file.
pub(crate) fn each<R: Read, E>(
    reader: R,
    broken: impl Fn(io::Error) -> E,
    mut take: impl FnMut(&mut tar::Entry<'_, Metered<R>>) -> Result<(), E>,
) -> Result<R, E> {
    let left = Rc::new(Cell::new(BETWEEN_MAX));
    let mut archive = tar::Archive::new(Metered { inner: reader, left: Rc::clone(&left) });
    let mut entries = archive.entries().map_err(&broken)?;
    loop {
        left.set(BETWEEN_MAX);
        let Some(entry) = entries.next() else { break };
        let mut entry = entry.map_err(&broken)?;
        left.set(u64::MAX);
        if entry.header().entry_type().is_gnu_sparse() {
            let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            return Err(broken(io::Error::other(format!("{path:?} is a sparse file, which is not read"))));
        }
        take(&mut entry)?;
        // What nobody read would count as a header.
        io::copy(&mut entry, &mut io::sink()).map_err(&broken)?;
    }
    Ok(archive.into_inner().inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &[u8], kind: tar::EntryType, size: u64) -> [u8; 512] {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        *header.as_bytes()
    }

    fn read(bytes: impl Read) -> io::Result<Vec<u64>> {
        let mut sizes = Vec::new();
        let take = |entry: &mut tar::Entry<'_, _>| -> io::Result<()> {
            sizes.push(entry.size());
            Ok(())
        };
        each(bytes, |e| e, take)?;
        Ok(sizes)
    }

    #[test]
    fn content_may_be_long_and_headers_may_not() {
        let long = BETWEEN_MAX * 2;
        let body = || io::repeat(0).take(long);
        let end = [0; 1024];
        let file = named(b"a", tar::EntryType::Regular, long);
        assert_eq!(read(file.chain(body()).chain(&file[..]).chain(body()).chain(&end[..])).unwrap(), [long, long]);
        for kind in [tar::EntryType::GNULongName, tar::EntryType::GNULongLink, tar::EntryType::XHeader] {
            let header = named(b"././@LongLink", kind, long);
            let why = read(header.chain(body()).chain(&file[..])).unwrap_err().to_string();
            assert!(why.contains("a header of more than"), "{why}");
        }
    }

    /// A claim of 8 EB in one block: hashing it would never end.
    #[test]
    fn a_sparse_file_is_refused() {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..4].copy_from_slice(b"a.so");
        header.set_entry_type(tar::EntryType::GNUSparse);
        header.set_size(0);
        if let Some(gnu) = header.as_gnu_mut() {
            gnu.realsize[0] = 0x80;
            gnu.realsize[4] = 0x60;
            gnu.sparse[0].offset[0] = 0x80;
            gnu.sparse[0].offset[4] = 0x60;
            gnu.sparse[0].numbytes.copy_from_slice(b"00000000000\0");
        }
        header.set_cksum();
        let bytes = [&header.as_bytes()[..], &[0; 1024]].concat();
        let why = read(&bytes[..]).unwrap_err().to_string();
        assert!(why.contains("\"a.so\" is a sparse file"), "{why}");
    }
}
