//! Who is in our Ray: the wait before the engine's start, and the look while it runs.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sparklane_lane::generation::RayHead;
use tokio::time::{Instant, sleep};

use crate::ray::{self, Expected, Membership};

const AGAIN: Duration = Duration::from_millis(500);
/// Pause between two looks while the engine runs, and how many of them in a row must agree.
const LOOK: Duration = Duration::from_secs(3);
const LOST: u32 = 3;

/// The nodes that must be in.
pub(super) fn expected(head: &RayHead) -> Result<Expected, String> {
    let nodes = head.nodes.iter().map(|n| n.parse::<IpAddr>().map_err(|e| format!("engine.ray.head.nodes {n:?}: {e}")));
    Ok(Expected { nodes: nodes.collect::<Result<BTreeSet<_>, _>>()?, gpus: head.gpus_per_node })
}

/// Waits until exactly the expected nodes are in our session.
pub(super) async fn complete(
    expected: &Expected,
    dashboard: u16,
    limit: Duration,
    say: &dyn Fn(&str),
) -> Result<(), String> {
    let (deadline, mut said) = (Instant::now() + limit, String::new());
    loop {
        let Some(why) = lacks(expected, dashboard).await else { return Ok(()) };
        if Instant::now() >= deadline {
            return Err(format!("Ray is not complete after {} s: {why}", limit.as_secs()));
        }
        if why != said {
            say(&format!("waiting for Ray: {why}"));
            said = why;
        }
        sleep(AGAIN).await;
    }
}

/// Ends when a node that must be in is told as gone [`LOST`] times in a row; gives words. A dashboard that does not answer
/// says nothing of the nodes. `ray start --block` does not see a raylet that ends by SIGTERM or with 0; this does.
pub(super) async fn lost(expected: &Expected, dashboard: u16) -> String {
    let mut before: Option<(IpAddr, u32)> = None;
    loop {
        sleep(LOOK).await;
        let Ok(Ok(view)) = tokio::task::spawn_blocking(move || ray::fetch(dashboard)).await else { continue };
        let gone = expected.nodes.iter().copied().find(|node| ray::membership(*node, &view) == Membership::NotAlive);
        let times = before.filter(|(node, _)| Some(*node) == gone).map_or(1, |(_, times)| times + 1);
        before = gone.map(|node| (node, times));
        if let Some((node, LOST..)) = before {
            return format!("node {node} is no longer ALIVE");
        }
    }
}

async fn lacks(expected: &Expected, port: u16) -> Option<String> {
    let Some(session) = own_session(&latest(|name| std::env::var_os(name))) else {
        return Some("it has not begun a session".to_owned());
    };
    match tokio::task::spawn_blocking(move || ray::ask(port)).await {
        Ok(Ok(found)) => ray::missing(expected, &session, &found),
        Ok(Err(error)) => Some(error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// Where Ray names the session that it started last; the container's own folder, so it is ours. Ray looks for the place
/// itself in this order (ray/_common/utils.py).
fn latest(env: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let base = ["RAY_TMPDIR", "TMPDIR"].into_iter().find_map(env).unwrap_or_else(|| "/tmp".into());
    PathBuf::from(base).join("ray/session_latest")
}

fn own_session(link: &Path) -> Option<String> {
    let target = std::fs::read_link(link).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_is_the_links_last_part() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("session_latest");
        assert_eq!(own_session(&link), None);
        std::os::unix::fs::symlink("/tmp/ray/session_2026_1", &link).unwrap();
        assert_eq!(own_session(&link).as_deref(), Some("session_2026_1"));
        assert_eq!(latest(|_| None), Path::new("/tmp/ray/session_latest"));
        let moved = latest(|name| (name == "TMPDIR").then(|| "/var/tmp".into()));
        assert_eq!(moved, Path::new("/var/tmp/ray/session_latest"));
    }
}
