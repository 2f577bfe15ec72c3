//! `sparklane node …`: what the control host runs on a node over ssh, as root. JSON in, JSON out.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;
use sparklane_engine::state::STATE_FILE;
use sparklane_fabric::facts::Root;
use sparklane_host::stage::{StageRequest, stage};
use sparklane_host::status::NodeStatus;
use sparklane_host::units::Systemd;
use sparklane_host::{HostError, HostPaths, firewall, peer, status};

use crate::image::node as image;
use crate::parts;

/// A node's part of a deployment (run by `deploy` on the nodes).
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print this node's state as JSON.
    Status,
    /// Check a transaction read from stdin and, unless it is dry, start its process.
    Stage,
    /// Print the public key with which this node asks the head; made on first use.
    Key,
    /// Print this node's facts as JSON, with packets over the rails as the request on stdin says; without one, none.
    Facts,
    /// Make the nftables table what the deployed file says (run by sparklane-firewall.service).
    Firewall,
    /// Print what this machine is, as JSON: facts, and what a deployment by this user needs of it.
    Survey {
        /// Who deploys.
        user: String,
    },
    /// Run this node's rank of a measurement (request on stdin).
    Bench,
    /// Keep a measurement's record (on stdin) as evidence.
    BenchKeep,
    /// Tell whether docker has an image (digests on stdin) under the right number.
    ImageState,
    /// Print this node's images as JSON: what the lane wants, what docker has and runs, what the layout holds.
    ImageReport,
    /// Bring an image into docker: order on stdin, what happens on stderr.
    ImageStage,
    /// Send the blobs of an image to other nodes over the rails (request on stdin, what happens on stdout).
    ImageServe,
}

/// Largest request that is read.
const MAX_REQUEST: u64 = 4 * 1024 * 1024;

/// Runs the subcommand. Exit codes: 0 answered, 1 refused, 5 busy; the reason is one line of stderr.
///
/// # Errors
/// Never; failures are exit codes with a line, as ssh passes them on.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let paths = HostPaths::system();
    let done = match args.command {
        Command::Status => node_status(&paths).and_then(|s| print(&s)),
        Command::Stage => {
            request().and_then(|r| stage(&paths, &r, &parts::stage_steps(), &parts::real)).and_then(|s| print(&s))
        }
        Command::Key => peer::public_key(&paths).and_then(|key| print(&key)),
        Command::Facts => crate::fabric::node::facts(&paths).and_then(|f| print(&f)),
        Command::Firewall => firewall::follow(&paths),
        Command::Survey { user } => {
            let machine = sparklane_init::machine::read(&Root::new("/"), &user);
            crate::fabric::node::facts(&paths).and_then(|facts| print(&sparklane_init::Survey { facts, machine }))
        }
        Command::Bench => crate::fabric::rank::bench(&paths).and_then(|a| print(&a)),
        Command::BenchKeep => crate::fabric::rank::keep(&paths).and_then(|p| print(&p)),
        Command::ImageState => image::state().and_then(|s| print(&s)),
        Command::ImageReport => image::report(&paths).and_then(|r| print(&r)),
        Command::ImageStage => return Ok(image::stage()),
        Command::ImageServe => image::serve(),
    };
    Ok(exit(done))
}

/// The node's state, with what the weights part and the engine's supervisor say.
fn node_status(paths: &HostPaths) -> Result<NodeStatus, HostError> {
    let mut found = status::read(paths, &Systemd, env!("CARGO_PKG_VERSION"))?;
    if let (Some(side), Some(generation)) = (&found.current, &found.generation) {
        found.weights = crate::weights::gate::status(generation, &paths.in_store(&side.path));
    }
    if let Some(engine) = sparklane_engine::state::read(STATE_FILE.as_ref()) {
        let up = found.engine.as_ref().is_some_and(|e| e.active == "active");
        let other = found.generation.as_ref().filter(|_| up).and_then(|g| engine.other_than(g));
        found.engine_of = other.map(ToString::to_string);
        found.waits_for_ranks = engine.waits_for_ranks();
        found.supervisor = serde_json::to_value(&engine).ok();
    }
    Ok(found)
}

/// The exit code of a node command.
pub fn exit(done: Result<(), HostError>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(if matches!(error, HostError::Busy(_)) { 5 } else { 1 })
        }
    }
}

/// One JSON line on stdout.
pub fn print(value: &impl Serialize) -> Result<(), HostError> {
    let mut bytes = serde_json::to_vec(value).map_err(|e| HostError::Refused(e.to_string()))?;
    bytes.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&bytes).and_then(|()| out.flush()).map_err(HostError::file("write", "-"))
}

fn request() -> Result<StageRequest, HostError> {
    let mut text = String::new();
    std::io::stdin().take(MAX_REQUEST).read_to_string(&mut text).map_err(HostError::file("read", "-"))?;
    serde_json::from_str(&text).map_err(|e| HostError::Refused(format!("not a request of this tool's version: {e}")))
}
