//! Takes a lab away, also one whose maker was killed at any point.

use camino::Utf8Path;

use crate::base::remove_tree;
use crate::error::{Result, Try};
use crate::machine::{directory_argument, power_off};
use crate::paths::Paths;
use crate::process::with_argument;
use crate::run::run;
use crate::spec::nodes;
use crate::{cgroup, net};

/// Removes all of the lab but the caches.
pub fn everything(paths: &Paths) -> Result<()> {
    for node in nodes() {
        for process in with_argument(&directory_argument(paths, node)) {
            power_off(process)?;
        }
    }
    for node in nodes() {
        cgroup::remove(node.name)?;
    }
    for mount in mounts_below(paths.dir())? {
        unmount(&mount)?;
    }
    net::remove()?;
    remove_tree(paths.dir())
}

/// Mount points below `dir`, the deepest first.
pub fn mounts_below(dir: &Utf8Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").trying(|| "read /proc/self/mountinfo".to_owned())?;
    let prefix = format!("{dir}/");
    let mut mounts: Vec<String> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|path| path.replace("\\040", " "))
        .filter(|path| path.starts_with(&prefix))
        .collect();
    mounts.reverse();
    Ok(mounts)
}

fn unmount(path: &str) -> Result<()> {
    // A process of the machine may take a moment to let go after its end.
    for _ in 0..20 {
        if run(&["umount", path]).is_ok() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    run(&["umount", path]).map(drop)
}
