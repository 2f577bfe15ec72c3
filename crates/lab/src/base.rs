//! The base root file system: made once per version of its description, below every machine's overlay.

use std::os::unix::fs::PermissionsExt;

use camino::{Utf8Path, Utf8PathBuf};
use sha2::{Digest, Sha256};

use crate::error::{Result, Try};
use crate::paths::Paths;
use crate::run::run;
use crate::spec::{OPERATOR, PACKAGES, SUITE};

/// Files of the base that are the same in every lab: path, mode, content.
const FILES: &[(&str, u32, &str)] = &[
    ("etc/sudoers.d/operator", 0o440, "operator ALL=(ALL:ALL) NOPASSWD: ALL\n"),
    (
        "etc/ssh/sshd_config.d/lab.conf",
        0o644,
        "HostKey /etc/ssh/ssh_host_ed25519_key\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
         PermitRootLogin prohibit-password\nUseDNS no\nMaxSessions 64\nMaxStartups 100\n",
    ),
    (
        "etc/ssh/ssh_config.d/lab.conf",
        0o644,
        "StrictHostKeyChecking yes\nUpdateHostKeys no\nPasswordAuthentication no\nConnectTimeout 5\n",
    ),
    (
        "etc/hosts",
        0o644,
        "127.0.0.1 localhost\n10.77.0.1 control\n10.77.0.10 head\n10.77.0.11 worker\n10.77.0.254 host\n\
         10.77.1.10 head-rail1\n10.77.1.11 worker-rail1\n10.77.2.10 head-rail2\n10.77.2.11 worker-rail2\n",
    ),
    ("etc/docker/daemon.json", 0o644, "{\n  \"storage-driver\": \"overlay2\",\n  \"log-driver\": \"journald\"\n}\n"),
    // Restarting quickly is no reason to stop trying: tests reboot a machine often.
    ("etc/systemd/system.conf.d/lab.conf", 0o644, "[Manager]\nDefaultTimeoutStopSec=20s\n"),
    ("etc/systemd/journald.conf.d/lab.conf", 0o644, "[Journal]\nStorage=persistent\nRateLimitBurst=0\n"),
];

/// Units without use in a machine that lives for minutes; they only lengthen its start.
const MASKED: &[&str] = &[
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "fstrim.timer",
    "console-getty.service",
    "getty.target",
    "systemd-firstboot.service",
    "systemd-logind.service",
    // There for the scenario that starts it; networkd renders a lab's interfaces.
    "NetworkManager.service",
    "NetworkManager-wait-online.service",
    "NetworkManager-dispatcher.service",
    "wpa_supplicant.service",
    "sshd-keygen.service",
];

const ENABLED: &[&str] =
    &["systemd-networkd.service", "nix-daemon.socket", "ssh.service", "docker.service", "containerd.service"];

/// Raise it when [`customise`] changes in a way that the tables above do not show.
const VERSION: &str = "3";

fn identity() -> String {
    let mut hash = Sha256::new();
    let mut add = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    for text in [VERSION, SUITE].iter().chain(PACKAGES).chain(MASKED).chain(ENABLED) {
        add(text);
    }
    for (path, mode, content) in FILES {
        add(path);
        add(&format!("{mode:o}"));
        add(content);
    }
    hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// The base of this version, made if it is not there. `say` hears before the long step.
pub fn ensure(paths: &Paths, say: &dyn Fn(&str)) -> Result<Utf8PathBuf> {
    let done = paths.cache().join(format!("base-{}", identity()));
    if done.join("etc/debian_version").exists() {
        return Ok(done);
    }
    say("making the base root file system with mmdebstrap (once; about a minute)");
    std::fs::create_dir_all(paths.cache()).trying(|| format!("make {}", paths.cache()))?;
    let making = paths.cache().join(format!("base-{}.new", identity()));
    remove_tree(&making)?;
    let include = format!("--include={}", PACKAGES.join(","));
    run(&["mmdebstrap", "--quiet", "--variant=minbase", &include, SUITE, making.as_str()])?;
    customise(&making)?;
    std::fs::rename(&making, &done).trying(|| format!("rename {making}"))?;
    remove_old(paths, &done)?;
    Ok(done)
}

/// Removes bases of earlier versions that no overlay stands on.
fn remove_old(paths: &Paths, keep: &Utf8Path) -> Result<()> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").trying(|| "read /proc/self/mountinfo".to_owned())?;
    for entry in paths.cache().read_dir_utf8().trying(|| format!("list {}", paths.cache()))?.flatten() {
        let old = entry.file_name().starts_with("base-") && entry.path() != keep;
        if old && !mounts.contains(entry.path().as_str()) {
            remove_tree(entry.path())?;
        }
    }
    Ok(())
}

fn customise(root: &Utf8Path) -> Result<()> {
    let chroot = |argv: &[&str]| run(&[&["chroot", root.as_str()], argv].concat());
    // Debian has a group `operator` (37) already and no such user; its Nix lets only `nix-users` talk to the daemon.
    chroot(&[
        "useradd",
        "--create-home",
        "--shell",
        "/bin/bash",
        "--gid",
        OPERATOR,
        "--groups",
        "nix-users",
        OPERATOR,
    ])?;
    for (path, mode, content) in FILES {
        write(&root.join(path), *mode, content)?;
    }
    for kind in ["dsa", "ecdsa", "ed25519", "rsa"] {
        for end in ["", ".pub"] {
            remove_file(&root.join(format!("etc/ssh/ssh_host_{kind}_key{end}")))?;
        }
    }
    for dir in ["var/log/journal", "nix", "var/lib/sparklane", "var/lib/docker", "etc/sparklane", "etc/nix"] {
        let dir = root.join(dir);
        std::fs::create_dir_all(&dir).trying(|| format!("make {dir}"))?;
    }
    chroot(&[&["systemctl", "mask"], MASKED].concat())?;
    chroot(&[&["systemctl", "enable"], ENABLED].concat())?;
    Ok(())
}

/// Writes a file with its mode, and the folders above it.
pub fn write(path: &Utf8Path, mode: u32, content: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).trying(|| format!("make {parent}"))?;
    }
    std::fs::write(path, content).trying(|| format!("write {path}"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).trying(|| format!("chmod {path}"))
}

/// Removes a file that may be missing.
pub fn remove_file(path: &Utf8Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).trying(|| format!("remove {path}")),
        _ => Ok(()),
    }
}

/// Removes a folder that may be missing, with all in it.
pub fn remove_tree(path: &Utf8Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).trying(|| format!("remove {path}")),
        _ => Ok(()),
    }
}
