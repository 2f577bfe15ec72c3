//! One operator at a time on a node: flock on `/var/lib/sparklane/lock` with the owner inside (design.md section 10).

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sparklane_lane::TxnId;
use sparklane_txn::Clock as _;

use crate::clock::BootClock;
use crate::error::HostError;
use crate::files;
use crate::paths::HostPaths;

/// `status` looks at the lock by taking it for a moment; nobody is refused for that.
const PROBE: Duration = Duration::from_millis(300);

/// Who holds the lock; for people, and never trusted over the flock itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    /// `user@host` of the operator.
    pub who: String,
    /// Process on this node.
    pub pid: u32,
    /// When it was taken.
    pub since: sparklane_txn::Instant,
    /// For which transaction.
    pub txn: Option<TxnId>,
}

/// The held lock; dropping it, or dying, frees it.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The next one to wait must not be told of us.
        let _cleared = self.file.set_len(0);
    }
}

/// Takes the lock, waiting at most `wait`.
///
/// # Errors
/// [`HostError::Busy`] with owner and age when someone else keeps it.
pub fn take(paths: &HostPaths, who: &str, txn: Option<&TxnId>, wait: Duration) -> Result<Lock, HostError> {
    let path = paths.lock();
    files::make_dir(&paths.state)?;
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(HostError::file("open", &path))?;
    // Locks of older tools could be held by any user; a user who can open ours is root.
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, private).map_err(HostError::file("protect", &path))?;
    let until = Instant::now() + wait.max(PROBE);
    while let Err(errno) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if errno != rustix::io::Errno::WOULDBLOCK {
            return Err(HostError::errno("lock", &path)(errno));
        }
        if Instant::now() >= until {
            return Err(HostError::Busy(held_by(&read(&mut file))));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let owner =
        Owner { who: who.to_owned(), pid: std::process::id(), since: BootClock::new().now(), txn: txn.cloned() };
    let bytes = serde_json::to_vec(&owner).unwrap_or_default();
    // The text helps people only. A disk too full for it must not keep a rollback from the lock.
    let _told = file.set_len(0).and_then(|()| file.write_all_at(&bytes, 0)).and_then(|()| file.flush());
    Ok(Lock { file })
}

/// The owner, when someone holds the lock now.
///
/// # Errors
/// When the lock file cannot be opened for another reason than its absence.
pub fn owner(paths: &HostPaths) -> Result<Option<Owner>, HostError> {
    let path = paths.lock();
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(HostError::file("open", &path)(error)),
    };
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(None);
    }
    Ok(serde_json::from_str(&read(&mut file)).ok())
}

fn read(file: &mut File) -> String {
    let mut text = String::new();
    let _read = file.take(64 * 1024).read_to_string(&mut text);
    text
}

/// One sentence about a holder, from the lock's text.
fn held_by(text: &str) -> String {
    let Ok(owner) = serde_json::from_str::<Owner>(text) else {
        return "another process holds the node's lock".into();
    };
    let now = BootClock::new().now();
    let age = if now.boot == owner.since.boot { now.millis.saturating_sub(owner.since.millis) / 1000 } else { 0 };
    format!("{} since {age} s (process {})", owner.holds(), owner.pid)
}

impl Owner {
    /// Who holds the node, and for what.
    #[must_use]
    pub fn holds(&self) -> String {
        let txn = self.txn.as_ref().map_or_else(String::new, |t| format!(" for transaction {t}"));
        format!("{} holds the node{txn}", self.who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_and_the_death_of_the_first_frees_it() {
        let dir = tempfile::tempdir().unwrap();
        let paths = HostPaths::below(camino::Utf8Path::from_path(dir.path()).unwrap());
        let txn: TxnId = "t1".parse().unwrap();
        let first = take(&paths, "ann@desk", Some(&txn), Duration::ZERO).unwrap();
        let second = take(&paths, "bob@desk", None, Duration::ZERO).unwrap_err().to_string();
        assert!(second.contains("ann@desk") && second.contains("t1"), "{second}");
        assert_eq!(owner(&paths).unwrap().unwrap().who, "ann@desk");
        drop(first);
        take(&paths, "bob@desk", None, Duration::ZERO).unwrap();
    }
}
