//! The weights of a node: `<root>/<model>@<rev>-<hash>/`, complete or absent.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use sparklane_lane::WeightsManifest;

use crate::blobs::BlobSet;
use crate::error::WeightsError;
use crate::hash::Sha;
use crate::journal::{Claim, Stamp};
use crate::proof::{How, Proof};
use crate::read::Reader;
use crate::staging::{Staging, make_dirs};

/// Where weights lie on a node.
pub const ROOT: &str = "/var/lib/sparklane/weights";

/// A node's store of weights.
#[derive(Debug, Clone)]
pub struct Store {
    root: Utf8PathBuf,
}

/// How much of a manifest is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// All of it, and the record of its proof is true.
    Proved(How),
    /// A folder of its name is there, and this keeps it from being proved.
    Unproved(Vec<String>),
    /// A part of it is staged.
    Partial,
    /// Nothing of it.
    Absent,
}

impl Presence {
    /// Its word in answers.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Proved(_) => "proved",
            Self::Unproved(_) => "unproved",
            Self::Partial => "partial",
            Self::Absent => "absent",
        }
    }
}

/// A manifest's folder in a store.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Name of the folder.
    pub name: String,
    /// The manifest, when its copy can be read.
    pub manifest: Option<WeightsManifest>,
    /// True when the folder is published.
    pub published: bool,
    /// Bytes that it takes on the disk. Bytes that other names share are counted once.
    pub disk_bytes: u64,
}

/// A file whose bytes are wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// Number in the set.
    pub index: u32,
    /// What is wrong, with the path.
    pub why: String,
}

impl Store {
    /// The store below a folder.
    #[must_use]
    pub fn at(root: &Utf8Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Its folder.
    #[must_use]
    pub fn root(&self) -> &Utf8Path {
        &self.root
    }

    /// The published folder of a manifest.
    #[must_use]
    pub fn folder(&self, manifest: &WeightsManifest) -> Utf8PathBuf {
        self.root.join(manifest.store_name())
    }

    pub(crate) fn partial(&self, name: &str) -> Utf8PathBuf {
        self.root.join(".partial").join(name)
    }

    /// Where the manifest is kept that a published folder was made of.
    #[must_use]
    pub fn manifest_file(&self, manifest: &WeightsManifest) -> Utf8PathBuf {
        self.record(&manifest.store_name(), "manifest")
    }

    fn record(&self, name: &str, kind: &str) -> Utf8PathBuf {
        self.root.join(".records").join(format!("{name}.{kind}.json"))
    }

    /// How much of a manifest is there, by names, sizes and stamps only.
    ///
    /// # Errors
    /// When the manifest itself may not be used.
    pub fn presence(&self, manifest: &WeightsManifest) -> Result<Presence, WeightsError> {
        let (set, folder, name) = (BlobSet::of_manifest(manifest)?, self.folder(manifest), manifest.store_name());
        if !folder.is_dir() {
            let staged = self.partial(&name).is_dir();
            return Ok(if staged { Presence::Partial } else { Presence::Absent });
        }
        let Some(proof) = fs::read(self.record(&name, "proof")).ok().and_then(|b| Proof::parse(&b)) else {
            return Ok(Presence::Unproved(vec![format!("{folder}: there is no record of a proof")]));
        };
        let mut found = proof.differences(&set, &folder);
        found.extend(strangers(&set, &folder)?);
        Ok(if found.is_empty() { Presence::Proved(proof.how) } else { Presence::Unproved(found) })
    }

    /// Opens the staging of a manifest.
    ///
    /// # Errors
    /// As [`Staging::open`].
    pub fn staging(&self, manifest: &WeightsManifest, hashed: &dyn Fn(u64) -> bool) -> Result<Staging, WeightsError> {
        let set = Arc::new(BlobSet::of_manifest(manifest)?);
        make_dirs(&self.root)?;
        let dir = self.partial(&manifest.store_name());
        Staging::open(&dir, &set, hashed)
    }

    /// Makes a complete staging visible, with its proof. Nothing is visible before; all is after.
    ///
    /// # Errors
    /// When a file is missing, or something cannot be made durable.
    pub fn publish(&self, manifest: &WeightsManifest, staging: Staging, how: How) -> Result<Utf8PathBuf, WeightsError> {
        let stamps = staging.stamps()?.map_err(|path| WeightsError::Failed(format!("{path} is not there yet")))?;
        let (name, data, folder) = (manifest.store_name(), staging.data(), self.folder(manifest));
        sync_tree(&data)?;
        self.keep(manifest, &Proof::new(staging.set(), how, &stamps))?;
        renameat_with(CWD, data.as_str(), CWD, folder.as_str(), RenameFlags::NOREPLACE)
            .map_err(WeightsError::errno("publish as", &folder))?;
        sync_dir(&self.root)?;
        // The lock goes with the folder; nobody else is in it.
        let rest = self.partial(&name);
        fs::remove_dir_all(&rest).map_err(WeightsError::file("remove", &rest))?;
        Ok(folder)
    }

    /// Writes manifest and proof. They speak of a folder that may not be there yet, which makes them say nothing.
    fn keep(&self, manifest: &WeightsManifest, proof: &Proof) -> Result<(), WeightsError> {
        let name = manifest.store_name();
        write_atomic(&self.record(&name, "manifest"), manifest.to_text().as_bytes())?;
        write_atomic(&self.record(&name, "proof"), &proof.bytes()?)
    }

    /// Reads every byte of a published folder. All right: the proof is renewed. Otherwise it is taken away, and the bad
    /// files are named. `hashed` hears of bytes and may end the reading.
    ///
    /// # Errors
    /// When the folder is not there or the reading was ended.
    pub fn verify(
        &self,
        manifest: &WeightsManifest,
        threads: usize,
        hashed: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<Vec<Bad>, WeightsError> {
        let (set, folder, name) = (BlobSet::of_manifest(manifest)?, self.folder(manifest), manifest.store_name());
        if !folder.is_dir() {
            return Err(WeightsError::Refused(format!("{folder} is not there")));
        }
        let found = hash_all(&set, &folder, threads, hashed)?;
        let bad: Vec<Bad> = found.iter().filter_map(|f| f.as_ref().err().cloned()).collect();
        if bad.is_empty() {
            let stamps: Vec<Stamp> = found.into_iter().filter_map(Result::ok).collect();
            self.keep(manifest, &Proof::new(&set, How::Deep, &stamps))?;
        } else {
            remove_file(&self.record(&name, "proof"))?;
        }
        Ok(bad)
    }

    /// Takes a published folder with bad files back into staging, so that only wrong ranges need to be fetched again.
    /// A bad file with other names elsewhere is copied first: those names are not ours to write to.
    ///
    /// # Errors
    /// When it is in use by another process, or files cannot be moved.
    pub fn take_back(&self, manifest: &WeightsManifest, bad: &[Bad]) -> Result<(), WeightsError> {
        let (name, folder) = (manifest.store_name(), self.folder(manifest));
        if let Some(stranger) = strangers(&BlobSet::of_manifest(manifest)?, &folder)?.into_iter().next() {
            return Err(WeightsError::Refused(stranger));
        }
        let staging = self.staging(manifest, &|_| true)?;
        remove_file(&self.record(&name, "proof"))?;
        let data = staging.data();
        fs::remove_dir_all(&data).map_err(WeightsError::file("clear", &data))?;
        fs::rename(&folder, &data).map_err(WeightsError::file("take back", &folder))?;
        sync_dir(&self.root)?;
        for (index, blob) in staging.set().iter() {
            let (from, to) = (data.join(&blob.path), staging.part_path(index));
            let Ok(meta) = fs::symlink_metadata(&from) else { continue };
            if !bad.iter().any(|b| b.index == index) {
                staging.note(index, Claim::Done(crate::read::stamp_of(&meta)))?;
            } else if !meta.is_file() {
                fs::remove_file(&from).map_err(WeightsError::file("remove", &from))?;
            } else {
                if meta.nlink() > 1 {
                    fs::copy(&from, &to).map_err(WeightsError::file("copy", &from))?;
                    fs::remove_file(&from).map_err(WeightsError::file("remove", &from))?;
                } else {
                    fs::rename(&from, &to).map_err(WeightsError::file("rename", &from))?;
                }
                staging.note(index, Claim::Suspect)?;
            }
        }
        Ok(())
    }

    /// Everything in the store, by name.
    ///
    /// # Errors
    /// When the store cannot be listed.
    pub fn entries(&self) -> Result<Vec<Entry>, WeightsError> {
        let mut entries = Vec::new();
        for (dir, published) in [(self.root.clone(), true), (self.root.join(".partial"), false)] {
            let listed = match dir.read_dir_utf8() {
                Ok(listed) => listed,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(WeightsError::file("list", dir)(error)),
            };
            for entry in listed.flatten() {
                let name = entry.file_name().to_owned();
                if name.starts_with('.') || !name.contains('@') || !entry.path().is_dir() {
                    continue;
                }
                let text = fs::read_to_string(self.record(&name, "manifest")).ok();
                let manifest = text.and_then(|t| WeightsManifest::parse(&t).ok()).filter(|m| m.store_name() == name);
                let mut seen = std::collections::BTreeSet::new();
                let disk_bytes = disk_bytes(entry.path(), &mut seen);
                entries.push(Entry { name, manifest, published, disk_bytes });
            }
        }
        entries.sort_by(|a, b| (&a.name, a.published).cmp(&(&b.name, b.published)));
        Ok(entries)
    }

    /// Entries that no id in `keep` names: what a garbage collection may remove. A folder whose manifest is not on
    /// record is kept: nobody can say what it is.
    ///
    /// # Errors
    /// As [`Store::entries`].
    pub fn garbage(&self, keep: &[String]) -> Result<Vec<Entry>, WeightsError> {
        let short = |id: &String| id.chars().take(12).collect::<String>();
        let kept: Vec<String> = keep.iter().map(short).collect();
        let wanted = |e: &Entry| kept.iter().any(|id| e.name.ends_with(&format!("-{id}")));
        Ok(self.entries()?.into_iter().filter(|e| !wanted(e) && (e.manifest.is_some() || !e.published)).collect())
    }

    /// Removes an entry: the proof first, then the name, then the bytes.
    ///
    /// # Errors
    /// [`WeightsError::Busy`] when a transfer works on it; otherwise when it cannot be removed.
    pub fn remove(&self, entry: &Entry) -> Result<(), WeightsError> {
        let partial = self.partial(&entry.name);
        let doomed = if entry.published {
            remove_file(&self.record(&entry.name, "proof"))?;
            let doomed = self.root.join(format!(".removed-{}", entry.name));
            let folder = self.root.join(&entry.name);
            fs::rename(&folder, &doomed).map_err(WeightsError::file("remove", &folder))?;
            sync_dir(&self.root)?;
            doomed
        } else {
            let _held = crate::staging::take_lock(&partial.join("lock"))?;
            partial
        };
        fs::remove_dir_all(&doomed).map_err(WeightsError::file("remove", &doomed))
    }
}

/// One row per file: its stamp, or what is wrong with it.
fn hash_all(
    set: &BlobSet,
    folder: &Utf8Path,
    threads: usize,
    hashed: &(dyn Fn(u64) -> bool + Sync),
) -> Result<Vec<Result<Stamp, Bad>>, WeightsError> {
    // Largest first: the last thread to end decides how long all take.
    let mut order: Vec<u32> = set.iter().map(|(n, _)| n).collect();
    order.sort_by_key(|n| std::cmp::Reverse(set.get(*n).map_or(0, |b| b.size)));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut rows = Vec::new();
        while let Some(index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some(blob) = set.get(*index) {
                rows.push((*index, hash_one(blob, *index, folder, hashed)?));
            }
        }
        Ok::<_, WeightsError>(rows)
    };
    let mut rows = Vec::new();
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        for handle in handles {
            rows.extend(handle.join().unwrap_or_else(|_| Err(WeightsError::Failed("a hashing thread died".into())))?);
        }
        Ok::<_, WeightsError>(())
    })?;
    rows.sort_by_key(|(index, _)| *index);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

fn hash_one(
    blob: &crate::Blob,
    index: u32,
    folder: &Utf8Path,
    hashed: &(dyn Fn(u64) -> bool + Sync),
) -> Result<Result<Stamp, Bad>, WeightsError> {
    let path = folder.join(&blob.path);
    let bad = |why: String| Ok(Err(Bad { index, why }));
    let mut reader = match Reader::beneath(folder, &blob.path) {
        Ok(reader) => reader,
        Err(error) => return bad(error.to_string()),
    };
    let before = match reader.stamp() {
        Ok(stamp) if stamp.size == blob.size => stamp,
        Ok(stamp) => return bad(format!("{path}: has {} bytes, not {}", stamp.size, blob.size)),
        Err(error) => return bad(error.to_string()),
    };
    match reader.hash(hashed) {
        Ok(got) if got != blob.sha256 => bad(format!("{path}: sha256 is {got}, the manifest says {}", blob.sha256)),
        Ok(_) if reader.stamp()? != before => bad(format!("{path}: was written to while it was read")),
        Ok(_) => Ok(Ok(before)),
        Err(error @ WeightsError::Failed(_)) => Err(error),
        Err(error) => bad(error.to_string()),
    }
}

fn disk_bytes(dir: &Utf8Path, seen: &mut std::collections::BTreeSet<(u64, u64)>) -> u64 {
    let Ok(entries) = dir.read_dir_utf8() else { return 0 };
    let mut sum = 0;
    for entry in entries.flatten() {
        let Ok(meta) = fs::symlink_metadata(entry.path()) else { continue };
        if meta.is_dir() {
            sum += disk_bytes(entry.path(), seen);
        } else if seen.insert((meta.dev(), meta.ino())) {
            sum += meta.blocks() * 512;
        }
    }
    sum
}

/// fsyncs a folder, so that a rename in it is durable.
pub(crate) fn sync_dir(dir: &Utf8Path) -> Result<(), WeightsError> {
    Ok(sparklane_durable::sync_dir(dir)?)
}

fn sync_tree(dir: &Utf8Path) -> Result<(), WeightsError> {
    for entry in dir.read_dir_utf8().map_err(WeightsError::file("list", dir))?.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            sync_tree(entry.path())?;
        }
    }
    sync_dir(dir)
}

/// Writes a small file so that a crash leaves the old or the new one.
pub(crate) fn write_atomic(path: &Utf8Path, bytes: &[u8]) -> Result<(), WeightsError> {
    make_dirs(path.parent().unwrap_or(Utf8Path::new("/")))?;
    Ok(sparklane_durable::write(path, bytes, 0o644)?)
}

fn remove_file(path: &Utf8Path) -> Result<(), WeightsError> {
    Ok(sparklane_durable::remove(path)?)
}

/// Name of a set in messages: its id's first digits.
#[must_use]
pub fn short(id: &Sha) -> String {
    id.to_string().chars().take(12).collect()
}
/// What lies in a published folder and is not of its manifest: an engine would read a configuration or code there.
fn strangers(set: &BlobSet, folder: &Utf8Path) -> Result<Vec<String>, WeightsError> {
    let wanted: BTreeSet<&str> = set.blobs().iter().map(|blob| blob.path.as_str()).collect();
    let holds = |dir: &str| {
        wanted.range(format!("{dir}/").as_str()..).next().is_some_and(|p| p.starts_with(&format!("{dir}/")))
    };
    let (mut found, mut todo) = (Vec::new(), vec![String::new()]);
    while let Some(dir) = todo.pop() {
        let at = folder.join(&dir);
        for entry in at.read_dir_utf8().map_err(WeightsError::file("list", &at))? {
            let entry = entry.map_err(WeightsError::file("list", &at))?;
            let path =
                if dir.is_empty() { entry.file_name().to_owned() } else { format!("{dir}/{}", entry.file_name()) };
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            match (is_dir, wanted.contains(path.as_str())) {
                (false, true) => {}
                (true, _) if holds(&path) => todo.push(path),
                _ => found.push(format!("{}: is not of the manifest; move it away", entry.path())),
            }
        }
    }
    found.sort();
    Ok(found)
}
