//! The process of one transaction (`sparklane-txn@<id>.service`): owns the machine, takes orders from a socket.
//!
//! One thread owns the state; each connection sends it orders and gets events and one reply. Clients come and go:
//! a broken connection is nobody's failure, and nothing on the way back writes to anything that can close.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sparklane_lane::TxnId;
use sparklane_txn::{Boot, Clock as _, Machine, Order, Reply, Spec, State};

use crate::clock::BootClock;
use crate::crash::CrashPoint;
use crate::error::HostError;
use crate::journal::FileJournal;
use crate::lock::{self, Lock};
use crate::node::{Interrupt, Parts, RealNode};
use crate::paths::HostPaths;
use crate::{deploy_rs, files, txns};

/// How long a finished transaction still answers before its process ends. Later questions read the journal.
const LINGER: Duration = Duration::from_secs(3);
/// How often a worker in doubt, or one whose head has not decided, asks again.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// How long a new process waits for the lock of the `stage` that started it.
const LOCK_WAIT: Duration = Duration::from_secs(15);
/// How often a waiting client hears that we live.
const HEARTBEAT: Duration = Duration::from_secs(3);

/// A line from the process to a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// What is being done; empty as a sign of life.
    Event(String),
    /// The answer to the order; the last line.
    Reply(Reply),
}

struct Request {
    order: Order,
    lines: Sender<Line>,
}

type RealMachine = Machine<RealNode, FileJournal, BootClock>;

/// Runs a transaction to its end. Fresh (only `staged` in the journal) it waits for orders; otherwise a former
/// process died and it recovers first.
///
/// # Errors
/// When the lock is not to be had, or socket or journal cannot be opened.
pub fn run(paths: &HostPaths, id: &TxnId, parts: Parts) -> Result<Option<State>, HostError> {
    files::make_dir(&paths.run)?;
    let Some(spec) = staged(paths, id)? else {
        // Not an error: systemd would start us again, and there is nothing to do.
        tracing::warn!("transaction {id} was never staged on this node");
        return Ok(None);
    };
    let lock = lock::take(paths, &spec.owner, Some(id), LOCK_WAIT)?;
    let journal = FileJournal::open(&paths.txn(id), CrashPoint::of(paths))?;
    let records = journal.records().to_vec();
    let abort: Arc<Mutex<Option<String>>> = Arc::default();
    let (progress, events) = mpsc::channel();
    let interrupted = interrupt(&abort);
    let node = RealNode::new(paths.clone(), parts, spec.clone(), interrupted, progress);
    let Some(mut machine) = Machine::resume(node, journal, BootClock::new(), &records) else {
        return Err(HostError::Refused(format!("transaction {id} has no readable journal")));
    };
    let listener: Arc<Mutex<Option<Sender<Line>>>> = Arc::default();
    forward_events(events, Arc::clone(&listener));
    let requests = listen(paths, id, &abort)?;
    if records.len() > 1 {
        recover(paths, &mut machine)?;
    } else {
        deploy_rs::start(paths, &spec);
    }
    let ended = serve(&mut machine, &requests, &listener, lock);
    let _gone = std::fs::remove_file(paths.socket(id));
    ended.map(Some)
}

/// The request, once `stage` has written it. It starts us first: were it killed between the two, a transaction would
/// be open with nobody to end it.
fn staged(paths: &HostPaths, id: &TxnId) -> Result<Option<Spec>, HostError> {
    let until = Instant::now() + LOCK_WAIT;
    loop {
        let spec = txns::read(paths, id)?.spec().cloned();
        if spec.is_some() || Instant::now() >= until {
            return Ok(spec);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn interrupt(abort: &Arc<Mutex<Option<String>>>) -> Interrupt {
    let abort = Arc::clone(abort);
    Box::new(move || abort.lock().ok().and_then(|why| why.clone()))
}

fn recover(paths: &HostPaths, machine: &mut RealMachine) -> Result<(), HostError> {
    deploy_rs::take_up(paths, machine).map_err(|fault| HostError::Refused(fault.to_string()))?;
    if machine.journal_mut().was_torn() {
        machine.distrust_end();
    }
    if machine.spec().release.is_some() && machine.wait_for_abort() {
        return Ok(());
    }
    machine.recover(Boot::Same).map_err(|fault| HostError::Refused(fault.to_string()))
}

/// Hands effects' progress to whoever waits for a reply now, and to the log.
fn forward_events(events: Receiver<String>, listener: Arc<Mutex<Option<Sender<Line>>>>) {
    std::thread::spawn(move || {
        while let Ok(text) = events.recv() {
            tracing::info!("{text}");
            if let Ok(guard) = listener.lock()
                && let Some(lines) = guard.as_ref()
            {
                let _heard = lines.send(Line::Event(text));
            }
        }
    });
}

fn serve(
    machine: &mut RealMachine,
    requests: &Receiver<Request>,
    listener: &Mutex<Option<Sender<Line>>>,
    lock: Lock,
) -> Result<State, HostError> {
    let mut idle_since = Instant::now();
    let mut lock = Some(lock);
    loop {
        if machine.state().is_final() {
            machine.journal_mut().effect_done();
            // Decided and settled: the next transaction need not wait for our last listeners.
            drop(lock.take());
            if idle_since.elapsed() > LINGER {
                return Ok(machine.state());
            }
        }
        let request = match requests.recv_timeout(wait_for(machine)) {
            Ok(request) => request,
            Err(RecvTimeoutError::Timeout) => {
                machine.tick().map_err(|fault| HostError::Refused(fault.to_string()))?;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(machine.state()),
        };
        set(listener, Some(request.lines.clone()));
        let reply = machine.handle(&request.order).map_err(|fault| HostError::Refused(fault.to_string()))?;
        set(listener, None);
        tracing::info!(state = %reply.state, detail = reply.detail.as_deref().unwrap_or(""), "{:?}", request.order);
        let _heard = request.lines.send(Line::Reply(reply));
        idle_since = Instant::now();
    }
}

fn set(listener: &Mutex<Option<Sender<Line>>>, to: Option<Sender<Line>>) {
    if let Ok(mut guard) = listener.lock() {
        *guard = to;
    }
}

/// Until the deadline, but not so long that a doubt is not asked again.
fn wait_for(machine: &RealMachine) -> Duration {
    if machine.state().is_final() {
        return Duration::from_millis(500);
    }
    let left = machine.deadline().map_or(0, |d| d.left_millis(&BootClock::new().now()));
    Duration::from_millis(left.max(1)).clamp(Duration::from_millis(1), ASK_AGAIN).max(match left {
        0 => ASK_AGAIN,
        _ => Duration::ZERO,
    })
}

fn listen(paths: &HostPaths, id: &TxnId, abort: &Arc<Mutex<Option<String>>>) -> Result<Receiver<Request>, HostError> {
    let socket = paths.socket(id);
    files::remove(&socket)?;
    let listener = UnixListener::bind(&socket).map_err(HostError::file("listen on", &socket))?;
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&socket, private).map_err(HostError::file("protect", &socket))?;
    let (requests, incoming) = mpsc::channel();
    let abort = Arc::clone(abort);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let (requests, abort) = (requests.clone(), Arc::clone(&abort));
            std::thread::spawn(move || converse(&connection, &requests, &abort));
        }
    });
    Ok(incoming)
}

/// One client: orders in, lines out. Ends with the connection.
fn converse(connection: &UnixStream, requests: &Sender<Request>, abort: &Mutex<Option<String>>) {
    let mut out = connection;
    for line in BufReader::new(connection).lines() {
        let Ok(line) = line else { return };
        let Ok(order) = serde_json::from_str::<Order>(&line) else { return };
        if let Order::Abort { why, .. } = &order
            && let Ok(mut guard) = abort.lock()
        {
            *guard = Some(why.clone());
        }
        let (lines, answers) = mpsc::channel();
        if requests.send(Request { order, lines }).is_err() {
            return;
        }
        loop {
            let line = match answers.recv_timeout(HEARTBEAT) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => Line::Event(String::new()),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let last = matches!(line, Line::Reply(_));
            let Ok(mut bytes) = serde_json::to_vec(&line) else { return };
            bytes.push(b'\n');
            if out.write_all(&bytes).is_err() {
                return;
            }
            if last {
                break;
            }
        }
    }
}
