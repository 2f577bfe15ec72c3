//! The worker's question to the head, over ssh with a key that may ask nothing else (design.md section 6).
//!
//! The control host introduces the two at staging: the worker's public key becomes a line with a forced command on the
//! head, the head's host keys become the only ones the worker accepts.

use std::process::{Command, Stdio};

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};
use sparklane_lane::TxnId;
use sparklane_txn::Answer;

use crate::error::HostError;
use crate::files;
use crate::paths::HostPaths;
use crate::process;

/// Seconds for one address to connect.
const CONNECT_SECS: u32 = 5;
/// How a line of ours in `authorized_keys` ends.
const MARK: &str = "sparklane-decision";

/// Where and as whom a worker finds its head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Head {
    /// User on the head.
    pub user: String,
    /// Rail 1, rail 2, management; tried in this order.
    pub addresses: Vec<String>,
    /// The head's public host keys (`<type> <base64>`).
    pub host_keys: Vec<String>,
}

fn dir(paths: &HostPaths) -> Utf8PathBuf {
    paths.state.join("keys")
}

fn key(paths: &HostPaths) -> Utf8PathBuf {
    dir(paths).join("decision")
}

/// The public half of this node's key for questions; made on first use.
///
/// # Errors
/// When the key can neither be read nor made.
pub fn public_key(paths: &HostPaths) -> Result<String, HostError> {
    let key = key(paths);
    let public = Utf8PathBuf::from(format!("{key}.pub"));
    if !public.exists() {
        files::make_dir(&dir(paths))?;
        files::remove(&key)?;
        process::run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-C", MARK, "-f", key.as_str()])?;
    }
    let text = std::fs::read_to_string(&public).map_err(HostError::file("read", public))?;
    Ok(text.trim().to_owned())
}

/// The public half, when the key was made before.
#[must_use]
pub fn public_key_if_any(paths: &HostPaths) -> Option<String> {
    let public = Utf8PathBuf::from(format!("{}.pub", key(paths)));
    std::fs::read_to_string(public).ok().map(|text| text.trim().to_owned())
}

/// This machine's public host keys without their comments.
///
/// # Errors
/// When /etc/ssh cannot be read.
pub fn host_keys(paths: &HostPaths) -> Result<Vec<String>, HostError> {
    let dir = paths.managed("/etc/ssh");
    let mut keys = Vec::new();
    for entry in std::fs::read_dir(&dir).map_err(HostError::file("list", &dir))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("ssh_host_") && name.ends_with("_key.pub") {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let words: Vec<&str> = text.split_whitespace().take(2).collect();
            keys.push(words.join(" "));
        }
    }
    keys.sort();
    Ok(keys)
}

/// On a worker: remembers the head. Does nothing when it is known so already.
///
/// # Errors
/// When the files cannot be written.
pub fn remember_head(paths: &HostPaths, head: &Head) -> Result<(), HostError> {
    if known_head(paths).as_ref() == Some(head) {
        return Ok(());
    }
    let mut known = String::new();
    for address in &head.addresses {
        for host_key in &head.host_keys {
            known.push_str(&format!("{address} {host_key}\n"));
        }
    }
    files::write_atomic(&dir(paths).join("known_hosts"), known.as_bytes(), 0o644)?;
    let json = serde_json::to_vec_pretty(head).map_err(|e| HostError::Refused(e.to_string()))?;
    files::write_atomic(&dir(paths).join("head.json"), &json, 0o644)
}

fn known_head(paths: &HostPaths) -> Option<Head> {
    let bytes = std::fs::read(dir(paths).join("head.json")).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// On the head: lets the holder of `public` ask for decisions as `user`, and nothing else.
///
/// # Errors
/// When the user is unknown, the key is not one line of a known form, or the file cannot be written.
pub fn allow_questions(paths: &HostPaths, user: &str, public: &str) -> Result<(), HostError> {
    let words: Vec<&str> = public.split_whitespace().take(2).collect();
    let [kind, body] = words[..] else { return Err(HostError::Refused(format!("{public:?} is not a public key"))) };
    let plain = |t: &str| t.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=-@.".contains(&b));
    if !plain(kind) || !plain(body) {
        return Err(HostError::Refused(format!("{public:?} is not a public key")));
    }
    let (home, uid, gid) = account(paths, user)?;
    let ssh_dir = paths.managed(&home).join(".ssh");
    let file = ssh_dir.join("authorized_keys");
    let line = format!("restrict,command=\"{}/bin/sparklane txn decision --ssh\" {kind} {body} {MARK}", paths.tool());
    let made = !ssh_dir.exists();
    files::make_dir(&ssh_dir)?;
    if made {
        std::os::unix::fs::chown(&ssh_dir, Some(uid), Some(gid)).map_err(HostError::file("chown", &ssh_dir))?;
    }
    // Someone may keep the real file elsewhere.
    let file = file.canonicalize_utf8().unwrap_or(file);
    let old = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        // Writing what we could not read would lock its owner out.
        Err(error) => return Err(HostError::file("read", file)(error)),
    };
    let new = with_line(&old, &line, body);
    if new == old {
        return Ok(());
    }
    files::write_owned(&file, &new, 0o600, (uid, gid))
}

/// The file with our line for this key, and no older one of ours; every other byte stays, UTF-8 or not.
fn with_line(old: &[u8], line: &str, key: &str) -> Vec<u8> {
    let has = |l: &[u8], part: &str| l.windows(part.len()).any(|w| w == part.as_bytes());
    let ours = |l: &[u8]| has(l, key) && l.trim_ascii_end().ends_with(MARK.as_bytes());
    let mut new: Vec<u8> = old.split_inclusive(|b| *b == b'\n').filter(|l| !ours(l)).flatten().copied().collect();
    if new.last().is_some_and(|b| *b != b'\n') {
        new.push(b'\n');
    }
    new.extend_from_slice(line.as_bytes());
    new.push(b'\n');
    new
}

/// Home, uid and gid of a user, from the file: a static binary has no NSS (design.md section 10).
fn account(paths: &HostPaths, user: &str) -> Result<(String, u32, u32), HostError> {
    let file = paths.managed("/etc/passwd");
    let text = std::fs::read_to_string(&file).map_err(HostError::file("read", &file))?;
    let found =
        text.lines().map(|l| l.split(':').collect::<Vec<_>>()).find(|f| f.first() == Some(&user) && f.len() >= 7);
    let account = found.and_then(|f| Some((f[5].to_owned(), f[2].parse().ok()?, f[3].parse().ok()?)));
    account.ok_or_else(|| HostError::Content { path: file, why: format!("knows no user {user:?}") })
}

/// Asks the head on rail 1, else rail 2, else the management network.
#[must_use]
pub fn ask(paths: &HostPaths, txn: &TxnId) -> Answer {
    let Some(head) = known_head(paths) else {
        return Answer::Unreachable { why: format!("{}/head.json is missing", dir(paths)) };
    };
    let mut tried = Vec::new();
    for address in &head.addresses {
        match ask_at(paths, &head.user, address, txn) {
            Ok(answer) => return answer,
            Err(why) => tried.push(format!("{address}: {why}")),
        }
    }
    Answer::Unreachable { why: tried.join("; ") }
}

fn ask_at(paths: &HostPaths, user: &str, address: &str, txn: &TxnId) -> Result<Answer, String> {
    let ssh = process::find("ssh").map_err(|e| e.to_string())?;
    let output = Command::new(ssh)
        .args(["-F", "/dev/null", "-T", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes"])
        .args(["-o", "StrictHostKeyChecking=yes", "-o", "GlobalKnownHostsFile=/dev/null"])
        .args(["-o", &format!("UserKnownHostsFile={}/known_hosts", dir(paths))])
        .args(["-o", &format!("ConnectTimeout={CONNECT_SECS}"), "-o", "ServerAliveInterval=2"])
        .args(["-o", "ServerAliveCountMax=2", "-i", key(paths).as_str(), "-l", user, "--", address])
        .args(["sparklane", "txn", "decision", txn.as_str()])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| e.to_string())?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(stderr.trim().lines().last().unwrap_or("no answer").to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("odd answer: {e}"))
}

/// The transaction asked for by a forced command's `SSH_ORIGINAL_COMMAND`.
#[must_use]
pub fn asked_for(original: &str) -> Option<TxnId> {
    let words: Vec<&str> = original.split_whitespace().collect();
    match words[..] {
        ["sparklane", "txn", "decision", id] => id.parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_command_answers_one_question_only() {
        assert!(asked_for("sparklane txn decision t1").is_some());
        assert!(asked_for("sparklane txn decision ../x").is_none());
        assert!(asked_for("sparklane txn decision t1; reboot").is_none());
        assert!(asked_for("sh").is_none());
    }

    #[test]
    fn a_key_gets_one_restricted_line() {
        let dir = tempfile::tempdir().unwrap();
        let paths = HostPaths::below(camino::Utf8Path::from_path(dir.path()).unwrap());
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        files::write_atomic(
            &paths.managed("/etc/passwd"),
            format!("op:x:{uid}:{gid}::/home/op:/bin/sh\n").as_bytes(),
            0o644,
        )
        .unwrap();
        for _ in 0..2 {
            allow_questions(&paths, "op", "ssh-ed25519 AAAAC3Nz comment").unwrap();
        }
        let text = std::fs::read_to_string(paths.managed("/home/op/.ssh/authorized_keys")).unwrap();
        assert_eq!(text.lines().count(), 1);
        let mut theirs = b"ssh-rsa AAAA M\xfcller laptop".to_vec();
        std::fs::write(paths.managed("/home/op/.ssh/authorized_keys"), &theirs).unwrap();
        allow_questions(&paths, "op", "ssh-ed25519 AAAAC3Nz comment").unwrap();
        theirs.push(b'\n');
        assert!(std::fs::read(paths.managed("/home/op/.ssh/authorized_keys")).unwrap().starts_with(&theirs));
        assert!(text.starts_with("restrict,command=\""), "{text}");
        assert!(allow_questions(&paths, "op", "ssh-ed25519 AAA\"\nevil").is_err());
        assert!(allow_questions(&paths, "nobody-here", "ssh-ed25519 AAAA").is_err());
    }
}
