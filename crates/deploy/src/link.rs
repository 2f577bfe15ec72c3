//! The protocol's messages over ssh: one `txn talk` per node, orders in, lines out.
//!
//! Orders are idempotent, so a broken connection is answered by a new one with the same order.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sparklane_host::serve::Line;
use sparklane_lane::generation::GateScope;
use sparklane_lane::{NodeName, TxnId};
use sparklane_txn::plan::ENGINE_UNIT;
use sparklane_txn::{Link, Order, Reply, Step};

use crate::cancel;
use crate::node::NodeHandle;
use crate::progress::Observer;

/// Silence after which a connection counts as dead; the node says something every 3 s.
const SILENCE: Duration = Duration::from_secs(12);
/// How often a wait for a node looks whether the operator still wants it.
const LISTEN: Duration = Duration::from_millis(250);
/// How long an order tries new connections.
const RECONNECT: Duration = Duration::from_secs(15);

/// All nodes of a transaction.
pub struct SshLink<'a> {
    talks: BTreeMap<NodeName, Mutex<Talk<'a>>>,
    nodes: &'a [NodeHandle],
    observer: &'a dyn Observer,
    txn: TxnId,
    /// How long questions are repeated once they fail.
    patience: Duration,
    give_up: Option<Instant>,
}

struct Talk<'a> {
    handle: &'a NodeHandle,
    txn: TxnId,
    open: Option<Open>,
}

struct Open {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<Line>,
}

impl<'a> SshLink<'a> {
    /// A link for a staged transaction.
    #[must_use]
    pub fn new(nodes: &'a [NodeHandle], txn: &TxnId, observer: &'a dyn Observer, patience: Duration) -> Self {
        let talk = |handle: &'a NodeHandle| Mutex::new(Talk { handle, txn: txn.clone(), open: None });
        let talks = nodes.iter().map(|n| (n.member.node.clone(), talk(n))).collect();
        Self { talks, nodes, observer, txn: txn.clone(), patience, give_up: None }
    }

    fn one(&self, node: &NodeName, order: &Order) -> Result<Reply, String> {
        self.heard(node, order, &|_| {})
    }

    /// As [`SshLink::one`]; `hear` gets what the node says meanwhile.
    fn heard(&self, node: &NodeName, order: &Order, hear: &dyn Fn(&str)) -> Result<Reply, String> {
        let Some(talk) = self.talks.get(node) else { return Err("is not part of the transaction".into()) };
        let mut talk = talk.lock().map_err(|_| "its connection is broken".to_owned())?;
        talk.order(order, &|text| {
            hear(text);
            self.observer.event(Some(node.as_str()), text);
        })
    }

    /// Cuts short what a node waits for, over a connection of its own.
    fn interrupt(&self, node: &NodeName, why: &str) {
        let Some(handle) = self.nodes.iter().find(|h| h.member.node == *node) else { return };
        let Ok(mut order) = serde_json::to_vec(&Order::abort(why)) else { return };
        order.push(b'\n');
        let (handle, txn) = (handle.clone(), self.txn.clone());
        // Its answer comes when the node is back, which takes all nodes: not waited for. When it does not arrive, the
        // node's own budget ends the wait.
        std::thread::spawn(move || handle.remote.run(&[&handle.tool, "txn", "talk", txn.as_str()], &order));
    }
}

impl Talk<'_> {
    fn order(&mut self, order: &Order, say: &dyn Fn(&str)) -> Result<Reply, String> {
        let until = Instant::now() + RECONNECT;
        loop {
            match self.try_order(order, say) {
                Ok(reply) => return Ok(reply),
                Err(why) => {
                    self.close();
                    if Instant::now() >= until || cancel::stops(order) {
                        return Err(why);
                    }
                    say(&format!("connection: {why}; again"));
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        }
    }

    fn try_order(&mut self, order: &Order, say: &dyn Fn(&str)) -> Result<Reply, String> {
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(Open::start(self.handle, &self.txn)?),
        };
        let mut bytes = serde_json::to_vec(order).map_err(|e| e.to_string())?;
        bytes.push(b'\n');
        open.stdin.write_all(&bytes).and_then(|()| open.stdin.flush()).map_err(|e| format!("cannot send: {e}"))?;
        let mut silent_at = Instant::now() + SILENCE;
        loop {
            if cancel::stops(order) {
                return Err(cancel::WHY.to_owned());
            }
            let line = open.lines.recv_timeout(LISTEN);
            if line.is_ok() {
                silent_at = Instant::now() + SILENCE;
            }
            match line {
                Ok(Line::Reply(reply)) => return Ok(reply),
                Ok(Line::Event(text)) if text.is_empty() => {}
                Ok(Line::Event(text)) => say(&text),
                Err(RecvTimeoutError::Timeout) if Instant::now() < silent_at => {}
                Err(RecvTimeoutError::Timeout) => return Err(format!("silent for {} s", SILENCE.as_secs())),
                Err(RecvTimeoutError::Disconnected) if cancel::stops(order) => return Err(cancel::WHY.to_owned()),
                Err(RecvTimeoutError::Disconnected) => return Err("closed by the node".into()),
            }
        }
    }

    fn close(&mut self) {
        if let Some(mut open) = self.open.take() {
            let _killed = open.child.kill();
            let _reaped = open.child.wait();
        }
    }
}

impl Drop for Talk<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

impl Open {
    fn start(handle: &NodeHandle, txn: &TxnId) -> Result<Self, String> {
        let mut command = handle.remote.command(&[&handle.tool, "txn", "talk", txn.as_str()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|e| format!("ssh cannot be started: {e}"))?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("ssh has no pipes".into());
        };
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(line) = serde_json::from_str(&line) else { return };
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, stdin, lines })
    }
}

impl Link for SshLink<'_> {
    fn order(&mut self, node: &NodeName, order: &Order) -> Result<Reply, String> {
        let answer = self.one(node, order);
        if answer.is_ok() {
            self.give_up = None;
        }
        answer
    }

    fn order_all(&mut self, nodes: &[NodeName], order: &Order) -> Vec<Result<Reply, String>> {
        let link = &*self;
        let waits = matches!(order, Order::Gate { scope: GateScope::Node });
        let failed: Arc<Mutex<Option<String>>> = Arc::default();
        std::thread::scope(|scope| {
            let ask = |node: &NodeName| {
                let (node, failed) = (node.clone(), Arc::clone(&failed));
                scope.spawn(move || {
                    let answer = link.one(&node, order);
                    let bad = !answer.as_ref().is_ok_and(|r| r.done);
                    if waits && bad {
                        first_failure(link, nodes, &node, &answer, &failed);
                    }
                    answer
                })
            };
            let threads: Vec<_> = nodes.iter().map(ask).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("its thread died".into()))).collect()
        })
    }

    /// A node says what it does once the record of it is durable: when the head says that it stops its engine, it has
    /// begun.
    fn order_behind(&mut self, first: &NodeName, others: &[NodeName], order: &Order) -> Vec<Result<Reply, String>> {
        let link = &*self;
        let stop = Step::StopUnit { unit: ENGINE_UNIT.into(), was_active: true }.describe();
        let (begun, begins) = mpsc::channel();
        std::thread::scope(|scope| {
            let head = scope.spawn(move || {
                let answer = link.heard(first, order, &|text| {
                    if text == stop {
                        let _heard = begun.send(());
                    }
                });
                // It may have had nothing to stop.
                if answer.as_ref().is_ok_and(|r| r.done) {
                    let _heard = begun.send(());
                }
                answer
            });
            // An error: the head ended without having begun.
            let go = begins.recv().is_ok();
            let answers: Vec<_> = others.iter().filter(|_| go).map(|node| link.one(node, order)).collect();
            let first = head.join().unwrap_or_else(|_| Err("its thread died".into()));
            std::iter::once(first).chain(answers).collect()
        })
    }

    fn pause(&mut self) -> bool {
        let until = *self.give_up.get_or_insert_with(|| Instant::now() + self.patience);
        std::thread::sleep(Duration::from_millis(500));
        Instant::now() < until
    }
}

/// The first node that fails ends the waiting of the others: a 20 minute budget must not hold a failure for 20 minutes.
fn first_failure(
    link: &SshLink<'_>,
    nodes: &[NodeName],
    node: &NodeName,
    answer: &Result<Reply, String>,
    failed: &Mutex<Option<String>>,
) {
    let why = match answer {
        Ok(reply) => format!("{node}: {}", reply.detail.clone().unwrap_or_default()),
        Err(why) => format!("{node}: {why}"),
    };
    let Ok(mut first) = failed.lock() else { return };
    if first.is_some() {
        return;
    }
    *first = Some(why.clone());
    drop(first);
    for other in nodes.iter().filter(|n| *n != node) {
        link.interrupt(other, &why);
    }
}
