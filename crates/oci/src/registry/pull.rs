//! Blobs by digest: several at once, each resumed where it broke, none under its name before it is proved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::task::JoinSet;

use super::error::RegistryError;
use super::http::{Answer, Ask, lie, shown};
use super::range::{Head, Verdict, judge};
use super::repo::Repo;
use super::retry::Patience;
use crate::digest::Digest;
use crate::error::OciError;
use crate::layout::Layout;
use crate::manifest::Descriptor;
use crate::partial::{Opened, Partial, check_space, still_needed};

/// Pieces that may wait for the disk, per blob.
const QUEUE: usize = 16;

/// How blobs are pulled.
#[derive(Clone)]
pub struct PullOptions {
    /// Blobs at once.
    pub parallel: usize,
    /// Most bytes per second, over all blobs.
    pub rate: Option<u64>,
    /// Hears what happens.
    pub progress: Arc<dyn Fn(Event) + Send + Sync>,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self { parallel: 4, rate: None, progress: Arc::new(|_| ()) }
    }
}

/// What happens to a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It begins, with `have` of its bytes here.
    Begin {
        /// The blob.
        digest: Digest,
        /// Its bytes.
        size: u64,
        /// Bytes here.
        have: u64,
    },
    /// Bytes came.
    Bytes {
        /// The blob.
        digest: Digest,
        /// How many.
        count: u64,
    },
    /// What was here is of no use.
    Restart {
        /// The blob.
        digest: Digest,
        /// Why.
        why: String,
    },
    /// It broke and is tried again.
    Retry {
        /// The blob.
        digest: Digest,
        /// Why.
        why: String,
        /// After this wait.
        wait: Duration,
    },
    /// It is here and proved.
    Done {
        /// The blob.
        digest: Digest,
    },
}

/// What a pull moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pulled {
    /// Blobs that came.
    pub blobs: u64,
    /// Bytes that came over the network.
    pub bytes: u64,
    /// Blobs that were here.
    pub present: u64,
}

/// Bytes per second over all blobs; a bucket of a quarter second.
#[derive(Debug)]
struct Limit {
    rate: u64,
    ready: Mutex<Instant>,
}

impl Limit {
    async fn take(&self, bytes: usize) {
        let mut ready = self.ready.lock().await;
        let now = Instant::now();
        let credit = Duration::from_millis(250);
        *ready = (*ready).max(now.checked_sub(credit).unwrap_or(now)) + spread(bytes as u64, self.rate);
        let wait = ready.saturating_duration_since(now);
        drop(ready);
        tokio::time::sleep(wait).await;
    }
}

fn spread(bytes: u64, rate: u64) -> Duration {
    Duration::from_nanos(u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))).unwrap_or(u64::MAX))
}

/// Pulls the blobs that the layout has not. A failure of one ends all; what came of the others is kept.
///
/// # Errors
/// No room, refused, lied to, or given up.
pub async fn pull_blobs(
    repo: &Repo,
    layout: &Layout,
    wanted: &[Descriptor],
    options: &PullOptions,
) -> Result<Pulled, OciError> {
    let here = |d: &&Descriptor| layout.open_blob(&d.digest).is_ok_and(|(_, size)| size == d.size);
    let missing: Vec<&Descriptor> = wanted.iter().filter(|d| !here(d)).collect();
    check_space(layout, still_needed(layout, missing.iter().copied()))?;
    let slots = Arc::new(Semaphore::new(options.parallel.max(1)));
    let limit = options.rate.map(|rate| Arc::new(Limit { rate, ready: Mutex::new(Instant::now()) }));
    let mut tasks = JoinSet::new();
    for wanted in &missing {
        let blob = Blob {
            repo: repo.clone(),
            layout: layout.clone(),
            wanted: (*wanted).clone(),
            options: options.clone(),
            limit: limit.clone(),
        };
        let slots = Arc::clone(&slots);
        tasks.spawn(async move {
            let _slot = slots.acquire_owned().await;
            blob.pull().await
        });
    }
    let mut sum = Pulled { present: (wanted.len() - missing.len()) as u64, ..Pulled::default() };
    while let Some(done) = tasks.join_next().await {
        // Dropping the set ends the others at their next await.
        let bytes = done.map_err(|e| RegistryError::Setup(format!("a download died: {e}")))??;
        sum.blobs += 1;
        sum.bytes += bytes;
    }
    Ok(sum)
}

struct Blob {
    repo: Repo,
    layout: Layout,
    wanted: Descriptor,
    options: PullOptions,
    limit: Option<Arc<Limit>>,
}

/// How one try ended.
enum Tried {
    /// All bytes that were promised came.
    Full,
    /// It must be begun anew, without `Range`.
    Anew(&'static str),
    /// The address behind the redirect has ended.
    Expired(RegistryError),
}

impl Blob {
    /// Gives the number of bytes that came over the network.
    async fn pull(&self) -> Result<u64, OciError> {
        let (layout, wanted) = (self.layout.clone(), self.wanted.clone());
        let opened = blocking(move || Partial::open(&layout, &wanted)).await?;
        let partial = match opened {
            Opened::There => return Ok(0),
            Opened::Partial(partial) => Shared(Arc::new(std::sync::Mutex::new(*partial))),
        };
        let (digest, size) = (self.wanted.digest.clone(), self.wanted.size);
        (self.options.progress)(Event::Begin { digest: digest.clone(), size, have: partial.have()? });
        let mut patience = Patience::new(self.repo.http.timeouts.first_wait);
        let mut moved = 0;
        loop {
            let before = moved;
            let early = || RegistryError::Connection { url: digest.to_string(), why: "it ended early".into() };
            let tried = if partial.have()? == size { Ok(Tried::Full) } else { self.once(&partial, &mut moved).await };
            let failed = match tried {
                Ok(Tried::Full) if partial.have()? == size => {
                    let finished = partial.clone();
                    if blocking(move || finished.lock()?.finish()).await? {
                        break;
                    }
                    self.restarted("what an earlier run left was damaged");
                    continue;
                }
                Ok(Tried::Full) => early(),
                Ok(Tried::Anew(why)) => {
                    partial.lock()?.restart()?;
                    self.restarted(why);
                    RegistryError::Connection { url: digest.to_string(), why: why.into() }
                }
                Ok(Tried::Expired(error)) => error,
                Err(OciError::Registry(error)) if error.is_transient() => error,
                Err(error) => return Err(error),
            };
            let Some(wait) = patience.failed(moved - before, failed.retry_after(), jitter()) else {
                let failures = super::retry::FAILURES;
                return Err(RegistryError::GaveUp { failures, last: Box::new(failed) }.into());
            };
            (self.options.progress)(Event::Retry { digest: digest.clone(), why: failed.to_string(), wait });
            tokio::time::sleep(wait).await;
        }
        (self.options.progress)(Event::Done { digest });
        Ok(moved)
    }

    fn restarted(&self, why: &str) {
        (self.options.progress)(Event::Restart { digest: self.wanted.digest.clone(), why: why.into() });
    }

    async fn once(&self, partial: &Shared, moved: &mut u64) -> Result<Tried, OciError> {
        let (have, size) = (partial.have()?, self.wanted.size);
        let url = self.repo.url(&format!("blobs/{}", self.wanted.digest))?;
        let make = || {
            let ask = Ask::new(Method::GET, url.clone());
            if have > 0 { ask.with(RANGE, &format!("bytes={have}-")) } else { Ok(ask) }
        };
        let answer = self.repo.ask(&make).await?;
        let head = Head {
            status: answer.status(),
            content_range: answer.header(CONTENT_RANGE),
            content_length: answer.header(CONTENT_LENGTH).and_then(|text| text.parse().ok()),
            content_encoding: answer.header(CONTENT_ENCODING),
        };
        match judge(&head, have, size) {
            Verdict::Append => {}
            Verdict::Restart => {
                partial.lock()?.restart()?;
                self.restarted("the server sends it from its beginning only");
            }
            Verdict::Complete => return Ok(Tried::Full),
            Verdict::Discard => return Ok(Tried::Anew("the server refuses to go on from here")),
            Verdict::Lie(why) => return Err(lie(&answer.url, &why).into()),
            Verdict::Status => {
                let (status, redirected) = (answer.status(), answer.redirected);
                let refusal = self.repo.http.refusal(answer).await;
                // A signed address lives minutes; the registry gives a new one.
                if redirected && matches!(status, 400 | 401 | 403) {
                    return Ok(Tried::Expired(refusal));
                }
                return Err(refusal.into());
            }
        }
        self.body(answer, partial, moved).await.map(|()| Tried::Full)
    }

    /// Copies a body to disk; hashing and writing have a thread of their own beside the network's.
    async fn body(&self, answer: Answer, partial: &Shared, moved: &mut u64) -> Result<(), OciError> {
        let Answer { response, url, .. } = answer;
        let mut body = response.into_body();
        let (pieces, queue) = mpsc::channel::<Bytes>(QUEUE);
        let left = self.wanted.size - partial.have()?;
        let target = partial.clone();
        let writer = tokio::task::spawn_blocking(move || target.write(queue));
        let mut came = 0;
        let ended = loop {
            match self.repo.http.next(&mut body, &url).await {
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.into()),
                Ok(Some(piece)) => {
                    let count = piece.len() as u64;
                    if came + count > left {
                        let why = format!("it sends more than the {} bytes of the manifest", self.wanted.size);
                        break Err(RegistryError::Lie { url: shown(&url), why }.into());
                    }
                    came += count;
                    if let Some(limit) = &self.limit {
                        limit.take(piece.len()).await;
                    }
                    if pieces.send(piece).await.is_err() {
                        break Ok(()); // The writer's own error follows.
                    }
                    (self.options.progress)(Event::Bytes { digest: self.wanted.digest.clone(), count });
                }
            }
        };
        drop(pieces);
        let written = writer.await.map_err(|_| died())?;
        *moved += came;
        written.and(ended)
    }
}

/// The partial blob, between the network's task and the thread that writes.
#[derive(Clone)]
struct Shared(Arc<std::sync::Mutex<Partial>>);

impl Shared {
    fn lock(&self) -> Result<std::sync::MutexGuard<'_, Partial>, OciError> {
        self.0.lock().map_err(|_| died().into())
    }

    fn have(&self) -> Result<u64, OciError> {
        Ok(self.lock()?.have())
    }

    fn write(&self, mut pieces: mpsc::Receiver<Bytes>) -> Result<(), OciError> {
        let mut partial = self.lock()?;
        while let Some(piece) = pieces.blocking_recv() {
            partial.append(&piece)?;
        }
        Ok(())
    }
}

fn died() -> RegistryError {
    RegistryError::Setup("a thread that writes died".into())
}

/// Makes waits uneven, so that many do not come back at once.
fn jitter() -> u8 {
    let mut byte = [0];
    // Without randomness all wait alike, which is allowed.
    let _ = rustix::rand::getrandom(&mut byte, rustix::rand::GetRandomFlags::empty());
    byte[0]
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, OciError> + Send + 'static,
) -> Result<T, OciError> {
    tokio::task::spawn_blocking(act).await.map_err(|_| died())?
}
