//! What NCCL and the bandwidth tests print, read for the transport that was really used.
//!
//! A real TCP fallback still prints lines that begin with `NET/IB` ("NET/IB : No device found."), so no line's mere
//! presence proves anything: the network a rank settles on ("Using network X") and the channels ("via NET/IB/0") do.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Most lines of NCCL's warnings that are kept.
const MOST_WARNINGS: usize = 8;

/// What a log says.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Log {
    /// NCCL's version, with its CUDA's.
    pub version: Option<String>,
    /// What each rank (`host:pid`) says.
    pub ranks: BTreeMap<String, Rank>,
    /// NCCL's warnings in order.
    pub warnings: Vec<String>,
    /// Rows of the bandwidth table: bytes, and GB/s of the bus.
    pub rows: Vec<Bandwidth>,
    /// The table's own average.
    pub average: Option<f64>,
    /// Wrong elements that the test counted.
    pub wrong: u64,
}

/// What one rank says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rank {
    /// Networks it settled on, one per communicator: `IB`, `Socket`, a plugin's name.
    pub networks: BTreeSet<String>,
    /// RDMA devices that NCCL opened, by its number of them; a merged device holds several.
    pub devices: BTreeMap<u32, Vec<String>>,
    /// Channels by transport: `NET/IB`, `NET/Socket`, `P2P`, `SHM`.
    pub channels: BTreeMap<String, u32>,
    /// Numbers of the devices that `NET/IB` channels go over.
    pub used: BTreeSet<u32>,
    /// The interface of the bootstrap.
    pub bootstrap: Option<String>,
}

/// A row of a bandwidth table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bandwidth {
    /// Bytes of the message.
    pub bytes: u64,
    /// GB/s of the bus, the better of out-of-place and in-place.
    pub gb_per_sec: f64,
}

impl Log {
    /// RDMA devices that carry channels of a rank. A rank that does not list its devices has those of the others: nodes
    /// of a pair are alike, and the numbers are given in the order of the lane's list.
    fn devices_of<'a>(&'a self, rank: &'a Rank) -> BTreeSet<&'a str> {
        let listed = |n: &u32| rank.devices.get(n).or_else(|| self.ranks.values().find_map(|r| r.devices.get(n)));
        rank.used.iter().filter_map(listed).flatten().map(String::as_str).collect()
    }

    /// RDMA devices that carry channels, over all ranks.
    #[must_use]
    pub fn used_devices(&self) -> BTreeSet<&str> {
        self.ranks.values().flat_map(|rank| self.devices_of(rank)).collect()
    }

    /// Expected devices that a rank with RDMA channels has none over; every expected one when no rank has any.
    #[must_use]
    pub fn unused<'a>(&self, expected: &'a [String]) -> BTreeSet<&'a str> {
        let lacks = |used: &BTreeSet<&str>| {
            expected.iter().map(String::as_str).filter(|d| !used.contains(d)).collect::<Vec<_>>()
        };
        let ranks: Vec<_> = self.ranks.values().filter(|r| !r.used.is_empty()).map(|r| self.devices_of(r)).collect();
        if ranks.is_empty() {
            return expected.iter().map(String::as_str).collect();
        }
        ranks.iter().flat_map(lacks).collect()
    }

    /// Networks and transports between hosts that any rank used.
    #[must_use]
    pub fn networks(&self) -> BTreeSet<&str> {
        self.ranks.values().flat_map(|r| r.networks.iter().map(String::as_str)).collect()
    }

    /// Channels by transport, over all ranks.
    #[must_use]
    pub fn channels(&self) -> BTreeMap<&str, u32> {
        let mut all = BTreeMap::new();
        for (name, count) in self.ranks.values().flat_map(|r| &r.channels) {
            *all.entry(name.as_str()).or_insert(0_u32) += count;
        }
        all
    }

    /// The figure to judge: the table's average, else the mean of its rows.
    #[must_use]
    pub fn bandwidth(&self) -> Option<f64> {
        let mean = || {
            let count = u32::try_from(self.rows.len()).ok().filter(|n| *n > 0)?;
            let sum: f64 = self.rows.iter().map(|r| r.gb_per_sec).sum();
            // A table of nonsense may add up to infinity, which JSON cannot hold.
            Some((sum / f64::from(count)).min(f64::MAX))
        };
        self.average.or_else(mean)
    }
}

/// Reads a log. Lines of several ranks may be mixed, even within a line; what is not understood is passed over.
#[must_use]
pub fn parse(text: &str) -> Log {
    let mut log = Log::default();
    for line in text.lines() {
        if line.contains("NCCL ") {
            pieces(line).into_iter().for_each(|piece| log.take(&piece));
        } else {
            log.table(line);
        }
    }
    log
}

/// One message of a line.
struct Piece<'a> {
    rank: String,
    warning: bool,
    text: &'a str,
}

/// Cuts a line at every `NCCL INFO`, `NCCL WARN`; the words before each name its rank.
fn pieces(line: &str) -> Vec<Piece<'_>> {
    let mut marks: Vec<(usize, usize, bool)> = Vec::new();
    for (word, warning) in [("NCCL INFO ", false), ("NCCL WARN ", true)] {
        marks.extend(line.match_indices(word).map(|(at, word)| (at, at + word.len(), warning)));
    }
    marks.sort_unstable();
    if marks.is_empty() {
        // `NCCL version 2.30.7+cuda13.3`, which rank 0 prints at any level.
        let at = line.find("NCCL version ").map(|at| at + 5);
        let text = at.and_then(|at| line.get(at..));
        return text.map(|text| Piece { rank: String::new(), warning: false, text }).into_iter().collect();
    }
    let ends = marks.iter().skip(1).map(|(at, _, _)| *at).chain([line.len()]);
    let cut = |((at, begin, warning), end): (&(usize, usize, bool), usize)| Piece {
        rank: rank(line.get(..*at).unwrap_or_default()),
        warning: *warning,
        text: line.get(*begin..end).unwrap_or_default().trim(),
    };
    marks.iter().zip(ends).map(cut).collect()
}

/// `host:pid` of the last `host:pid:tid [n]` before a message.
fn rank(before: &str) -> String {
    let name = |word: &str| {
        let mut parts = word.rsplitn(3, ':');
        let (thread, process, host) = (parts.next()?, parts.next()?, parts.next()?);
        let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        (number(thread) && number(process) && !host.is_empty()).then(|| format!("{host}:{process}"))
    };
    before.split_whitespace().rev().find_map(name).unwrap_or_default()
}

impl Log {
    fn take(&mut self, piece: &Piece<'_>) {
        let text = piece.text;
        if piece.warning {
            let kept: String = text.chars().take(300).collect();
            if self.warnings.len() < MOST_WARNINGS && !self.warnings.contains(&kept) {
                self.warnings.push(kept);
            }
            return;
        }
        if let Some(version) = text.strip_prefix("NCCL version ").or_else(|| text.strip_prefix("version ")) {
            self.version = version.split_whitespace().next().map(str::to_owned);
            return;
        }
        let rank = self.ranks.entry(piece.rank.clone()).or_default();
        if let Some(network) = text.strip_prefix("Using network ") {
            rank.networks.extend(network.split_whitespace().next().map(str::to_owned));
        } else if let Some(devices) = text.strip_prefix("NET/IB : Using ") {
            rank.devices.extend(self::devices(devices));
        } else if let Some(interface) = text.strip_prefix("Bootstrap: Using ") {
            rank.bootstrap = interface.split(':').next().map(str::to_owned);
        } else if let Some((_, via)) = text.split_once(" via ").filter(|_| text.starts_with("Channel ")) {
            rank.channel(via);
        }
    }

    /// A line of a table: nccl-tests (13 columns) or a loop of torch.distributed (4).
    fn table(&mut self, line: &str) {
        if let Some(rest) = line.trim_start().strip_prefix("# Avg bus bandwidth") {
            self.average = rest.trim_start().strip_prefix(':').and_then(|v| number(v.trim()));
            return;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(bytes) = words.first().and_then(|w| w.parse().ok()) else { return };
        let at = |n: usize| words.get(n).copied().and_then(number);
        let gb_per_sec = match words.len() {
            4 => at(3),
            13 => at(7).zip(at(11)).map(|(out, within)| out.max(within)),
            _ => None,
        };
        if words.len() == 13 {
            let wrong = |n: usize| words.get(n).and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
            self.wrong = self.wrong.saturating_add(wrong(8)).saturating_add(wrong(12));
        }
        self.rows.extend(gb_per_sec.map(|gb_per_sec| Bandwidth { bytes, gb_per_sec }));
    }
}

impl Rank {
    /// `NET/IB/0/GDRDMA`, `NET/Socket/0`, `P2P/CUMEM`, `SHM/direct/direct`.
    fn channel(&mut self, via: &str) {
        let mut parts = via.split(['/', ' ']);
        let Some(kind) = parts.next().filter(|k| !k.is_empty()) else { return };
        let transport = match (kind, parts.next()) {
            ("NET", Some(network)) => {
                if network == "IB" {
                    self.used.extend(parts.next().and_then(|n| n.parse::<u32>().ok()));
                }
                format!("NET/{network}")
            }
            _ => kind.to_owned(),
        };
        *self.channels.entry(transport).or_default() += 1;
    }
}

/// `[0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB …`; a merged device is `a+b`.
fn devices(text: &str) -> Vec<(u32, Vec<String>)> {
    let list = text.split(';').next().unwrap_or_default();
    let one = |word: &str| {
        let (index, name) = word.strip_prefix('[')?.split_once(']')?;
        let name = name.split(':').next().filter(|n| !n.is_empty())?;
        Some((index.parse().ok()?, name.split('+').map(str::to_owned).collect()))
    };
    list.split_whitespace().filter_map(one).collect()
}

fn number(text: &str) -> Option<f64> {
    text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0)
}
