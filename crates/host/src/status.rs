//! What a node says of itself. Read from profile, journals and systemd; never guessed.

use serde::{Deserialize, Serialize};
use sparklane_lane::{Generation, Release, TxnId};
use sparklane_txn::plan::{Before, ENGINE_UNIT, Found};
use sparklane_txn::spec::Side;
use sparklane_txn::{Clock as _, Record, State};

use crate::clock::BootClock;
use crate::error::HostError;
use crate::lock::{self, Owner};
use crate::paths::HostPaths;
use crate::units::{UnitStatus, Units};
use crate::{closure, files, firewall, install, peer, profile, releases, txns};

/// One transaction in a status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TxnStatus {
    /// Its id.
    pub txn: TxnId,
    /// Its last record.
    pub state: State,
    /// `user@host`.
    pub owner: String,
    /// Milliseconds until the node acts by itself; 0 when passed.
    pub deadline_millis: u64,
    /// Why it ended so, or is in doubt.
    pub why: Option<String>,
    /// True when a torn end of the journal was dropped.
    pub torn: bool,
}

/// A transaction whose journal is damaged, other than an open one (that one says so itself).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DamagedTxn {
    /// Its id: the folder's name.
    pub txn: TxnId,
    /// Its last good record; `None` when there is none.
    pub state: Option<State>,
    /// True when it had begun and was never settled: the node may be between two generations.
    pub unsettled: bool,
}

/// The weights of a node's generation, as far as the node can prove them without reading them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WeightsStatus {
    /// The hub's id.
    pub model: String,
    /// Id of the manifest.
    pub manifest: String,
    /// `proved`, `unproved`, `partial`, `absent` or `unknown`.
    pub state: String,
    /// What keeps them from being proved.
    pub why: Option<String>,
}

/// A node's state. The default is that of a node which sparklane never touched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Version of the tool that answers.
    pub tool: String,
    /// This boot.
    pub boot: String,
    /// The current generation.
    pub current: Option<Side>,
    /// Its content.
    pub generation: Option<Generation>,
    /// Why the profile could not be read, when it is not ours.
    pub foreign_profile: Option<String>,
    /// Open transactions; more than one is never right.
    pub open: Vec<TxnStatus>,
    /// Transactions whose journals are damaged.
    #[serde(default)]
    pub damaged: Vec<DamagedTxn>,
    /// The last ended one.
    pub last: Option<TxnStatus>,
    /// Who holds the node.
    pub lock: Option<Owner>,
    /// The releases this node knows.
    pub releases: Vec<Release>,
    /// The highest number that a release's file bears here, readable or not.
    #[serde(default)]
    pub last_number: u64,
    /// Release files that cannot be read, and why.
    #[serde(default)]
    pub damaged_releases: Vec<String>,
    /// The engine's unit.
    pub engine: Option<UnitStatus>,
    /// True when the engine's supervisor says that its rank waits for the others; the engine part fills it in.
    #[serde(default)]
    pub waits_for_ranks: bool,
    /// The lane of an engine that still runs another launch than the generation's, as after `deploy --boot`; the engine
    /// part fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_of: Option<String>,
    /// What the engine's supervisor says of itself (`engine.json`); the engine part fills it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<serde_json::Value>,
    /// The generation's weights; `None` when it has none, or an older tool answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightsStatus>,
    /// Managed files that are not as the generation placed them.
    pub drift: Vec<String>,
    /// What is wrong with the generation's nftables table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firewall: Option<String>,
    /// What is wrong with the link to the node's tool, where something is deployed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_lost: Option<String>,
    /// Public key with which a worker asks the head.
    pub decision_key: Option<String>,
    /// Public host keys, for the worker's questions.
    pub host_keys: Vec<String>,
}

/// Reads the node's state.
///
/// # Errors
/// When state folders cannot be read. A profile that is not ours is a finding, not an error.
pub fn read(paths: &HostPaths, units: &dyn Units, tool: &str) -> Result<NodeStatus, HostError> {
    let (current, foreign_profile) = match profile::current(paths) {
        Ok(current) => (current, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let generation = current.as_ref().map(|side| closure::generation(&paths.in_store(&side.path))).transpose()?;
    let all = txns::list(paths)?;
    let drift = generation.as_ref().map_or_else(Vec::new, |g| drift(paths, g));
    let firewall = generation.as_ref().and_then(|g| firewall::trouble(paths, g));
    let tool_lost = current.as_ref().and_then(|_| install::tool_trouble(paths));
    Ok(NodeStatus {
        tool: tool.to_owned(),
        boot: BootClock::new().now().boot,
        current,
        generation,
        foreign_profile,
        open: all.iter().filter(|t| t.is_open()).filter_map(of).collect(),
        damaged: all.iter().filter_map(|t| damaged(paths, t)).collect(),
        last: all.iter().rev().find(|t| t.state().is_some_and(State::is_final)).and_then(of),
        lock: lock::owner(paths)?,
        releases: known_releases(paths, &all)?,
        last_number: releases::last_number(paths),
        damaged_releases: releases::damaged(paths),
        engine: units.status(ENGINE_UNIT).ok(),
        waits_for_ranks: false,
        engine_of: None,
        supervisor: None,
        weights: None,
        drift,
        firewall,
        tool_lost,
        decision_key: peer::public_key_if_any(paths),
        host_keys: peer::host_keys(paths).unwrap_or_default(),
    })
}

/// Releases on file, and those whose commit is in a journal while their file could not be written yet.
fn known_releases(paths: &HostPaths, all: &[txns::Txn]) -> Result<Vec<Release>, HostError> {
    let mut releases = releases::list(paths)?;
    for txn in all {
        if let Some(Record::Committed { release: Some(release) }) = txn.records.last()
            && paths.txn(&txn.id).join("before").exists()
            && !releases.iter().any(|r| r.number == release.number)
        {
            releases.push((**release).clone());
        }
    }
    releases.sort_by_key(|r| r.number);
    Ok(releases)
}

fn damaged(paths: &HostPaths, txn: &txns::Txn) -> Option<DamagedTxn> {
    let state = txn.state();
    // What is kept for undoing goes when a transaction is settled.
    let unsettled = state.is_none() && paths.txn(&txn.id).join("before").exists();
    let shown = txn.torn && !txn.is_open() || unsettled;
    shown.then(|| DamagedTxn { txn: txn.id.clone(), state, unsettled })
}

fn of(txn: &txns::Txn) -> Option<TxnStatus> {
    let why = match txn.records.last()? {
        Record::RolledBack { why, .. } | Record::RollingBack { why, .. } | Record::InDoubt { why } => Some(why.clone()),
        Record::Stuck { why, mismatches } => Some(format!("{why}: {}", mismatches.join("; "))),
        _ => None,
    };
    Some(TxnStatus {
        txn: txn.id.clone(),
        state: txn.state()?,
        owner: txn.spec().map(|s| s.owner.clone()).unwrap_or_default(),
        deadline_millis: txn.deadline().map_or(0, |d| d.left_millis(&BootClock::new().now())),
        why,
        torn: txn.torn,
    })
}

/// Managed files that someone edited or removed.
fn drift(paths: &HostPaths, generation: &Generation) -> Vec<String> {
    let differs =
        |path: &str, wanted: &sparklane_lane::generation::ManagedFile| match files::look(&paths.managed(path), 0) {
            Ok(Found::Known(Before::File { sha256, mode, .. })) => sha256 != wanted.sha256 || mode != wanted.mode,
            _ => true,
        };
    generation.files.iter().filter(|(path, file)| differs(path, file)).map(|(path, _)| path.clone()).collect()
}
