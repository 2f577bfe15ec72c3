//! The entry in a Ray lane. The head: GCS and raylet, wait for the nodes, engine. A worker: wait for the GCS, raylet.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;
use sparklane_lane::generation::{Ray, RayHead};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::judge::{EXIT_PEERS, EXIT_SYSTEM, Ended, judge, judge_ray};
use super::procs::{Event, Procs};
use super::{Job, give_up, start_engine};
use crate::ray::{self, Expected};

const AGAIN: Duration = Duration::from_millis(500);
/// A GCS on a direct cable answers within milliseconds or not at all.
const CONNECT: Duration = Duration::from_secs(2);

/// Runs the head's or a worker's part; gives the container's exit code.
pub(super) async fn run(procs: &mut Procs, job: &Job, plan: &Ray, say: &dyn Fn(&str)) -> u8 {
    let Ok(gcs) = plan.gcs.parse::<SocketAddr>() else {
        give_up(say, &format!("engine.ray.gcs {:?} is no address", plan.gcs));
        return EXIT_SYSTEM;
    };
    let limit = Duration::from_secs(plan.join_secs.into());
    match &plan.head {
        Some(head) => self::head(procs, job, (head, gcs, limit), say).await,
        None => worker(procs, job, gcs, limit, say).await,
    }
}

/// How a wait that must not miss a signal or an end was left.
enum Left<T> {
    Done(T),
    Told,
    Ended(Ended),
}

/// Waits for `work`, for a signal, or for the end of `watched`.
async fn unless<T>(procs: &mut Procs, watched: Option<Pid>, work: impl Future<Output = T>) -> Left<T> {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = work.as_mut() => return Left::Done(done),
            event = procs.next() => match event {
                Event::Told(_) => return Left::Told,
                Event::Ended(pid, ended) if Some(pid) == watched => return Left::Ended(ended),
                Event::Ended(..) => {}
            }
        }
    }
}

async fn worker(procs: &mut Procs, job: &Job, gcs: SocketAddr, limit: Duration, say: &dyn Fn(&str)) -> u8 {
    say(&format!("waiting for the head's GCS at {gcs}"));
    // By itself `ray start` would try for 13 min 48 s.
    match unless(procs, None, reached(gcs, limit)).await {
        Left::Done(Ok(())) => say(&format!("the head's GCS at {gcs} answers; joining")),
        Left::Done(Err(why)) => {
            give_up(say, &format!("the head's GCS at {gcs} does not answer after {} s: {why}", limit.as_secs()));
            return EXIT_PEERS;
        }
        Left::Told | Left::Ended(_) => {
            say("told to stop before the head's GCS answered");
            return 0;
        }
    }
    let raylet = match procs.spawn(&job.argv, &[]) {
        Ok(pid) => pid,
        Err((why, code)) => {
            give_up(say, &why);
            return code;
        }
    };
    loop {
        match procs.next().await {
            // Nothing drains here: ranks are the head's. `ray start` would end its processes one after the other.
            Event::Told(_) => return 0,
            Event::Ended(pid, ended) if pid == raylet => {
                give_up(say, &format!("Ray on this node ended by itself with {ended}"));
                return judge_ray(ended);
            }
            Event::Ended(..) => {}
        }
    }
}

async fn reached(gcs: SocketAddr, limit: Duration) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    loop {
        let why = match timeout(CONNECT, TcpStream::connect(gcs)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if Instant::now() >= deadline {
            return Err(why);
        }
        sleep(AGAIN).await;
    }
}

async fn head(
    procs: &mut Procs,
    job: &Job,
    (head, gcs, limit): (&RayHead, SocketAddr, Duration),
    say: &dyn Fn(&str),
) -> u8 {
    // Another Ray's GCS would take our worker in, and its dashboard answer in place of ours.
    for address in [gcs, SocketAddr::from(([127, 0, 0, 1], head.dashboard_port))] {
        if let Ok(Ok(_)) = timeout(CONNECT, TcpStream::connect(address)).await {
            give_up(say, &format!("something already listens on {address} (another Ray? ss -tlnp)"));
            return EXIT_PEERS;
        }
    }
    let ray = match procs.spawn(&head.start, &[]) {
        Ok(pid) => pid,
        Err((why, code)) => {
            give_up(say, &why);
            return code;
        }
    };
    match unless(procs, Some(ray), complete(head, limit, say)).await {
        Left::Done(Ok(nodes)) => say(&format!("Ray is complete: {nodes}; starting the engine")),
        Left::Done(Err(why)) => {
            give_up(say, &why);
            return EXIT_PEERS;
        }
        Left::Told => {
            say("told to stop before Ray was complete");
            return 0;
        }
        Left::Ended(ended) => {
            give_up(say, &format!("Ray ended with {ended} before it was complete"));
            return judge_ray(ended);
        }
    }
    let gcs = gcs.to_string();
    match start_engine(procs, job, &[("RAY_ADDRESS", &gcs)]) {
        Ok(engine) => both(procs, engine, ray, say).await,
        Err((why, code)) => {
            give_up(say, &why);
            code
        }
    }
}

/// Waits for the engine's or Ray's end: neither is of use without the other.
async fn both(procs: &mut Procs, engine: Pid, ray: Pid, say: &dyn Fn(&str)) -> u8 {
    let mut asked = false;
    loop {
        match procs.next().await {
            Event::Told(signal) => {
                // Ray stays until the engine has drained.
                asked = true;
                procs.pass_on(engine, signal);
            }
            Event::Ended(pid, ended) if pid == engine => {
                if !asked {
                    say(&format!("the engine ended by itself with {ended}"));
                }
                return judge(ended, asked);
            }
            Event::Ended(pid, ended) if pid == ray => {
                give_up(say, &format!("Ray on this node ended with {ended} while the engine ran"));
                return judge_ray(ended);
            }
            Event::Ended(..) => {}
        }
    }
}

/// Waits until exactly the expected nodes are in our session; gives them.
async fn complete(head: &RayHead, limit: Duration, say: &dyn Fn(&str)) -> Result<String, String> {
    let nodes = head.nodes.iter().map(|n| n.parse::<IpAddr>().map_err(|e| format!("engine.ray.head.nodes {n:?}: {e}")));
    let expected = Expected { nodes: nodes.collect::<Result<BTreeSet<_>, _>>()?, gpus: head.gpus_per_node };
    let (deadline, mut said) = (Instant::now() + limit, String::new());
    loop {
        let Some(why) = lacks(&expected, head.dashboard_port).await else {
            return Ok(head.nodes.join(", "));
        };
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

    #[tokio::test]
    async fn a_gcs_is_waited_for_and_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(reached(address, Duration::ZERO).await, Ok(()));
        drop(listener);
        assert!(reached(address, Duration::ZERO).await.unwrap_err().contains("refused"));
    }
}
