//! Writing one file of a staging: in order, hashed as it is written, and proved at intervals.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::{Mutex, PoisonError};

use camino::Utf8PathBuf;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use crate::buffer::{ALIGN, Buffer, EXTENT};
use crate::error::WeightsError;
use crate::hash::{Hasher, Midstate, Sha};
use crate::journal::{Claim, Journal};
use crate::read::drop_pages;

/// Bytes between two proofs of a file. Four files at once lose at most four times this to a crash.
pub const CHECKPOINT: u64 = 64 * 1024 * 1024;
/// Bytes after which buffered pages are written and given back.
const BEHIND: u64 = 32 * 1024 * 1024;

/// How bytes get to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Past the page cache.
    Direct,
    /// Through it, with pages given back; where the file system knows no direct writes.
    Buffered,
}

/// A file that is being received.
#[derive(Debug)]
pub struct Part {
    index: u32,
    path: Utf8PathBuf,
    size: u64,
    file: File,
    policy: Policy,
    hasher: Hasher,
    /// Bytes between two proofs.
    checkpoint: u64,
    /// Bytes that a durable claim covers.
    proved: u64,
    /// Bytes whose pages were given back.
    dropped: u64,
}

impl Part {
    /// Opens or creates the part of file `index` and goes on at `from`.
    ///
    /// # Errors
    /// When it cannot be opened, or its room cannot be reserved.
    pub fn open(
        index: u32,
        path: Utf8PathBuf,
        size: u64,
        from: &Midstate,
        checkpoint: u64,
    ) -> Result<Self, WeightsError> {
        let open = |flags: i32| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o644)
                .custom_flags(flags)
                .open(&path)
        };
        let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
        let direct = OFlags::DIRECT.bits().cast_signed();
        // Direct writes of less than an extent gain nothing.
        let (file, policy) = match (size >= EXTENT as u64).then(|| open(nofollow | direct)) {
            Some(Ok(file)) => (file, Policy::Direct),
            _ => (open(nofollow).map_err(WeightsError::file("open", &path))?, Policy::Buffered),
        };
        if size > 0 {
            match fallocate(&file, FallocateFlags::empty(), 0, size) {
                // The file system has no reservation: a full disk shows later.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(errno) => return Err(WeightsError::errno("reserve room for", &path)(errno)),
            }
        }
        Ok(Self {
            index,
            path,
            size,
            file,
            policy,
            hasher: Hasher::resume(from),
            checkpoint,
            proved: from.len,
            dropped: from.len,
        })
    }

    /// Bytes written and hashed.
    #[must_use]
    pub fn frontier(&self) -> u64 {
        self.hasher.len()
    }

    /// Number of the file in its set.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// How it is written.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Takes the bytes at the frontier, and with a journal proves what is due.
    ///
    /// # Errors
    /// When they cannot be written or proved.
    pub fn append(&mut self, buffer: &mut Buffer, journal: Option<&Mutex<Journal>>) -> Result<(), WeightsError> {
        let at = self.frontier();
        self.hasher.update(buffer.used());
        self.write(at, buffer)?;
        self.settle(journal)
    }

    /// Takes bytes that stand at the frontier already.
    ///
    /// # Errors
    /// When buffered pages cannot be written.
    pub fn accept(&mut self, buffer: &Buffer) -> Result<(), WeightsError> {
        self.hasher.update(buffer.used());
        self.settle(None)
    }

    /// Reads what stands at the frontier.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn peek(&mut self, buffer: &mut Buffer) -> Result<(), WeightsError> {
        let (at, mut have) = (self.frontier(), 0);
        while have < EXTENT {
            match self.file.read_at(&mut buffer.whole()[have..], at + have as u64) {
                Ok(0) => break,
                Ok(read) => have += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(WeightsError::file("read", &self.path)(error)),
            }
            if self.policy == Policy::Direct && !have.is_multiple_of(ALIGN) {
                break;
            }
        }
        let left = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX);
        buffer.set_len(have.min(left));
        Ok(())
    }

    fn write(&mut self, at: u64, buffer: &mut Buffer) -> Result<(), WeightsError> {
        if self.policy == Policy::Direct && at.is_multiple_of(ALIGN as u64) {
            match self.file.write_all_at(buffer.padded(), at) {
                Ok(()) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => self.leave_direct()?,
                Err(error) => return Err(WeightsError::file("write", &self.path)(error)),
            }
        } else if self.policy == Policy::Direct {
            self.leave_direct()?;
        }
        self.file.write_all_at(buffer.used(), at).map_err(WeightsError::file("write", &self.path))
    }

    fn leave_direct(&mut self) -> Result<(), WeightsError> {
        self.policy = Policy::Buffered;
        let flags = rustix::fs::fcntl_getfl(&self.file).unwrap_or(OFlags::empty()) - OFlags::DIRECT;
        rustix::fs::fcntl_setfl(&self.file, flags).map_err(WeightsError::errno("reopen", &self.path))
    }

    /// Proves at each [`CHECKPOINT`], and gives buffered pages back before they pile up.
    fn settle(&mut self, journal: Option<&Mutex<Journal>>) -> Result<(), WeightsError> {
        let at = self.frontier();
        if let Some(journal) = journal
            && at < self.size
            && at - self.proved >= self.checkpoint
        {
            self.prove(journal)?;
        }
        if self.policy == Policy::Buffered && at - self.dropped >= BEHIND {
            self.sync()?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), WeightsError> {
        self.file.sync_data().map_err(WeightsError::file("sync", &self.path))?;
        if self.policy == Policy::Buffered {
            drop_pages(&self.file, 0, self.frontier());
        }
        self.dropped = self.frontier();
        Ok(())
    }

    /// Makes what is written durable and says so in the journal. Within a block nothing is said.
    ///
    /// # Errors
    /// When either fails.
    pub fn prove(&mut self, journal: &Mutex<Journal>) -> Result<(), WeightsError> {
        let Some(state) = self.hasher.midstate() else { return Ok(()) };
        if state.len == self.proved {
            return Ok(());
        }
        self.sync()?;
        let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.append(&[(self.index, Claim::Part(state))])?;
        self.proved = state.len;
        Ok(())
    }

    /// Ends the writing: cuts the padding, makes all of it durable when it is large, and gives file and digest.
    ///
    /// # Errors
    /// When it cannot be cut or made durable.
    pub fn finish(mut self) -> Result<(File, Sha), WeightsError> {
        self.file.set_len(self.size).map_err(WeightsError::file("cut", &self.path))?;
        // Whatever the umask: the engine runs as another user.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        self.file.set_permissions(mode).map_err(WeightsError::file("protect", &self.path))?;
        if self.size >= EXTENT as u64 {
            self.sync()?;
        }
        Ok((self.file, self.hasher.finish()))
    }
}
