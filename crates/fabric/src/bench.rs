//! `sparklane fabric bench`: which transports are compared, with what environment, and what the answers mean. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sparklane_lane::{Generation, NodeName};

use crate::nccl::parse;
use crate::verdict::{Expected, Finding, Verdict, judge};

/// The loop that every rank runs.
pub const SCRIPT: &str = include_str!("bench.py");
/// Largest message that is ever measured: the 16 GB test froze machines of unified memory.
pub const MOST: u64 = 4 << 30;
/// Sizes of the usual run.
pub const SIZES: [u64; 3] = [256 << 20, 512 << 20, 1 << 30];

/// One transport that is measured (mp kit, section 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// The lane as it is: both halves.
    Both,
    /// One half, at the GID index that guides name.
    Single,
    /// TCP: what a fallback would give.
    Socket,
}

impl Arm {
    /// All, in the order they are measured.
    pub const ALL: [Self; 3] = [Self::Both, Self::Single, Self::Socket];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Single => "single",
            Self::Socket => "socket",
        }
    }
}

/// One node's part of one arm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Request {
    /// The arm.
    pub arm: Arm,
    /// Bytes of the messages.
    pub sizes: Vec<u64>,
    /// Seconds until the rank is stopped.
    pub timeout_secs: u64,
    /// Port of the rendezvous on the head's first rail.
    pub port: u16,
    /// Program in the image.
    pub argv: Vec<String>,
}

/// What came of it on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Answer {
    /// Exit code of the rank; `None` when it was stopped.
    pub code: Option<i64>,
    /// True when it took too long.
    pub timed_out: bool,
    /// What it printed; of a long log the beginning and the end.
    pub log: String,
}

/// The program of the usual run.
#[must_use]
pub fn argv() -> Vec<String> {
    ["python3", "-u", "-c", SCRIPT].map(str::to_owned).to_vec()
}

/// RDMA devices that a lane names.
#[must_use]
pub fn devices(env: &BTreeMap<String, String>) -> Vec<String> {
    let named = env.get("NCCL_IB_HCA").map_or("", String::as_str).trim_start_matches('=');
    named.split(',').filter_map(|d| d.split(':').next()).filter(|d| !d.is_empty()).map(str::to_owned).collect()
}

/// The environment of a rank: the lane's own, the arm's change, and what the loop needs.
#[must_use]
pub fn environment(generation: &Generation, request: &Request) -> BTreeMap<String, String> {
    let mut env = generation.engine.env.clone();
    let named = devices(&env);
    match request.arm {
        Arm::Both => {}
        Arm::Single => {
            if let Some(first) = named.first() {
                env.insert("NCCL_IB_HCA".into(), first.clone());
                env.insert("NCCL_IB_GID_INDEX".into(), "3".into());
            }
        }
        Arm::Socket => {
            for name in ["NCCL_NET", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"] {
                env.remove(name);
            }
            env.insert("NCCL_IB_DISABLE".into(), "1".into());
        }
    }
    // Without these lines the transport is not known, whatever the lane says.
    env.insert("NCCL_DEBUG".into(), "INFO".into());
    for name in ["NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"] {
        env.remove(name);
    }
    let head = generation.peers.iter().find(|p| p.rank == 0).map(|p| p.rail1.clone()).unwrap_or_default();
    let sizes: Vec<String> = request.sizes.iter().map(u64::to_string).collect();
    for (name, value) in [
        ("MASTER_ADDR", head),
        ("MASTER_PORT", request.port.to_string()),
        ("RANK", generation.rank.to_string()),
        ("LOCAL_RANK", "0".to_owned()),
        ("WORLD_SIZE", generation.peers.len().to_string()),
        ("SPARKLANE_BENCH_SIZES", sizes.join(",")),
    ] {
        env.insert(name.to_owned(), value);
    }
    env
}

/// One arm, judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArmRow {
    /// The arm.
    pub arm: Arm,
    /// What its figure and transport mean.
    pub verdict: Verdict,
    /// RDMA devices that carried channels.
    pub used: Vec<String>,
    /// Channels by transport.
    pub channels: BTreeMap<String, u32>,
    /// NCCL's version.
    pub nccl: Option<String>,
    /// What a node said that did not come to its end.
    pub troubles: Vec<String>,
}

/// The whole measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bench {
    /// Arms in the order they were measured.
    pub arms: Vec<ArmRow>,
    /// The best arm over RDMA that passed its check of devices.
    pub winner: Option<Arm>,
    /// True when the lane as it is passed the gate.
    pub passed: bool,
    /// Least GB/s.
    pub gate: f64,
    /// What to change in the lane, as a line of its file.
    pub patch: Option<String>,
}

/// One node's answer, or why there is none.
pub type Answers = Vec<(NodeName, Result<Answer, String>)>;

/// Judges all arms. `devices` are those of both rails.
#[must_use]
pub fn report(arms: &[(Arm, Answers)], devices: &[String], gate: f64) -> Bench {
    let rows: Vec<ArmRow> = arms.iter().map(|(arm, answers)| row(*arm, answers, devices, gate)).collect();
    let speed = |row: &&ArmRow| row.verdict.gb_per_sec.unwrap_or(0.0);
    let sound = |row: &&ArmRow| {
        row.arm != Arm::Socket
            && row.troubles.is_empty()
            && matches!(row.verdict.finding, Finding::Good | Finding::Slow | Finding::Stuck)
    };
    let best = rows.iter().filter(sound).max_by(|a, b| speed(a).total_cmp(&speed(b)));
    let winner = best.map(|row| row.arm);
    let socket = rows.iter().find(|r| r.arm == Arm::Socket).map_or(0.0, |r| speed(&r));
    let passed =
        rows.iter().any(|r| r.arm == Arm::Both && r.troubles.is_empty() && r.verdict.passed() && speed(&r) > socket);
    let patch = match winner {
        Some(Arm::Single) => devices.first().map(|d| format!("env = {{ NCCL_IB_HCA = \"{d}\"; NCCL_IB_GID_INDEX = \"3\"; }};  # rdma of rail2 in the cluster file is what to mend instead")),
        _ => None,
    };
    Bench { arms: rows, winner, passed, gate, patch }
}

fn row(arm: Arm, answers: &Answers, devices: &[String], gate: f64) -> ArmRow {
    let mut text = String::new();
    let mut troubles = Vec::new();
    for (node, answer) in answers {
        match answer {
            Ok(answer) => {
                text.push_str(&answer.log);
                text.push('\n');
                match answer.code {
                    Some(0) => {}
                    Some(code) => troubles.push(format!("{node}: exit code {code}{}", last_line(&answer.log))),
                    None => troubles.push(format!("{node}: stopped, as it took too long")),
                }
            }
            Err(why) => troubles.push(format!("{node}: {why}")),
        }
    }
    let log = parse(&text);
    let expected = match arm {
        Arm::Both => devices.to_vec(),
        Arm::Single => devices.iter().take(1).cloned().collect(),
        Arm::Socket => Vec::new(),
    };
    // One half cannot give what two give.
    let gate = if arm == Arm::Single { gate / 2.0 } else { gate };
    let verdict = judge(&log, &Expected { devices: expected, gate });
    ArmRow {
        arm,
        used: log.used_devices().into_iter().map(str::to_owned).collect(),
        channels: log.channels().into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
        nccl: log.version.clone(),
        verdict,
        troubles,
    }
}

fn last_line(log: &str) -> String {
    let line = log.lines().rev().map(str::trim).find(|l| !l.is_empty());
    line.map_or_else(String::new, |l| format!(" ({})", l.chars().take(200).collect::<String>()))
}

/// Of a long log the beginning, where the transport is told, and the end, where the figure is.
#[must_use]
pub fn kept(log: &str, most: usize) -> String {
    if log.len() <= most {
        return log.to_owned();
    }
    let cut = |at: usize, step: isize| {
        let mut at = at;
        while !log.is_char_boundary(at) {
            at = at.saturating_add_signed(step);
        }
        at
    };
    let (begin, end) = (cut(most / 2, -1), cut(log.len() - most / 2, 1));
    format!(
        "{}\n[… {} bytes left out …]\n{}",
        log.get(..begin).unwrap_or_default(),
        end - begin,
        log.get(end..).unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROCE: &str = include_str!("../tests/fixtures/nccl/nccl-roce-2hca.log");
    const GOOD: &str = include_str!("../tests/fixtures/nccl/ag-good.log");
    const SOCKET: &str = include_str!("../tests/fixtures/nccl/socket.log");

    fn generation(rank: u32) -> Generation {
        let text = include_str!("../../../tests/fixtures/engine/generation.json");
        let mut generation: Generation = serde_json::from_str(text).unwrap();
        generation.rank = rank;
        for (name, value) in [("NCCL_IB_HCA", "rocep1s0f1,roceP2p1s0f1"), ("NCCL_NET", "IB"), ("NCCL_MINE", "7")] {
            generation.engine.env.insert(name.into(), value.into());
        }
        generation.engine.env.insert("NCCL_DEBUG_FILE".into(), "/dev/null".into());
        generation
    }

    fn request(arm: Arm) -> Request {
        Request { arm, sizes: SIZES.to_vec(), timeout_secs: 60, port: 29400, argv: argv() }
    }

    #[test]
    fn an_arm_is_the_lanes_own_environment_and_its_change() {
        let of = |arm| environment(&generation(1), &request(arm));
        let both = of(Arm::Both);
        assert_eq!((both["NCCL_IB_HCA"].as_str(), both["NCCL_NET"].as_str()), ("rocep1s0f1,roceP2p1s0f1", "IB"));
        assert_eq!((both["NCCL_DEBUG"].as_str(), both.get("NCCL_DEBUG_FILE")), ("INFO", None));
        assert_eq!((both["RANK"].as_str(), both["WORLD_SIZE"].as_str()), ("1", "2"));
        assert_eq!(both["MASTER_ADDR"], generation(0).peers[0].rail1);
        let single = of(Arm::Single);
        assert_eq!((single["NCCL_IB_HCA"].as_str(), single["NCCL_IB_GID_INDEX"].as_str()), ("rocep1s0f1", "3"));
        let socket = of(Arm::Socket);
        // NCCL_NET=IB would refuse to run over TCP.
        assert_eq!((socket.get("NCCL_NET"), socket["NCCL_IB_DISABLE"].as_str()), (None, "1"));
        assert!([both, single, socket].iter().all(|env| env["NCCL_MINE"] == "7"));
        assert!(SIZES.iter().all(|s| *s <= MOST));
    }

    fn answers(one: &str, code: i64) -> Answers {
        let answer = |log: &str| Ok(Answer { code: Some(code), timed_out: false, log: log.to_owned() });
        vec![("head".parse().unwrap(), answer(one)), ("worker".parse().unwrap(), answer(""))]
    }

    fn devices() -> Vec<String> {
        ["rocep1s0f1", "roceP2p1s0f1"].map(str::to_owned).to_vec()
    }

    #[test]
    fn the_lane_passes_when_both_halves_beat_the_gate_and_tcp() {
        let good = format!("{ROCE}{GOOD}");
        let one = ROCE.replace("NET/IB/1", "NET/IB/0") + &GOOD.replace("21.4033", "13.6");
        let arms = [(Arm::Both, answers(&good, 0)), (Arm::Single, answers(&one, 0)), (Arm::Socket, answers(SOCKET, 0))];
        let bench = report(&arms, &devices(), 15.0);
        assert_eq!((bench.passed, bench.winner, bench.patch), (true, Some(Arm::Both), None));
        assert_eq!(bench.arms[1].verdict.finding, Finding::Good);
        assert_eq!(bench.arms[2].verdict.finding, Finding::Socket);
        // The same figures with a rank that failed prove nothing.
        let broken = report(&[(Arm::Both, answers(&good, 1))], &devices(), 15.0);
        assert!(!broken.passed && broken.arms[0].troubles[0].starts_with("head: exit code 1"));
    }

    #[test]
    fn a_lane_that_fell_back_to_tcp_fails_and_a_better_half_is_a_patch() {
        let one = ROCE.replace("NET/IB/1", "NET/IB/0") + &GOOD.replace("21.4033", "13.6");
        let bench = report(&[(Arm::Both, answers(SOCKET, 0)), (Arm::Single, answers(&one, 0))], &devices(), 15.0);
        assert_eq!((bench.passed, bench.winner), (false, Some(Arm::Single)));
        assert!(bench.patch.unwrap().contains("NCCL_IB_HCA = \"rocep1s0f1\""));
        let gone = report(&[(Arm::Both, vec![("head".parse().unwrap(), Err("no route".into()))])], &devices(), 15.0);
        assert!(!gone.passed && gone.winner.is_none());
    }

    proptest! {
        #[test]
        fn a_long_log_keeps_its_ends(text in "\\PC{0,200}", most in 0..100_usize) {
            let short = kept(&text, most);
            prop_assert!(text.len() <= most || short.contains("bytes left out"));
        }
    }
}
