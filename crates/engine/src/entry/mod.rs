//! Process 1 of the engine's container (design.md section 7): `sparklane entry`.
//!
//! One attempt, no loop: it starts the engine with its argument vector as it is, passes signals on, reaps, and ends with a
//! code that says what happened (see [`judge`]). What brings an engine up again is the supervisor outside.

pub mod judge;
mod nodes;
pub mod procs;
mod ray;
pub mod tree;

use rustix::process::Pid;
use sparklane_lane::generation::Ray;

use crate::key::KEY_ENV;
use crate::redact::Redacted;
use judge::{EXIT_SYSTEM, judge};
use procs::{Event, GRACE, Procs};

/// What every line of the entry starts with, so that the log's reader tells it from the engine's own.
pub const SAYS: &str = "sparklane entry: ";

/// What a line goes on with when it says why there is no engine, or no longer one.
pub const GIVES_UP: &str = "gives up: ";

/// Says why there is no engine.
fn give_up(say: &dyn Fn(&str), why: &str) {
    say(&format!("{GIVES_UP}{why}"));
}

/// What is to be run.
#[derive(Debug, Default)]
pub struct Job {
    /// Program and arguments of the engine.
    pub argv: Vec<String>,
    /// The API key, for the engine's environment only.
    pub key: Option<Redacted<String>>,
    /// Ray around it.
    pub ray: Option<Ray>,
}

/// Runs the job to its end; gives the container's exit code. `say` takes lines for people.
pub async fn run(job: &Job, say: &dyn Fn(&str)) -> u8 {
    let mut procs = match Procs::new() {
        Ok(procs) => procs,
        Err(error) => {
            give_up(say, &format!("cannot take over signals: {error}"));
            return EXIT_SYSTEM;
        }
    };
    let code = match &job.ray {
        Some(plan) => ray::run(&mut procs, job, plan, say).await,
        None => alone(&mut procs, job, say).await,
    };
    let left = procs.end_all(GRACE).await;
    if left > 0 {
        say(&format!("ended {left} processes that were left"));
    }
    code
}

/// The engine is all there is.
async fn alone(procs: &mut Procs, job: &Job, say: &dyn Fn(&str)) -> u8 {
    let engine = match start_engine(procs, job, &[]) {
        Ok(pid) => pid,
        Err((why, code)) => {
            give_up(say, &why);
            return code;
        }
    };
    let mut asked = false;
    loop {
        match procs.next().await {
            Event::Told(signal) => {
                asked = true;
                procs.pass_on(engine, signal);
            }
            Event::Ended(pid, ended) if pid == engine => {
                let code = judge(ended, asked);
                if !asked {
                    say(&format!("the engine ended by itself with {ended}"));
                }
                return code;
            }
            Event::Ended(..) => {}
        }
    }
}

/// Starts the engine, with its key.
fn start_engine(procs: &mut Procs, job: &Job, env: &[(&str, &str)]) -> Result<Pid, (String, u8)> {
    let key = job.key.as_ref().map(|key| (KEY_ENV, key.expose().as_str()));
    let env: Vec<(&str, &str)> = env.iter().copied().chain(key).collect();
    procs.spawn(&job.argv, &env)
}
