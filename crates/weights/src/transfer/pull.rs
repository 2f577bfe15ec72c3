//! The receiver: fills a staging from a source over all its ways at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::limit::Limit;
use super::line::{Dial, Line, LineError};
use super::receipt::{Receipt, RepairReceipt, WayReceipt, cached, cpu_millis, peak_bytes};
use super::repair::repair;
use super::sched::{Next, Scheduler, Want};
use super::slot::{Delivered, Slot};
use crate::blobs::{Blob, BlobSet};
use crate::buffer::{Buffer, Pool};
use crate::error::WeightsError;
use crate::hash::Midstate;
use crate::part::Policy;
use crate::staging::{Staging, Start};

/// Extents that may wait in memory for their turn. With one buffer per connection this bounds what we take.
const AHEAD: usize = 64;
/// Questions under way per connection, so that the sender never waits for the next. Where an extent takes longer than
/// [`SLOW`], one is enough: what a slow rail holds at the end is waited for.
const DEPTH: usize = 2;
const SLOW: Duration = Duration::from_millis(50);
/// Files that are written side by side; each may lose [`crate::part::CHECKPOINT`] to a crash.
const OPEN: usize = 4;
/// Times a wrong file is mended before its source is blamed for the way.
const REPAIRS: usize = 3;
/// Longest wait for what other connections do.
const NAP: Duration = Duration::from_millis(50);

/// How to pull.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Connections per way.
    pub connections: usize,
    /// Most bytes per second in all.
    pub rate: Option<u64>,
    /// Time without any byte after which it fails; what is proved is kept.
    pub give_up: Duration,
}

impl Default for PullOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        Self { connections: cores.clamp(1, 4), rate: None, give_up: Duration::from_secs(60) }
    }
}

/// Counts that a display may look at while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of the set that are here, proved ones from before included.
    pub done: AtomicU64,
    /// Bytes that arrived.
    pub fetched: AtomicU64,
    /// Files that are complete.
    pub files: AtomicU64,
    /// Files on their way: number, and bytes that are here.
    pub open: Mutex<BTreeMap<u32, u64>>,
}

impl Progress {
    /// Files on their way as a display wants them, in the order of the set.
    #[must_use]
    pub fn on_their_way(&self, set: &BlobSet) -> Vec<FileProgress> {
        let one = |(index, done): (&u32, &u64)| {
            let blob = set.get(*index)?;
            Some(FileProgress { path: blob.path.clone(), done: *done, size: blob.size })
        };
        lock(&self.open).iter().filter_map(one).collect()
    }
}

/// How far one file is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileProgress {
    /// Its path.
    pub path: String,
    /// Bytes that are here.
    pub done: u64,
    /// Bytes in all.
    pub size: u64,
}

/// One transfer into a staging.
pub struct Pull<'a> {
    staging: &'a Staging,
    dial: &'a dyn Dial,
    options: PullOptions,
    progress: &'a Progress,
    stop: &'a AtomicBool,
    started: Instant,
    sched: Mutex<Scheduler>,
    wake: Condvar,
    slots: Mutex<BTreeMap<u32, Arc<Slot>>>,
    starts: BTreeMap<u32, Midstate>,
    wrong: Mutex<Vec<u32>>,
    fatal: Mutex<Option<WeightsError>>,
    ways: Vec<Mutex<WayReceipt>>,
    limit: Limit,
    pool: Pool,
    clock: Clock,
    buffered: AtomicBool,
    /// Every extent has arrived: what is still under way is a copy.
    finished: AtomicBool,
}

/// When bytes came.
#[derive(Debug, Default)]
struct Clock {
    first: AtomicU64,
    last: AtomicU64,
    pause: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Pull<'a> {
    /// A transfer of what the staging lacks.
    #[must_use]
    pub fn new(
        staging: &'a Staging,
        dial: &'a dyn Dial,
        options: PullOptions,
        progress: &'a Progress,
        stop: &'a AtomicBool,
    ) -> Self {
        let ways = dial.ways();
        let (mut files, mut starts, mut wrong) = (Vec::new(), BTreeMap::new(), Vec::new());
        for ((index, blob), start) in staging.set().iter().zip(staging.starts()) {
            match start {
                Start::Done => {}
                Start::Suspect => wrong.push(index),
                Start::Part(state) => {
                    files.push((index, blob.size, state.len));
                    starts.insert(index, *state);
                }
            }
        }
        let pool = Pool::new(AHEAD + ways.len() * options.connections);
        let way = |name| Mutex::new(WayReceipt { name, ..WayReceipt::default() });
        Self {
            staging,
            dial,
            progress,
            stop,
            started: Instant::now(),
            sched: Mutex::new(Scheduler::new(&files, AHEAD, OPEN)),
            wake: Condvar::new(),
            slots: Mutex::default(),
            starts,
            wrong: Mutex::new(wrong),
            fatal: Mutex::new(None),
            ways: ways.into_iter().map(way).collect(),
            limit: Limit::new(options.rate),
            options,
            pool,
            clock: Clock::default(),
            buffered: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        }
    }

    /// Runs it to its end. What was proved stays, whatever happens.
    ///
    /// # Errors
    /// When the disk or the source fails, nothing comes for too long, or it is stopped.
    pub fn run(self) -> Result<Receipt, WeightsError> {
        let cached_before = cached();
        let had = self.complete_without_bytes()?;
        let wanted: u64 = self.starts.iter().filter_map(|(n, s)| Some(self.blob(*n).ok()?.size - s.len)).sum();
        if wanted > 0 {
            self.fetch();
        }
        let proved = lock(&self.slots).values().try_for_each(|slot| slot.prove(self.staging.journal()));
        if let Some(error) = lock(&self.fatal).take() {
            return Err(error);
        }
        proved?;
        let repaired = self.mend()?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(WeightsError::Failed(
                "stopped; what was proved is kept, the next run goes on from there".into(),
            ));
        }
        let set = self.staging.set();
        let first = self.clock.first.load(Ordering::Relaxed);
        Ok(Receipt {
            set: set.id(),
            files: set.blobs().len() as u64,
            bytes: set.bytes(),
            had,
            fetched: self.progress.fetched.load(Ordering::Relaxed),
            millis: self.now(),
            first_byte_millis: (first > 0).then(|| first - 1),
            longest_pause_millis: self.clock.pause.load(Ordering::Relaxed),
            ways: self.ways.iter().map(|w| lock(w).clone()).collect(),
            repaired,
            writes: if self.buffered.load(Ordering::Relaxed) { "buffered" } else { "direct" }.into(),
            cached: (cached_before, cached()),
            cpu_millis: cpu_millis(),
            peak_bytes: peak_bytes(),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn blob(&self, index: u32) -> Result<&Blob, WeightsError> {
        let blob = self.staging.set().get(index);
        blob.ok_or_else(|| WeightsError::Peer(format!("there is no file {index} in the set")))
    }

    /// Empty files, and those whose last byte was written before a crash. Gives the bytes that were there.
    fn complete_without_bytes(&self) -> Result<u64, WeightsError> {
        let mut had = 0;
        for ((index, blob), start) in self.staging.set().iter().zip(self.staging.starts()) {
            match start {
                Start::Done => {
                    had += blob.size;
                    self.progress.files.fetch_add(1, Ordering::Relaxed);
                }
                Start::Suspect => {}
                Start::Part(state) => {
                    had += state.len;
                    if state.len == blob.size {
                        self.complete(index, blob, self.staging.part(index, blob, state)?)?;
                    }
                }
            }
        }
        self.progress.done.store(had, Ordering::Relaxed);
        Ok(had)
    }

    fn complete(&self, index: u32, blob: &Blob, part: crate::part::Part) -> Result<(), WeightsError> {
        match self.staging.complete(index, blob, part)? {
            None => drop(self.progress.files.fetch_add(1, Ordering::Relaxed)),
            Some(got) => {
                tracing::warn!(
                    "{}: sha256 is {got}, the manifest says {}; looking for the range",
                    blob.path,
                    blob.sha256
                );
                lock(&self.wrong).push(index);
            }
        }
        Ok(())
    }

    fn fetch(&self) {
        std::thread::scope(|scope| {
            for way in 0..self.ways.len() {
                for n in 0..self.options.connections {
                    let who = u32::try_from(way * self.options.connections + n).unwrap_or(u32::MAX);
                    let named = std::thread::Builder::new().name(format!("way{way}-{n}"));
                    if let Err(error) = named.spawn_scoped(scope, move || self.work(way, who)) {
                        self.fail(WeightsError::Failed(format!("a thread cannot be started: {error}")));
                    }
                }
            }
        });
    }

    fn going(&self) -> bool {
        !self.finished.load(Ordering::Relaxed) && !self.stop.load(Ordering::Relaxed) && lock(&self.fatal).is_none()
    }

    fn fail(&self, error: WeightsError) {
        lock(&self.fatal).get_or_insert(error);
        self.wake.notify_all();
    }

    /// One connection's life, and those of its successors.
    fn work(&self, way: usize, who: u32) {
        while self.going() {
            let outcome = self.dial.dial(way).and_then(|mut line| {
                lock(&self.ways[way]).connections += 1;
                self.converse(way, who, &mut *line)
            });
            lock(&self.sched).lost(who);
            self.wake.notify_all();
            match outcome {
                Ok(()) => return,
                Err(LineError::Fatal(error)) => return self.fail(error),
                Err(LineError::Lost { .. }) if self.finished.load(Ordering::Relaxed) => return,
                Err(LineError::Lost { why, wait }) => {
                    tracing::debug!("{why}");
                    lock(&self.ways[way]).last_error = Some(why);
                    self.judge_silence();
                    self.rest(wait.unwrap_or(Duration::from_millis(300)));
                }
            }
        }
    }

    /// Sleeps in slices, so that an end is heard.
    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while self.going() && Instant::now() < until {
            std::thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
            self.judge_silence();
        }
    }

    fn judge_silence(&self) {
        let silent = self.now().saturating_sub(self.clock.last.load(Ordering::Relaxed));
        if u128::from(silent) > self.options.give_up.as_millis() {
            let reasons: Vec<String> = self.ways.iter().filter_map(|w| lock(w).last_error.clone()).collect();
            let (secs, reasons) = (silent / 1000, reasons.join("; "));
            self.fail(WeightsError::Failed(format!(
                "no byte for {secs} s ({reasons}); what was proved is kept, run it again when a rail is back"
            )));
        }
    }

    fn converse(&self, way: usize, who: u32, line: &mut dyn Line) -> Result<(), LineError> {
        let mut asked = VecDeque::new();
        let mut depth = 1;
        while self.going() {
            while asked.len() < depth {
                let next = lock(&self.sched).next(who, self.started.elapsed());
                match next {
                    Next::Take(want) => {
                        asked.push_back(want);
                        self.rest(self.limit.reserve(u64::from(want.len), Instant::now()));
                        line.ask(&want)?;
                    }
                    Next::Wait => break,
                    Next::Finished => {
                        self.finished.store(true, Ordering::Relaxed);
                        break;
                    }
                }
            }
            let Some(expected) = asked.pop_front() else {
                if self.finished.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let sched = lock(&self.sched);
                drop(self.wake.wait_timeout(sched, NAP));
                self.judge_silence();
                continue;
            };
            let mut buffer =
                self.pool.take(Duration::from_secs(10)).ok_or_else(|| LineError::lost("no buffer is free"))?;
            let since = Instant::now();
            let got = line.take(&mut buffer, &|| self.finished.load(Ordering::Relaxed))?;
            if got != expected || buffer.used().len() != got.len as usize {
                return Err(LineError::Fatal(WeightsError::Peer("the source answered another question".into())));
            }
            depth = if since.elapsed() > SLOW { 1 } else { DEPTH };
            self.note(way, &got);
            self.arrived(&got, buffer).map_err(LineError::Fatal)?;
        }
        Ok(())
    }

    fn note(&self, way: usize, got: &Want) {
        let now = self.now();
        let last = self.clock.last.swap(now, Ordering::Relaxed);
        if self.clock.first.compare_exchange(0, now + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            self.clock.pause.fetch_max(now.saturating_sub(last), Ordering::Relaxed);
        }
        lock(&self.ways[way]).bytes += u64::from(got.len);
        self.progress.fetched.fetch_add(u64::from(got.len), Ordering::Relaxed);
    }

    fn arrived(&self, want: &Want, buffer: Buffer) -> Result<(), WeightsError> {
        if !lock(&self.sched).arrived(want) {
            return Ok(());
        }
        let blob = self.blob(want.file)?;
        let slot = self.slot(want.file, blob)?;
        let delivered = slot.deliver(want.offset, blob.size, buffer, self.staging.journal())?;
        let (written, part) = match delivered {
            Delivered::Some(written) => (written, None),
            Delivered::All(written, part) => (written, Some(part)),
        };
        if let Some(part) = part {
            lock(&self.slots).remove(&want.file);
            lock(&self.progress.open).remove(&want.file);
            self.complete(want.file, blob, part)?;
        }
        if written > 0 {
            let mut sched = lock(&self.sched);
            (0..written).for_each(|_| sched.written());
        }
        self.progress.done.fetch_add(u64::from(want.len), Ordering::Relaxed);
        if let Some(done) = lock(&self.progress.open).get_mut(&want.file) {
            *done += u64::from(want.len);
        }
        self.wake.notify_all();
        Ok(())
    }

    fn slot(&self, file: u32, blob: &Blob) -> Result<Arc<Slot>, WeightsError> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(&file) {
            return Ok(Arc::clone(slot));
        }
        let start = self.starts.get(&file).copied().unwrap_or_else(Midstate::start);
        let part = self.staging.part(file, blob, &start)?;
        if part.policy() == Policy::Buffered && blob.size >= crate::buffer::EXTENT as u64 {
            self.buffered.store(true, Ordering::Relaxed);
        }
        let slot = Arc::new(Slot::new(part));
        slots.insert(file, Arc::clone(&slot));
        lock(&self.progress.open).insert(file, start.len);
        Ok(slot)
    }

    /// Mends files that were wrong, one after the other: it is rare, and each is compared from end to end.
    fn mend(&self) -> Result<Vec<RepairReceipt>, WeightsError> {
        let wrong = std::mem::take(&mut *lock(&self.wrong));
        let mut receipts = Vec::new();
        for index in wrong {
            let blob = self.blob(index)?;
            let receipt = self.mend_one(index, blob)?;
            self.progress.files.fetch_add(1, Ordering::Relaxed);
            receipts.push(receipt);
        }
        Ok(receipts)
    }

    fn mend_one(&self, index: u32, blob: &Blob) -> Result<RepairReceipt, WeightsError> {
        let mut last = String::new();
        let mut receipt = RepairReceipt { path: blob.path.clone(), offsets: Vec::new(), bytes: 0 };
        for attempt in 0..REPAIRS * self.ways.len().max(1) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let way = attempt % self.ways.len().max(1);
            let mended = self.dial.dial(way).and_then(|mut line| repair(index, blob, self.staging, &mut *line));
            match mended {
                Ok(mended) => {
                    receipt.offsets.extend(&mended.offsets);
                    receipt.bytes += mended.bytes;
                    self.progress.fetched.fetch_add(mended.bytes, Ordering::Relaxed);
                    match mended.still {
                        None => return Ok(receipt),
                        // What we have is what the source has.
                        Some(got) if mended.offsets.is_empty() => {
                            let what = WeightsError::Mismatch { path: blob.path.clone(), wanted: blob.sha256, got };
                            return Err(WeightsError::Failed(format!(
                                "{what}: the source's own bytes are wrong; there: sparklane weights verify --deep, then fetch it again"
                            )));
                        }
                        Some(got) => last = format!("sha256 is {got}"),
                    }
                }
                Err(LineError::Fatal(error)) => return Err(error),
                Err(LineError::Lost { why, .. }) => {
                    last = why;
                    std::thread::sleep(Duration::from_millis(300));
                }
            }
        }
        Err(WeightsError::Failed(format!(
            "{}: wrong on arrival, and not mended in {REPAIRS} attempts per way: {last}",
            blob.path
        )))
    }
}
