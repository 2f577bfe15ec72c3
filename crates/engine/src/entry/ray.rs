//! The entry in a Ray lane. The head: GCS and raylet, wait for the nodes, engine. A worker: wait for the GCS, raylet.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Pid;
use sparklane_lane::generation::{Ray, RayHead};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::judge::{EXIT_PEERS, EXIT_RAY, EXIT_SYSTEM, Ended, judge, judge_ray};
use super::procs::{Event, Procs};
use super::{Job, give_up, nodes, start_engine};

const AGAIN: Duration = Duration::from_millis(500);
/// The process that makes a machine a node of Ray.
const RAYLET: &str = "raylet";
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
    let deadline = Instant::now() + limit;
    say(&format!("waiting for the head's GCS at {gcs}"));
    loop {
        // By itself `ray start` would try for 13 min 48 s.
        match unless(procs, None, reached(gcs, deadline)).await {
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
        let (ended, joined) = match joined(procs, job).await {
            Ok(Some(end)) => end,
            // Nothing drains here: ranks are the head's. `ray start` would end its processes one after the other.
            Ok(None) => return 0,
            Err((why, code)) => {
                give_up(say, &why);
                return code;
            }
        };
        // A GCS answers long before the head's own node is in it, and Ray waits 20 s for that: too little on a busy machine.
        if joined || judge_ray(ended) != EXIT_RAY || Instant::now() >= deadline {
            give_up(say, &format!("Ray on this node ended by itself with {ended}"));
            return judge_ray(ended);
        }
        say(&format!("Ray on this node could not join yet ({ended}); trying again"));
        if let Left::Told = unless(procs, None, sleep(AGAIN)).await {
            return 0;
        }
    }
}

/// Runs a worker's Ray to its end, and tells whether it ever came as far as a raylet; `None` when we were told to stop.
async fn joined(procs: &mut Procs, job: &Job) -> Result<Option<(Ended, bool)>, (String, u8)> {
    let ray = procs.spawn(&job.argv, &[])?;
    let mut joined = false;
    loop {
        let event = tokio::select! {
            event = procs.next() => event,
            () = sleep(AGAIN), if !joined => {
                joined = procs.runs(RAYLET);
                continue;
            }
        };
        match event {
            Event::Told(_) => return Ok(None),
            Event::Ended(pid, ended) if pid == ray => return Ok(Some((ended, joined))),
            Event::Ended(..) => {}
        }
    }
}

async fn reached(gcs: SocketAddr, deadline: Instant) -> Result<(), String> {
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
    let expected = match nodes::expected(head) {
        Ok(expected) => expected,
        Err(why) => {
            give_up(say, &why);
            return EXIT_SYSTEM;
        }
    };
    match unless(procs, Some(ray), nodes::complete(&expected, head.dashboard_port, limit, say)).await {
        Left::Done(Ok(())) => say(&format!("Ray is complete: {}; starting the engine", head.nodes.join(", "))),
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
        Ok(engine) => both(procs, (engine, ray), nodes::lost(&expected, head.dashboard_port), say).await,
        Err((why, code)) => {
            give_up(say, &why);
            code
        }
    }
}

/// Waits for the engine's end, Ray's, or that of another node's raylet: none is of use without the others.
async fn both(
    procs: &mut Procs,
    (engine, ray): (Pid, Pid),
    lost: impl Future<Output = String>,
    say: &dyn Fn(&str),
) -> u8 {
    let mut lost = std::pin::pin!(lost);
    let mut asked = false;
    loop {
        let event = tokio::select! {
            event = procs.next() => event,
            why = lost.as_mut(), if !asked => {
                give_up(say, &format!("{why} while the engine ran"));
                return EXIT_RAY;
            }
        };
        match event {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_gcs_is_waited_for_and_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(reached(address, Instant::now()).await, Ok(()));
        drop(listener);
        assert!(reached(address, Instant::now()).await.unwrap_err().contains("refused"));
    }
}
