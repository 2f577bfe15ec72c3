//! What ssh and sudo say when they do not let a command run, told apart. Pure; the words are OpenSSH's and sudo 1.9's.

use serde::Serialize;

/// Why ssh did not let us in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Login {
    /// No host key of the node is known.
    Unknown,
    /// The node shows another key than the one that is known, or one that was revoked.
    Changed,
    /// The user's key is not accepted.
    Denied,
    /// The account has expired, or its login shell lets nobody in.
    Account,
    /// There is no way there, or nobody answers.
    Unreachable,
    /// Something else.
    Other,
}

/// What `nologin` says, on its standard output.
pub const NO_SHELL: &str = "This account is currently not available";

/// Judges ssh's standard error.
#[must_use]
pub fn login(stderr: &str) -> Login {
    let says = |words: &[&str]| words.iter().any(|word| stderr.contains(word));
    if says(&["IDENTIFICATION HAS CHANGED", "host key mismatch", "REVOKED HOST KEY"]) {
        Login::Changed
    } else if says(&["host key is known for"]) {
        Login::Unknown
    } else if says(&["account has expired", "password has expired", "account is locked"]) {
        Login::Account
    } else if says(&["Permission denied", "Too many authentication failures"]) {
        Login::Denied
    } else if says(&[
        "timed out",
        "Connection refused",
        "No route to host",
        "Could not resolve hostname",
        "Network is unreachable",
        "Connection closed",
        "Connection reset",
        "not responding",
        "Broken pipe",
    ]) {
        Login::Unreachable
    } else {
        Login::Other
    }
}

/// What keeps a node from answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// There is no way there, or nothing comes back.
    Unreachable,
    /// ssh does not let us in.
    Login,
    /// sudo does not.
    Sudo,
    /// The node's tool fails, or what it says is not understood.
    Tool,
}

/// Why sudo did not run a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sudo {
    /// There is no such program.
    Missing,
    /// The program is there and cannot be started, or cannot become root.
    Powerless,
    /// One of its own files is damaged, or not as it trusts them.
    Damaged,
    /// It wants a password; of a user without any rule, too.
    Password,
    /// Rules name the user, or all users, and not this command.
    NotAllowed,
    /// It wants a terminal.
    Terminal,
    /// The user's account is locked or has expired.
    Account,
    /// Something else.
    Other,
}

/// What sudo says and runs the command all the same.
const WARNINGS: [&str; 2] = ["unable to resolve host", "sudo.conf is owned by"];
/// What sudo says of a command that it would run.
const COMMAND: [&str; 2] = ["command not found", "unable to execute"];

/// Judges how `sudo -n -- COMMAND` ended; `None` when sudo is not to blame. Where it is, the command never ran, so that
/// nothing but sudo's own words, or the login shell's about it, is there.
#[must_use]
pub fn sudo(code: i32, stderr: &str) -> Option<Sudo> {
    if code == 0 {
        return None;
    }
    let lines = || stderr.lines().map(str::trim);
    let shell = |line: &str| {
        let of_it = line.contains(": sudo: ") || line.contains("/bin/sudo: ") || line.ends_with("not found: sudo");
        let of_it = of_it || line.starts_with("fish: Unknown command: sudo");
        of_it && !line.starts_with("sudo: ")
    };
    if let (126 | 127, Some(line)) = (code, lines().find(|line| shell(line))) {
        // The shell names a file that it read as a script, or may not start.
        let is_there = line.starts_with('/') || line.contains("ermission denied");
        return Some(if is_there { Sudo::Powerless } else { Sudo::Missing });
    }
    let own: Vec<&str> = lines()
        .filter_map(|line| line.strip_prefix("sudo: "))
        .filter(|line| !WARNINGS.iter().any(|warning| line.contains(warning)))
        .collect();
    let rule = |line: &str| {
        line.contains("is not in the sudoers file")
            || line.contains("is not allowed to run sudo on")
            || line.starts_with("Sorry, user ")
    };
    let last = lines().rfind(|line| !line.is_empty()).unwrap_or_default();
    if rule(last) {
        return Some(Sudo::NotAllowed);
    }
    // The last word is sudo's own, or the command ran and has spoken since.
    let end = own.last().filter(|line| last.ends_with(**line))?;
    if COMMAND.iter().any(|words| end.contains(words)) {
        return None;
    }
    let says = |words: &[&str]| own.iter().any(|line| words.iter().any(|word| line.contains(word)));
    Some(if says(&["setuid bit", "effective uid is not 0", "no new privileges"]) {
        Sudo::Powerless
    } else if lines().any(|line| line.contains("syntax error"))
        || says(&["is world writable", "is owned by", "is group writable", "parse error", "sudoers", "sudo.conf"])
        || says(&["unable to load plugins", "unable to initialize PAM", "error initializing"])
    {
        Sudo::Damaged
    } else if says(&["account validation failure", "expired"]) {
        Sudo::Account
    } else if says(&["must have a tty", "no tty present"]) {
        Sudo::Terminal
    } else if says(&["a password is required"]) {
        Sudo::Password
    } else {
        Sudo::Other
    })
}

impl Sudo {
    /// What failed, in sudo's words, and what to do on the node.
    #[must_use]
    pub fn says(self, user: &str, host: &str, stderr: &str) -> String {
        let heard = heard(stderr);
        let rule = format!("{user} ALL=(ALL:ALL) NOPASSWD: ALL");
        let add = format!(
            "Add this line, once:\n  ssh -t {user}@{host} \"echo '{rule}' | sudo tee /etc/sudoers.d/sparklane\"\n\
             or, where {user} may not use sudo at all, the same line as root on its console"
        );
        let (what, remedy) = match self {
            Self::Missing => ("there is no sudo", "As root there: apt install sudo; or deploy as root (--ssh-user root)".to_owned()),
            Self::Powerless => (
                "sudo cannot become root",
                "As root there: apt install --reinstall sudo. In a container, or where sshd's unit has NoNewPrivileges, \
                 only root's own login helps (--ssh-user root)"
                    .to_owned(),
            ),
            Self::Damaged => (
                "sudo's configuration is damaged",
                "As root there: visudo -c names the file and the line (files in /etc/sudoers.d: owner root, mode 0440); then \
                 sudo -n true must work"
                    .to_owned(),
            ),
            Self::Password => ("sudo wants a password, or has no rule for this user", add),
            Self::NotAllowed => ("no rule of sudo lets this user run every command as root", add),
            Self::Terminal => (
                "sudo wants a terminal",
                format!("As root there, in /etc/sudoers.d/sparklane: Defaults:{user} !requiretty"),
            ),
            Self::Account => (
                "sudo finds the account locked or expired",
                format!("As root there: chage -l {user}; chage -E -1 {user}; passwd -S {user}"),
            ),
            Self::Other => ("sudo does not run commands", format!("Until this works: ssh {user}@{host} sudo -n true")),
        };
        format!("{what} ({user}@{host}: {heard}). {remedy}")
    }
}

/// sudo's own words, without what does not matter, on one line.
fn heard(stderr: &str) -> String {
    let lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines = lines.filter(|line| !WARNINGS.iter().any(|warning| line.contains(warning)));
    let lines: Vec<&str> = lines.take(6).collect();
    if lines.is_empty() { "without a word".to_owned() } else { lines.join(" | ") }
}

#[cfg(test)]
#[path = "trouble_tests.rs"]
mod tests;
