//! Peak memory of the tool on the nodes, read while it runs: hybrid hosts have no accounting in the nodes' groups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use miette::IntoDiagnostic;
use sparklane_lab::Lab;

/// Runs `act` and gives, for every subcommand of the tool that ran on a node meanwhile, the largest `VmHWM` in bytes.
/// The mark only grows, so the last look before a process ends tells nearly all; looks follow each other without a pause.
pub fn watch(lab: &Lab, act: impl FnOnce() -> miette::Result<()>) -> miette::Result<Vec<(String, u64)>> {
    let status = Lab::status(lab.paths()).into_diagnostic()?;
    // Other labs may run on this host: a machine is known by its process namespace.
    let machines: BTreeSet<PathBuf> =
        status.nodes.iter().filter(|n| n.name != "control").filter_map(|n| namespace(n.pid?)).collect();
    let before: BTreeSet<i32> = processes().collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peaks = BTreeMap::new();
            while !done.load(Ordering::Relaxed) {
                for pid in processes().filter(|pid| !before.contains(pid)) {
                    if let Some((command, bytes)) = look(pid, &machines) {
                        let peak = peaks.entry(command).or_insert(0);
                        *peak = bytes.max(*peak);
                    }
                }
            }
            peaks
        });
        let acted = act();
        done.store(true, Ordering::Relaxed);
        let peaks = watcher.join().unwrap_or_default();
        acted.map(|()| peaks.into_iter().collect())
    })
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().to_str()?.parse().ok())
}

fn namespace(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

/// The subcommand and peak of a process, if it is the tool's on one of the machines.
fn look(pid: i32, machines: &BTreeSet<PathBuf>) -> Option<(String, u64)> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let command = subcommand(&line)?;
    if !machines.contains(&namespace(pid)?) {
        return None;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib: u64 = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?.trim().strip_suffix(" kB")?.parse().ok()?;
    Some((command, kib * 1024))
}

/// `txn run` of `/nix/store/…/bin/sparklane\0txn\0run\0ID`.
fn subcommand(line: &str) -> Option<String> {
    let mut words = line.split('\0');
    words.next().filter(|program| program.ends_with("/sparklane"))?;
    let words: Vec<&str> = words.take(2).filter(|w| !w.is_empty()).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tool_itself_counts() {
        let line = |words: &[&str]| words.iter().map(|w| format!("{w}\0")).collect::<String>();
        let tool = "/nix/var/nix/gcroots/sparklane/tool/bin/sparklane";
        assert_eq!(subcommand(&line(&[tool, "node", "stage"])).as_deref(), Some("node stage"));
        assert_eq!(subcommand(&line(&[tool, "txn", "run", "20261130-0"])).as_deref(), Some("txn run"));
        assert_eq!(subcommand(&line(&["sudo", "-n", "--", tool, "node", "stage"])), None);
        assert_eq!(subcommand(""), None);
    }
}
