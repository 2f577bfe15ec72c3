//! A blob that is on its way: a file named by its digest, locked, resumed by any process after any end.
//!
//! What lies there is hashed again before it is built upon; a saved state of the hash is never trusted (facts section 10).

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::FlockOperation;

use crate::digest::{Hasher, PIECE};
use crate::error::OciError;
use crate::layout::{Layout, publish};
use crate::manifest::{Descriptor, check_digest, check_size};

/// A partial blob, held by this process alone.
#[derive(Debug)]
pub struct Partial {
    file: File,
    path: Utf8PathBuf,
    target: Utf8PathBuf,
    wanted: Descriptor,
    hasher: Hasher,
    resumed: bool,
}

/// What [`Partial::open`] found.
#[derive(Debug)]
pub enum Opened {
    /// The blob is here already.
    There,
    /// To be filled.
    Partial(Box<Partial>),
}

impl Partial {
    /// Opens or makes the partial file of a blob and waits for any other process that fills it. What is in it is hashed.
    ///
    /// # Errors
    /// The system's.
    pub fn open(layout: &Layout, wanted: &Descriptor) -> Result<Opened, OciError> {
        let path = layout.partial_dir().join(wanted.digest.hex());
        let target = layout.own_path(&wanted.digest);
        loop {
            fs::create_dir_all(layout.partial_dir()).map_err(OciError::io("make", layout.partial_dir()))?;
            let file = fs::OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path);
            let file = file.map_err(OciError::io("open", &path))?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(OciError::errno("lock", &path))?;
            // Whoever held it before may have finished (renamed) or thrown it away.
            let ours = file.metadata().map_err(OciError::io("look at", &path))?.ino();
            let named = fs::metadata(&path).map(|m| m.ino()).ok();
            if named != Some(ours) {
                continue;
            }
            if layout.open_blob(&wanted.digest).is_ok_and(|(_, size)| size == wanted.size) {
                let _gone = fs::remove_file(&path);
                return Ok(Opened::There);
            }
            let mut partial =
                Self { file, path, target, wanted: wanted.clone(), hasher: Hasher::new(), resumed: false };
            partial.hash_again()?;
            return Ok(Opened::Partial(Box::new(partial)));
        }
    }

    fn hash_again(&mut self) -> Result<(), OciError> {
        let mut buffer = vec![0; PIECE];
        loop {
            match self.file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => self.hasher.update(&buffer[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(OciError::io("read", &self.path)(e)),
            }
        }
        self.resumed = self.have() > 0;
        // More than the whole is nothing to build on.
        if self.have() > self.wanted.size { self.restart() } else { Ok(()) }
    }

    /// Bytes that are here.
    #[must_use]
    pub fn have(&self) -> u64 {
        self.hasher.bytes()
    }

    /// The blob that is wanted.
    #[must_use]
    pub fn wanted(&self) -> &Descriptor {
        &self.wanted
    }

    /// True when all bytes are here; whether they are the right ones, [`Partial::finish`] tells.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.have() == self.wanted.size
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// [`OciError::SizeMismatch`] when they are more than the blob has, or the system's.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), OciError> {
        let after = self.have() + bytes.len() as u64;
        if after > self.wanted.size {
            return Err(check_size(&self.what(), self.wanted.size, after).err().unwrap_or_else(|| self.odd()));
        }
        self.file.write_all(bytes).map_err(OciError::io("write", &self.path))?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Throws away what is here.
    ///
    /// # Errors
    /// The system's.
    pub fn restart(&mut self) -> Result<(), OciError> {
        self.file.set_len(0).map_err(OciError::io("empty", &self.path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(OciError::io("empty", &self.path))?;
        self.hasher = Hasher::new();
        self.resumed = false;
        Ok(())
    }

    /// Proves the blob and gives it its name. A blob that is wrong although an earlier process began it is thrown away,
    /// to be fetched anew from its first byte: what was here may have been damaged. False then.
    ///
    /// # Errors
    /// When it is not the wanted one, and then nothing of it stays.
    pub fn finish(&mut self) -> Result<bool, OciError> {
        check_size(&self.what(), self.wanted.size, self.have())?;
        let proved = check_digest(&self.what(), &self.wanted.digest, self.hasher.digest());
        match proved {
            Ok(()) => publish(&self.file, &self.path, &self.target).map(|()| true),
            Err(_) if self.resumed => self.restart().map(|()| false),
            Err(error) => {
                self.discard();
                Err(error)
            }
        }
    }

    /// Throws the file away.
    pub fn discard(&self) {
        let _gone = fs::remove_file(&self.path);
    }

    fn what(&self) -> String {
        format!("blob {}", self.wanted.digest)
    }

    fn odd(&self) -> OciError {
        OciError::document(self.what(), "too many bytes")
    }
}

/// Refuses when a folder's file system has not `needed` bytes and some to spare.
///
/// # Errors
/// [`OciError::Space`].
pub fn check_space(path: &Utf8Path, needed: u64) -> Result<(), OciError> {
    let stat = rustix::fs::statvfs(path.as_str()).map_err(OciError::errno("look at", path))?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if needed == 0 || free >= needed.saturating_add(SPARE) {
        return Ok(());
    }
    Err(OciError::Space { path: path.to_owned(), needed: needed.saturating_add(SPARE), free })
}

/// Bytes that must stay free beside what is fetched.
pub const SPARE: u64 = 64 << 20;

/// Bytes still to come for blobs: their sizes less what their partial files hold.
#[must_use]
pub fn still_needed<'a>(layout: &Layout, blobs: impl IntoIterator<Item = &'a Descriptor>) -> u64 {
    let have = |d: &Descriptor| {
        let path = layout.partial_dir().join(d.digest.hex());
        fs::metadata(path).map_or(0, |m| if m.len() > d.size { 0 } else { m.len() })
    };
    blobs.into_iter().map(|d| d.size - have(d)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::scratch as layout;

    fn open(layout: &Layout, wanted: &Descriptor) -> Partial {
        match Partial::open(layout, wanted).unwrap() {
            Opened::Partial(partial) => *partial,
            Opened::There => panic!("it is not there"),
        }
    }

    #[test]
    fn a_blob_grows_over_processes_and_appears_when_proved() {
        let (_dir, layout) = layout();
        let wanted = Descriptor::of("x", b"abcdef");
        let mut first = open(&layout, &wanted);
        first.append(b"abc").unwrap();
        drop(first);
        assert_eq!(still_needed(&layout, [&wanted]), 3);
        assert!(!layout.has(&wanted.digest));
        let mut second = open(&layout, &wanted);
        assert_eq!(second.have(), 3);
        second.append(b"def").unwrap();
        assert!(second.finish().unwrap());
        drop(second);
        layout.prove_blob(&wanted).unwrap();
        assert!(matches!(Partial::open(&layout, &wanted).unwrap(), Opened::There));
        assert_eq!(fs::read_dir(layout.partial_dir()).unwrap().count(), 0);
    }

    #[test]
    fn damage_of_an_earlier_process_begins_anew_and_own_damage_is_an_error() {
        let (_dir, layout) = layout();
        let wanted = Descriptor::of("x", b"abcdef");
        fs::write(layout.partial_dir().join(wanted.digest.hex()), b"abX").unwrap();
        let mut partial = open(&layout, &wanted);
        partial.append(b"def").unwrap();
        assert!(!partial.finish().unwrap());
        let mut again = partial;
        assert_eq!(again.have(), 0);
        again.append(b"abXdef").unwrap();
        assert!(matches!(again.finish(), Err(OciError::DigestMismatch { .. })));
        assert_eq!(fs::read_dir(layout.partial_dir()).unwrap().count(), 0);
        assert!(!layout.has(&wanted.digest));
    }

    #[test]
    fn too_many_bytes_are_refused_before_they_are_written() {
        let (_dir, layout) = layout();
        let wanted = Descriptor::of("x", b"abc");
        let mut partial = open(&layout, &wanted);
        assert!(matches!(partial.append(b"abcd"), Err(OciError::SizeMismatch { found: 4, .. })));
        assert_eq!(partial.have(), 0);
        drop(partial);
        fs::write(layout.partial_dir().join(wanted.digest.hex()), b"abcde").unwrap();
        assert_eq!(open(&layout, &wanted).have(), 0);
    }

    #[test]
    fn two_processes_fill_one_blob_once() {
        let (_dir, layout) = layout();
        let wanted = Descriptor::of("x", b"abc");
        let mut first = open(&layout, &wanted);
        let (other, second) = (layout.clone(), wanted.clone());
        let waiting = std::thread::spawn(move || matches!(Partial::open(&other, &second).unwrap(), Opened::There));
        first.append(b"abc").unwrap();
        assert!(first.finish().unwrap());
        drop(first);
        assert!(waiting.join().unwrap());
        assert_eq!(fs::read_dir(layout.partial_dir()).unwrap().count(), 0);
    }

    #[test]
    fn space_is_looked_at_first() {
        let (_dir, layout) = layout();
        check_space(layout.root(), 0).unwrap();
        check_space(layout.root(), 1).unwrap();
        assert!(matches!(check_space(layout.root(), u64::MAX / 2), Err(OciError::Space { .. })));
    }
}
