//! How far transfers are: in all and per file, with rate and time left. Bars on a terminal, a line now and then elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use sparklane_weights::agent::Event;
use sparklane_weights::transfer::FileProgress;

use super::bytes;

/// Time between two lines of a node.
const PAUSE: Duration = Duration::from_secs(3);

/// The display of one command, which may hear of several nodes.
pub struct Display {
    bars: Option<MultiProgress>,
    nodes: Mutex<BTreeMap<String, Node>>,
}

/// What is shown of one node.
#[derive(Default)]
struct Node {
    /// Bars by file; the sum's has no name.
    bars: BTreeMap<String, ProgressBar>,
    /// Bytes of each file at the last line.
    files: BTreeMap<String, u64>,
    said: Option<Instant>,
}

impl Display {
    /// Bars when stderr is a terminal that can show them.
    pub fn new() -> Self {
        let bars = Some(MultiProgress::new()).filter(|bars| std::io::stderr().is_terminal() && !bars.is_hidden());
        Self { bars, nodes: Mutex::default() }
    }

    /// Shows what an end says; `node` is empty for this machine.
    pub fn told(&self, node: &str, event: &Event) {
        match event {
            Event::Progress { done, total, rate, open, .. } => {
                let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
                let shown = nodes.entry(node.to_owned()).or_default();
                match &self.bars {
                    Some(all) => shown.draw(all, node, (*done, *total), open),
                    None => shown.lines((*done, *total, *rate), open, Instant::now()).iter().for_each(|line| {
                        eprintln!("{}", labelled(node, line));
                    }),
                }
            }
            Event::Note(note) => self.say(&labelled(node, note)),
            _ => {}
        }
    }

    fn say(&self, line: &str) {
        match &self.bars {
            // A terminal that is gone loses its lines, not its transfer.
            Some(bars) => drop(bars.println(line)),
            None => eprintln!("{line}"),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bars) = &self.bars {
            let _cleared = bars.clear();
        }
    }
}

fn labelled(node: &str, text: &str) -> String {
    if node.is_empty() { text.to_owned() } else { format!("{node:<8} {text}") }
}

impl Node {
    fn draw(&mut self, all: &MultiProgress, node: &str, (done, total): (u64, u64), open: &[FileProgress]) {
        let bar = |size: u64| {
            // The style is a constant that the library accepts.
            let style = ProgressStyle::with_template(
                "{prefix:<8} {wide_msg} {bar:20} {decimal_bytes:>9} of {decimal_total_bytes:>9} {decimal_bytes_per_sec:>11} {eta:>5}",
            );
            let bar = ProgressBar::new(size).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            all.add(bar.with_prefix(node.to_owned()))
        };
        let gone = |name: &String| !name.is_empty() && !open.iter().any(|f| f.path == *name);
        self.bars.retain(|name, bar| {
            let gone = gone(name);
            if gone {
                bar.finish_and_clear();
            }
            !gone
        });
        let mut show = |name: &str, done: u64, size: u64| {
            let bar = self.bars.entry(name.to_owned()).or_insert_with(|| bar(size));
            bar.set_message(if name.is_empty() { "in all".to_owned() } else { name.to_owned() });
            bar.set_position(done);
        };
        open.iter().for_each(|file| show(&file.path, file.done, file.size));
        show("", done, total);
    }

    /// Lines that are due.
    fn lines(&mut self, (done, total, rate): (u64, u64, u64), open: &[FileProgress], now: Instant) -> Vec<String> {
        let since = self.said.map(|at| now.saturating_duration_since(at));
        if since.is_some_and(|s| s < PAUSE) && done < total {
            return Vec::new();
        }
        let file = |f: &FileProgress| {
            let before = self.files.get(&f.path).copied();
            let rate = since.zip(before).map_or(0, |(s, before)| per_second(f.done.saturating_sub(before), s));
            format!("  {}: {}", f.path, line(f.done, f.size, rate))
        };
        let lines = std::iter::once(line(done, total, rate)).chain(open.iter().map(file)).collect();
        self.files = open.iter().map(|f| (f.path.clone(), f.done)).collect();
        self.said = Some(now);
        lines
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / time.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// `12.0 GB of 166.9 GB, 4.8 GB/s, 32 s left`; without a rate that is known, only how much.
pub fn line(done: u64, total: u64, rate: u64) -> String {
    let amount = format!("{} of {}", bytes(done), bytes(total));
    match total.saturating_sub(done).checked_div(rate) {
        Some(left) => format!("{amount}, {}/s, {left} s left", bytes(rate)),
        None => amount,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_rate_and_time_left_in_all_and_per_file_and_not_too_often() {
        let mut node = Node::default();
        let start = Instant::now();
        let open = |done| [FileProgress { path: "a".into(), done, size: 10_000_000_000 }];
        let first = node.lines((0, 20_000_000_000, 0), &open(0), start);
        assert_eq!(first, ["0 B of 20.0 GB", "  a: 0 B of 10.0 GB"]);
        assert_eq!(node.lines((1, 20_000_000_000, 1), &open(1), start + PAUSE / 2), Vec::<String>::new());
        let now = node.lines(
            (8_000_000_000, 20_000_000_000, 2_000_000_000),
            &open(4_000_000_000),
            start + PAUSE * 2 / 3 * 3 / 2,
        );
        assert_eq!(now[0], "8.0 GB of 20.0 GB, 2.0 GB/s, 6 s left");
        assert!(now[1].starts_with("  a: 4.0 GB of 10.0 GB, 1.3 GB/s, 4 s left"), "{now:?}");
        // The end is told whenever it comes.
        assert_eq!(node.lines((20_000_000_000, 20_000_000_000, 1), &[], start + PAUSE).len(), 1);
    }
}
