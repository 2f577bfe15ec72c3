//! Receivers killed again and again: what comes twice, and how soon the next one goes on.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use camino::Utf8Path;
use miette::{IntoDiagnostic, ensure, miette};
use serde_json::{Value, json};

use super::ours::Ends;
use super::published;
use super::rails::{Pair, run as sh};

/// Files, as the model's shards are.
const FILES: u64 = 2;

/// What one life of a receiver gave.
struct Life {
    /// Bytes that it found.
    had: u64,
    /// Bytes that were there at its end.
    done: u64,
    /// From its start to its first word of more bytes than it found; it speaks twice a second.
    first: Option<Duration>,
    receipt: Option<Value>,
}

/// Sends `gigabytes` and kills the receiver `kills` times on the way, and once at 90 %.
pub fn run(pair: &Pair, tool: &str, disk: &Utf8Path, (gigabytes, kills): (u64, u32)) -> miette::Result<()> {
    let (raw, head, worker) = (disk.join("raw"), disk.join("head"), disk.join("worker"));
    for folder in [&raw, &worker] {
        std::fs::create_dir_all(folder).into_diagnostic()?;
    }
    let size = gigabytes * 1_000_000_000 / FILES;
    let mut listed = Vec::new();
    for n in 0..FILES {
        let path = raw.join(format!("f{n}"));
        // Holes, but for some bytes of each file's own: the receiver's file is whole all the same.
        sh(&["truncate", "--size", &size.to_string(), path.as_str()])?;
        sh(&["dd", "if=/dev/urandom", &format!("of={path}"), "bs=1M", "count=8", "conv=notrunc", "status=none"])?;
        let sum = sh(&["sha256sum", path.as_str()])?;
        let sha256 = sum.split_whitespace().next().unwrap_or_default().to_owned();
        listed.push(json!({"path": format!("f{n}"), "size": size, "sha256": sha256}));
    }
    let manifest = json!({"model": "org/kills", "revision": "0".repeat(40), "files": listed});
    let file = disk.join("manifest.json");
    std::fs::write(&file, manifest.to_string()).into_diagnostic()?;
    let adopt = ["weights", "adopt", raw.as_str(), "--manifest", file.as_str(), "--store", head.as_str()];
    sh(&[&[tool][..], &adopt].concat())?;

    let ends = Ends::start(pair, tool, &manifest, &head, false)?;
    let total = size * FILES;
    let mut again = Vec::new();
    let mut firsts = Vec::new();
    let mut before = 0;
    for n in 0..=kills {
        // Spread over the whole way; the last at 90 %.
        let percent = u64::from(n * 90 / kills.max(1));
        let life = live(&ends, &worker, Some(percent))?;
        if n > 0 {
            again.push(u64::saturating_sub(before, life.had));
            firsts.extend(life.first);
        }
        before = life.done;
        ensure!(published(&worker)?.is_none(), "a folder is visible after a kill at {percent} %");
    }
    let last = live(&ends, &worker, None)?;
    again.push(before.saturating_sub(last.had));
    let receipt = last.receipt.ok_or_else(|| miette!("the last receiver failed"))?;
    let sent = ends.end()["bytes"].as_u64().unwrap_or(0);
    sh(&[tool, "weights", "verify", file.as_str(), "--deep", "--store", worker.as_str()])?;
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    println!("\nkilled {} times while {gigabytes} GB in {FILES} files arrived on a disk", kills + 1);
    println!(
        "  came again: {:.0} MiB at most after one kill, {:.0} MiB in all (aim: 512 MiB after one)",
        mib(again.iter().copied().max().unwrap_or(0)),
        mib(sent.saturating_sub(total))
    );
    println!(
        "  after the kill at 90 %: {:.0} % were there, first new byte {} ms after the probe of the rails, told {:.1} s after the start (aim 2 s)",
        last.had as f64 * 100.0 / total as f64,
        receipt["firstByteMillis"],
        last.first.unwrap_or_default().as_secs_f64()
    );
    let worst = firsts.iter().copied().max().unwrap_or_default();
    println!(
        "  worst of all: told {:.1} s after the start; every byte was read at the end and right",
        worst.as_secs_f64()
    );
    Ok(())
}

/// One receiver, killed at a percentage.
fn live(ends: &Ends<'_>, store: &Utf8Path, until: Option<u64>) -> miette::Result<Life> {
    let begin = Instant::now();
    let mut child = ends.receiver(store)?;
    let mut life = Life { had: 0, done: 0, first: None, receipt: None };
    let mut heard = false;
    let lines = BufReader::new(child.stdout.take().ok_or_else(|| miette!("no stdout"))?).lines();
    for line in lines.map_while(Result::ok) {
        let event: Value = serde_json::from_str(&line).into_diagnostic()?;
        if let Some(receipt) = event.get("receipt") {
            life.had = receipt["had"].as_u64().unwrap_or(0);
            life.done = receipt["bytes"].as_u64().unwrap_or(0);
            life.receipt = Some(receipt.clone());
        } else if let Some(progress) = event.get("progress") {
            let at = |key: &str| progress[key].as_u64().unwrap_or(0);
            let (done, fetched) = (at("done"), at("fetched"));
            if !heard {
                (life.had, heard) = (done.saturating_sub(fetched), true);
            }
            if fetched > 0 {
                life.first.get_or_insert(begin.elapsed());
            }
            life.done = done;
            if until.is_some_and(|p| done * 100 >= at("total") * p && fetched > 0) {
                child.kill().into_diagnostic()?;
                break;
            }
        }
    }
    let _reaped = child.wait().into_diagnostic()?;
    Ok(life)
}
