//! Who fetches which extent next. Pure: time is an argument, and nothing is ever waited for here.
//!
//! A connection stays with its file while it can, so that several files advance side by side; when files run out, all
//! share what is left of the last ones. How much one takes is only how often it comes back. An extent whose holder is
//! slow is given to a second one; the first arrival counts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::buffer::EXTENT;

/// After this long an extent is asked for by a second connection, if that has nothing better to do: near the end, and
/// when one rail is so slow that memory is full of what follows.
pub const HEDGE: Duration = Duration::from_millis(150);

/// One extent of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Want {
    /// Number of the file in its set.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes, at most [`EXTENT`].
    pub len: u32,
}

/// What a connection should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Fetch this.
    Take(Want),
    /// Nothing now; others must deliver first.
    Wait,
    /// Every extent has arrived.
    Finished,
}

#[derive(Debug)]
struct Work {
    file: u32,
    size: u64,
    next: u64,
}

#[derive(Debug)]
struct Out {
    owners: Vec<u32>,
    since: Duration,
}

/// The plan of one transfer.
#[derive(Debug)]
pub struct Scheduler {
    /// Files with bytes not given out, the largest last.
    fresh: Vec<Work>,
    open: Vec<Work>,
    /// Extents whose holder was lost.
    lost: BTreeSet<Want>,
    out: BTreeMap<Want, Out>,
    last: BTreeMap<u32, u32>,
    /// Extents given out and not yet written.
    ahead: usize,
    max_ahead: usize,
    max_open: usize,
}

impl Scheduler {
    /// A plan for files as (number, size, first missing byte). `max_ahead` bounds extents in memory, `max_open` the
    /// files that are begun side by side.
    #[must_use]
    pub fn new(files: &[(u32, u64, u64)], max_ahead: usize, max_open: usize) -> Self {
        let work = |(file, size, next): &(u32, u64, u64)| Work { file: *file, size: *size, next: *next };
        let mut fresh: Vec<Work> = files.iter().filter(|(_, size, at)| at < size).map(work).collect();
        fresh.sort_by_key(|w| (w.size - w.next, std::cmp::Reverse(w.file)));
        Self {
            fresh,
            open: Vec::new(),
            lost: BTreeSet::new(),
            out: BTreeMap::new(),
            last: BTreeMap::new(),
            ahead: 0,
            max_ahead: max_ahead.max(1),
            max_open: max_open.max(1),
        }
    }

    /// What connection `who` should do now.
    pub fn next(&mut self, who: u32, now: Duration) -> Next {
        if let Some(want) = self.lost.pop_first() {
            self.out.insert(want, Out { owners: vec![who], since: now });
            return Next::Take(want);
        }
        if self.ahead < self.max_ahead
            && let Some(want) = self.cut(who)
        {
            self.ahead += 1;
            self.out.insert(want, Out { owners: vec![who], since: now });
            return Next::Take(want);
        }
        if let Some((want, out)) = self.slowest(who, now) {
            out.owners.push(who);
            return Next::Take(want);
        }
        if self.out.is_empty() && self.fresh.is_empty() && self.open.is_empty() { Next::Finished } else { Next::Wait }
    }

    /// The next extent of the file that suits the connection.
    fn cut(&mut self, who: u32) -> Option<Want> {
        let mine = self.last.get(&who).and_then(|file| self.open.iter().position(|w| w.file == *file));
        let at = match mine {
            Some(at) => at,
            None if self.open.len() < self.max_open && !self.fresh.is_empty() => {
                self.open.push(self.fresh.pop()?);
                self.open.len() - 1
            }
            None => self.open.iter().enumerate().max_by_key(|(_, w)| w.size - w.next).map(|(at, _)| at)?,
        };
        let work = self.open.get_mut(at)?;
        let len = (work.size - work.next).min(EXTENT as u64);
        let want = Want { file: work.file, offset: work.next, len: u32::try_from(len).unwrap_or(u32::MAX) };
        work.next += len;
        if work.next >= work.size {
            self.open.swap_remove(at);
        }
        self.last.insert(who, want.file);
        Some(want)
    }

    /// The oldest extent that one other connection holds for too long.
    fn slowest(&mut self, who: u32, now: Duration) -> Option<(Want, &mut Out)> {
        let late = |out: &Out| !out.owners.contains(&who) && out.owners.len() < 2 && now >= out.since + HEDGE;
        let found = self.out.iter_mut().filter(|(_, out)| late(out)).min_by_key(|(_, out)| out.since);
        found.map(|(want, out)| (*want, out))
    }

    /// An extent came in. False when another connection brought it before.
    pub fn arrived(&mut self, want: &Want) -> bool {
        // Its holder may have been lost in the meantime; the bytes are as good.
        let lost = self.lost.remove(want);
        self.out.remove(want).is_some() || lost
    }

    /// An arrived extent is written; its memory is free.
    pub fn written(&mut self) {
        self.ahead = self.ahead.saturating_sub(1);
    }

    /// A connection died; what only it held is given to others.
    pub fn lost(&mut self, who: u32) {
        let mut orphans = Vec::new();
        for (want, out) in &mut self.out {
            out.owners.retain(|owner| *owner != who);
            if out.owners.is_empty() {
                orphans.push(*want);
            }
        }
        for want in orphans {
            self.out.remove(&want);
            self.lost.insert(want);
        }
        self.last.remove(&who);
    }
}

#[cfg(test)]
#[path = "sched_tests.rs"]
mod tests;
