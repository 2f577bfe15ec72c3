//! One transfer of ours, measured.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout};
use std::time::Instant;

use camino::Utf8Path;
use miette::{IntoDiagnostic, bail, miette};
use serde_json::{Value, json};

use super::rails::{Pair, address};

/// What one transfer gave.
#[derive(Debug)]
pub struct Moved {
    /// Wall time, start of both ends included.
    pub seconds: f64,
    /// The receipt.
    pub receipt: Value,
    /// Most memory of sender and receiver.
    pub peaks: [u64; 2],
}

fn tell(child: &mut Child, request: &Value) -> miette::Result<()> {
    let stdin = child.stdin.as_mut().ok_or_else(|| miette!("no stdin"))?;
    writeln!(stdin, "{request}").and_then(|()| stdin.flush()).into_diagnostic()
}

/// A sender that runs, and how receivers reach it.
pub struct Ends<'a> {
    pair: &'a Pair,
    tool: &'a str,
    manifest: &'a Value,
    sender: Child,
    said: Lines<BufReader<ChildStdout>>,
    rails: Vec<String>,
}

/// The transfer's key; nobody else is in the namespaces.
fn key() -> String {
    "5a".repeat(32)
}

impl<'a> Ends<'a> {
    /// Starts the sender.
    pub fn start(
        pair: &'a Pair,
        tool: &'a str,
        manifest: &'a Value,
        from: &Utf8Path,
        seal: bool,
    ) -> miette::Result<Self> {
        let mut sender = pair.head.spawn(&[tool, "weights", "serve"])?;
        let listen = [address(1, 10), address(2, 10)];
        let serve =
            json!({"key": key(), "manifest": manifest, "store": from, "listen": listen, "seal": seal, "receivers": 1});
        tell(&mut sender, &serve)?;
        let mut said = BufReader::new(sender.stdout.take().ok_or_else(|| miette!("no stdout"))?).lines();
        let first: Value = match said.next() {
            Some(line) => serde_json::from_str(&line.into_diagnostic()?).into_diagnostic()?,
            None => bail!("the sender said nothing"),
        };
        let peers = first["listening"].as_array().cloned().unwrap_or_default();
        let rail = |(n, peer): (usize, &Value)| {
            let n = n as u8 + 1;
            format!("rail{n}={}%rail{n}={}", address(n, 11), peer.as_str().unwrap_or_default())
        };
        let rails = peers.iter().enumerate().map(rail).collect();
        Ok(Self { pair, tool, manifest, sender, said, rails })
    }

    /// Starts a receiver.
    pub fn receiver(&self, to: &Utf8Path) -> miette::Result<Child> {
        let mut receiver = self.pair.worker.spawn(&[self.tool, "weights", "pull"])?;
        let pull = json!({"key": key(), "manifest": self.manifest, "store": to, "rails": self.rails, "rate": null,
            "connections": null, "giveUpSecs": 60, "readback": false});
        tell(&mut receiver, &pull)?;
        Ok(receiver)
    }

    /// Ends the sender; what it says of itself.
    pub fn end(mut self) -> Value {
        drop(self.sender.stdin.take());
        let served: Option<Value> =
            self.said.next().and_then(Result::ok).and_then(|line| serde_json::from_str(&line).ok());
        let _reaped = self.sender.wait();
        served.map(|s| s["served"].clone()).unwrap_or_default()
    }
}

/// Moves a manifest's files from the head's store to the worker's. `seen` hears of progress in percent.
pub fn send(
    pair: &Pair,
    tool: &str,
    (manifest, from, to): (&Value, &Utf8Path, &Utf8Path),
    seal: bool,
    seen: &dyn Fn(u64) -> miette::Result<()>,
) -> miette::Result<Moved> {
    let begin = Instant::now();
    let ends = Ends::start(pair, tool, manifest, from, seal)?;
    let mut receiver = ends.receiver(to)?;
    let mut receipt = Value::Null;
    let lines = BufReader::new(receiver.stdout.take().ok_or_else(|| miette!("no stdout"))?).lines();
    for line in lines.map_while(Result::ok) {
        let event: Value = serde_json::from_str(&line).into_diagnostic()?;
        if let Some(told) = event.get("receipt") {
            receipt = told.clone();
        } else if let Some(progress) = event.get("progress") {
            let at = |key: &str| progress[key].as_u64().unwrap_or(0);
            seen(at("done") * 100 / at("total").max(1))?;
        }
    }
    let ended = receiver.wait().into_diagnostic()?;
    let seconds = begin.elapsed().as_secs_f64();
    let served = ends.end();
    if !ended.success() || receipt.is_null() {
        bail!("the receiver failed ({ended})");
    }
    let peaks = [served["peakBytes"].as_u64().unwrap_or(0), receipt["peakBytes"].as_u64().unwrap_or(0)];
    Ok(Moved { seconds, receipt, peaks })
}
