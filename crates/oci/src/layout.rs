//! An OCI image layout folder: `oci-layout`, `index.json`, `blobs/sha256/…`.
//!
//! A blob appears under its name only when it is whole, on disk and proved (temporary name, fsync, rename), and the index
//! names a manifest only after all its blobs are there (R39). Further blob stores can be read through, so that an image on
//! a big base holds its own layers only.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Map, Value, json};

use crate::digest::{self, Digest, HashingWriter};
use crate::error::OciError;
use crate::manifest::{Config, DOCUMENT_MAX, Descriptor, Document, Index, Manifest, check_digest, check_size};
use crate::media;

/// Content of `oci-layout`, always these bytes.
pub const OCI_LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;
/// The annotation that names a manifest in an index.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// Folder for what is not yet a blob, within the layout so that a rename suffices.
const PARTIAL: &str = "partial";

/// A layout folder.
#[derive(Debug, Clone)]
pub struct Layout {
    root: Utf8PathBuf,
    shared: Vec<Utf8PathBuf>,
}

impl Layout {
    /// Opens a layout.
    ///
    /// # Errors
    /// When the folder is no layout, or of a version that is not 1.0.0.
    pub fn open(root: impl Into<Utf8PathBuf>) -> Result<Self, OciError> {
        let root = root.into();
        let path = root.join("oci-layout");
        let bytes = fs::read(&path).map_err(OciError::io("read", &path))?;
        let version = serde_json::from_slice::<Value>(&bytes).ok();
        let version = version.as_ref().and_then(|v| v.get("imageLayoutVersion")).and_then(Value::as_str);
        if version != Some("1.0.0") {
            return Err(OciError::document(path, "it is no image layout of version 1.0.0"));
        }
        Ok(Self { root, shared: Vec::new() })
    }

    /// Opens a layout, or makes an empty one where there is nothing.
    ///
    /// # Errors
    /// As [`Layout::open`], or when the folder cannot be made.
    pub fn open_or_create(root: impl Into<Utf8PathBuf>) -> Result<Self, OciError> {
        let root = root.into();
        let layout = Self { root, shared: Vec::new() };
        for dir in [layout.blob_dir(), layout.partial_dir()] {
            fs::create_dir_all(&dir).map_err(OciError::io("make", &dir))?;
        }
        if !layout.index_path().exists() {
            let empty = json!({ "schemaVersion": 2, "mediaType": media::OCI_INDEX, "manifests": [] });
            write_atomic(&layout.index_path(), empty.to_string().as_bytes())?;
        }
        let marker = layout.root.join("oci-layout");
        if !marker.exists() {
            write_atomic(&marker, OCI_LAYOUT.as_bytes())?;
        }
        Self::open(layout.root)
    }

    /// A layout in the making: it takes blobs, but nobody can open it until `oci-layout` and `index.json` are written.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn stage(root: impl Into<Utf8PathBuf>) -> Result<Self, OciError> {
        let layout = Self { root: root.into(), shared: Vec::new() };
        let dir = layout.blob_dir();
        fs::create_dir_all(&dir).map_err(OciError::io("make", &dir))?;
        Ok(layout)
    }

    /// Makes a staged layout one that can be opened, with one manifest whose layers may be elsewhere. The index comes last (R39).
    ///
    /// # Errors
    /// The system's.
    pub fn finish_stage(&self, entry: &Map<String, Value>) -> Result<(), OciError> {
        match fs::remove_dir(self.partial_dir()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(OciError::io("remove", self.partial_dir())(e)),
            _ => {}
        }
        write_atomic(&self.root.join("oci-layout"), OCI_LAYOUT.as_bytes())?;
        let index = json!({ "schemaVersion": 2, "mediaType": media::OCI_INDEX, "manifests": [entry] });
        write_atomic(&self.index_path(), index.to_string().as_bytes())
    }

    /// Reads blobs that are not here from another layout too, e.g. the one that holds the base.
    #[must_use]
    pub fn with_shared(mut self, root: impl Into<Utf8PathBuf>) -> Self {
        self.shared.push(root.into().join("blobs/sha256"));
        self
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Utf8Path {
        &self.root
    }

    /// Where unfinished downloads lie, on the same file system as the blobs.
    #[must_use]
    pub fn partial_dir(&self) -> Utf8PathBuf {
        self.root.join(PARTIAL)
    }

    /// Where sets of blobs are received from other nodes, each in a folder of its own; on the same file system too.
    #[must_use]
    pub fn receiving_dir(&self) -> Utf8PathBuf {
        self.root.join(".receiving")
    }

    /// Where the layout's own blobs lie.
    #[must_use]
    pub fn blob_dir(&self) -> Utf8PathBuf {
        self.root.join("blobs/sha256")
    }

    fn index_path(&self) -> Utf8PathBuf {
        self.root.join("index.json")
    }

    /// Where a blob of this layout is, or would be.
    #[must_use]
    pub fn own_path(&self, digest: &Digest) -> Utf8PathBuf {
        self.blob_dir().join(digest.hex())
    }

    /// Where a blob is: here, or in one of the shared stores.
    #[must_use]
    pub fn blob_path(&self, digest: &Digest) -> Option<Utf8PathBuf> {
        let shared = self.shared.iter().map(|dir| dir.join(digest.hex()));
        // A link may lead out of the layout, and this is served to others.
        let is_file = |path: &Utf8PathBuf| path.symlink_metadata().is_ok_and(|m| m.is_file());
        std::iter::once(self.own_path(digest)).chain(shared).find(is_file)
    }

    /// True when the blob is here or shared.
    #[must_use]
    pub fn has(&self, digest: &Digest) -> bool {
        self.blob_path(digest).is_some()
    }

    /// Opens a blob, with its length.
    ///
    /// # Errors
    /// [`OciError::BlobMissing`], or the system's.
    pub fn open_blob(&self, digest: &Digest) -> Result<(File, u64), OciError> {
        let missing = || OciError::BlobMissing { layout: self.root.clone(), digest: digest.clone() };
        let path = self.blob_path(digest).ok_or_else(missing)?;
        let file = File::open(&path).map_err(OciError::io("open", &path))?;
        let size = file.metadata().map_err(OciError::io("look at", &path))?.len();
        Ok((file, size))
    }

    /// Reads a small blob and proves it.
    ///
    /// # Errors
    /// When it is missing, longer than a document may be, or not what its name says.
    pub fn read_document(&self, digest: &Digest) -> Result<Vec<u8>, OciError> {
        let (file, size) = self.open_blob(digest)?;
        let what = format!("{}: blob {digest}", self.root);
        if size > DOCUMENT_MAX {
            return Err(OciError::document(what, format!("{size} bytes are too many for a document")));
        }
        let mut bytes = Vec::new();
        file.take(DOCUMENT_MAX + 1).read_to_end(&mut bytes).map_err(OciError::io("read", &self.root))?;
        check_digest(&what, digest, digest::of(&bytes))?;
        Ok(bytes)
    }

    /// Reads and proves a manifest.
    ///
    /// # Errors
    /// As [`Layout::read_document`] and [`Manifest::parse`].
    pub fn manifest(&self, digest: &Digest) -> Result<Manifest, OciError> {
        Manifest::parse(None, self.read_document(digest)?)
    }

    /// Reads and proves the config of a manifest.
    ///
    /// # Errors
    /// As [`Layout::read_document`] and [`Config::parse`].
    pub fn config(&self, manifest: &Manifest) -> Result<Config, OciError> {
        let config = Config::parse(self.read_document(&manifest.config.digest)?)?;
        config.check_against(manifest)?;
        Ok(config)
    }

    /// Reads every byte of a blob and compares size and digest.
    ///
    /// # Errors
    /// When it is missing or not what the descriptor says.
    pub fn prove_blob(&self, descriptor: &Descriptor) -> Result<(), OciError> {
        let (file, size) = self.open_blob(&descriptor.digest)?;
        let what = format!("{}: blob {}", self.root, descriptor.digest);
        check_size(&what, descriptor.size, size)?;
        let (found, _) = digest::of_reader(file).map_err(OciError::io("read", &self.root))?;
        check_digest(&what, &descriptor.digest, found)
    }

    /// The blobs of a manifest that are not here with the right size.
    #[must_use]
    pub fn missing<'a>(&self, manifest: &'a Manifest) -> Vec<&'a Descriptor> {
        let here = |d: &Descriptor| self.open_blob(&d.digest).is_ok_and(|(_, size)| size == d.size);
        manifest.blobs().into_iter().filter(|d| !here(d)).collect()
    }

    /// Writes a small blob; one that is there already is left alone.
    ///
    /// # Errors
    /// The system's.
    pub fn write_blob(&self, bytes: &[u8]) -> Result<Digest, OciError> {
        let mut writer = self.blob_writer()?;
        writer.write_all(bytes).map_err(OciError::io("write", self.blob_dir()))?;
        Ok(writer.finish()?.0)
    }

    /// A blob to be written piece by piece; it appears when finished.
    ///
    /// # Errors
    /// The system's.
    pub fn blob_writer(&self) -> Result<BlobWriter, OciError> {
        let dir = self.partial_dir();
        fs::create_dir_all(&dir).map_err(OciError::io("make", &dir))?;
        let (file, path) = temporary(&dir.join("blob"))?;
        // Tells a cleaner that someone writes it.
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockShared).map_err(OciError::errno("lock", &path))?;
        Ok(BlobWriter { out: Some(HashingWriter::new(file)), path, dir: self.blob_dir() })
    }

    /// The layout's index.
    ///
    /// # Errors
    /// When there is none, or it is no index.
    pub fn index(&self) -> Result<Index, OciError> {
        let path = self.index_path();
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(OciError::io("open", &path))?;
        file.take(DOCUMENT_MAX).read_to_end(&mut bytes).map_err(OciError::io("read", &path))?;
        // `mediaType` is optional here, and the file's name says what it is.
        match Document::parse(Some(media::OCI_INDEX), bytes)? {
            Document::Index(index) => Ok(index),
            Document::Manifest(_) => Err(OciError::document(path, "it is no index")),
        }
    }

    /// The manifests that the index names, each with its reference name if it has one.
    ///
    /// # Errors
    /// As [`Layout::index`].
    pub fn list(&self) -> Result<Vec<(Option<String>, Descriptor)>, OciError> {
        let index = self.index()?;
        Ok(index.manifests.into_iter().map(|d| (d.annotations.get(REF_NAME).cloned(), d)).collect())
    }

    /// Puts entries into the index in place of those with the same digest or the same reference name, and keeps it sorted
    /// by digest. The blobs must be here.
    ///
    /// # Errors
    /// [`OciError::BlobMissing`], or when the index cannot be read or written.
    pub fn put_entry(&self, entry: &Map<String, Value>) -> Result<(), OciError> {
        let new = Descriptor::read("entry", &Value::Object(entry.clone()))
            .map_err(|why| OciError::document(self.index_path(), why))?;
        let manifest = self.manifest(&new.digest)?;
        if let Some(missing) = self.missing(&manifest).first() {
            return Err(OciError::BlobMissing { layout: self.root.clone(), digest: missing.digest.clone() });
        }
        let name = new.annotations.get(REF_NAME);
        self.edit(
            |old| old.digest != new.digest && (name.is_none() || old.annotations.get(REF_NAME) != name),
            Some(entry),
        )
    }

    /// Takes a manifest out of the index; its blobs stay.
    ///
    /// # Errors
    /// When the index cannot be read or written.
    pub fn remove_entry(&self, digest: &Digest) -> Result<(), OciError> {
        self.edit(|old| old.digest != *digest, None)
    }

    fn edit(&self, keep: impl Fn(&Descriptor) -> bool, add: Option<&Map<String, Value>>) -> Result<(), OciError> {
        let _lock = self.lock()?;
        let index = self.index()?;
        let mut tree = index.tree().clone();
        let old = tree.get("manifests").and_then(Value::as_array).cloned().unwrap_or_default();
        let kept = old.into_iter().zip(&index.manifests).filter(|(_, d)| keep(d)).map(|(value, _)| value);
        let mut all: Vec<Value> = kept.chain(add.map(|a| Value::Object(a.clone()))).collect();
        all.sort_by_cached_key(|v| v.get("digest").and_then(Value::as_str).unwrap_or_default().to_owned());
        tree.insert("manifests".into(), Value::Array(all));
        let bytes = serde_json::to_vec(&tree).map_err(|e| OciError::document(self.index_path(), e.to_string()))?;
        write_atomic(&self.index_path(), &bytes)
    }

    /// Excludes other writers of the index until it is dropped.
    ///
    /// # Errors
    /// The system's.
    fn lock(&self) -> Result<File, OciError> {
        let path = self.root.join(".lock");
        let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(OciError::io("open", &path))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).map_err(OciError::errno("lock", &path))?;
        Ok(file)
    }

    /// The layout's own blobs with their sizes, sorted. Files that are named like no blob are left out.
    ///
    /// # Errors
    /// The system's.
    pub fn blobs(&self) -> Result<Vec<(Digest, u64)>, OciError> {
        let dir = self.blob_dir();
        let mut found = Vec::new();
        for entry in dir.read_dir_utf8().map_err(OciError::io("list", &dir))? {
            let entry = entry.map_err(OciError::io("list", &dir))?;
            let Ok(digest) = format!("sha256:{}", entry.file_name()).parse::<Digest>() else { continue };
            let size = entry.metadata().map_err(OciError::io("look at", entry.path()))?.len();
            found.push((digest, size));
        }
        found.sort();
        Ok(found)
    }
}

/// A blob in the making. Dropped unfinished, it leaves nothing.
#[derive(Debug)]
pub struct BlobWriter {
    out: Option<HashingWriter<File>>,
    path: Utf8PathBuf,
    dir: Utf8PathBuf,
}

impl BlobWriter {
    /// Makes the blob appear under its digest; gives digest and size.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(mut self) -> Result<(Digest, u64), OciError> {
        let Some(out) = self.out.take() else { return Err(OciError::document(self.path.as_str(), "already finished")) };
        let (file, digest, bytes) = out.into_parts();
        publish(&file, &self.path, &self.dir.join(digest.hex()))?;
        Ok((digest, bytes))
    }

    /// As [`BlobWriter::finish`], when the bytes are the expected ones.
    ///
    /// # Errors
    /// When they are not, and then nothing appears.
    pub fn finish_as(self, what: &str, expected: &Descriptor) -> Result<(), OciError> {
        if let Some(out) = &self.out {
            check_size(what, expected.size, out.bytes())?;
            check_digest(what, &expected.digest, out.digest())?;
        }
        self.finish().map(|_| ())
    }
}

impl io::Write for BlobWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.as_mut().ok_or_else(|| io::Error::other("already finished"))?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.as_mut().map_or(Ok(()), io::Write::flush)
    }
}

impl Drop for BlobWriter {
    fn drop(&mut self) {
        // After `finish` the name is gone; before, the file is nobody's.
        let _ = fs::remove_file(&self.path);
    }
}

/// Gives a file on disk its final name, durably: file, then name, then folder.
///
/// # Errors
/// The system's.
pub fn publish(file: &File, from: &Utf8Path, to: &Utf8Path) -> Result<(), OciError> {
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::fchmod(file, mode).map_err(OciError::errno("set the mode of", from))?;
    Ok(sparklane_durable::publish(file, from, to)?)
}

/// Writes a file as a whole or not at all.
///
/// # Errors
/// The system's.
pub fn write_atomic(path: &Utf8Path, bytes: &[u8]) -> Result<(), OciError> {
    Ok(sparklane_durable::write(path, bytes, 0o644)?)
}

/// A new file beside `path`, of a name that no other process or thread of ours uses.
fn temporary(path: &Utf8Path) -> Result<(File, Utf8PathBuf), OciError> {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let temp = Utf8PathBuf::from(format!("{path}.{}.{n}.tmp", std::process::id()));
        match fs::OpenOptions::new().write(true).create_new(true).open(&temp) {
            Ok(file) => return Ok((file, temp)),
            // Left by a process of the same number that died.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(OciError::io("make", temp)(e)),
        }
    }
}

/// An empty layout in a folder that goes with the guard, for tests of this crate.
#[cfg(test)]
pub(crate) fn scratch() -> (tempfile::TempDir, Layout) {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_create(Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap()).unwrap();
    (dir, layout)
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
