//! Running programs: absolute paths, argument vectors, drained pipes. Nothing passes through a shell.

use std::process::{Command, Stdio};

use camino::Utf8PathBuf;

use crate::error::HostError;

/// Where programs may be. sshd, sudo and systemd hand us short PATHs, so PATH is not asked (deploy-rs#298).
const FOLDERS: [&str; 6] =
    ["/nix/var/nix/profiles/default/bin", "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// The absolute path of a program.
///
/// # Errors
/// When no folder holds it.
pub fn find(program: &str) -> Result<Utf8PathBuf, HostError> {
    FOLDERS
        .iter()
        .map(|dir| Utf8PathBuf::from(dir).join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| HostError::Missing(program.to_owned()))
}

/// Runs a program to its end and gives its output.
///
/// # Errors
/// When it is missing, cannot be started or does not exit with 0; the error holds the end of its error output.
pub fn run(program: &str, args: &[&str]) -> Result<String, HostError> {
    let path = find(program)?;
    let output = Command::new(&path)
        .args(args)
        .stdin(Stdio::null())
        .env("LC_ALL", "C")
        .output()
        .map_err(HostError::file("run", path))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<&str> = stderr.trim().lines().rev().take(5).collect();
    Err(HostError::Program {
        program: format!("{program} {}", args.join(" ")),
        status: output.status.to_string(),
        stderr: tail.into_iter().rev().collect::<Vec<_>>().join(" | "),
    })
}
