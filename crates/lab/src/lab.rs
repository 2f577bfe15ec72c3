//! The lab as a whole.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;

use crate::error::{LabError, Result};
use crate::keys::Keys;
use crate::machine::{self, ExecOutput};
use crate::paths::Paths;
use crate::process::{Process, leader};
use crate::spec::{NodeSpec, PROGRAMS, node, nodes, parse_link};
use crate::state::{Lock, State};
use crate::{base, clean, net, provision, run};

/// A machine must have shut down after this time when it is told to reboot.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(90);

/// What `up` shall make.
#[derive(Debug, Clone, Default)]
pub struct UpOptions {
    /// A checkout whose files go to control:/root/sparklane.
    pub flake: Option<Utf8PathBuf>,
    /// The folder that `cargo xtask prebuilt` filled, for control:/root/prebuilt and the nodes' docker.
    pub prebuilt: Option<Utf8PathBuf>,
    /// Give head and worker a file system of this size for /var/lib/sparklane.
    pub state_size_mib: Option<u64>,
}

/// One machine as [`Lab::status`] finds it.
#[derive(Debug, Clone, Serialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: &'static str,
    /// `running`, `degraded`, `starting`, `stopping`, `off`.
    pub state: String,
    /// Its process 1 as this host numbers it.
    pub pid: Option<i32>,
    /// Address per network.
    pub addresses: BTreeMap<&'static str, String>,
    /// Its console's log on this host.
    pub console: Utf8PathBuf,
}

/// The whole lab as [`Lab::status`] finds it.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// True when all machines run.
    pub up: bool,
    /// Every machine.
    pub nodes: Vec<NodeStatus>,
    /// Cables that are pulled.
    pub cut: Vec<String>,
}

/// A running lab.
#[derive(Debug)]
pub struct Lab {
    paths: Paths,
}

impl Lab {
    /// Makes the lab, or starts what is missing of it; nothing is done to machines that run. Then brings the checkout's
    /// files, the prebuilt programs and the image up to date. `say` hears of long steps.
    pub fn up(paths: Paths, options: &UpOptions, say: &dyn Fn(&str)) -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        run::require(PROGRAMS)?;
        let _lock = Lock::take(&paths)?;
        let lab = Self { paths };
        let state = match State::load(&lab.paths)? {
            Some(state) if state.complete && net::exists() && lab.mounted()? => state,
            _ => lab.make(options, say)?,
        };
        lab.start_missing(state)?;
        lab.sync(options)?;
        Ok(lab)
    }

    /// The lab that runs already.
    pub fn attach() -> Result<Self> {
        let lab = Self { paths: Paths::from_env() };
        match State::load(&lab.paths)? {
            Some(state) if state.complete => Ok(lab),
            _ => Err(LabError::NotUp("the lab".to_owned())),
        }
    }

    /// Ends all machines and removes all but the caches; nothing to do is fine.
    pub fn down(paths: &Paths) -> Result<()> {
        let _lock = Lock::take(paths)?;
        clean::everything(paths)?;
        base::remove_file(&paths.lock())
    }

    /// The lab's folders.
    #[must_use]
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    fn mounted(&self) -> Result<bool> {
        let mounts = clean::mounts_below(self.paths.dir())?;
        Ok(nodes().iter().all(|n| mounts.iter().any(|m| m == self.paths.root(n.name).as_str())))
    }

    /// Makes networks, keys and folders anew.
    fn make(&self, options: &UpOptions, say: &dyn Fn(&str)) -> Result<State> {
        clean::everything(&self.paths)?;
        let base = base::ensure(&self.paths, say)?;
        let dir = self.paths.dir();
        std::fs::create_dir_all(dir).map_err(|source| LabError::Io { what: format!("make {dir}"), source })?;
        let mut state =
            State { complete: false, base, machines: BTreeMap::new(), state_size_mib: options.state_size_mib };
        state.save(&self.paths)?;
        net::make()?;
        for node in nodes() {
            machine::prepare(&self.paths, node, &state.base, options.state_size_mib)?;
        }
        let keys = Keys::make(&self.paths, &self.paths.root("control"))?;
        for node in nodes() {
            keys.install(node, &self.paths.root(node.name))?;
        }
        state.complete = true;
        Ok(state)
    }

    fn start_missing(&self, mut state: State) -> Result<()> {
        for node in nodes() {
            if !state.machines.get(node.name).is_some_and(|p| p.alive()) {
                state.machines.insert(node.name.to_owned(), machine::start(&self.paths, node)?);
            }
        }
        state.save(&self.paths)?;
        for node in nodes() {
            if let Some(process) = state.machines.get(node.name) {
                machine::wait_ready(&self.paths, node, *process)?;
            }
        }
        Ok(())
    }

    /// Brings the checkout's files, the prebuilt programs and the image into the machines.
    pub fn sync(&self, options: &UpOptions) -> Result<()> {
        let control = self.paths.root("control");
        if let Some(from) = &options.flake {
            provision::flake(from, &control)?;
        }
        if let Some(from) = &options.prebuilt {
            provision::prebuilt(from, &control)?;
            let loads: Vec<_> = nodes().into_iter().filter(|n| n.serves).collect();
            return std::thread::scope(|scope| {
                let threads: Vec<_> =
                    loads.iter().map(|n| scope.spawn(|| provision::image(from, self.leader(n.name)?))).collect();
                threads.into_iter().try_for_each(|t| match t.join() {
                    Ok(result) => result.map(drop),
                    Err(cause) => std::panic::resume_unwind(cause),
                })
            });
        }
        Ok(())
    }

    fn state(&self) -> Result<State> {
        State::load(&self.paths)?.ok_or_else(|| LabError::NotUp("the lab".to_owned()))
    }

    fn nspawn(&self, name: &str) -> Result<Process> {
        let name = node(name)?.name;
        let process = self.state()?.machines.get(name).copied().filter(|p| p.alive());
        process.ok_or_else(|| LabError::NotUp(name.to_owned()))
    }

    fn leader(&self, name: &str) -> Result<Process> {
        leader(self.nspawn(name)?).ok_or_else(|| LabError::NotUp(name.to_owned()))
    }

    /// Runs `argv` in a machine as root, to its end.
    pub fn exec(&self, node: &str, argv: &[&str]) -> Result<ExecOutput> {
        machine::exec(self.leader(node)?, argv, Stdio::null())
    }

    /// As [`Lab::exec`], and any exit code but 0 is an error. Gives back standard output.
    pub fn check(&self, node: &str, argv: &[&str]) -> Result<String> {
        let output = self.exec(node, argv)?;
        if output.code == Some(0) {
            return Ok(output.stdout);
        }
        let status = output.code.map_or_else(|| "a signal".to_owned(), |c| format!("exit code {c}"));
        Err(LabError::Command { command: format!("{node}: {}", argv.join(" ")), status, stderr: output.stderr })
    }

    /// Starts `argv` in a machine with piped output and does not wait, for tests that kill it.
    pub fn spawn(&self, node: &str, argv: &[&str]) -> Result<Child> {
        machine::spawn(self.leader(node)?, argv)
    }

    /// A command for `argv` in a machine, still to be started: its standard streams are the caller's.
    pub fn command(&self, node: &str, argv: &[&str]) -> Result<Command> {
        Ok(machine::command(self.leader(node)?, argv))
    }

    /// Where a machine's root file system is on this host: tests put files there.
    #[must_use]
    pub fn root(&self, node: &str) -> Utf8PathBuf {
        self.paths.root(node)
    }

    /// A folder of a machine's root file system, of /nix, /var/lib/docker or /var/lib/sparklane, on this host.
    #[must_use]
    pub fn bound(&self, node: &str, what: &str) -> Utf8PathBuf {
        self.paths.node(node).join(Utf8Path::new(what).file_name().unwrap_or(what))
    }

    /// Pulls cables; see [`parse_link`] for names.
    pub fn cut(&self, link: &str) -> Result<()> {
        net::set(&parse_link(link)?, false)
    }

    /// Plugs cables in again.
    pub fn heal(&self, link: &str) -> Result<()> {
        net::set(&parse_link(link)?, true)
    }

    /// Orderly restart of a machine; returns when it has booted.
    pub fn reboot(&self, name: &str) -> Result<()> {
        let nspawn = self.nspawn(name)?;
        // The connection to the machine may end before the answer comes.
        let _ = self.exec(name, &["systemctl", "reboot"]);
        if !nspawn.wait_gone(SHUTDOWN_LIMIT) {
            return Err(LabError::Timeout {
                what: format!("{name} has not shut down"),
                seconds: SHUTDOWN_LIMIT.as_secs(),
                hint: format!("; its console: {}", self.paths.console(name)),
            });
        }
        self.start(name)
    }

    /// Power cut: ends every process of a machine at once.
    pub fn kill(&self, name: &str) -> Result<()> {
        machine::power_off(self.nspawn(name)?)
    }

    /// Starts a machine that is off and waits until it has booted; one that runs is left alone.
    pub fn start(&self, name: &str) -> Result<()> {
        let spec: NodeSpec = node(name)?;
        // Another machine may be starting: both are wanted up.
        let _lock = Lock::within(&self.paths, machine::BOOT_LIMIT)?;
        let mut state = self.state()?;
        let process = match state.machines.get(spec.name).copied().filter(|p| p.alive()) {
            Some(process) => process,
            None => machine::start(&self.paths, spec)?,
        };
        state.machines.insert(spec.name.to_owned(), process);
        state.save(&self.paths)?;
        machine::wait_ready(&self.paths, spec, process)
    }

    /// What runs now. Works without a lab too.
    pub fn status(paths: &Paths) -> Result<Status> {
        let state = State::load(paths)?.filter(|s| s.complete);
        let machines = state.map(|s| s.machines).unwrap_or_default();
        let nodes: Vec<NodeStatus> = nodes()
            .into_iter()
            .map(|n| {
                let process = machines.get(n.name).copied();
                NodeStatus {
                    name: n.name,
                    state: process.map_or_else(|| "off".to_owned(), machine::system_state),
                    pid: process.and_then(leader).map(|p| p.pid),
                    addresses: n.networks().iter().map(|net| (net.name(), n.address(*net))).collect(),
                    console: paths.console(n.name),
                }
            })
            .collect();
        let up = nodes.iter().all(|n| matches!(n.state.as_str(), "running" | "degraded"));
        let cut = if net::exists() { net::cut_links()? } else { Vec::new() };
        Ok(Status { up, nodes, cut })
    }
}
