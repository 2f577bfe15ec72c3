//! Weights from the node that has them to those that lack them, over the rails. The control host starts both ends over
//! ssh, hands each the one-time key on stdin, and only listens; no byte of the weights passes through it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use camino::Utf8PathBuf;
use serde::Serialize;
use sparklane_lane::WeightsManifest;
use sparklane_weights::agent::{Event, PullRequest, ServeRequest};
use sparklane_weights::transfer::{Key, Receipt};

use crate::error::DeployError;
use crate::node::NodeHandle;

/// Longest time for a sender to look at its files and listen.
pub(crate) const READY: Duration = Duration::from_secs(60);
/// Longest silence of a receiver: it says something twice a second, but not while it reads a disk for its proof.
const SILENCE: Duration = Duration::from_secs(3600);
/// Runs what follows so that an engine on the node goes first, at the disk and at the cores.
const POLITE: [&str; 7] = ["ionice", "-c", "3", "-t", "nice", "-n", "19"];

/// One of a node's rails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndRail {
    /// Name, the same on both ends.
    pub name: String,
    /// Own address.
    pub address: IpAddr,
    /// Own device, to which connections are bound.
    pub device: Option<String>,
}

/// How commands are run on a node. Tests run both ends on this host, in network namespaces.
pub trait Shell: Sync {
    /// The node's name.
    fn name(&self) -> &str;
    /// A command that runs an argument vector there, as root, with our stdin and stdout.
    fn command(&self, argv: &[&str]) -> Command;
}

impl Shell for NodeHandle {
    fn name(&self) -> &str {
        self.member.node.as_str()
    }

    fn command(&self, argv: &[&str]) -> Command {
        self.remote.command(argv)
    }
}

/// One end of a transfer.
pub struct End<'a> {
    /// Where.
    pub shell: &'a dyn Shell,
    /// The tool to run there.
    pub tool: String,
    /// Its store.
    pub store: Utf8PathBuf,
    /// Its rails.
    pub rails: Vec<EndRail>,
}

/// How to send.
#[derive(Debug, Clone, Default)]
pub struct SendOptions {
    /// Seal extents with AES-GCM.
    pub seal: bool,
    /// Most bytes per second and receiver.
    pub rate: Option<u64>,
    /// Leave cores and disk to the engine.
    pub while_serving: bool,
    /// Read everything back from the receivers' disks.
    pub readback: bool,
    /// Connections per rail.
    pub connections: Option<usize>,
    /// Seconds without any byte after which a receiver gives up.
    pub give_up_secs: Option<u64>,
}

/// Sends a manifest's files from one node to others, all at once.
///
/// # Errors
/// When the sender cannot start, or any receiver fails; the others still get all they can. What was proved is kept.
pub fn send(
    manifest: &WeightsManifest,
    from: &End<'_>,
    to: &[End<'_>],
    options: &SendOptions,
    say: &(dyn Fn(&str, &Event) + Sync),
) -> Result<Vec<(String, Receipt)>, DeployError> {
    let key = Key::random().map_err(|e| DeployError::Refused(e.to_string()))?.expose();
    let serve = ServeRequest {
        key: key.clone(),
        manifest: manifest.clone(),
        store: from.store.clone(),
        listen: from.rails.iter().map(|r| r.address).collect(),
        seal: options.seal,
        receivers: to.len(),
    };
    let mut sender = Running::start(from, &["weights", "serve"], &serve, options.while_serving)?;
    let listening = match sender.next(READY) {
        Some(Event::Listening(listening)) => listening,
        _ => return Err(sender.failed(false)),
    };
    let pull = |end: &End<'_>| {
        let request = PullRequest {
            key: key.clone(),
            manifest: manifest.clone(),
            store: end.store.clone(),
            rails: rails_between(from, &listening, end),
            rate: options.rate,
            connections: options.connections,
            give_up_secs: options.give_up_secs,
            readback: options.readback,
        };
        receive(end, &request, options, say)
    };
    let outcomes: Vec<Result<(String, Receipt), DeployError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = to.iter().map(|end| scope.spawn(|| pull(end))).collect();
        let died = || Err(DeployError::Refused("a receiver's thread died".into()));
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| died())).collect()
    });
    let lost = sender.lost();
    sender.end();
    crate::flow::all(outcomes).map_err(|error| match lost {
        // The cause of what the receivers saw.
        Some(why) => error.because(&why),
        None => error,
    })
}

/// The rails that both ends have, as a receiver takes them: `NAME=SOURCE[%DEVICE]=PEER:PORT`.
pub(crate) fn rails_between(from: &End<'_>, listening: &[SocketAddr], to: &End<'_>) -> Vec<String> {
    let rail = |(theirs, peer): (&EndRail, &SocketAddr)| {
        let own = to.rails.iter().find(|r| r.name == theirs.name)?;
        let device = own.device.as_ref().map_or_else(String::new, |d| format!("%{d}"));
        Some(format!("{}={}{device}={peer}", own.name, own.address))
    };
    from.rails.iter().zip(listening).filter_map(rail).collect()
}

fn receive(
    end: &End<'_>,
    request: &PullRequest,
    options: &SendOptions,
    say: &(dyn Fn(&str, &Event) + Sync),
) -> Result<(String, Receipt), DeployError> {
    let mut running = Running::start(end, &["weights", "pull"], request, options.while_serving)?;
    loop {
        match running.next(SILENCE) {
            Some(Event::Receipt(receipt)) => {
                running.end();
                return Ok((end.shell.name().to_owned(), *receipt));
            }
            Some(event) => say(end.shell.name(), &event),
            None => return Err(running.failed(true)),
        }
    }
}

/// A process at one end. Its stdin stays open as long as it shall live.
pub(crate) struct Running {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    events: Receiver<Event>,
    stderr: Option<std::thread::JoinHandle<String>>,
}

impl Running {
    pub(crate) fn start(
        end: &End<'_>,
        words: &[&str],
        request: &impl Serialize,
        politely: bool,
    ) -> Result<Self, DeployError> {
        let name = end.shell.name().to_owned();
        let refused = |why: String| DeployError::Refused(format!("{name}: {why}"));
        let mut argv: Vec<&str> = if politely { POLITE.to_vec() } else { Vec::new() };
        argv.push(end.tool.as_str());
        argv.extend(words);
        let mut command = end.shell.command(&argv);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| refused(format!("cannot be started: {e}")))?;
        let mut line = serde_json::to_vec(request).map_err(|e| refused(e.to_string()))?;
        line.push(b'\n');
        let mut stdin = child.stdin.take();
        if let Some(stdin) = &mut stdin {
            // A process that ends early closes its stdin; its own words tell why.
            let _sent = stdin.write_all(&line).and_then(|()| stdin.flush());
        }
        let (told, events) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                    // Lines of a login shell are not ours.
                    if let Ok(event) = serde_json::from_str(&line)
                        && told.send(event).is_err()
                    {
                        break;
                    }
                }
            });
        }
        let stderr = child.stderr.take().map(|mut pipe| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                let _read = pipe.read_to_end(&mut bytes);
                String::from_utf8_lossy(&bytes).into_owned()
            })
        });
        Ok(Self { name, child, stdin, events, stderr })
    }

    /// What it says next; `None` when it has ended, or says nothing for so long.
    pub(crate) fn next(&self, patience: Duration) -> Option<Event> {
        self.events.recv_timeout(patience).ok()
    }

    /// What became of a sender that should still run.
    fn lost(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten().filter(|status| !status.success())?;
        Some(format!("{}: the sender ended before its receivers were done ({status})", self.name))
    }

    /// Ends it, if it has not ended.
    pub(crate) fn end(&mut self) {
        drop(self.stdin.take());
        let _reaped = self.child.wait();
    }

    /// Ends it and tells what it said last; whether it `receives` decides what a lost connection means: a receiver may
    /// have written before its first word came through.
    pub(crate) fn failed(mut self, receives: bool) -> DeployError {
        self.end();
        let code = self.child.wait().ok().and_then(|s| s.code());
        let said = self.stderr.take().and_then(|t| t.join().ok()).unwrap_or_default();
        let last = said.trim().lines().last().unwrap_or("ended without a word").to_owned();
        let text = format!("{}: {last}", self.name);
        match code {
            Some(5) => DeployError::Busy(text),
            Some(3) => DeployError::Failed(text),
            // The shell's own two: the tool was not run.
            Some(1 | 2 | 126 | 127) => DeployError::Refused(text),
            // ssh's own 255, or a signal: the process was killed, the node went off, or its connection was lost.
            _ if receives => DeployError::Failed(format!(
                "{text} (killed, or the node or its connection is gone); what was proved is kept, run it again"
            )),
            _ => DeployError::Refused(text),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ended = self.child.try_wait();
    }
}
