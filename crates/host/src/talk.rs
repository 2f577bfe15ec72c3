//! A client's side of the socket: orders on stdin, lines on stdout. What ssh runs on the node; it may die any time.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use sparklane_lane::TxnId;
use sparklane_txn::{Order, Record, Reply, State};

use crate::error::HostError;
use crate::paths::HostPaths;
use crate::serve::Line;
use crate::txns;

/// How long a killed transaction process may take to be back.
const PATIENCE: Duration = Duration::from_secs(10);

/// Passes orders to the transaction's process, one after the other, until `orders` ends.
///
/// # Errors
/// When the transaction is unknown, its process does not come back, or `lines` is closed.
pub fn talk(paths: &HostPaths, id: &TxnId, orders: impl BufRead, mut lines: impl Write) -> Result<(), HostError> {
    for order in orders.lines() {
        let order = order.map_err(HostError::file("read", "-"))?;
        let order: Order = serde_json::from_str(&order).map_err(|e| HostError::Refused(format!("no order: {e}")))?;
        one(paths, id, &order, &mut lines)?;
    }
    Ok(())
}

/// Gives one order and copies all lines up to the reply.
///
/// # Errors
/// As [`talk`].
pub fn one(paths: &HostPaths, id: &TxnId, order: &Order, lines: &mut impl Write) -> Result<Reply, HostError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask(paths, id, order, lines)? {
            Some(reply) => return Ok(reply),
            None => {
                if let Some(reply) = from_journal(paths, id, order)? {
                    put(lines, &Line::Reply(reply.clone()))?;
                    return Ok(reply);
                }
            }
        }
        if Instant::now() >= until {
            return Err(HostError::Refused(format!(
                "the process of transaction {id} does not answer; see: journalctl -u sparklane-txn@{id}"
            )));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// One try over the socket; `None` when there is no process, or it died on the way. A client that is gone is an error:
/// nobody asks again for it.
fn ask(paths: &HostPaths, id: &TxnId, order: &Order, lines: &mut impl Write) -> Result<Option<Reply>, HostError> {
    let Ok(mut stream) = UnixStream::connect(paths.socket(id)) else { return Ok(None) };
    let mut bytes = serde_json::to_vec(order).map_err(|e| HostError::Refused(e.to_string()))?;
    bytes.push(b'\n');
    if stream.write_all(&bytes).is_err() {
        return Ok(None);
    }
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let Ok(line) = serde_json::from_str::<Line>(&line) else { return Ok(None) };
        put(lines, &line)?;
        if let Line::Reply(reply) = line {
            return Ok(Some(reply));
        }
    }
    Ok(None)
}

fn put(lines: &mut impl Write, line: &Line) -> Result<(), HostError> {
    let mut bytes = serde_json::to_vec(line).map_err(|e| HostError::Refused(e.to_string()))?;
    bytes.push(b'\n');
    lines.write_all(&bytes).and_then(|()| lines.flush()).map_err(HostError::file("write", "-"))
}

/// What an ended transaction answers without its process.
fn from_journal(paths: &HostPaths, id: &TxnId, order: &Order) -> Result<Option<Reply>, HostError> {
    let txn = txns::read(paths, id)?;
    let Some(last) = txn.records.last() else {
        return Err(HostError::Refused(format!("this node knows no transaction {id}")));
    };
    let state = last.state();
    if !state.is_final() {
        return Ok(None);
    }
    let done = match order {
        Order::Report => true,
        Order::Commit => state == State::Committed,
        Order::Abort { .. } => state == State::RolledBack,
        _ => false,
    };
    let (detail, changed) = match last {
        Record::RolledBack { why, changed } => (Some(why.clone()), *changed),
        Record::Stuck { why, mismatches } => (Some(format!("{why}: {}", mismatches.join("; "))), true),
        _ => (None, true),
    };
    Ok(Some(Reply { state, done, detail, changed }))
}
