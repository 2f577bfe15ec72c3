//! The table and the JSON of one run.

use serde_json::{Value, json};

/// Seconds of every round of the three steps.
#[derive(Debug, Default)]
pub struct Times {
    /// A deployment of what is served already.
    pub noop: Vec<f64>,
    /// From lab-a to lab-b.
    pub switch: Vec<f64>,
    /// Back to the release before.
    pub rollback: Vec<f64>,
}

/// Everything measured.
#[derive(Debug)]
pub struct Figures {
    /// sparklane.
    pub ours: Times,
    /// Stock deploy-rs.
    pub peer: Times,
    /// System and bytes of each static binary there is.
    pub binaries: Vec<(&'static str, u64)>,
    /// Node and bytes that it lacked of lab-b while it served lab-a.
    pub copied: Vec<(&'static str, u64)>,
    /// Subcommand of the tool on a node, and its peak memory in bytes.
    pub memory: Vec<(String, u64)>,
    /// What else the machine did: `/proc/loadavg` before and after the rounds.
    pub load: [String; 2],
}

/// The most that the issue allows; times as a share of the peer's.
const NOOP: f64 = 0.5;
const SWITCH: f64 = 1.0;
const ROLLBACK: f64 = 0.5;
const BINARY: u64 = 15_000_000;
const COPIED: u64 = 64 * 1024;
const MEMORY: u64 = 40_000_000;

/// The middle value; with an even count the lower of the two.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

struct Row {
    what: String,
    ours: String,
    peer: String,
    ratio: String,
    aim: String,
    met: bool,
}

impl Figures {
    fn steps(&self) -> [(&'static str, &[f64], &[f64], f64); 3] {
        [
            ("no-op deploy", &self.ours.noop, &self.peer.noop, NOOP),
            ("lane switch", &self.ours.switch, &self.peer.switch, SWITCH),
            ("rollback", &self.ours.rollback, &self.peer.rollback, ROLLBACK),
        ]
    }

    fn sizes(&self) -> Vec<(String, u64, u64)> {
        let binaries = self.binaries.iter().map(|(system, bytes)| (format!("static binary, {system}"), *bytes, BINARY));
        let copied = self.copied.iter().map(|(node, bytes)| (format!("copied on a switch, {node}"), *bytes, COPIED));
        let memory = self.memory.iter().map(|(command, bytes)| (format!("peak memory, {command}"), *bytes, MEMORY));
        binaries.chain(copied).chain(memory).collect()
    }

    fn rows(&self) -> Vec<Row> {
        let times = self.steps().map(|(what, ours, peer, aim)| {
            let (ours, peer) = (median(ours), median(peer));
            Row {
                what: what.to_owned(),
                ours: format!("{ours:.2} s"),
                peer: format!("{peer:.2} s"),
                ratio: format!("{:.2}", ours / peer),
                aim: format!("{aim:.1}x"),
                met: ours <= aim * peer,
            }
        });
        let sizes = self.sizes().into_iter().map(|(what, bytes, aim)| Row {
            what,
            ours: size(bytes),
            peer: String::new(),
            ratio: String::new(),
            aim: size(aim),
            met: bytes <= aim,
        });
        times.into_iter().chain(sizes).collect()
    }

    /// For people.
    pub fn table(&self) -> String {
        let line = |what: &str, cells: [&str; 4], met: &str| {
            let [ours, peer, ratio, aim] = cells;
            format!("{what:<32} {ours:>9} {peer:>10} {ratio:>6} {aim:>10}  {met}\n")
        };
        let rows = self.rows();
        let body = rows
            .iter()
            .map(|r| line(&r.what, [&r.ours, &r.peer, &r.ratio, &r.aim], if r.met { "met" } else { "MISSED" }));
        let head = line("", ["sparklane", "deploy-rs", "ratio", "at most"], "");
        let [before, after] = &self.load;
        let foot = format!(
            "medians of {} rounds; {} cores, load {before} before, {after} after\n",
            self.ours.noop.len(),
            cores()
        );
        std::iter::once(head).chain(body).chain([foot]).collect()
    }

    /// For programs: medians, every sample, sizes.
    pub fn json(&self) -> Value {
        let times = self.steps().map(|(what, ours, peer, aim)| {
            let (a, b) = (median(ours), median(peer));
            json!({
                "step": what, "oursSeconds": a, "peerSeconds": b, "ratio": a / b, "atMost": aim, "met": a <= aim * b,
                "ours": ours, "peer": peer,
            })
        });
        let sizes: Vec<Value> = self
            .sizes()
            .into_iter()
            .map(|(what, bytes, aim)| json!({"what": what, "bytes": bytes, "atMost": aim, "met": bytes <= aim}))
            .collect();
        json!({
            "rounds": self.ours.noop.len(), "cores": cores(), "load": self.load, "times": times, "sizes": sizes,
        })
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// The load averages now: 1, 5 and 15 minutes.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn size(bytes: u64) -> String {
    if bytes < 1_000_000 {
        format!("{:.1} KiB", bytes as f64 / 1024.0)
    } else {
        format!("{:.1} MB", bytes as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rollback: f64) -> Figures {
        let times = |noop, switch, rollback| Times { noop: vec![noop], switch: vec![switch], rollback: vec![rollback] };
        Figures {
            ours: times(0.3, 2.0, rollback),
            peer: times(1.5, 3.0, 3.0),
            binaries: vec![("x86_64-linux", 8_600_000)],
            copied: vec![("head", 65_537)],
            memory: vec![("txn run".to_owned(), 7_000_000)],
            load: [load(), load()],
        }
    }

    #[test]
    fn the_median_ignores_order_and_outliers() {
        assert!((median(&[9.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn each_figure_is_held_against_its_aim() {
        let met = |f: &Figures| f.rows().iter().map(|r| r.met).collect::<Vec<_>>();
        assert_eq!(met(&figures(1.5)), [true, true, true, true, false, true]);
        assert_eq!(met(&figures(1.6)), [true, true, false, true, false, true]);
        assert_eq!(figures(1.6).table().matches("MISSED").count(), 2);
    }
}
