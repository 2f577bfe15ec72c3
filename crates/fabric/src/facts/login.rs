//! The session that asks: its process tree up to the daemon that let it in, and its limits.

use super::root::Root;
use super::{Limit, Login};

/// A process tree is never this deep; a cycle cannot be either, but this is read while it changes.
const DEEPEST: usize = 64;

/// The login that process `pid` belongs to. The limits are those of the login itself: `sudo` runs as root, for whom
/// `limits.d` may say another thing.
pub fn of(root: &Root, pid: u32) -> Login {
    let mut below = pid;
    let mut at = pid;
    for _ in 0..DEEPEST {
        let Some((comm, parent)) = status(root, at) else { break };
        if comm.starts_with("sshd") {
            // pam_limits sets them in the daemon's own process of this session, before it becomes the user.
            return Login { via: Some("sshd".into()), memlock: memlock(root, at) };
        }
        if comm == "tailscaled" {
            return Login { via: Some(comm), memlock: memlock(root, below) };
        }
        (below, at) = (at, parent);
    }
    Login::default()
}

/// Name and parent of a process.
fn status(root: &Root, pid: u32) -> Option<(String, u32)> {
    let text = root.text(&format!("proc/{pid}/status"))?;
    let field = |key: &str| text.lines().find_map(|l| l.strip_prefix(key)).map(str::trim);
    Some((field("Name:")?.to_owned(), field("PPid:")?.parse().ok().filter(|p| *p > 0)?))
}

/// `Max locked memory` of a process.
pub fn memlock(root: &Root, pid: u32) -> Option<Limit> {
    limit(&root.text(&format!("proc/{pid}/limits"))?)
}

fn limit(text: &str) -> Option<Limit> {
    let soft = text.lines().find_map(|l| l.strip_prefix("Max locked memory"))?.split_whitespace().next()?;
    if soft == "unlimited" {
        return Some(Limit { bytes: None });
    }
    soft.parse().ok().map(|bytes| Limit { bytes: Some(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(processes: &[(u32, &str, u32, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let base = camino::Utf8Path::from_path(dir.path()).unwrap();
        for (pid, name, parent, memlock) in processes {
            let at = base.join(format!("proc/{pid}"));
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("status"), format!("Name:\t{name}\nUmask:\t0022\nPPid:\t{parent}\n")).unwrap();
            let limits = format!(
                "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         {memlock}              {memlock}              bytes     \n"
            );
            std::fs::write(at.join("limits"), limits).unwrap();
        }
        let root = Root::new(base);
        (dir, root)
    }

    #[test]
    fn limits_are_those_of_the_login_and_not_of_sudo() {
        let (_dir, root) = tree(&[
            (9, "sparklane", 8, "unlimited"),
            (8, "sudo", 7, "unlimited"),
            (7, "sshd-session", 6, "8388608"),
            (6, "sshd", 1, "0"),
        ]);
        let login = of(&root, 9);
        assert_eq!((login.via.as_deref(), login.memlock), (Some("sshd"), Some(Limit { bytes: Some(8_388_608) })));
    }

    #[test]
    fn a_session_of_tailscale_is_known_for_one() {
        let (_dir, root) =
            tree(&[(9, "sparklane", 8, "1"), (8, "bash", 7, "65536"), (7, "tailscaled", 1, "unlimited")]);
        let login = of(&root, 9);
        assert_eq!((login.via.as_deref(), login.memlock), (Some("tailscaled"), Some(Limit { bytes: Some(65536) })));
    }

    #[test]
    fn no_session_and_no_process_are_states() {
        let (_dir, root) = tree(&[(9, "sparklane", 1, "1"), (1, "systemd", 0, "1")]);
        assert_eq!(of(&root, 9), Login::default());
        assert_eq!(of(&root, 77), Login::default());
        assert_eq!(limit("Max locked memory         much"), None);
    }
}
