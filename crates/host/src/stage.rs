//! Letting a transaction in: every check of a node before anything changes, then the `staged` record and the process.
//!
//! Checks are [`StageStep`]s, so that images, weights and fabric add theirs without touching this file.

use std::time::{Duration, Instant};

use camino::Utf8Path;
use serde::{Deserialize, Serialize};
use sparklane_lane::{Generation, TxnId};
use sparklane_txn::deploy_rs::Confirm;
use sparklane_txn::spec::Deadline;
use sparklane_txn::{Boot, Clock as _, Journal as _, Record, Spec, State};

use crate::clock::BootClock;
use crate::crash::CrashPoint;
use crate::error::HostError;
use crate::journal::FileJournal;
use crate::node::Parts;
use crate::paths::HostPaths;
use crate::peer::Head;
use crate::peer_keys::PeerKey;
use crate::txns::Txn;
use crate::{closure, deploy_rs, files, install, lock, peer, peer_keys, profile, resolve, txns};

/// Free bytes that a node must keep for state, logs and the store while it serves.
const FREE_BYTES: u64 = 64 * 1024 * 1024;
/// How long the transaction's process may take to listen.
const LISTEN_WAIT: Duration = Duration::from_secs(15);

/// What the control host asks of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StageRequest {
    /// The node's part of the transaction.
    pub spec: Spec,
    /// The key that must have signed the closure, when the cluster file names one.
    pub public_key: Option<String>,
    /// For a worker: where the head is asked.
    pub head: Option<Head>,
    /// For the head: user and public keys that may ask.
    pub askers: Vec<(String, String)>,
    /// For the heartbeats between the nodes of this release; stock deploy-rs brings none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_key: Option<PeerKey>,
    /// Only check; leave nothing behind (`plan`, `--dry-activate`).
    pub dry: bool,
    /// Stock deploy-rs drives the node: how its client confirms. The transaction then needs no orders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deploy_rs: Option<Confirm>,
}

/// What a check may look at.
pub struct Context<'a> {
    /// The node's folders.
    pub paths: &'a HostPaths,
    /// The request.
    pub request: &'a StageRequest,
    /// The closure to go to.
    pub closure: &'a Utf8Path,
    /// Its content.
    pub generation: &'a Generation,
}

/// One check of a node before anything changes.
pub trait StageStep {
    /// Name for people, e.g. `disk space`.
    fn name(&self) -> &'static str;
    /// Checks.
    ///
    /// # Errors
    /// Why the node may not switch, and what to do.
    fn check(&self, context: &Context<'_>) -> Result<(), HostError>;
}

/// A check's row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checked {
    /// The check.
    pub name: String,
    /// Why it refused; `None` when it passed.
    pub refused: Option<String>,
}

/// The answer of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Staged {
    /// Every check.
    pub checks: Vec<Checked>,
    /// True when the transaction's process listens.
    pub listening: bool,
}

impl Staged {
    /// True when no check refused.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|c| c.refused.is_none())
    }
}

struct Architecture;
impl StageStep for Architecture {
    fn name(&self) -> &'static str {
        "architecture"
    }
    fn check(&self, context: &Context<'_>) -> Result<(), HostError> {
        closure::check_architecture(context.closure, context.generation.system)
    }
}

struct Closure;
impl StageStep for Closure {
    fn name(&self) -> &'static str {
        "closure"
    }
    fn check(&self, context: &Context<'_>) -> Result<(), HostError> {
        let id = closure::id(context.closure)?;
        if id != context.request.spec.to.generation {
            return Err(HostError::Refused(format!("{} holds generation {id}", context.closure)));
        }
        closure::prove(&context.request.spec.to.path, context.request.public_key.as_deref())
    }
}

struct Current;
impl StageStep for Current {
    fn name(&self) -> &'static str {
        "expected current"
    }
    fn check(&self, context: &Context<'_>) -> Result<(), HostError> {
        let at = profile::current(context.paths)?;
        let expected = context.request.spec.from.as_ref();
        if at.as_ref().map(|s| &s.path) == expected.map(|s| &s.path) {
            return Ok(());
        }
        let name = |s: Option<&sparklane_txn::spec::Side>| s.map_or("nothing".to_owned(), |s| s.path.to_string());
        Err(HostError::Refused(format!(
            "the node is at {}, the plan was made for {}; someone else deployed: plan again",
            name(at.as_ref()),
            name(expected)
        )))
    }
}

struct Identity;
impl StageStep for Identity {
    fn name(&self) -> &'static str {
        "identity"
    }
    fn check(&self, context: &Context<'_>) -> Result<(), HostError> {
        let (generation, spec) = (context.generation, &context.request.spec);
        if generation.node == spec.node && generation.role == spec.role {
            return Ok(());
        }
        let (node, role) = (&generation.node, generation.role);
        Err(HostError::Refused(format!(
            "the closure is for {node} ({role}), the order for {} ({})",
            spec.node, spec.role
        )))
    }
}

struct Disk;
impl StageStep for Disk {
    fn name(&self) -> &'static str {
        "disk space"
    }
    fn check(&self, context: &Context<'_>) -> Result<(), HostError> {
        for dir in [&context.paths.state, &context.paths.root.join("etc"), &context.paths.gcroots] {
            files::make_dir(dir)?;
            let stat = rustix::fs::statvfs(dir.as_str()).map_err(HostError::errno("look at", dir))?;
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            if stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
                return Err(HostError::Refused(format!("{dir} is on a read-only file system")));
            }
            if free < FREE_BYTES {
                let (free, need) = (free >> 20, FREE_BYTES >> 20);
                return Err(HostError::Refused(format!("{dir} has {free} MiB free, {need} MiB are needed; make room")));
            }
        }
        Ok(())
    }
}

/// The checks of the deploy part, in order.
#[must_use]
pub fn own_steps() -> Vec<Box<dyn StageStep>> {
    vec![Box::new(Identity), Box::new(Architecture), Box::new(Disk), Box::new(Current), Box::new(Closure)]
}

/// Checks the node and, unless `dry`, starts the transaction's process.
///
/// # Errors
/// [`HostError::Busy`] when someone else holds the node; otherwise when the staging itself failed. Refusing checks are
/// rows of the answer, all at once.
pub fn stage(
    paths: &HostPaths,
    request: &StageRequest,
    more: &[Box<dyn StageStep>],
    parts: &dyn Fn() -> Parts,
) -> Result<Staged, HostError> {
    let spec = &request.spec;
    if !request.dry {
        end_leftovers(paths, parts)?;
    }
    let lock = lock::take(paths, &spec.owner, Some(&spec.txn), Duration::ZERO)?;
    if !request.dry
        && let Some(other) = txns::list(paths)?.iter().find(|t| t.is_open())
    {
        // Staged since we looked; its process is about to wait for the lock.
        return Err(just_staged(other));
    }
    if !request.dry {
        install::drop_stray_roots(paths)?;
    }
    let closure = paths.in_store(&spec.to.path);
    let generation = closure::generation(&closure)?;
    let context = Context { paths, request, closure: &closure, generation: &generation };
    let checks: Vec<Checked> = own_steps()
        .iter()
        .chain(more)
        .map(|step| {
            let refused = step.check(&context).err().map(|e| e.to_string());
            Checked { name: step.name().to_owned(), refused }
        })
        .collect();
    let mut staged = Staged { checks, listening: false };
    if request.dry || !staged.passed() {
        return Ok(staged);
    }
    let parts = parts();
    files::link_atomic(&install::txn_root(paths, &spec.txn), spec.to.path.as_str())?;
    install::install(paths, &closure, &*parts.units)?;
    if let Some(head) = &request.head {
        peer::remember_head(paths, head)?;
    }
    for (user, key) in &request.askers {
        peer::allow_questions(paths, user, key)?;
    }
    if let Some(key) = &request.peer_key {
        peer_keys::keep(paths, &spec.txn, key)?;
    }
    if let Some(confirm) = &request.deploy_rs {
        deploy_rs::remember(paths, &spec.txn, confirm)?;
    }
    let argv =
        [format!("{}/bin/sparklane", closure::tool(&closure)?), "txn".into(), "run".into(), spec.txn.to_string()];
    let description = format!("sparklane transaction {} to {}", spec.txn, generation.lane);
    parts.units.spawn(&unit(&spec.txn), &description, &argv)?;
    // The process waits for the record, then for the lock.
    begin(paths, spec)?;
    drop(lock);
    staged.listening = wait_for_socket(paths, spec);
    if staged.listening { Ok(staged) } else { Err(not_listening(spec)) }
}

fn just_staged(txn: &Txn) -> HostError {
    let owner = txn.spec().map_or("someone", |s| s.owner.as_str());
    HostError::Busy(format!("{owner} has just staged transaction {} on the node", txn.id))
}

fn unit(txn: &TxnId) -> String {
    format!("sparklane-txn@{txn}.service")
}

/// A crashed transaction of someone must be ended before a new one may begin; one that runs must be let alone.
fn end_leftovers(paths: &HostPaths, parts: &dyn Fn() -> Parts) -> Result<(), HostError> {
    let open: Vec<_> = txns::list(paths)?.into_iter().filter(|t| resolve::needs_work(paths, t)).collect();
    if open.is_empty() {
        return Ok(());
    }
    // Between the staging's lock and its process's own the lock is free, and the transaction is no leftover all the same.
    for txn in open.iter().filter(|t| t.state() == Some(State::Staged)) {
        if parts().units.status(&unit(&txn.id)).is_ok_and(|s| s.is_up()) {
            return Err(just_staged(txn));
        }
    }
    for resolved in resolve::resolve(paths, Boot::Same, parts)? {
        let why = resolved.why.unwrap_or_default();
        match resolved.to {
            State::Committed | State::RolledBack => {}
            state => {
                let txn = resolved.txn;
                return Err(HostError::Refused(format!(
                    "transaction {txn} is {state} on this node ({why}); end it first: sparklane txn resolve"
                )));
            }
        }
    }
    Ok(())
}

fn begin(paths: &HostPaths, spec: &Spec) -> Result<(), HostError> {
    let dir = paths.txn(&spec.txn);
    files::make_dir(&dir)?;
    let mut journal = FileJournal::open(&dir, CrashPoint::of(paths))?;
    if !journal.records().is_empty() {
        return Err(HostError::Refused(format!("transaction {} exists on this node", spec.txn)));
    }
    let deadline = Deadline::after(&BootClock::new().now(), spec.activation_secs);
    let record = Record::Staged { spec: Box::new(spec.clone()), deadline };
    journal.append(&record).map_err(|fault| HostError::Refused(fault.to_string()))
}

fn wait_for_socket(paths: &HostPaths, spec: &Spec) -> bool {
    let until = Instant::now() + LISTEN_WAIT;
    while Instant::now() < until {
        if std::os::unix::net::UnixStream::connect(paths.socket(&spec.txn)).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

fn not_listening(spec: &Spec) -> HostError {
    let txn = &spec.txn;
    HostError::Refused(format!(
        "the process of transaction {txn} did not start; see: journalctl -u sparklane-txn@{txn}"
    ))
}
