//! Finding and ending the lab's own processes, by id and start time.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number on this host.
    pub pid: i32,
    /// Clock ticks after boot at which it started.
    pub start_time: u64,
}

/// Fields of /proc/PID/stat after the name, which may hold blanks and brackets itself.
fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = text.rsplit_once(')')?.1;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

impl Process {
    /// The process that now has this number.
    #[must_use]
    pub fn find(pid: i32) -> Option<Self> {
        let fields = stat_fields(pid)?;
        let start_time = fields.get(19)?.parse().ok()?;
        (fields.first()? != "Z").then_some(Self { pid, start_time })
    }

    /// True while it runs.
    #[must_use]
    pub fn alive(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// Sends SIGKILL when it is still the same process.
    pub fn kill(self) {
        if self.alive()
            && let Some(pid) = Pid::from_raw(self.pid)
        {
            // It may end by itself between the check and here.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Waits for its end; false when it still runs after `limit`.
    #[must_use]
    pub fn wait_gone(self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while self.alive() {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

/// Numbers of all processes.
fn all() -> Vec<i32> {
    let Ok(dir) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    dir.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

/// Process 1 of the machine that `nspawn` holds: its descendant that is number 1 in its own namespace.
#[must_use]
pub fn leader(nspawn: Process) -> Option<Process> {
    if !nspawn.alive() {
        return None;
    }
    let mut family = vec![nspawn.pid];
    let parents: Vec<(i32, i32)> =
        all().into_iter().filter_map(|p| Some((p, stat_fields(p)?.get(1)?.parse().ok()?))).collect();
    let mut next = 0;
    while next < family.len() {
        let parent = family[next];
        for (pid, _) in parents.iter().filter(|(_, ppid)| *ppid == parent) {
            if is_namespace_init(*pid) {
                return Process::find(*pid);
            }
            family.push(*pid);
        }
        next += 1;
    }
    None
}

fn is_namespace_init(pid: i32) -> bool {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
        return false;
    };
    let Some(line) = text.lines().find_map(|l| l.strip_prefix("NSpid:")) else {
        return false;
    };
    let numbers: Vec<&str> = line.split_whitespace().collect();
    numbers.len() == 2 && numbers[1] == "1"
}

/// Processes with `argument` as one of their arguments: how leftovers of a lab are told from other people's machines.
#[must_use]
pub fn with_argument(argument: &str) -> Vec<Process> {
    all()
        .into_iter()
        .filter(|pid| {
            let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            text.split(|b| *b == 0).any(|a| a == argument.as_bytes())
        })
        .filter_map(Process::find)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_itself_and_not_a_reused_number() {
        let me = Process::find(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(me.alive());
        assert!(!Process { start_time: me.start_time + 1, ..me }.alive());
        assert_eq!(leader(me), None);
    }

    #[test]
    fn finds_by_exact_argument() {
        let mark = format!("1{}", std::process::id());
        let mut child = std::process::Command::new("sleep").arg(&mark).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let found = with_argument(&mark);
        assert_eq!(found.len(), 1);
        found[0].kill();
        child.wait().unwrap();
        assert!(found[0].wait_gone(Duration::from_secs(1)));
    }
}
