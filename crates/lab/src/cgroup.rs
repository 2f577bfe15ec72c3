//! One control group per machine, made before it starts: machines that shared one would end each other's units.

use camino::{Utf8Path, Utf8PathBuf};

use crate::error::{Result, Try};

/// Mount points of the hierarchies that systemd uses: version 2, and version 1's `name=systemd` on hybrid hosts.
fn hierarchies() -> Result<Vec<Utf8PathBuf>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").trying(|| "read /proc/self/mountinfo".to_owned())?;
    let wanted = |line: &str| -> Option<Utf8PathBuf> {
        let (mount, kind) = line.split_once(" - ")?;
        let point = Utf8Path::new(mount.split(' ').nth(4)?);
        let ours = kind.starts_with("cgroup2 ") || (kind.starts_with("cgroup ") && kind.contains("name=systemd"));
        (ours && point.starts_with("/sys/fs/cgroup")).then(|| point.to_owned())
    };
    Ok(text.lines().filter_map(wanted).collect())
}

fn group(hierarchy: &Utf8Path, node: &str) -> Utf8PathBuf {
    hierarchy.join(format!("sparklane-lab-{node}"))
}

/// This process's own groups, to go back to.
fn own_groups(hierarchies: &[Utf8PathBuf]) -> Result<Vec<Utf8PathBuf>> {
    let text = std::fs::read_to_string("/proc/self/cgroup").trying(|| "read /proc/self/cgroup".to_owned())?;
    let path = |controllers: &str| {
        text.lines()
            .find_map(|l| l.split_once(':')?.1.strip_prefix(controllers)?.strip_prefix(":/"))
            .unwrap_or_default()
    };
    Ok(hierarchies.iter().map(|h| h.join(path(if h.ends_with("systemd") { "name=systemd" } else { "" }))).collect())
}

fn enter(group: &Utf8Path) -> Result<()> {
    let file = group.join("cgroup.procs");
    std::fs::write(&file, std::process::id().to_string()).trying(|| format!("write {file}"))
}

/// Runs `start` while this process sits in the machine's group, so that what it starts is born there.
pub fn within<T>(node: &str, start: impl FnOnce() -> Result<T>) -> Result<T> {
    let hierarchies = hierarchies()?;
    let before = own_groups(&hierarchies)?;
    remove(node)?;
    for hierarchy in &hierarchies {
        let group = group(hierarchy, node);
        std::fs::create_dir_all(&group).trying(|| format!("make {group}"))?;
        enter(&group)?;
    }
    let result = start();
    before.iter().try_for_each(|group| enter(group))?;
    result
}

/// Removes the machine's groups; no process may be left in them.
pub fn remove(node: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let group = group(&hierarchy, node);
        if group.exists() {
            remove_groups(&group)?;
        }
    }
    Ok(())
}

/// Ends what still runs in a group: an init whose nspawn was killed lives on, and only its group still names it.
fn kill_members(dir: &Utf8Path) {
    let members = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines().filter_map(|l| l.parse().ok()).filter_map(rustix::process::Pid::from_raw) {
        let _ended = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// A group's files go with its folder: only folders are removed, the deepest first.
fn remove_groups(dir: &Utf8Path) -> Result<()> {
    kill_members(dir);
    for entry in dir.read_dir_utf8().trying(|| format!("list {dir}"))?.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_groups(entry.path())?;
        }
    }
    let mut last = Ok(());
    // A process that has just ended may still be counted.
    for _ in 0..50 {
        last = std::fs::remove_dir(dir);
        if last.is_ok() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(40));
    }
    last.trying(|| format!("remove {dir}"))
}
