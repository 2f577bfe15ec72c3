//! `activate-rs` and `deploy-rs-activate`: what stock deploy-rs 1.0.0 runs on a node.
//!
//! `activate` only hands the transaction over and follows it: it may die at any time.

use std::os::unix::fs::MetadataExt as _;
use std::process::ExitCode;
use std::time::Duration;

use camino::Utf8PathBuf;
use sparklane_host::stage::{StageRequest, Staged, stage};
use sparklane_host::{HostError, HostPaths, closure, deploy_rs as files, profile, txns};
use sparklane_lane::{Generation, StorePath, TxnId};
use sparklane_txn::deploy_rs::{Activate, Call, Confirm, GRACE_SECS, Profile, parse, succeeded};
use sparklane_txn::spec::{Side, Spec};
use sparklane_txn::{Goal, Record, State};

use crate::node::exit;
use crate::parts;

/// Names of the binary in a closure, as deploy-rs calls them.
pub const NAMES: [&str; 2] = ["activate-rs", "deploy-rs-activate"];

const LOOK: Duration = Duration::from_millis(200);

/// Runs the binary under one of [`NAMES`]; `args` are those after the program's name.
pub fn run(name: &str, args: &[String]) -> ExitCode {
    if name == "deploy-rs-activate" {
        // Stock activate-rs would run this; ours does not, so whoever does moved the profile behind our back.
        eprintln!("a sparklane generation is activated by its activate-rs only; this does nothing");
        return ExitCode::from(1);
    }
    if args.iter().any(|a| a == "--log-dir") {
        eprintln!("the node's log is in its journal: journalctl -u 'sparklane-txn@*' (no --log-dir file is written)");
    }
    match parse(args) {
        Ok(Call::Activate(call)) => exit(activate(&call)),
        Ok(Call::Wait(call)) => exit(files::wait(&HostPaths::system(), &call)),
        Ok(Call::Revoke { profile }) => exit(revoke(&profile)),
        Err(usage) => {
            eprintln!("{usage}");
            ExitCode::from(2)
        }
    }
}

fn activate(call: &Activate) -> Result<(), HostError> {
    let paths = HostPaths::system();
    let temp = std::fs::symlink_metadata(&call.temp_path).ok().filter(std::fs::Metadata::is_dir);
    let refusal = call.refusal(paths.profile.as_str(), temp.map(|m| (m.uid(), m.mode())));
    if let Some(why) = refusal {
        return Err(HostError::Refused(why));
    }
    let to = side(&call.closure)?;
    transact(&paths, to, call.goal, &call.confirm(), u64::from(call.confirm_secs))
}

/// deploy-rs takes back an earlier node when a later one failed: a transaction to where the last one came from.
fn revoke(given: &Profile) -> Result<(), HostError> {
    let paths = HostPaths::system();
    if *given != Profile::Path(paths.profile.to_string()) {
        return Err(HostError::Refused(format!("sparklane's profile is {}", paths.profile)));
    }
    let to = files::revoke_target(&paths)?;
    let confirm = Confirm { temp_path: "/run".to_owned(), closure: to.path.clone(), window_secs: None };
    transact(&paths, to, Goal::Switch, &confirm, 0)
}

fn side(path: &StorePath) -> Result<Side, HostError> {
    Ok(Side { path: path.clone(), generation: closure::id(&Utf8PathBuf::from(path.as_str()))? })
}

fn transact(paths: &HostPaths, to: Side, goal: Goal, confirm: &Confirm, window: u64) -> Result<(), HostError> {
    let generation = closure::generation(&Utf8PathBuf::from(to.path.as_str()))?;
    let spec = spec(paths, &generation, to, goal, window)?;
    let txn = spec.txn.clone();
    let request = StageRequest {
        peer_key: None,
        spec,
        public_key: None,
        head: None,
        askers: Vec::new(),
        dry: goal == Goal::DryActivate,
        deploy_rs: Some(confirm.clone()),
    };
    let staged = stage(paths, &request, &parts::stage_steps(), &parts::real)?;
    show(&staged)?;
    if request.dry {
        eprintln!("dry activation: every check passed, nothing was changed");
        return Ok(());
    }
    eprintln!("transaction {txn}: follow it with journalctl -fu sparklane-txn@{txn}");
    follow(paths, &txn, goal)
}

fn show(staged: &Staged) -> Result<(), HostError> {
    let refused: Vec<String> =
        staged.checks.iter().filter_map(|c| c.refused.as_ref().map(|why| format!("{}: {why}", c.name))).collect();
    if refused.is_empty() { Ok(()) } else { Err(HostError::Refused(refused.join("\n"))) }
}

fn spec(paths: &HostPaths, generation: &Generation, to: Side, goal: Goal, window: u64) -> Result<Spec, HostError> {
    Ok(Spec {
        txn: new_id()?,
        node: generation.node.clone(),
        role: generation.role,
        goal,
        from: profile::current(paths)?,
        to,
        release: None,
        owner: format!("deploy-rs by {}", sparklane_deploy::flow::requests::who()),
        activation_secs: generation.activation_secs(),
        confirm_secs: window + GRACE_SECS,
        restart_engine: true,
        replace_edited: false,
        takeover: false,
    })
}

fn new_id() -> Result<TxnId, HostError> {
    sparklane_deploy::flow::requests::new_txn_id().map_err(|e| HostError::Refused(e.to_string()))
}

/// Follows the journal to the transaction's end. Nothing depends on it.
fn follow(paths: &HostPaths, id: &TxnId, goal: Goal) -> Result<(), HostError> {
    let mut said = None;
    loop {
        let txn = txns::read(paths, id)?;
        let state = txn.state();
        if state != said {
            said = state;
            eprintln!("{}", state.map_or("staged", State::as_str));
        }
        if let Some(state) = state.filter(|s| s.is_final()) {
            let why = match txn.records.last() {
                Some(Record::RolledBack { why, .. } | Record::Stuck { why, .. }) => Some(why.clone()),
                _ => None,
            };
            if succeeded(goal, state, why.as_deref()) {
                return Ok(());
            }
            return Err(HostError::Refused(format!("{state}: {}", why.unwrap_or_default())));
        }
        std::thread::sleep(LOOK);
    }
}
