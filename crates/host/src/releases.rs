//! The cluster's releases, as files on each node that committed them; the head's are the truth.

use camino::Utf8Path;
use sparklane_lane::{Generation, Release, StorePath};

use crate::error::HostError;
use crate::files;
use crate::paths::HostPaths;
use crate::{closure, profile, txns};

/// All releases, oldest first. Damaged files are left out (see [`damaged`]); a release is written whole or not at all.
///
/// # Errors
/// When the folder exists and cannot be read.
pub fn list(paths: &HostPaths) -> Result<Vec<Release>, HostError> {
    let mut releases: Vec<Release> = read_all(paths)?.into_iter().filter_map(Result::ok).collect();
    releases.sort_by_key(|r| r.number);
    Ok(releases)
}

/// Release files that cannot be read and releases of which only the closure's root is left, each with the reason; for `status`.
#[must_use]
pub fn damaged(paths: &HostPaths) -> Vec<String> {
    let mut found: Vec<String> = read_all(paths).unwrap_or_default().into_iter().filter_map(Result::err).collect();
    let file = |number: u64| paths.releases().join(format!("{number}.json"));
    let lost = roots(paths).into_iter().map(file).filter(|file| !file.exists());
    found.extend(lost.map(|file| format!("{file}: is gone, its closure is still kept")));
    found.sort();
    found
}

/// All releases, for whoever removes what no release names: then one that cannot be read keeps everything.
///
/// # Errors
/// As [`list`], and when any record is damaged or gone.
pub fn complete(paths: &HostPaths) -> Result<Vec<Release>, HostError> {
    match damaged(paths).as_slice() {
        [] => list(paths),
        all => {
            let why = format!("damaged, so what they need is not known: {}", all.join("; "));
            Err(HostError::Content { path: paths.releases(), why })
        }
    }
}

/// What this node must keep: all its releases, and the generation that it is on.
///
/// # Errors
/// As [`complete`]; when the generation cannot be read; and while a transaction is open, whose other generation is named
/// nowhere yet.
pub fn in_use(paths: &HostPaths) -> Result<(Vec<Release>, Option<Generation>), HostError> {
    if let Some(open) = txns::list(paths)?.iter().find(|t| t.is_open()) {
        return Err(HostError::Refused(format!("transaction {} is open", open.id)));
    }
    let current = profile::current(paths)?;
    let generation = current.map(|side| closure::generation(&paths.in_store(&side.path))).transpose()?;
    Ok((complete(paths)?, generation))
}

/// The highest number that any record or root bears, readable or not: a further release must be above it.
#[must_use]
pub fn last_number(paths: &HostPaths) -> u64 {
    let names = paths.releases().read_dir_utf8().into_iter().flatten().flatten();
    let records = names.filter_map(|e| e.file_name().strip_suffix(".json")?.parse().ok());
    records.chain(roots(paths)).max().unwrap_or(0)
}

/// Numbers of the releases whose closures are rooted.
fn roots(paths: &HostPaths) -> Vec<u64> {
    let names = paths.gcroots.read_dir_utf8().into_iter().flatten().flatten();
    names.filter_map(|e| e.file_name().strip_prefix("release-")?.parse().ok()).collect()
}

fn read_all(paths: &HostPaths) -> Result<Vec<Result<Release, String>>, HostError> {
    let dir = paths.releases();
    let entries = match dir.read_dir_utf8() {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(HostError::file("list", dir)(error)),
    };
    let ours = entries.flatten().map(|e| e.into_path()).filter(|p| p.extension() == Some("json"));
    Ok(ours.map(|path| read(&path).map_err(|why| format!("{path}: {why}"))).collect())
}

fn read(path: &Utf8Path) -> Result<Release, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    serde_json::from_slice(&bytes).map_err(|e| e.to_string())
}

/// Writes a release, roots this node's closure, and forgets what lies beyond `keep` releases.
///
/// # Errors
/// When the record or the root cannot be written.
pub fn add(paths: &HostPaths, release: &Release, own: &StorePath, keep: u32) -> Result<(), HostError> {
    let file = paths.releases().join(format!("{}.json", release.number));
    match file.exists().then(|| read(&file)) {
        Some(Ok(other)) if other.txn != release.txn => {
            let why = format!("is of transaction {}; that of {} is not written over it", other.txn, release.txn);
            return Err(HostError::Content { path: file, why });
        }
        Some(Err(why)) => {
            return Err(HostError::Content { path: file, why: format!("{why}; it is not written over") });
        }
        _ => {}
    }
    let bytes = serde_json::to_vec_pretty(release)
        .map_err(|e| HostError::Content { path: paths.releases(), why: e.to_string() })?;
    files::write_atomic(&file, &bytes, 0o644)?;
    files::link_atomic(&root_of(&paths.gcroots, release.number), own.as_str())?;
    forget(paths, release.number, u64::from(keep.max(1)))
}

fn root_of(gcroots: &Utf8Path, number: u64) -> camino::Utf8PathBuf {
    gcroots.join(format!("release-{number}"))
}

fn forget(paths: &HostPaths, newest: u64, keep: u64) -> Result<(), HostError> {
    let numbers = list(paths)?.into_iter().map(|r| r.number).chain(roots(paths));
    for number in numbers.filter(|number| number + keep <= newest) {
        files::remove(&paths.releases().join(format!("{number}.json")))?;
        files::remove(&root_of(&paths.gcroots, number))?;
    }
    Ok(())
}
