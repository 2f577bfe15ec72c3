//! Files are checked by the program that will read them before one of them is placed (design.md section 5).

use camino::Utf8Path;
use sparklane_lane::Generation;
use sparklane_lane::generation::FileKind;

use crate::error::HostError;
use crate::files;
use crate::paths::HostPaths;
use crate::process;

/// Where the unit expects the tool.
const PROFILE: &str = "/nix/var/nix/profiles/sparklane";

/// Where others put their part of the network.
const NETPLAN: &str = "/etc/netplan";

/// Checks every managed file of a closure; `scratch` is an empty folder for checks that need a tree.
///
/// # Errors
/// All refusals at once, each with the checker's words.
pub fn check(
    paths: &HostPaths,
    closure: &Utf8Path,
    generation: &Generation,
    scratch: &Utf8Path,
) -> Result<(), HostError> {
    let mut refused = Vec::new();
    if generation.files.values().any(|file| file.kind == FileKind::Netplan) {
        others(paths, generation, scratch)?;
    }
    for (path, file) in &generation.files {
        let content = closure.join(path.trim_start_matches('/'));
        match std::fs::read(&content) {
            Ok(bytes) if files::sha256(&bytes) == file.sha256 => {}
            Ok(_) => refused.push(format!("{content}: is not the content that generation.json names")),
            Err(error) => refused.push(format!("{content}: {error}")),
        }
        if let Err(error) = check_kind(file.kind, path, closure, scratch) {
            refused.push(format!("{path}: {error}"));
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(HostError::Refused(refused.join("; "))) }
}

/// The network is made of all files together, so one of somebody else's that netplan refuses would stop a switch half-way.
fn others(paths: &HostPaths, generation: &Generation, scratch: &Utf8Path) -> Result<(), HostError> {
    let Ok(entries) = paths.managed(NETPLAN).read_dir_utf8() else { return Ok(()) };
    for entry in entries.flatten() {
        let path = format!("{NETPLAN}/{}", entry.file_name());
        if path.ends_with(".yaml") && !generation.files.contains_key(path.as_str()) {
            let bytes = std::fs::read(entry.path()).map_err(HostError::file("read", entry.path()))?;
            files::write_atomic(&scratch.join(path.trim_start_matches('/')), &bytes, 0o600)?;
        }
    }
    Ok(())
}

fn check_kind(kind: FileKind, path: &str, closure: &Utf8Path, scratch: &Utf8Path) -> Result<(), HostError> {
    let content = &closure.join(path.trim_start_matches('/'));
    match kind {
        FileKind::Sudoers => process::run("visudo", &["-c", "-q", "-f", content.as_str()]).map(drop),
        FileKind::Sshd => process::run("sshd", &["-t", "-f", content.as_str()]).map(drop),
        FileKind::Netplan => {
            let placed = scratch.join(path.trim_start_matches('/'));
            let bytes = std::fs::read(content).map_err(HostError::file("read", content))?;
            files::write_atomic(&placed, &bytes, 0o600)?;
            process::run("netplan", &["generate", "--root-dir", scratch.as_str()]).map(drop)
        }
        // nft asks the kernel, which refuses what it does not know; nothing is changed.
        FileKind::Firewall => process::run("nft", &["--check", "--file", content.as_str()]).map(drop),
        // A drop-in cannot be verified alone, and a unit's dependencies need not be loaded to check its syntax.
        FileKind::Unit if path.ends_with(".service") => {
            let placed = scratch.join(path.trim_start_matches('/'));
            let text = std::fs::read_to_string(content).map_err(HostError::file("read", content))?;
            // The unit runs the profile's tool, and at a first deployment the profile is not there yet.
            let text = text.replace(&format!("{PROFILE}/"), &format!("{closure}/"));
            files::write_atomic(&placed, text.as_bytes(), 0o644)?;
            process::run("systemd-analyze", &["verify", "--recursive-errors=no", "--man=no", placed.as_str()]).map(drop)
        }
        FileKind::Unit | FileKind::Sysctl | FileKind::Limits | FileKind::Tmpfiles | FileKind::Plain => Ok(()),
    }
}
