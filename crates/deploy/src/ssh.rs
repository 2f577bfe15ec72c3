//! One multiplexed ssh connection to a node: host keys checked, no prompt, no hang, absolute paths.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};

use crate::answer;
use crate::error::DeployError;
use crate::quote::command_line;
use crate::trouble::{self, Cause, Login};

/// Seconds for a connection to stand.
const CONNECT_SECS: u32 = 10;
/// Longest a node may take for a question that waits for nothing.
pub(crate) const ANSWER: Duration = Duration::from_secs(120);

/// A node as ssh reaches it.
#[derive(Debug, Clone)]
pub struct Remote {
    /// Node's name, for messages.
    pub name: String,
    /// User with sudo and no password.
    pub user: String,
    /// Host name or address.
    pub host: String,
    /// Further arguments of ssh.
    pub opts: Vec<String>,
    /// Folder of the connection's socket.
    pub control: Utf8PathBuf,
}

/// What a remote command gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Exit code; 255 is ssh's own.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Remote {
    /// Arguments of every ssh call, before the host.
    #[must_use]
    pub fn ssh_args(&self) -> Vec<String> {
        let mut args: Vec<String> = [
            "-T",
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "ControlMaster=auto",
            "-o",
            "ControlPersist=30",
            "-o",
            "ServerAliveInterval=3",
            "-o",
            "ServerAliveCountMax=4",
        ]
        .map(str::to_owned)
        .to_vec();
        args.extend(["-o".into(), format!("ConnectTimeout={CONNECT_SECS}")]);
        args.extend(["-o".into(), format!("ControlPath={}/%C", self.control)]);
        args.extend(self.opts.iter().cloned());
        args
    }

    /// The store that `nix copy` writes to.
    #[must_use]
    pub fn store(&self) -> String {
        format!("ssh-ng://{}@{}", self.user, self.host)
    }

    /// From here on believes these host keys (`type base64`) and no others, whatever name the node is reached by.
    ///
    /// # Errors
    /// When their file cannot be written beside the connection's socket.
    pub fn believe_only(&mut self, host_keys: &[String]) -> Result<(), DeployError> {
        let alias = format!("sparklane-{}", self.name);
        let file = self.control.join(format!("{alias}.known_hosts"));
        let text: String = host_keys.iter().map(|key| format!("{alias} {key}\n")).collect();
        std::fs::write(&file, text).map_err(|e| self.refused(&format!("{file}: {e}")))?;
        self.opts.extend(["-o".to_owned(), format!("HostKeyAlias={alias}")]);
        self.opts.extend(["-o".to_owned(), format!("UserKnownHostsFile={file}")]);
        self.opts.extend(["-o", "GlobalKnownHostsFile=/dev/null"].map(str::to_owned));
        Ok(())
    }

    /// Runs a command on the node as the user himself; what ssh says of its own (code 255) is an answer here.
    ///
    /// # Errors
    /// When ssh cannot be started, or nothing comes in time.
    pub fn login(&self, argv: &[&str], limit: Duration) -> Result<Answer, DeployError> {
        let mut command = Command::new("ssh");
        command.env("LC_ALL", "C");
        command.args(self.ssh_args()).args(["-l", &self.user, "--", &self.host]).arg(command_line(argv));
        self.to_end(command, b"", limit)
    }

    /// Logs in to a node whose host key nobody knows yet, and keeps the key in a file beside the connection's socket.
    /// Nothing is asked of the node: whether to believe it is for the operator.
    ///
    /// # Errors
    /// When ssh cannot be started or does not get so far.
    pub fn meet(&self) -> Result<Vec<String>, DeployError> {
        let file = self.control.join(format!("met-{}.known_hosts", self.name));
        let mut command = Command::new("ssh");
        command.args([
            "-T",
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=accept-new",
            "-o",
            "HashKnownHosts=no",
        ]);
        command.args(["-o", "ControlPath=none", "-o", "GlobalKnownHostsFile=/dev/null"]);
        command.args(["-o", &format!("UserKnownHostsFile={file}"), "-o", &format!("ConnectTimeout={CONNECT_SECS}")]);
        command.args(&self.opts).args(["-l", &self.user, "--", &self.host, "true"]);
        let answer = self.to_end(command, b"", Duration::from_secs(30))?;
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let key = |line: &str| line.split_once(' ').map(|(_, key)| key.trim().to_owned());
        let keys: Vec<String> = text.lines().filter_map(key).collect();
        if keys.is_empty() {
            return Err(self.no_login(trouble::login(&answer.stderr), &answer.stderr));
        }
        Ok(keys)
    }

    /// ssh with an argument vector for the node, as root. `sudo -n` never asks: it refuses within a second.
    #[must_use]
    pub fn command(&self, argv: &[&str]) -> Command {
        let mut words = if self.user == "root" { Vec::new() } else { vec!["sudo", "-n", "--"] };
        words.extend(argv);
        let mut command = Command::new("ssh");
        // Where ssh passes it on, sudo's words are those that `trouble` knows.
        command.env("LC_ALL", "C");
        command.args(self.ssh_args()).args(["-l", &self.user, "--", &self.host]).arg(command_line(&words));
        command
    }

    /// Runs a command on the node to its end, with `input` on its stdin.
    ///
    /// # Errors
    /// When ssh itself fails (unknown host key, no route, no login), sudo does not let us, or nothing comes in time.
    pub fn run(&self, argv: &[&str], input: &[u8]) -> Result<Answer, DeployError> {
        self.run_for(argv, input, ANSWER)
    }

    /// As [`Remote::run`], for a command that takes its time. A connection that is lost is noticed all the same.
    ///
    /// # Errors
    /// As [`Remote::run`].
    pub fn run_for(&self, argv: &[&str], input: &[u8], limit: Duration) -> Result<Answer, DeployError> {
        let answer = self.to_end(self.command(argv), input, limit)?;
        self.explain(answer)
    }

    fn to_end(&self, mut command: Command, input: &[u8], limit: Duration) -> Result<Answer, DeployError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| self.refused(&format!("ssh cannot be started: {e}")))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A command that ends early closes its stdin; its exit code tells why. One that never reads is not waited for.
            let input = input.to_vec();
            std::thread::spawn(move || stdin.write_all(&input));
        }
        // ssh notices by itself when the node is gone, so there something does not answer.
        finish(child, limit)
            .map_err(|why| self.no_answer(Cause::Tool, &format!("{why}: what hangs there, sudo or the tool?")))
    }

    fn explain(&self, answer: Answer) -> Result<Answer, DeployError> {
        if answer.code == 255 {
            return Err(self.no_login(trouble::login(&answer.stderr), &answer.stderr));
        }
        // A login shell that lets nobody in says so where answers are.
        if answer.code != 0 && answer.stdout.contains(trouble::NO_SHELL) {
            return Err(self.no_login(Login::Account, trouble::NO_SHELL));
        }
        let sudo = if self.user == "root" { None } else { trouble::sudo(answer.code, &answer.stderr) };
        match sudo {
            Some(why) => Err(self.no_answer(Cause::Sudo, &why.says(&self.user, &self.host, &answer.stderr))),
            None => Ok(answer),
        }
    }

    /// What ssh's own failure is, with what to do.
    #[must_use]
    pub fn no_login(&self, why: Login, stderr: &str) -> DeployError {
        // What sshd says before it closes says more than that it closed.
        let said = stderr.trim().lines().rfind(|line| !line.starts_with("Connection closed"));
        let last = said.or_else(|| stderr.trim().lines().last()).unwrap_or("no answer").trim().trim_end_matches('.');
        let (user, host) = (&self.user, &self.host);
        match why {
            Login::Unknown => self.no_answer(
                Cause::Login,
                &format!("ssh: the host key of {host} is not known here ({last}). sparklane init shows and records it, or: ssh {user}@{host}"),
            ),
            Login::Changed => self.no_answer(
                Cause::Login,
                &format!(
                    "ssh: shows another host key than the one that is known. If the machine was set up anew, compare \
                     (on its console: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub) and take the old key out: \
                     ssh-keygen -R {host}, or hostKeys in the cluster file. If it was not, somebody is between you"
                ),
            ),
            Login::Denied => {
                self.no_answer(Cause::Login, &format!("ssh: {last}. Let your key in: ssh-copy-id {user}@{host}"))
            }
            Login::Account => self.no_answer(
                Cause::Login,
                &format!("ssh: {last}. As root there: chage -l {user}; chage -E -1 {user}; getent passwd {user} for its shell"),
            ),
            Login::Unreachable => self.no_answer(
                Cause::Unreachable,
                &format!("ssh: {last}. Is it on, and is {host} its name or address? Try: ssh {user}@{host} true"),
            ),
            Login::Other => self.no_answer(Cause::Login, &format!("ssh: {last}. Try: ssh {user}@{host} true")),
        }
    }

    fn no_answer(&self, cause: Cause, why: &str) -> DeployError {
        DeployError::NoAnswer { cause, why: format!("{}: {why}", self.name) }
    }

    fn refused(&self, why: &str) -> DeployError {
        DeployError::Refused(format!("{}: {why}", self.name))
    }

    /// Ends the shared connection.
    pub fn close(&self) {
        let mut command = Command::new("ssh");
        command.args(self.ssh_args()).args(["-O", "exit", "-l", &self.user, "--", &self.host]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if let Ok(child) = command.spawn() {
            let _ended = finish(child, Duration::from_secs(2));
        }
    }
}

/// Waits for a child with both pipes drained, and kills it when it takes too long.
fn finish(mut child: Child, limit: Duration) -> Result<Answer, String> {
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let until = Instant::now() + limit;
    let mut nap = Duration::from_millis(1);
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() >= until => {
                let _killed = child.kill();
                let _reaped = child.wait();
                return Err(format!("no answer in {} s", limit.as_secs()));
            }
            Ok(None) => {
                std::thread::sleep(nap);
                nap = (nap * 2).min(Duration::from_millis(10));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    let text = |thread: std::thread::JoinHandle<String>| thread.join().unwrap_or_default();
    Ok(Answer { code: status.code().unwrap_or(-1), stdout: text(out), stderr: answer::shown(&text(err)) })
}

fn drain(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _read = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A private folder for connection sockets, short enough for a socket's name.
///
/// # Errors
/// When it cannot be made.
pub fn control_dir() -> Result<tempfile::TempDir, DeployError> {
    let made = tempfile::Builder::new().prefix("sl-").tempdir_in("/tmp");
    made.map_err(|e| DeployError::Refused(format!("/tmp: {e}")))
}

/// The folder as UTF-8.
///
/// # Errors
/// When /tmp is not UTF-8, which it is.
pub fn utf8(dir: &tempfile::TempDir) -> Result<Utf8PathBuf, DeployError> {
    let path = Utf8Path::from_path(dir.path());
    path.map(Utf8Path::to_owned).ok_or_else(|| DeployError::Refused("the temporary folder is not UTF-8".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(user: &str) -> Remote {
        Remote {
            name: "worker".into(),
            user: user.into(),
            host: "10.0.0.2".into(),
            opts: Vec::new(),
            control: "/tmp".into(),
        }
    }

    /// The limit counts from the start: more than a pipe holds is for a command that never reads.
    #[test]
    fn a_command_that_reads_nothing_is_not_waited_for() {
        let mut command = Command::new("sleep");
        command.arg("30");
        let began = Instant::now();
        let ended = remote("op").to_end(command, &vec![0; 1 << 20], Duration::from_millis(200));
        assert!(matches!(ended, Err(DeployError::NoAnswer { cause: Cause::Tool, .. })), "{ended:?}");
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    fn explained(user: &str, code: i32, stderr: &str) -> Result<Answer, DeployError> {
        remote(user).explain(Answer { code, stdout: String::new(), stderr: stderr.into() })
    }

    fn refused(code: i32, stderr: &str) -> (Cause, String) {
        match explained("op", code, stderr) {
            Err(DeployError::NoAnswer { cause, why }) => (cause, why),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_keeps_a_node_from_answering_is_told_with_node_cause_and_remedy() {
        for (code, stderr, cause, words) in [
            (1, "sudo: a password is required\n", Cause::Sudo, "worker: sudo wants a password"),
            (127, "bash: line 1: sudo: command not found\n", Cause::Sudo, "worker: there is no sudo"),
            (
                255,
                "ssh: connect to host h port 22: No route to host\r\n",
                Cause::Unreachable,
                "No route to host. Is it on",
            ),
            (255, "Timeout, server 10.0.0.2 not responding.\r\n", Cause::Unreachable, "not responding. Is it on"),
            (255, "op@h: Permission denied (publickey).\r\n", Cause::Login, "ssh-copy-id op@10.0.0.2"),
            (
                255,
                "No ED25519 host key is known for h\nHost key verification failed.\n",
                Cause::Login,
                "sparklane init",
            ),
            (255, "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\n", Cause::Login, "ssh-keygen -R 10.0.0.2"),
            (255, "", Cause::Login, "Try: ssh op@10.0.0.2 true"),
            (255, "Connection closed by 10.0.0.2 port 22\n", Cause::Unreachable, "Connection closed by"),
            (
                255,
                "Your account has expired; please contact your system administrator.\n\
                 Connection closed by 10.0.0.2 port 22\n",
                Cause::Login,
                "system administrator. As root there: chage -l op",
            ),
        ] {
            let (seen, why) = refused(code, stderr);
            assert!(seen == cause && why.starts_with("worker: ") && why.contains(words), "{stderr}: {seen:?} {why}");
        }
    }

    #[test]
    fn an_answer_is_an_answer_whatever_sudo_warns_of() {
        assert!(explained("op", 0, "sudo: unable to resolve host spk: Name or service not known\n").is_ok());
        assert!(explained("op", 1, "its own words\n").is_ok());
        // root's orders do not go through sudo.
        assert!(explained("root", 1, "sudo: a password is required\n").is_ok());
    }
}
