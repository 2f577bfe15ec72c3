//! Reading large files and leaving the page cache as it was found.
//!
//! On a Spark the page cache counts against the memory that CUDA can take, so nothing here reads through it where the
//! file system allows direct reads; where it does not, pages are given back behind the reader.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{Advice, CWD, Mode, OFlags, ResolveFlags, fadvise, fcntl_getfl, fcntl_setfl, openat2};
use rustix::io::Errno;

use crate::buffer::{Buffer, EXTENT};
use crate::error::WeightsError;
use crate::hash::{Hasher, Sha};
use crate::journal::Stamp;

/// The stamp of an open file.
///
/// # Errors
/// When it cannot be looked at, or is no regular file.
pub fn stamp(file: &File, path: &Utf8Path) -> Result<Stamp, WeightsError> {
    let meta = file.metadata().map_err(WeightsError::file("look at", path))?;
    if !meta.is_file() {
        return Err(WeightsError::Content { path: path.into(), why: "is not a regular file".into() });
    }
    Ok(stamp_of(&meta))
}

/// The stamp in a file's metadata.
#[must_use]
pub fn stamp_of(meta: &std::fs::Metadata) -> Stamp {
    let mtime_ns = meta.mtime().saturating_mul(1_000_000_000).saturating_add(meta.mtime_nsec());
    Stamp { size: meta.len(), mtime_ns, inode: meta.ino() }
}

/// Opens a file below a folder; no link is followed and nothing above is reached, whatever the path says.
///
/// # Errors
/// When it is not there, or a link stands in its way.
pub fn open_beneath(root: &Utf8Path, path: &str, flags: OFlags) -> Result<File, WeightsError> {
    let full = root.join(path);
    let folder =
        rustix::fs::openat(CWD, root.as_str(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(WeightsError::errno("open", root))?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let fd = openat2(folder, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
        .map_err(WeightsError::errno("open", full))?;
    Ok(File::from(fd))
}

/// A file that is read in extents.
#[derive(Debug)]
pub struct Reader {
    file: File,
    path: Utf8PathBuf,
    direct: bool,
}

impl Reader {
    /// A reader of a file below a folder.
    ///
    /// # Errors
    /// As [`open_beneath`].
    pub fn beneath(root: &Utf8Path, path: &str) -> Result<Self, WeightsError> {
        // A pipe would keep us waiting; a regular file does not care.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let (file, direct) = match open_beneath(root, path, flags | OFlags::DIRECT) {
            Ok(file) => (file, true),
            Err(_) => (open_beneath(root, path, flags)?, false),
        };
        Ok(Self { file, path: root.join(path), direct })
    }

    /// A reader through the page cache, for sendfile(2), which reads ahead there.
    ///
    /// # Errors
    /// As [`open_beneath`].
    pub fn cached_beneath(root: &Utf8Path, path: &str) -> Result<Self, WeightsError> {
        let file = open_beneath(root, path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        Ok(Self { file, path: root.join(path), direct: false })
    }

    /// The file's stamp.
    ///
    /// # Errors
    /// As [`stamp`].
    pub fn stamp(&self) -> Result<Stamp, WeightsError> {
        stamp(&self.file, &self.path)
    }

    /// True when reads pass the page cache by.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Fills a buffer from `at`, a multiple of the alignment; fewer bytes only at the file's end.
    ///
    /// # Errors
    /// When the device or the file system fails; the error names the offset.
    pub fn read(&mut self, at: u64, buffer: &mut Buffer) -> Result<(), WeightsError> {
        let mut have = 0;
        while have < EXTENT {
            match rustix::io::pread(&self.file, &mut buffer.whole()[have..], at + have as u64) {
                Ok(0) => break,
                Ok(read) => {
                    have += read;
                    // A direct read ends unaligned only at the end of the file.
                    if self.direct && !read.is_multiple_of(crate::buffer::ALIGN) {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) if self.direct => {
                    self.direct = false;
                    let flags = fcntl_getfl(&self.file).unwrap_or(OFlags::empty()) - OFlags::DIRECT;
                    fcntl_setfl(&self.file, flags).map_err(WeightsError::errno("reopen", &self.path))?;
                }
                Err(errno) => {
                    let at = at + have as u64;
                    let why = format!("cannot be read at byte {at}: {}", std::io::Error::from(errno));
                    return Err(WeightsError::Content { path: self.path.clone(), why });
                }
            }
        }
        buffer.set_len(have);
        if !self.direct {
            drop_pages(&self.file, at, have as u64);
        }
        Ok(())
    }

    /// The sha256 of the whole file. `seen` hears of bytes as they are hashed and may end the reading.
    ///
    /// # Errors
    /// When it cannot be read, or `seen` gives false ([`WeightsError::Failed`]).
    pub fn hash(&mut self, seen: &dyn Fn(u64) -> bool) -> Result<Sha, WeightsError> {
        let mut buffer = Buffer::new();
        let mut hasher = Hasher::new();
        loop {
            self.read(hasher.len(), &mut buffer)?;
            hasher.update(buffer.used());
            if !seen(buffer.used().len() as u64) {
                return Err(WeightsError::Failed(format!("{}: stopped", self.path)));
            }
            if buffer.used().len() < EXTENT {
                return Ok(hasher.finish());
            }
        }
    }
}

/// Gives pages back that only we wanted.
pub fn drop_pages(file: impl AsFd, at: u64, len: u64) {
    // Advice may be ignored; the receipt shows what the cache did.
    let _advised = fadvise(file, at, std::num::NonZeroU64::new(len), Advice::DontNeed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_hashed_to_its_last_byte_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        for len in [0, 1, 4095, 4096, EXTENT - 1, EXTENT, EXTENT + 1, 3 * EXTENT + 777] {
            let bytes: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            std::fs::write(root.join("f"), &bytes).unwrap();
            let mut reader = Reader::beneath(root, "f").unwrap();
            assert_eq!(reader.hash(&|_| true).unwrap(), Sha::of(&bytes), "{len}");
        }
        std::os::unix::fs::symlink("f", root.join("link")).unwrap();
        assert!(Reader::beneath(root, "link").is_err());
        assert!(Reader::beneath(&root.join("x/.."), "../f").is_err());
        assert!(Reader::beneath(root, "../etc/passwd").is_err());
    }
}
