//! Nodes over ssh, before they have anything of ours: one shared connection each, and one program that is copied over it,
//! run and removed again.

use std::collections::BTreeMap;
use std::time::Duration;

use camino::Utf8Path;
use sha2::{Digest as _, Sha256};
use sparklane_deploy::answer;
use sparklane_deploy::ssh::Remote;
use sparklane_deploy::trouble::{self, Login};
use sparklane_lane::{NodeName, System};

use crate::apply::{Hands, LocalFile};
use crate::error::InitError;
use crate::machine::Survey;
use crate::plan::Order;

/// Longest time for an answer without work.
const QUICK: Duration = Duration::from_secs(30);
/// Longest time for the program to cross and to answer.
const PROBE_TIME: Duration = Duration::from_secs(180);

/// Takes a program from stdin, proves it (`$1`), runs its survey for a user (`$2`), and leaves nothing.
const PROBE: &str = r#"set -eu
umask 077
dir=$(mktemp -d /var/tmp/sparklane-init.XXXXXX)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
cat > "$dir/sparklane"
echo "$1  $dir/sparklane" | sha256sum --check --status || { echo "the program did not arrive whole" >&2; exit 1; }
chmod 700 "$dir/sparklane"
"$dir/sparklane" node survey "$2" < /dev/null"#;

/// How far a first login came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entered {
    /// In, on a machine of this system.
    In(System),
    /// Nobody knows the node's host key yet.
    Stranger,
    /// It shows another key than the one that is known.
    Other,
}

impl Entered {
    /// The system of a machine that was entered.
    ///
    /// # Errors
    /// When its host key is not, or no more, the known one.
    pub fn system(self, remote: &Remote) -> Result<System, InitError> {
        match self {
            Self::In(system) => Ok(system),
            Self::Stranger => Err(refused(remote, "its host key is not known any more")),
            Self::Other => Err(other_key(remote)),
        }
    }
}

/// Refused: another host key than the known one, and nobody knows whose.
#[must_use]
pub fn other_key(remote: &Remote) -> InitError {
    remote.no_login(Login::Changed, "").into()
}

/// Logs in as the user himself.
///
/// # Errors
/// Refused, with what to do: no way there, no login, an unknown kind of machine.
pub fn enter(remote: &Remote) -> Result<Entered, InitError> {
    let answer = remote.login(&["uname", "-m"], QUICK)?;
    if answer.code == 0 {
        // A login script may greet before.
        let kind = answer.stdout.trim().lines().last().unwrap_or_default();
        let known = [System::Aarch64Linux, System::X86_64Linux].into_iter().find(|s| s.uname_machine() == kind);
        return known
            .map(Entered::In)
            .ok_or_else(|| refused(remote, &format!("is a {kind} machine; lanes run on aarch64 and x86_64 Linux")));
    }
    match trouble::login(&answer.stderr) {
        Login::Unknown => Ok(Entered::Stranger),
        Login::Changed => Ok(Entered::Other),
        why @ (Login::Denied | Login::Account | Login::Unreachable | Login::Other) => {
            Err(remote.no_login(why, &answer.stderr).into())
        }
    }
}

/// Proves that the user may do without a password what a deployment does.
///
/// # Errors
/// Refused, with the line to add.
pub fn may_sudo(remote: &Remote) -> Result<(), InitError> {
    if remote.user == "root" {
        return Ok(());
    }
    let answer = remote.login(&["sudo", "-n", "--", "true"], QUICK)?;
    if answer.code == 0 {
        return Ok(());
    }
    if answer.code == 255 {
        return Err(remote.no_login(trouble::login(&answer.stderr), &answer.stderr).into());
    }
    let why = trouble::sudo(answer.code, &answer.stderr).unwrap_or(trouble::Sudo::Other);
    Err(refused(remote, &why.says(&remote.user, &remote.host, &answer.stderr)))
}

/// Asks a node what it is, with a program of its architecture that nothing of stays there.
///
/// # Errors
/// When the program does not run there or its answer is not understood.
pub fn survey(remote: &Remote, program: &[u8]) -> Result<Survey, InitError> {
    let sum: String = Sha256::digest(program).iter().map(|b| format!("{b:02x}")).collect();
    let answer = remote.run_for(&["sh", "-c", PROBE, "sh", &sum, &remote.user], program, PROBE_TIME)?;
    if answer.code != 0 {
        let why = answer.stderr.trim();
        return Err(refused(remote, &format!("cannot be looked at (exit code {}): {why}", answer.code)));
    }
    answer::read(&answer.stdout).map_err(|e| {
        refused(remote, &format!("odd answer ({e}); the program that was copied there must be of this version"))
    })
}

/// A program for that system, by its ELF header.
#[must_use]
pub fn is_for(program: &[u8], system: System) -> bool {
    // e_machine lies at 18, little-endian on both systems (ELF specification).
    program.starts_with(b"\x7fELF") && program.get(18..20) == Some(&system.elf_machine().to_le_bytes()[..])
}

fn refused(remote: &Remote, why: &str) -> InitError {
    InitError::Refused(format!("{}: {why}", remote.name))
}

/// The real hands.
pub struct Ssh {
    /// Every node.
    pub remotes: BTreeMap<NodeName, Remote>,
}

impl Hands for Ssh {
    fn run(&mut self, node: &NodeName, order: &Order) -> Result<(), String> {
        let Some(remote) = self.remotes.get(node) else { return Err(format!("{node} is no node")) };
        let argv: Vec<&str> = order.argv.iter().map(String::as_str).collect();
        let answer = remote.run_for(&argv, order.input.as_bytes(), order.limit).map_err(|e| e.to_string())?;
        if answer.code == 0 {
            return Ok(());
        }
        let told = if answer.stderr.trim().is_empty() { answer::shown(&answer.stdout) } else { answer.stderr };
        let mut tail: Vec<&str> = told.trim().lines().rev().take(6).collect();
        tail.reverse();
        Err(format!("{} (exit code {}): {}", argv.join(" "), answer.code, tail.join(" | ")))
    }

    fn forget(&mut self, node: &NodeName) {
        if let Some(remote) = self.remotes.get(node) {
            remote.close();
        }
    }

    fn write(&mut self, file: &LocalFile) -> Result<(), String> {
        write(&file.path, &file.text, file.mode)
    }
}

/// Whole or not at all. A secret that is there is never written over.
fn write(path: &Utf8Path, text: &str, mode: u32) -> Result<(), String> {
    // A link leads to the file that is meant.
    let real = path.canonicalize_utf8();
    let path = real.as_deref().unwrap_or(path);
    let at = |e: std::io::Error| format!("{path}: {e}");
    if let Some(parent) = path.parent().filter(|dir| !dir.as_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(at)?;
    }
    let put = |path: &Utf8Path| sparklane_durable::write(path, text.as_bytes(), mode).map_err(|e| e.to_string());
    if mode & 0o077 != 0 {
        return put(path);
    }
    // Another run may have made one meanwhile, which is trusted somewhere by now.
    let new = path.with_file_name(format!(".{}.{}", path.file_name().unwrap_or("init"), std::process::id()));
    put(&new)?;
    let made = std::fs::hard_link(&new, path).map_err(at);
    std::fs::remove_file(&new).map_err(at)?;
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_written_over_and_other_files_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("x");
        write(&path, "first", 0o600).unwrap();
        assert!(write(&path, "second", 0o600).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first");
        write(&path, "third", 0o644).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "third");
        assert_eq!(dir.path().read_dir().unwrap().count(), 1, "nothing is left beside it");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("x", &link).unwrap();
        write(Utf8Path::from_path(&link).unwrap(), "fourth", 0o644).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "fourth", "a link leads to the file that is meant");
        assert!(link.symlink_metadata().unwrap().is_symlink());
    }
}
