//! Heartbeats on both rails. One task owns the sockets; the supervisor says and hears through it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sparklane_lane::{ClusterName, Generation, NodeName, Role};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::beat::{self, AttemptId, Beat, MAX_DATAGRAM, Rank, Refused, RunId, Saying};
use super::keys::{self, Key};
use super::rules::{self, Advice, Heard, Own};

/// Time between two beats; changes are told at once.
const EVERY: Duration = Duration::from_secs(1);
/// Shortest time between two answers to nodes that do not know this run yet.
const GREET_EVERY: Duration = Duration::from_millis(50);
/// Shortest time between two readings of the keys: whoever sends what cannot be opened must not keep us at it.
const KEYS_EVERY: Duration = Duration::from_secs(1);
/// Longest wait until a last word is out.
const LAST_WORD: Duration = Duration::from_millis(300);

/// The last of a node.
#[derive(Debug, Clone)]
pub struct Ear {
    /// Its last beat.
    pub beat: Beat,
    /// When it came, on each rail.
    pub rails: [Option<Instant>; 2],
    /// The number of the last beat on each rail: an older one, or the same again, was played by someone else.
    numbers: [u64; 2],
}

impl Ear {
    /// How long ago it was last heard on any rail.
    #[must_use]
    pub fn ago(&self) -> Duration {
        self.rails.iter().flatten().max().map_or(Duration::MAX, Instant::elapsed)
    }
}

type Ears = BTreeMap<NodeName, Ear>;

/// The supervisor's end of the heartbeats.
#[derive(Debug)]
pub struct Pair {
    say: watch::Sender<Saying>,
    heard: watch::Receiver<Ears>,
    sent: watch::Receiver<Saying>,
    /// What keeps this node from hearing, and when that was so.
    trouble: watch::Receiver<Option<(Instant, String)>>,
    task: JoinHandle<()>,
    others: Vec<(NodeName, Role)>,
    role: Role,
    serves: String,
    grace: Duration,
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pair {
    /// Begins to beat. `None` where there is nobody to pair with, no key, or a generation that does not say what it serves:
    /// then the rank starts by itself, as it would without a supervisor elsewhere.
    ///
    /// # Errors
    /// When there are key files and none can be used, the kernel gives no random bytes, or an address of a rail is none.
    pub fn open(generation: &Generation, folder: PathBuf) -> io::Result<Option<Self>> {
        let keys = keys::read(&folder);
        if keys.is_empty() && keys::any(&folder) {
            // Alone, this rank would keep the others waiting for ever.
            return Err(io::Error::other(
                "no file there is a key that can be used: each must be a regular file of mode 0600 with 32 bytes; mend \
                 that (chmod 600), or deploy again, which brings one",
            ));
        }
        let others: Vec<_> = generation.peers.iter().filter(|p| p.node != generation.node).collect();
        if keys.is_empty() || others.is_empty() || generation.serves.is_empty() {
            return Ok(None);
        }
        let port = generation.watchdog.port;
        let rails = |peer: &sparklane_lane::generation::Peer| -> io::Result<[SocketAddr; 2]> {
            let at = |address: &str| address.parse().map(|ip| SocketAddr::new(ip, port)).map_err(io::Error::other);
            Ok([at(&peer.rail1)?, at(&peer.rail2)?])
        };
        let own = generation.own().ok_or_else(|| io::Error::other("the generation does not name its own node"))?;
        let (say, to_say) = watch::channel(Saying::default());
        let (hear, heard) = watch::channel(Ears::new());
        let (tell_sent, sent) = watch::channel(Saying::default());
        let (tell_trouble, trouble) = watch::channel(None);
        let task = Task {
            cluster: generation.cluster.clone(),
            node: generation.node.clone(),
            serves: generation.serves.clone(),
            run: RunId::random()?,
            number: 0,
            own: rails(own)?,
            sockets: [None, None],
            others: others.iter().map(|p| Ok((p.node.clone(), rails(p)?))).collect::<io::Result<_>>()?,
            folder,
            keys,
            greeted: BTreeMap::new(),
            retired: BTreeSet::new(),
            last_greeting: None,
            keys_read: Instant::now(),
            trouble: tell_trouble,
            hear,
        };
        Ok(Some(Self {
            say,
            heard,
            sent,
            trouble,
            task: tokio::spawn(task.run(to_say, tell_sent)),
            others: others.iter().map(|p| (p.node.clone(), p.role)).collect(),
            role: generation.role,
            serves: generation.serves.clone(),
            grace: Duration::from_secs(generation.watchdog.peer_grace_secs.into()),
        }))
    }

    /// Tells the others at once, and from now on every second.
    pub fn say(&self, saying: Saying) {
        self.say.send_if_modified(|now| {
            let news = *now != saying;
            *now = saying;
            news
        });
    }

    /// Tells the others and waits until it is out, for a supervisor that is about to end.
    pub async fn say_last(&mut self, saying: Saying) {
        self.say(saying.clone());
        let out = self.sent.wait_for(|sent| *sent == saying);
        // One who does not hear it notices the silence.
        let _told = tokio::time::timeout(LAST_WORD, out).await;
    }

    /// A way to wait for beats that say something new.
    #[must_use]
    pub fn news(&self) -> News {
        News(self.heard.clone())
    }

    /// What to do now.
    #[must_use]
    pub fn advice(&self, attempt: Option<AttemptId>, rank: Rank, spent: Option<AttemptId>) -> Advice {
        let ears = self.heard.borrow();
        let hear = |(node, role): &(NodeName, Role)| Heard {
            node: node.clone(),
            role: *role,
            last: ears.get(node).map(|ear| (ear.beat.clone(), ear.ago())),
        };
        let own = Own { serves: self.serves.clone(), attempt, rank, spent };
        let all: Vec<Heard> = self.others.iter().map(hear).collect();
        if self.role.decides() {
            rules::head(&own, &all, self.grace)
        } else {
            rules::worker(&own, all.iter().find(|h| h.role.decides()), self.grace)
        }
    }

    /// What keeps this node from hearing the others, if something does.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let now = self.trouble.borrow();
        now.as_ref().filter(|(at, _)| at.elapsed() <= rules::SILENT).map(|(_, words)| words.clone())
    }

    /// What was last heard of each node.
    #[must_use]
    pub fn ears(&self) -> BTreeMap<NodeName, Ear> {
        self.heard.borrow().clone()
    }

    /// True while the head says that it answers requests in this attempt.
    #[must_use]
    pub fn head_serves(&self, attempt: Option<AttemptId>) -> bool {
        let ears = self.heard.borrow();
        let says = |ear: &Ear| ear.beat.says.serving && ear.beat.says.attempt == attempt;
        self.others.iter().any(|(node, role)| role.decides() && ears.get(node).is_some_and(says))
    }
}

/// See [`Pair::news`].
#[derive(Debug)]
pub struct News(watch::Receiver<Ears>);

impl News {
    /// Waits for the next; for ever when the heartbeats ended.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

struct Task {
    cluster: ClusterName,
    node: NodeName,
    serves: String,
    run: RunId,
    number: u64,
    own: [SocketAddr; 2],
    sockets: [Option<UdpSocket>; 2],
    others: BTreeMap<NodeName, [SocketAddr; 2]>,
    folder: PathBuf,
    keys: Vec<Key>,
    /// The run of each node that is not heard yet and may follow the one that is.
    greeted: BTreeMap<NodeName, RunId>,
    /// Runs that were followed by another: their beats are old.
    retired: BTreeSet<RunId>,
    last_greeting: Option<Instant>,
    keys_read: Instant,
    trouble: watch::Sender<Option<(Instant, String)>>,
    hear: watch::Sender<Ears>,
}

impl Task {
    async fn run(mut self, mut say: watch::Receiver<Saying>, sent: watch::Sender<Saying>) {
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut one, mut two) = (vec![0; MAX_DATAGRAM], vec![0; MAX_DATAGRAM]);
        loop {
            let got = tokio::select! {
                _ = tick.tick() => {
                    self.bind().await;
                    None
                }
                changed = say.changed() => match changed {
                    Ok(()) => None,
                    Err(_) => return,
                },
                length = receive(self.sockets[0].as_ref(), &mut one) => Some((0, length)),
                length = receive(self.sockets[1].as_ref(), &mut two) => Some((1, length)),
            };
            let speak = match got {
                Some((rail, (length, from))) if self.is_peer(rail, from) => {
                    self.take(rail, if rail == 0 { &one[..length] } else { &two[..length] })
                }
                // Not worth a look: whoever reaches the port from elsewhere must not keep us at it.
                Some(_) => false,
                None => true,
            };
            if speak {
                let saying = say.borrow_and_update().clone();
                self.beat(&saying).await;
                sent.send_replace(saying);
            }
        }
    }

    /// Binds what could not be bound yet: at boot an address may come late.
    async fn bind(&mut self) {
        for (socket, address) in self.sockets.iter_mut().zip(self.own).filter(|(socket, _)| socket.is_none()) {
            match UdpSocket::bind(address).await {
                Ok(bound) => *socket = Some(bound),
                Err(error) => {
                    let words = format!("cannot listen for heartbeats on {address}: {error}");
                    self.trouble.send_replace(Some((Instant::now(), words)));
                }
            }
        }
    }

    async fn beat(&mut self, saying: &Saying) {
        self.number += 1;
        let beat = Beat {
            cluster: self.cluster.clone(),
            node: self.node.clone(),
            run: self.run,
            number: self.number,
            heard: self.known(),
            serves: self.serves.clone(),
            says: saying.clone(),
        };
        let bytes = match beat::seal(&self.keys, &beat) {
            Ok(bytes) => bytes,
            Err(error) => return tracing::warn!(%error, "no heartbeat was sent"),
        };
        for rails in self.others.values() {
            for (socket, address) in self.sockets.iter().zip(rails) {
                if let Some(socket) = socket {
                    // A cut rail says so here; the other end notices the silence.
                    let _sent = socket.send_to(&bytes, address).await;
                }
            }
        }
    }

    /// True for the address of a node on that rail.
    fn is_peer(&self, rail: usize, from: SocketAddr) -> bool {
        self.others.values().any(|rails| rails[rail].ip() == from.ip())
    }

    /// Takes a datagram; true when its sender does not know this run yet and should be answered.
    fn take(&mut self, rail: usize, bytes: &[u8]) -> bool {
        let beat = match beat::open(&self.keys, bytes) {
            Err(Refused::UnknownKey) if self.keys_read.elapsed() >= KEYS_EVERY => {
                self.keys_read = Instant::now();
                self.keys = keys::read(&self.folder);
                beat::open(&self.keys, bytes)
            }
            other => other,
        };
        let beat = match beat {
            Ok(beat) if beat.cluster == self.cluster && self.others.contains_key(&beat.node) => beat,
            Ok(_) => return false,
            Err(why) => {
                if why == Refused::UnknownKey {
                    let words = "heartbeats come that no key of this node opens: deploy again, it brings one";
                    self.trouble.send_replace(Some((Instant::now(), words.to_owned())));
                }
                tracing::debug!(%why, "a datagram on the heartbeat's port was not taken");
                return false;
            }
        };
        if self.retired.contains(&beat.run) {
            return false;
        }
        let greeted = self.known().get(&beat.node).is_some_and(|runs| runs.contains(&beat.run));
        if !greeted {
            self.greeted.insert(beat.node.clone(), beat.run);
        }
        let knows_us = beat.heard.get(&self.node).is_some_and(|runs| runs.contains(&self.run));
        if knows_us {
            self.hear(rail, beat);
        }
        // One who was not heard before is answered too: it waits for its name in a beat.
        (!greeted || !knows_us) && self.may_greet()
    }

    /// Of each node the run that is heard, which an old beat played again does not displace, and the one greeted last.
    fn known(&self) -> BTreeMap<NodeName, BTreeSet<RunId>> {
        let mut known: BTreeMap<NodeName, BTreeSet<RunId>> =
            self.greeted.iter().map(|(node, run)| (node.clone(), BTreeSet::from([*run]))).collect();
        for (node, ear) in self.hear.borrow().iter() {
            known.entry(node.clone()).or_default().insert(ear.beat.run);
        }
        known
    }

    fn may_greet(&mut self) -> bool {
        let may = self.last_greeting.is_none_or(|at| at.elapsed() >= GREET_EVERY);
        if may {
            self.last_greeting = Some(Instant::now());
        }
        may
    }

    fn hear(&mut self, rail: usize, beat: Beat) {
        let retired = &mut self.retired;
        self.hear.send_if_modified(|ears| {
            let new = || Ear { beat: beat.clone(), rails: [None; 2], numbers: [0; 2] };
            let ear = ears.entry(beat.node.clone()).or_insert_with(new);
            if ear.beat.run != beat.run {
                retired.insert(ear.beat.run);
                ear.numbers = [0; 2];
            }
            if beat.number <= ear.numbers[rail] {
                return false;
            }
            ear.numbers[rail] = beat.number;
            let first = ear.rails == [None; 2];
            ear.rails[rail] = Some(Instant::now());
            // The other rail may have been faster.
            if ear.beat.run == beat.run && ear.beat.number > beat.number {
                return false;
            }
            let before = std::mem::replace(&mut ear.beat, beat);
            first || news(&before, &ear.beat)
        });
    }
}

/// True when a beat says something that the one before did not.
fn news(before: &Beat, now: &Beat) -> bool {
    let of = |b: &Beat| (b.run, b.says.clone(), b.serves.clone());
    of(before) != of(now)
}

async fn receive(socket: Option<&UdpSocket>, buffer: &mut [u8]) -> (usize, SocketAddr) {
    let Some(socket) = socket else { return std::future::pending().await };
    loop {
        match socket.recv_from(buffer).await {
            Ok(got) => return got,
            // An ICMP answer to one of our own: the other end does not listen now.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
