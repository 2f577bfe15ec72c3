//! A transaction's journal: one line per record, checksum first, fsynced before the effect it names.
//!
//! A torn last line is a record that never was; the last good record counts, and [`read`] says so.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{FallocateFlags, fallocate};
use sha2::{Digest as _, Sha256};
use sparklane_txn::{Fault, Journal, Record};

use crate::crash::{CrashPoint, Point};
use crate::error::HostError;
use crate::files;

/// Room kept for records, so that a disk that fills up later cannot keep a rollback from being written down.
const RESERVE_BYTES: u64 = 256 * 1024;
/// Largest journal that is read; a real one has some kilobytes.
const MAX_BYTES: u64 = 4 * 1024 * 1024;
/// A journal that is no file must not keep anyone waiting.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
/// Hex digits of the checksum at the start of a line.
const SUM_LEN: usize = 16;

/// What a journal file holds.
#[derive(Debug, Default)]
pub struct Contents {
    /// The good records, in order.
    pub records: Vec<Record>,
    /// True when something after the last good record was dropped.
    pub torn: bool,
}

/// Reads a journal; a missing file is an empty one.
///
/// # Errors
/// When the file cannot be read. Damage is not an error: it ends the records.
pub fn read(path: &Utf8Path) -> Result<Contents, HostError> {
    let mut bytes = Vec::new();
    match File::options().read(true).custom_flags(NONBLOCK).open(path) {
        Ok(file) if file.metadata().is_ok_and(|m| m.is_file()) => {
            file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(HostError::file("read", path))?
        }
        Ok(_) => return Ok(Contents { records: Vec::new(), torn: true }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Contents::default()),
        Err(error) => return Err(HostError::file("open", path)(error)),
    };
    Ok(parse(&bytes))
}

/// Makes what a journal holds durable; a missing one is fine.
///
/// # Errors
/// When it cannot be synced.
pub fn sync(path: &Utf8Path) -> Result<(), HostError> {
    match File::open(path) {
        Ok(file) => file.sync_all().map_err(HostError::file("sync", path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(HostError::file("open", path)(error)),
    }
}

/// Parses journal bytes up to the first damaged line.
#[must_use]
pub fn parse(bytes: &[u8]) -> Contents {
    let mut contents = Contents::default();
    for line in bytes.split_inclusive(|b| *b == b'\n') {
        match parse_line(line) {
            Some(record) => contents.records.push(record),
            None => {
                contents.torn = true;
                break;
            }
        }
    }
    contents
}

fn parse_line(line: &[u8]) -> Option<Record> {
    let line = line.strip_suffix(b"\n")?;
    let (sum, rest) = line.split_at_checked(SUM_LEN)?;
    let json = rest.strip_prefix(b" ")?;
    if checksum(json).as_bytes() != sum {
        return None;
    }
    serde_json::from_slice(json).ok()
}

fn checksum(json: &[u8]) -> String {
    Sha256::digest(json).iter().take(SUM_LEN / 2).map(|b| format!("{b:02x}")).collect()
}

fn line(record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_vec(record)?;
    let mut line = checksum(&json).into_bytes();
    line.push(b' ');
    line.extend(json);
    line.push(b'\n');
    Ok(line)
}

/// The journal of one transaction on disk.
#[derive(Debug)]
pub struct FileJournal {
    path: Utf8PathBuf,
    file: File,
    /// Length of the good records; whatever lies behind is overwritten.
    len: u64,
    records: Vec<Record>,
    torn: bool,
    crash: CrashPoint,
    /// The last record, when its effect is still to come.
    effect: Option<(sparklane_txn::State, usize)>,
}

impl FileJournal {
    /// Opens or creates the journal in `dir` and cuts off a torn end.
    ///
    /// # Errors
    /// When the file cannot be opened, read or cut.
    pub fn open(dir: &Utf8Path, crash: CrashPoint) -> Result<Self, HostError> {
        let path = dir.join("journal");
        let contents = read(&path)?;
        let mut len = 0;
        for record in &contents.records {
            let bytes = line(record).map_err(|e| HostError::Content { path: path.clone(), why: e.to_string() })?;
            len += bytes.len() as u64;
        }
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(HostError::file("open", &path))?;
        file.set_len(len).map_err(HostError::file("truncate", &path))?;
        // Records of a process that was killed may only be in memory; nothing is done on them before they are durable.
        file.sync_all().map_err(HostError::file("sync", &path))?;
        // Not every file system can reserve; without it the journal still works, only not on a full disk.
        let _reserved = fallocate(&file, FallocateFlags::KEEP_SIZE, 0, len + RESERVE_BYTES);
        files::sync_dir(dir)?;
        Ok(Self { path, file, len, records: contents.records, torn: contents.torn, crash, effect: None })
    }

    /// The records so far.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// True when a damaged end was cut off at opening.
    #[must_use]
    pub fn was_torn(&self) -> bool {
        self.torn
    }

    /// Tells the kill points that the effect of the last record is done.
    pub fn effect_done(&mut self) {
        if let Some((state, nth)) = self.effect.take() {
            self.crash.pass(state, nth, Point::AfterEffect);
        }
    }
}

impl Journal for FileJournal {
    fn append(&mut self, record: &Record) -> Result<(), Fault> {
        self.effect_done();
        let state = record.state();
        let nth = self.records.iter().filter(|r| r.state() == state).count();
        let bytes = line(record).map_err(|e| Fault::failed(format!("journal: {e}")))?;
        let written = self.file.write_all(&bytes);
        self.crash.pass(state, nth, Point::BeforeFsync);
        if let Err(error) = written.and_then(|()| self.file.sync_data()) {
            // A part of the line may be there; it must not be taken for a record, nor precede the next one.
            let _cut = self.file.set_len(self.len);
            return Err(HostError::file("write", &self.path)(error).into());
        }
        self.len += bytes.len() as u64;
        self.records.push(record.clone());
        self.crash.pass(state, nth, Point::AfterFsync);
        self.effect = Some((state, nth));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some_records() -> Vec<Record> {
        vec![
            Record::Switching { step: 0 },
            Record::Switched,
            Record::RollingBack { step: 0, why: "gate tokens: 200 without a token".into() },
        ]
    }

    fn bytes(records: &[Record]) -> Vec<u8> {
        records.iter().flat_map(|r| line(r).unwrap()).collect()
    }

    #[test]
    fn torn_at_every_byte_keeps_the_good_records() {
        let whole = bytes(&some_records());
        let ends: Vec<usize> = whole.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1).collect();
        for cut in 0..=whole.len() {
            let contents = parse(&whole[..cut]);
            let good = ends.iter().filter(|e| **e <= cut).count();
            assert_eq!(contents.records.len(), good);
            assert_eq!(contents.torn, cut != 0 && !ends.contains(&cut));
        }
    }

    #[test]
    fn an_open_after_a_torn_write_goes_on_behind_the_last_good_record() {
        let dir = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(dir.path()).unwrap();
        let mut torn = bytes(&some_records());
        torn.truncate(torn.len() - 5);
        std::fs::write(dir.join("journal"), &torn).unwrap();
        let crash = CrashPoint::of(&crate::HostPaths::below(dir));
        let mut journal = FileJournal::open(dir, crash).unwrap();
        assert_eq!(journal.records().len(), 2);
        journal.append(&Record::Switched).unwrap();
        let contents = read(&dir.join("journal")).unwrap();
        assert!(!contents.torn);
        assert_eq!(contents.records.len(), 3);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _contents = parse(&bytes);
        }

        #[test]
        fn one_changed_byte_never_changes_a_record(at in 0usize..200, to: u8) {
            let mut bytes = bytes(&some_records());
            let at = at % bytes.len();
            bytes[at] = to;
            let contents = parse(&bytes);
            prop_assert!(some_records().starts_with(&contents.records) || contents.records == some_records());
        }
    }
}
