//! One machine: its folders, its systemd-nspawn process, and commands inside it.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use serde::Serialize;

use crate::error::{LabError, Result, Try};
use crate::paths::Paths;
use crate::process::{Process, leader};
use crate::run::run;
use crate::spec::{Network, NodeSpec};
use crate::{base, cgroup};

/// Longest time from start to a booted machine; it takes about 3 s on an idle host.
pub const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// What a command in a machine did.
#[derive(Debug, Clone, Serialize)]
pub struct ExecOutput {
    /// Exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Folders that must not lie on the overlay, and where they appear in the machine.
fn binds(paths: &Paths, node: &str) -> [(Utf8PathBuf, &'static str); 3] {
    let dir = paths.node(node);
    [(dir.join("nix"), "/nix"), (dir.join("docker"), "/var/lib/docker"), (dir.join("sparklane"), "/var/lib/sparklane")]
}

/// Makes the machine's folders and mounts its root file system; nothing of it may exist.
pub fn prepare(paths: &Paths, node: NodeSpec, base: &Utf8Path, state_size_mib: Option<u64>) -> Result<()> {
    let dir = paths.node(node.name);
    let (upper, work, root) = (dir.join("upper"), dir.join("work"), paths.root(node.name));
    let folders = binds(paths, node.name).map(|(path, _)| path);
    for folder in [&upper, &work, &root].into_iter().chain(&folders) {
        std::fs::create_dir_all(folder).trying(|| format!("make {folder}"))?;
    }
    if let (Some(size), true) = (state_size_mib, node.serves) {
        let image = dir.join("sparklane.ext4");
        run(&["truncate", "--size", &format!("{size}M"), image.as_str()])?;
        run(&["mkfs.ext4", "-q", "-m", "0", image.as_str()])?;
        run(&["mount", "-o", "loop,errors=remount-ro", image.as_str(), dir.join("sparklane").as_str()])?;
    }
    let options = format!("lowerdir={base},upperdir={upper},workdir={work}");
    run(&["mount", "-t", "overlay", "sparklane-lab", "-o", &options, root.as_str()])?;
    describe(node, &root)
}

/// Writes what makes this machine differ from the base.
fn describe(node: NodeSpec, root: &Utf8Path) -> Result<()> {
    base::write(&root.join("etc/hostname"), 0o644, &format!("{}\n", node.name))?;
    // An empty id would make every start a first boot.
    let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").trying(|| "read a random id".to_owned())?;
    base::write(&root.join("etc/machine-id"), 0o444, &format!("{}\n", id.trim().replace('-', "")))?;
    for network in node.networks() {
        let (name, address) = (network.name(), node.address(*network));
        // "90-" lets a file that netplan makes ("10-netplan-…") win.
        let keep = if *network == Network::Mgmt { "ConfigureWithoutCarrier=yes\n" } else { "" };
        let text = format!(
            "[Match]\nName={name}\n\n[Link]\nMTUBytes={}\n\n[Network]\nAddress={address}/24\nLinkLocalAddressing=no\n\
             IPv6AcceptRA=no\n{keep}",
            network.mtu()
        );
        base::write(&root.join(format!("etc/systemd/network/90-{name}.network")), 0o644, &text)?;
    }
    if !node.serves {
        let units = ["docker.service", "docker.socket", "containerd.service"];
        run(&[&["chroot", root.as_str(), "systemctl", "mask"], &units[..]].concat())?;
    }
    Ok(())
}

/// Starts the machine, apart from this process: its console goes to a file and it outlives us.
pub fn start(paths: &Paths, node: NodeSpec) -> Result<Process> {
    let console = paths.console(node.name);
    let log = File::options().create(true).append(true).open(&console).trying(|| format!("open {console}"))?;
    let log_too = log.try_clone().trying(|| format!("open {console}"))?;
    let mut command = Command::new("setsid");
    command
        .args(["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--capability=all"])
        .args(["--system-call-filter=@keyring bpf", "--resolv-conf=off", "--timezone=off", "--link-journal=no"])
        .arg(format!("--machine={}", node.name))
        .arg(directory_argument(paths, node))
        .arg(format!("--network-namespace-path=/run/netns/{}", node.netns()));
    for (from, to) in binds(paths, node.name) {
        command.arg(format!("--bind={from}:{to}"));
    }
    command
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1")
        // Writable /proc/sys/net, for docker and for sysctl files of lanes; the rest of /proc/sys is this host's own.
        .env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "network")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too);
    let child = cgroup::within(node.name, || command.spawn().trying(|| "start setsid".to_owned()))?;
    // `setsid` becomes systemd-nspawn under the same number.
    let pid = i32::try_from(child.id()).unwrap_or(-1);
    Process::find(pid).ok_or_else(|| failed_start(paths, node))
}

fn failed_start(paths: &Paths, node: NodeSpec) -> LabError {
    LabError::BadFile { path: paths.console(node.name), why: format!("{} ended at once; see there", node.name) }
}

/// The argument that tells this machine's systemd-nspawn from all other processes.
pub fn directory_argument(paths: &Paths, node: NodeSpec) -> String {
    format!("--directory={}", paths.root(node.name))
}

/// Waits until the machine has booted.
pub fn wait_ready(paths: &Paths, node: NodeSpec, nspawn: Process) -> Result<()> {
    let end = Instant::now() + BOOT_LIMIT;
    loop {
        if !nspawn.alive() {
            return Err(failed_start(paths, node));
        }
        if booted(nspawn) && (!node.serves || docker_settled(nspawn)) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(LabError::Timeout {
                what: format!("{} has not booted", node.name),
                seconds: BOOT_LIMIT.as_secs(),
                hint: format!("; its console: {}", paths.console(node.name)),
            });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// True when all that a boot starts is up. An engine that waits for another node may start for as long as it likes.
fn booted(nspawn: Process) -> bool {
    match system_state(nspawn).as_str() {
        "running" | "degraded" => true,
        "starting" => {
            let Some(leader) = leader(nspawn) else { return false };
            let argv = ["systemctl", "is-active", "--quiet", "multi-user.target"];
            command(leader, &argv).stdin(Stdio::null()).status().is_ok_and(|status| status.success())
        }
        _ => false,
    }
}

/// systemd's word for the machine: `running`, `degraded`, `starting`, `stopping`, or `off`.
pub fn system_state(nspawn: Process) -> String {
    let Some(leader) = leader(nspawn) else {
        return "off".to_owned();
    };
    let output = command(leader, &["systemctl", "is-system-running"]).stdin(Stdio::null()).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default();
    if text.is_empty() { "starting".to_owned() } else { text }
}

/// True when docker runs, or has failed for good (a test may want that).
fn docker_settled(nspawn: Process) -> bool {
    let Some(leader) = leader(nspawn) else {
        return false;
    };
    let output = command(leader, &["systemctl", "is-active", "docker.service"]).stdin(Stdio::null()).output();
    output.is_ok_and(|o| matches!(String::from_utf8_lossy(&o.stdout).trim(), "active" | "failed"))
}

/// A command that runs `argv` in the machine as its root, in all of its namespaces.
pub fn command(leader: Process, argv: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command
        // `env` changes the folder inside: nsenter's own --wd means a folder of this host.
        .args(["--all", "--target", &leader.pid.to_string(), "--", "env", "--chdir=/root", "--"])
        .args(argv)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .env("USER", "root")
        .env("LANG", "C.UTF-8");
    command
}

/// Runs `argv` to its end.
pub fn exec(leader: Process, argv: &[&str], stdin: Stdio) -> Result<ExecOutput> {
    let output = command(leader, argv).stdin(stdin).output().trying(|| "start nsenter".to_owned())?;
    Ok(ExecOutput {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Starts `argv` and does not wait; its output is piped.
pub fn spawn(leader: Process, argv: &[&str]) -> Result<Child> {
    command(leader, argv)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .trying(|| "start nsenter".to_owned())
}

/// A power cut: every process of the machine ends at once, nothing is told.
pub fn power_off(nspawn: Process) -> Result<()> {
    if let Some(leader) = leader(nspawn) {
        // The kernel ends every process of a namespace with its number 1.
        leader.kill();
    }
    nspawn.kill();
    if nspawn.wait_gone(Duration::from_secs(20)) {
        return Ok(());
    }
    Err(LabError::Timeout { what: format!("process {} still runs", nspawn.pid), seconds: 20, hint: String::new() })
}
