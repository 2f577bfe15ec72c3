//! A folder that receives a set of blobs, so that a crash at any moment leaves provable bytes or nothing.
//!
//! Layout: `parts/N` while file N is written, `data/<path>` once its sha256 was right, `journal` for what is durable,
//! `lock` while someone works here. Only the whole of `data` becomes visible, by one rename of the store.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::blobs::{Blob, BlobSet};
use crate::buffer::EXTENT;
use crate::error::WeightsError;
use crate::hash::{Midstate, Sha};
use crate::journal::{Claim, Journal, Stamp};
use crate::part::{CHECKPOINT, Part};
use crate::read::{self, Reader};

/// How long a staging that someone holds is tried.
const LOCK_WAIT: Duration = Duration::from_millis(500);
/// Finished files whose claims wait for one common sync.
const PENDING: usize = 256;

/// Where a file's reception starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// It is there and proved.
    Done,
    /// The first bytes are.
    Part(Midstate),
    /// All bytes are there and some are wrong.
    Suspect,
}

/// A staging folder, held by this process.
#[derive(Debug)]
pub struct Staging {
    dir: Utf8PathBuf,
    set: Arc<BlobSet>,
    journal: Mutex<Journal>,
    starts: Vec<Start>,
    done: Mutex<Finished>,
    checkpoint: u64,
    _lock: File,
}

#[derive(Debug, Default)]
struct Finished {
    /// Stamps of files that are in `data`.
    stamps: BTreeMap<u32, Stamp>,
    /// Those whose claims are not written yet, and whether their bytes are durable.
    pending: Vec<(u32, bool)>,
}

impl Staging {
    /// Opens or creates a staging for a set, and finds what of it is proved. `hashed` hears of bytes that must be read
    /// because the journal says nothing of a finished file.
    ///
    /// # Errors
    /// [`WeightsError::Busy`] when another process holds it; otherwise when it cannot be made or read.
    pub fn open(dir: &Utf8Path, set: &Arc<BlobSet>, hashed: &dyn Fn(u64) -> bool) -> Result<Self, WeightsError> {
        for sub in ["data", "parts"] {
            make_dirs(&dir.join(sub))?;
        }
        let lock = take_lock(&dir.join("lock"))?;
        let (journal, claims) = Journal::open(&dir.join("journal"), &set.id())?;
        crate::store::sync_dir(dir)?;
        let mut staging = Self {
            dir: dir.to_owned(),
            set: Arc::clone(set),
            journal: Mutex::new(journal),
            starts: Vec::new(),
            done: Mutex::default(),
            checkpoint: CHECKPOINT,
            _lock: lock,
        };
        staging.starts = staging
            .set
            .iter()
            .map(|(index, blob)| staging.start(index, blob, claims.get(&index), hashed))
            .collect::<Result<_, _>>()?;
        staging.settle(true)?;
        Ok(staging)
    }

    fn start(
        &self,
        index: u32,
        blob: &Blob,
        claim: Option<&Claim>,
        hashed: &dyn Fn(u64) -> bool,
    ) -> Result<Start, WeightsError> {
        let (data, part) = (self.data().join(&blob.path), self.part_path(index));
        let there = fs::symlink_metadata(&data).ok().filter(fs::Metadata::is_file).map(|m| read::stamp_of(&m));
        if let (Some(Claim::Done(claimed)), Some(there)) = (claim, there)
            && *claimed == there
            && there.size == blob.size
        {
            self.finished().stamps.insert(index, there);
            return Ok(Start::Done);
        }
        if there.is_some_and(|s| s.size == blob.size) {
            // It stands under its name only after its sha256 was right, but nothing durable says so.
            let mut reader = Reader::beneath(&self.data(), &blob.path)?;
            if reader.hash(hashed)? == blob.sha256 {
                let stamp = reader.stamp()?;
                self.enter(index, stamp, false);
                return Ok(Start::Done);
            }
        }
        if there.is_some() {
            fs::remove_file(&data).map_err(WeightsError::file("remove", &data))?;
        }
        let len = fs::symlink_metadata(&part).ok().filter(fs::Metadata::is_file).map(|m| m.len());
        Ok(match (claim, len) {
            (Some(Claim::Part(state)), Some(len)) if state.len <= len && state.len <= blob.size => Start::Part(*state),
            (Some(Claim::Suspect), Some(len)) if len == blob.size => Start::Suspect,
            _ => Start::Part(Midstate::start()),
        })
    }

    /// Proves more often; for tests, whose files are small.
    #[must_use]
    pub fn with_checkpoint(mut self, bytes: u64) -> Self {
        self.checkpoint = bytes;
        self
    }

    /// The set.
    #[must_use]
    pub fn set(&self) -> &Arc<BlobSet> {
        &self.set
    }

    /// The staging's folder.
    #[must_use]
    pub fn dir(&self) -> &Utf8Path {
        &self.dir
    }

    /// The folder of finished files.
    #[must_use]
    pub fn data(&self) -> Utf8PathBuf {
        self.dir.join("data")
    }

    /// Where each file starts, in the set's order, as found at opening.
    #[must_use]
    pub fn starts(&self) -> &[Start] {
        &self.starts
    }

    /// The journal, for the writers of parts.
    #[must_use]
    pub fn journal(&self) -> &Mutex<Journal> {
        &self.journal
    }

    /// Where file `index` lies while it is written.
    #[must_use]
    pub fn part_path(&self, index: u32) -> Utf8PathBuf {
        self.dir.join("parts").join(index.to_string())
    }

    /// Opens the part of a file at a state.
    ///
    /// # Errors
    /// As [`Part::open`].
    pub fn part(&self, index: u32, blob: &Blob, from: &Midstate) -> Result<Part, WeightsError> {
        Part::open(index, self.part_path(index), blob.size, from, self.checkpoint)
    }

    /// Ends a part: `Ok(None)` when its sha256 is right and it stands under its path now, else the wrong digest; the
    /// part is kept as suspect then.
    ///
    /// # Errors
    /// When files cannot be moved or made durable.
    pub fn complete(&self, index: u32, blob: &Blob, part: Part) -> Result<Option<Sha>, WeightsError> {
        let (file, got) = part.finish()?;
        if got != blob.sha256 {
            self.note(index, Claim::Suspect)?;
            return Ok(Some(got));
        }
        self.place(index, blob, &file, blob.size >= EXTENT as u64)?;
        Ok(None)
    }

    /// Puts a proved file that lies at its part's place under its path.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub fn place(&self, index: u32, blob: &Blob, file: &File, durable: bool) -> Result<(), WeightsError> {
        let (from, to) = (self.part_path(index), self.data().join(&blob.path));
        if let Some(parent) = to.parent() {
            make_dirs(parent)?;
        }
        let stamp = read::stamp(file, &from)?;
        fs::rename(&from, &to).map_err(WeightsError::file("rename", &from))?;
        self.enter(index, stamp, durable);
        // A large file's claim is worth its own sync; small ones share one.
        self.settle(durable)
    }

    /// Writes one claim.
    ///
    /// # Errors
    /// When it cannot be made durable.
    pub fn note(&self, index: u32, claim: Claim) -> Result<(), WeightsError> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).append(&[(index, claim)])
    }

    fn enter(&self, index: u32, stamp: Stamp, durable: bool) {
        let mut done = self.finished();
        done.stamps.insert(index, stamp);
        done.pending.push((index, durable));
    }

    /// Notes a file that stands in `data` with proved, durable bytes; nothing is written down.
    pub(crate) fn finished_before(&mut self, index: u32, stamp: Stamp) {
        self.finished().stamps.insert(index, stamp);
        if let Some(start) = self.starts.get_mut(index as usize) {
            *start = Start::Done;
        }
    }

    fn finished(&self) -> std::sync::MutexGuard<'_, Finished> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes finished files durable and says so in the journal.
    fn settle(&self, now: bool) -> Result<(), WeightsError> {
        let mut done = self.finished();
        if done.pending.is_empty() || (!now && done.pending.len() < PENDING) {
            return Ok(());
        }
        if done.pending.iter().any(|(_, durable)| !durable) {
            let root = File::open(&self.dir).map_err(WeightsError::file("open", &self.dir))?;
            rustix::fs::syncfs(&root).map_err(WeightsError::errno("sync", &self.dir))?;
        }
        let claims: Vec<(u32, Claim)> =
            done.pending.iter().filter_map(|(n, _)| Some((*n, Claim::Done(*done.stamps.get(n)?)))).collect();
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).append(&claims)?;
        done.pending.clear();
        Ok(())
    }

    /// Stamps of all files, once all are there and durable; else the path of one that is missing.
    ///
    /// # Errors
    /// When they cannot be made durable.
    pub fn stamps(&self) -> Result<Result<Vec<Stamp>, String>, WeightsError> {
        self.settle(true)?;
        let done = self.finished();
        Ok(self.set.iter().map(|(n, blob)| done.stamps.get(&n).copied().ok_or_else(|| blob.path.clone())).collect())
    }

    /// Numbers of files that are not there yet.
    #[must_use]
    pub fn missing(&self) -> Vec<u32> {
        let done = self.finished();
        self.set.iter().map(|(n, _)| n).filter(|n| !done.stamps.contains_key(n)).collect()
    }
}

pub(crate) fn take_lock(path: &Utf8Path) -> Result<File, WeightsError> {
    let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits().cast_signed();
    let lock = std::os::unix::fs::OpenOptionsExt::custom_flags(
        File::options().read(true).write(true).create(true).truncate(false),
        flags,
    )
    .open(path)
    .map_err(WeightsError::file("open", path))?;
    let until = Instant::now() + LOCK_WAIT;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            // A process that was just forked holds our files until it runs its program.
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let dir = path.parent().unwrap_or(path);
                return Err(WeightsError::Busy(format!("another process receives into {dir}; wait for it, or end it")));
            }
            Err(errno) => return Err(WeightsError::errno("lock", path)(errno)),
        }
    }
}

/// Makes a folder and its parents readable by all, whatever the umask; those that exist are left as they are.
pub(crate) fn make_dirs(dir: &Utf8Path) -> Result<(), WeightsError> {
    if dir.as_str().is_empty() || dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent() {
        make_dirs(parent)?;
    }
    match fs::create_dir(dir) {
        Ok(()) => fs::set_permissions(dir, Permissions::from_mode(0o755)).map_err(WeightsError::file("protect", dir)),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) => Err(WeightsError::file("create", dir)(error)),
    }
}
