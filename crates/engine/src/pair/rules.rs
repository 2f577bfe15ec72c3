//! What a supervisor does after what it heard. Pure: beats and times in, advice out.

use std::time::Duration;

use sparklane_lane::{NodeName, Role};

use super::beat::{AttemptId, Beat, Rank};

/// A node that was not heard for this long counts as silent: its rank, its supervisor or the rails are gone.
pub const SILENT: Duration = Duration::from_secs(4);

/// A node of the cluster as this one hears it.
#[derive(Debug, Clone)]
pub struct Heard {
    /// The node.
    pub node: NodeName,
    /// Its role.
    pub role: Role,
    /// Its last beat and how long ago it came; `None` before the first.
    pub last: Option<(Beat, Duration)>,
}

/// This node's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// What all ranks together run.
    pub serves: String,
    /// The attempt that this node began (head) or joined (worker).
    pub attempt: Option<AttemptId>,
    /// What its rank does.
    pub rank: Rank,
    /// The attempt in which a worker's rank ended: it never runs in it again.
    pub spent: Option<AttemptId>,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advice {
    /// Do not start the rank yet.
    Wait(String),
    /// Start the rank in this attempt.
    Start(AttemptId),
    /// Go on.
    Stay,
    /// Go on, but say that something is wrong.
    Doubt(String),
    /// End the rank: the attempt is over.
    Leave(String),
}

/// What a head does. Workers join first, so that none of them waits inside the engine.
#[must_use]
pub fn head(own: &Own, workers: &[Heard], grace: Duration) -> Advice {
    let Some(attempt) = own.attempt else { return Advice::Wait("no attempt was begun".to_owned()) };
    match own.rank {
        Rank::Waiting => {
            if let Some(ended) = workers.iter().find_map(|w| ended_in(attempt, w)) {
                return Advice::Leave(ended);
            }
            let missing: Vec<String> = workers.iter().filter_map(|w| not_joined(own, attempt, w)).collect();
            if missing.is_empty() { Advice::Start(attempt) } else { Advice::Wait(missing.join("; ")) }
        }
        Rank::Running => most(workers.iter().map(|worker| of_worker(attempt, worker, grace))),
        Rank::Ended => Advice::Stay,
    }
}

/// What a worker does. It follows the head alone.
#[must_use]
pub fn worker(own: &Own, head: Option<&Heard>, grace: Duration) -> Advice {
    let Some(head) = head else { return Advice::Wait("the cluster has no head".to_owned()) };
    match (own.rank, own.attempt) {
        (Rank::Running, Some(attempt)) => of_head(attempt, head, grace),
        (Rank::Waiting, _) => to_join(own, head),
        _ => Advice::Stay,
    }
}

/// A rank that ended before the head's was started has spent the attempt.
fn ended_in(attempt: AttemptId, worker: &Heard) -> Option<String> {
    let (beat, _) = worker.last.as_ref()?;
    let ended = beat.says.attempt == Some(attempt) && beat.says.rank == Rank::Ended;
    (ended || beat.says.spent == Some(attempt)).then(|| format!("the rank on {} ended{}", worker.node, because(beat)))
}

/// Why a worker is not in the attempt yet.
fn not_joined(own: &Own, attempt: AttemptId, worker: &Heard) -> Option<String> {
    let name = &worker.node;
    let (beat, ago) = match &worker.last {
        Some((beat, ago)) => (beat, *ago),
        None => return Some(format!("no word from {name} yet")),
    };
    if ago > SILENT {
        return Some(format!("no word from {name} for {} s", ago.as_secs()));
    }
    if beat.serves != own.serves {
        return Some(format!("{name} is at another release than this node"));
    }
    if let Some(reason) = beat.says.reason.as_ref().filter(|_| beat.says.attempt != Some(attempt)) {
        return Some(format!("{name}: {reason}"));
    }
    (beat.says.attempt != Some(attempt) || beat.says.rank != Rank::Running)
        .then(|| format!("{name} has not joined yet"))
}

fn of_worker(attempt: AttemptId, worker: &Heard, grace: Duration) -> Advice {
    let name = &worker.node;
    let Some((beat, ago)) = &worker.last else { return Advice::Leave(format!("{name} was never heard")) };
    if let Some(advice) = silence(name, *ago, grace) {
        return advice;
    }
    match (beat.says.attempt == Some(attempt), beat.says.rank) {
        (true, Rank::Running) => Advice::Stay,
        (true, _) => Advice::Leave(format!("the rank on {name} ended{}", because(beat))),
        (false, _) => Advice::Leave(format!("the rank on {name} is gone, its supervisor began anew")),
    }
}

fn of_head(attempt: AttemptId, head: &Heard, grace: Duration) -> Advice {
    let name = &head.node;
    let Some((beat, ago)) = &head.last else { return Advice::Leave(format!("{name} was never heard")) };
    if let Some(advice) = silence(name, *ago, grace) {
        return advice;
    }
    match (beat.says.attempt == Some(attempt), beat.says.rank) {
        (true, Rank::Waiting | Rank::Running) => Advice::Stay,
        (true, Rank::Ended) => Advice::Leave(format!("the head's rank on {name} ended{}", because(beat))),
        (false, _) => Advice::Leave(format!("the head on {name} began another attempt")),
    }
}

fn to_join(own: &Own, head: &Heard) -> Advice {
    let name = &head.node;
    let Some((beat, ago)) = &head.last else { return Advice::Wait(format!("no word from {name}, the head, yet")) };
    if *ago > SILENT {
        return Advice::Wait(format!("no word from {name}, the head, for {} s", ago.as_secs()));
    }
    if beat.serves != own.serves {
        return Advice::Wait(format!("{name}, the head, is at another release than this node"));
    }
    match (beat.says.attempt, beat.says.rank) {
        (Some(attempt), Rank::Waiting) if own.spent != Some(attempt) => Advice::Start(attempt),
        _ => Advice::Wait(format!("{name}, the head, has not begun a new attempt yet")),
    }
}

fn silence(name: &NodeName, ago: Duration, grace: Duration) -> Option<Advice> {
    let words = format!("no word from {name} for {} s (its supervisor, the machine or both rails)", ago.as_secs());
    match ago {
        _ if ago > grace => Some(Advice::Leave(words)),
        _ if ago > SILENT => Some(Advice::Doubt(words)),
        _ => None,
    }
}

fn because(beat: &Beat) -> String {
    beat.says.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"))
}

/// The gravest of several pieces of advice.
fn most(all: impl Iterator<Item = Advice>) -> Advice {
    let weight = |advice: &Advice| match advice {
        Advice::Leave(_) => 2,
        Advice::Doubt(_) => 1,
        _ => 0,
    };
    // The first of equals: `max_by_key` would take the last.
    all.reduce(|a, b| if weight(&b) > weight(&a) { b } else { a }).unwrap_or(Advice::Stay)
}

#[cfg(test)]
mod tests;
