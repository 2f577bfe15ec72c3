//! The processes of a container, seen from its process 1: starting, passing signals on, reaping, and ending what is left.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, set_child_subreaper, wait};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::time::Instant;

use super::judge::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, Ended};
use super::tree;

/// What left processes get between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_secs(5);
/// A process that the kernel does not let go of is left to the container's end.
const KILLED: Duration = Duration::from_secs(2);
/// A parent may end a child of its own between two looks; no signal tells us of that.
const LOOK: Duration = Duration::from_millis(100);

/// Something to react to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A process ended, ours or an orphan.
    Ended(Pid, Ended),
    /// We were sent this signal.
    Told(Signal),
}

/// All processes below this one.
#[derive(Debug)]
pub struct Procs {
    term: Stream,
    int: Stream,
    child: Stream,
    ended: VecDeque<(Pid, Ended)>,
    own: i32,
}

impl Procs {
    /// Takes over the signals, and orphans when this is not process 1 of its namespace.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> std::io::Result<Self> {
        let own = rustix::process::getpid();
        if own != Pid::INIT {
            set_child_subreaper(Some(own))?;
        }
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            child: signal(SignalKind::child())?,
            ended: VecDeque::new(),
            own: own.as_raw_nonzero().get(),
        })
    }

    /// Starts a program with exactly these arguments, and names of the environment besides our own.
    ///
    /// # Errors
    /// Words and the exit code, 126 or 127.
    pub fn spawn(&mut self, argv: &[String], env: &[(&str, &str)]) -> Result<Pid, (String, u8)> {
        let Some((program, arguments)) = argv.split_first() else {
            return Err(("there is no program to run".to_owned(), EXIT_NOT_FOUND));
        };
        let mut command = Command::new(program);
        command.args(arguments).envs(env.iter().copied()).stdin(std::process::Stdio::null());
        let child = command.spawn().map_err(|error| {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            (format!("{program} cannot be run: {error}"), if missing { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE })
        })?;
        // It is waited for with all others: the handle is only its id.
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| (format!("{program} has no process id"), EXIT_NOT_EXECUTABLE))
    }

    /// Waits for what comes next. Losing this future loses no event.
    pub async fn next(&mut self) -> Event {
        loop {
            self.reap();
            if let Some((pid, ended)) = self.ended.pop_front() {
                return Event::Ended(pid, ended);
            }
            tokio::select! {
                _ = self.term.recv() => return Event::Told(Signal::TERM),
                _ = self.int.recv() => return Event::Told(Signal::INT),
                _ = self.child.recv() => {}
            }
        }
    }

    /// Waits for every process that ended; one signal may stand for many.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            self.ended.extend(ended(status).map(|e| (pid, e)));
        }
    }

    /// True while a process with this name is below this one.
    #[must_use]
    pub fn runs(&self, name: &str) -> bool {
        tree::runs(Path::new("/proc"), self.own, name)
    }

    /// Sends a signal to one process, not to its group: vLLM and Ray end their own children in their own order, and
    /// requests that are under way would not survive it otherwise.
    pub fn pass_on(&self, pid: Pid, signal: Signal) {
        // One that just ended is no failure.
        let _gone = kill_process(pid, signal);
    }

    /// Ends everything below us: SIGTERM, after `grace` SIGKILL. Gives the number of processes that needed ending.
    pub async fn end_all(&mut self, grace: Duration) -> usize {
        let mut seen: Vec<i32> = Vec::new();
        for (signal, time) in [(Signal::TERM, grace), (Signal::KILL, KILLED)] {
            let deadline = Instant::now() + time;
            let mut told: Vec<i32> = Vec::new();
            loop {
                self.reap();
                let left = tree::below(self.own, &tree::table(Path::new("/proc")));
                if left.is_empty() {
                    // What died since the last look is not living, and not waited for either.
                    self.reap();
                    return seen.len();
                }
                let new: Vec<i32> = left.into_iter().filter(|pid| !told.contains(pid)).collect();
                new.iter().filter_map(|pid| Pid::from_raw(*pid)).for_each(|pid| self.pass_on(pid, signal));
                seen.extend(new.iter().filter(|pid| !seen.contains(pid)).collect::<Vec<_>>());
                told.extend(new);
                tokio::select! {
                    _ = self.child.recv() => {}
                    () = tokio::time::sleep(LOOK) => {}
                }
                if Instant::now() >= deadline {
                    break;
                }
            }
        }
        seen.len()
    }
}

fn ended(status: WaitStatus) -> Option<Ended> {
    let byte = |n: i32| u8::try_from(n).unwrap_or(u8::MAX);
    let code = status.exit_status().map(|code| Ended::Code(byte(code)));
    code.or_else(|| status.terminating_signal().map(|signal| Ended::Signal(byte(signal))))
}
