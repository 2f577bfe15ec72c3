//! deploy-rs's files on a real node, and its confirmation inside the transaction's process (`txn::deploy_rs` decides).

use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_lane::TxnId;
use sparklane_txn::deploy_rs::{self, Alone, Canary, Confirm, Pace, Recovery, Seen, Taken, Waiter};
use sparklane_txn::{Clock as _, Fault, Journal, Machine, Node, Order, Spec, State};

use crate::clock::BootClock;
use crate::error::HostError;
use crate::paths::HostPaths;
use crate::{files, talk, txns};

/// Time between two looks at the canary.
const LOOK: Duration = Duration::from_millis(100);

fn request(paths: &HostPaths, id: &TxnId) -> Utf8PathBuf {
    paths.txn(id).join("deploy-rs.json")
}

/// Keeps beside the journal how the transaction is confirmed; before its `staged` record.
///
/// # Errors
/// When it cannot be made durable.
pub fn remember(paths: &HostPaths, id: &TxnId, confirm: &Confirm) -> Result<(), HostError> {
    let bytes = serde_json::to_vec(confirm).map_err(|e| HostError::Refused(e.to_string()))?;
    files::write_atomic(&request(paths, id), &bytes, 0o600)
}

/// How the transaction is confirmed; `None` when deploy-rs does not drive it.
#[must_use]
pub fn confirm(paths: &HostPaths, id: &TxnId) -> Option<Confirm> {
    serde_json::from_slice(&std::fs::read(request(paths, id)).ok()?).ok()
}

/// The files that speak with the client.
#[derive(Debug, Clone)]
pub struct Files {
    confirm: Confirm,
}

impl Files {
    /// The files of one deployment.
    #[must_use]
    pub fn new(confirm: Confirm) -> Self {
        Self { confirm }
    }

    /// The transaction that a mark names.
    fn mark(path: &str) -> Option<TxnId> {
        // Marks are ours and short; whatever else lies there names no transaction.
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    fn write(path: &str, txn: &TxnId) -> Result<(), String> {
        files::write_atomic(Utf8Path::new(path), txn.as_str().as_bytes(), 0o600).map_err(|e| e.to_string())
    }

    fn remove(path: &str) -> Result<Taken, String> {
        match std::fs::remove_file(path) {
            Ok(()) => Ok(Taken::Here),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Taken::Gone),
            Err(error) => Err(format!("{path}: {error}")),
        }
    }
}

impl Canary for Files {
    fn clear(&mut self) -> Result<(), String> {
        let all = [self.confirm.canary(), self.confirm.ready_mark(), self.confirm.over_mark()];
        all.iter().try_for_each(|path| Self::remove(path).map(drop))
    }

    fn arm(&mut self, txn: &TxnId) -> Result<(), String> {
        Self::write(&self.confirm.canary(), txn)?;
        Self::write(&self.confirm.ready_mark(), txn)
    }

    fn armed(&mut self, txn: &TxnId) -> bool {
        Self::mark(&self.confirm.ready_mark()).as_ref() == Some(txn)
    }

    fn waits(&mut self) -> bool {
        std::fs::symlink_metadata(self.confirm.canary()).is_ok()
    }

    fn take(&mut self) -> Result<Taken, String> {
        Self::remove(&self.confirm.canary())
    }

    fn over(&mut self, txn: &TxnId) {
        let _ready = Self::remove(&self.confirm.ready_mark());
        // `wait` reads the journal as well; the mark only spares it the wait.
        let _told = Self::write(&self.confirm.over_mark(), txn);
    }
}

struct BootPace;

impl Pace for BootPace {
    fn millis(&self) -> u64 {
        BootClock::new().now().millis
    }

    fn pause(&mut self) {
        std::thread::sleep(LOOK);
    }
}

/// In the process of a fresh transaction: when deploy-rs asked for it, drives it from a thread of its own. The thread
/// gives its orders like any client; if it dies, the machine goes back at its deadline.
pub fn start(paths: &HostPaths, spec: &Spec) {
    let Some(confirm) = confirm(paths, &spec.txn) else { return };
    let (paths, spec) = (paths.clone(), spec.clone());
    std::thread::spawn(move || {
        let mut files = Files::new(confirm.clone());
        let mut give = |order: &Order| {
            let told = talk::one(&paths, &spec.txn, order, &mut std::io::sink());
            told.map_err(|error| Fault::failed(error.to_string()))
        };
        let mut alone = Alone {
            order: &mut give,
            canary: &mut files,
            pace: &mut BootPace,
            txn: spec.txn.clone(),
            role: spec.role,
            goal: spec.goal,
        };
        match deploy_rs::drive(&mut alone, confirm.window_secs) {
            Ok(reply) => tracing::info!(state = %reply.state, "driven by deploy-rs to its end"),
            Err(fault) => tracing::error!(%fault, "deploy-rs's driver stopped; the node acts at its deadline"),
        }
    });
}

/// In a process that takes up a dead transaction, before the machine's own recovery: a client that was told success keeps it.
///
/// # Errors
/// Only [`Fault::Killed`].
pub fn take_up<N: Node, J: Journal, C: sparklane_txn::Clock>(
    paths: &HostPaths,
    machine: &mut Machine<N, J, C>,
) -> Result<(), Fault> {
    let spec = machine.spec().clone();
    let Some(confirm) = confirm(paths, &spec.txn) else { return Ok(()) };
    if machine.state().is_final() {
        return Ok(());
    }
    let mut files = Files::new(confirm);
    let late = machine.deadline().is_none_or(|d| d.passed(&BootClock::new().now()));
    match deploy_rs::recovery(machine.state(), spec.goal, &mut files, &spec.txn) {
        // In another boot, or long after, the machine would not commit; its own recovery knows how to go back there.
        Recovery::Commit if !late => machine.handle(&Order::Commit).map(drop),
        Recovery::Commit | Recovery::Back => Ok(()),
    }
}

/// `activate-rs wait`: until the gates passed and the node waits for the confirmation.
///
/// # Errors
/// Why it will not come, or did not in time.
pub fn wait(paths: &HostPaths, wait: &deploy_rs::Wait) -> Result<(), HostError> {
    let confirm = Confirm { temp_path: wait.temp_path.clone(), closure: wait.closure.clone(), window_secs: None };
    let begin = BootClock::new().now().millis;
    let mut waiter = Waiter::default();
    let mut state = |txn: &TxnId| txns::read(paths, txn).ok().and_then(|t| t.state());
    loop {
        let waited = (BootClock::new().now().millis.saturating_sub(begin)) / 1000;
        let (ready, over) = (Files::mark(&confirm.ready_mark()), Files::mark(&confirm.over_mark()));
        match waiter.look(ready.as_ref(), over.as_ref(), waited, &mut state) {
            Seen::Ready => return Ok(()),
            Seen::Over(why) => return Err(HostError::Refused(why)),
            Seen::NotYet => {}
        }
        if wait.activation_secs.is_some_and(|limit| waited >= u64::from(limit)) {
            let limit = wait.activation_secs.unwrap_or_default();
            return Err(HostError::Refused(format!(
                "the gates did not pass within {limit} s (activationTimeout); the node goes back by itself"
            )));
        }
        std::thread::sleep(LOOK);
    }
}

/// The generation that `revoke` returns to: where the transaction that brought the current one came from.
///
/// # Errors
/// When the current generation is not one that deploy-rs brought, or nothing was there before it.
pub fn revoke_target(paths: &HostPaths) -> Result<sparklane_txn::spec::Side, HostError> {
    let current = crate::profile::current(paths)?
        .ok_or_else(|| HostError::Refused("the node has no generation; there is nothing to revoke".into()))?;
    let all = txns::list(paths)?;
    let brought = all
        .iter()
        .rev()
        .find(|t| t.state() == Some(State::Committed) && t.spec().is_some_and(|s| s.to.path == current.path));
    let Some(spec) = brought.and_then(|t| t.spec()) else {
        return Err(HostError::Refused(format!("no transaction of this node brought {}", current.path)));
    };
    if spec.release.is_some() {
        return Err(HostError::Refused(
            "the current generation belongs to a release of the cluster; use: sparklane rollback".into(),
        ));
    }
    spec.from
        .clone()
        .ok_or_else(|| HostError::Refused("the first deployment of this node: there is nothing to return to".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &tempfile::TempDir) -> Files {
        Files::new(Confirm {
            temp_path: dir.path().to_str().unwrap().to_owned(),
            closure: "/nix/store/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb-x".parse().unwrap(),
            window_secs: Some(1),
        })
    }

    #[test]
    fn real_files_keep_the_protocol() {
        let dir = tempfile::tempdir().unwrap();
        let (mut files, txn) = (files(&dir), "d1".parse::<TxnId>().unwrap());
        std::fs::write(files.confirm.canary(), "").unwrap();
        files.clear().unwrap();
        assert!(!files.waits() && !files.armed(&txn));
        files.arm(&txn).unwrap();
        assert!(files.waits() && files.armed(&txn) && !files.armed(&"d2".parse().unwrap()));
        assert_eq!(files.take(), Ok(Taken::Here));
        assert_eq!(files.take(), Ok(Taken::Gone));
        files.over(&txn);
        assert!(!files.armed(&txn));
        assert_eq!(Files::mark(&files.confirm.over_mark()), Some(txn));
        files.clear().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn wait_ends_in_its_time_and_by_a_stale_canary_never() {
        let dir = tempfile::tempdir().unwrap();
        let paths = HostPaths::below(Utf8Path::from_path(dir.path()).unwrap());
        let files = files(&dir);
        std::fs::write(files.confirm.canary(), "d0").unwrap();
        std::fs::write(files.confirm.ready_mark(), "d0").unwrap();
        let call = deploy_rs::Wait {
            closure: files.confirm.closure.clone(),
            temp_path: files.confirm.temp_path.clone(),
            activation_secs: Some(1),
        };
        let error = wait(&paths, &call).unwrap_err().to_string();
        assert!(error.contains("within 1 s"), "{error}");
    }
}
