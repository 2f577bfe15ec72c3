//! `sparklane fabric bench`: each arm on all nodes at once, judged here, kept on the head.

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use sparklane_deploy::progress::Quiet;
use sparklane_deploy::{DeployError, Flow, Site};
use sparklane_fabric::bench::{self, Answer, Answers, Arm, Bench, MOST, Request, SIZES, report};
use sparklane_fabric::verdict::GATE;
use sparklane_lane::cluster::Absent;

use super::gate;
use crate::deploy::Reach;
use crate::report::refused;

/// Measure all-reduce between the nodes in the deployed lane's image and NCCL environment.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane fabric bench --cluster sparks
  sparklane fabric bench --cluster sparks --arms both --sizes 256,1024 --json

Arms: both (the lane as it is), single (one half, GID index 3), socket (TCP, for comparison). The engine must be
stopped on all nodes. The result is kept on the head in /var/lib/sparklane/evidence.

Exit codes: 0 the lane as it is passed the gate over both halves, 1 not so, 2 usage.")]
pub struct Args {
    #[command(flatten)]
    reach: Reach,
    /// What to measure.
    #[arg(long, value_delimiter = ',', value_parser = arm, default_value = "both,single,socket", value_name = "ARM,ARM")]
    arms: Vec<Arm>,
    /// Sizes of the messages in MiB, at most 4096.
    #[arg(long, value_delimiter = ',', value_parser = size, value_name = "MIB,MIB")]
    sizes: Vec<u64>,
    /// Seconds for one arm.
    #[arg(long, default_value_t = 180, value_parser = clap::value_parser!(u64).range(5..=3600))]
    timeout: u64,
    /// Least GB/s of the bus.
    #[arg(long, default_value_t = GATE, value_parser = gate)]
    gate: f64,
    /// Port of the rendezvous on the head's first rail.
    #[arg(long, default_value_t = 29400)]
    port: u16,
    /// Program in the image in place of python3 with a loop of torch.distributed.
    #[arg(long, value_delimiter = ',', value_name = "WORD,WORD", hide = true)]
    program: Vec<String>,
}

fn arm(text: &str) -> Result<Arm, String> {
    Arm::ALL.into_iter().find(|a| a.name() == text).ok_or_else(|| "is none of both, single, socket".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    let mib = text.parse::<u64>().map_err(|e| e.to_string())?;
    let bytes = mib.checked_mul(1 << 20).filter(|b| (1..=MOST).contains(b));
    bytes
        .ok_or_else(|| format!("is outside 1 to {} MiB: larger messages freeze machines of unified memory", MOST >> 20))
}

/// What is printed and kept.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Record<'a> {
    exit_code: u8,
    /// When, UTC.
    time: String,
    cluster: String,
    release: Option<u64>,
    lane: Option<String>,
    sizes: &'a [u64],
    #[serde(flatten)]
    bench: &'a Bench,
    /// Where it is kept on the head.
    kept: Option<String>,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    let done = args.reach.site().and_then(|site| measured(args, &site));
    Ok(done.unwrap_or_else(|error| refused(args.reach.json(), error.exit_code(), &error.to_string())))
}

fn measured(args: &Args, site: &Site) -> Result<ExitCode, DeployError> {
    let options = args.reach.options(None);
    let flow = Flow::new(site, &options, &Quiet)?;
    let sizes = if args.sizes.is_empty() { SIZES.to_vec() } else { args.sizes.clone() };
    let mut arms: Vec<(Arm, Answers)> = Vec::new();
    for arm in &args.arms {
        if !args.reach.json() {
            eprintln!("{}: measuring, at most {} s", arm.name(), args.timeout);
        }
        let answers = one(args, &flow, *arm, &sizes);
        if answers.iter().all(|(_, a)| a.is_err()) {
            let why: Vec<String> = answers.into_iter().filter_map(|(_, a)| a.err()).collect();
            return Err(DeployError::Refused(why.join("\n")));
        }
        arms.push((*arm, answers));
    }
    let bench = report(&arms, &devices(site), args.gate);
    let exit_code = u8::from(!bench.passed);
    let status = flow.survey();
    let lane = status.nodes.first().and_then(|row| Some(row.status.as_ref()?.generation.as_ref()?.lane.to_string()));
    #[expect(clippy::disallowed_methods, reason = "for people to read")]
    let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let mut record = Record {
        exit_code,
        time,
        cluster: site.cluster.name.to_string(),
        release: status.release,
        lane,
        sizes: &sizes,
        bench: &bench,
        kept: None,
    };
    record.kept = keep(&flow, &record);
    if args.reach.json() {
        println!("{}", serde_json::to_string(&record).unwrap_or_default());
    } else {
        println!("{}", lines(&record));
    }
    Ok(ExitCode::from(exit_code))
}

/// RDMA devices of both rails; nodes of a pair name them alike.
fn devices(site: &Site) -> Vec<String> {
    if !site.cluster.has(Absent::Rdma) {
        return Vec::new();
    }
    let head = site.cluster.head().map(|(_, node)| node);
    head.into_iter().flat_map(|n| [&n.rail1, &n.rail2]).filter_map(|rail| rail.rdma.clone()).collect()
}

fn one(args: &Args, flow: &Flow<'_>, arm: Arm, sizes: &[u64]) -> Answers {
    let argv = if args.program.is_empty() { bench::argv() } else { args.program.clone() };
    let request = Request { arm, sizes: sizes.to_vec(), timeout_secs: args.timeout, port: args.port, argv };
    let input = serde_json::to_vec(&request).unwrap_or_default();
    let limit = Duration::from_secs(args.timeout + 90);
    let answers = flow.reports_on::<Answer>(&["node", "bench"], limit, |_| input.clone());
    let told = |report: sparklane_deploy::flow::TimedReport<Answer>| {
        let answer = match report.answer {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(format!("{}: has no tool yet: nothing was ever deployed there", report.node)),
            Err(error) => Err(error.to_string()),
        };
        (report.node, answer)
    };
    answers.into_iter().map(told).collect()
}

/// The head keeps it; a head that cannot is told on stderr, and the figures stand all the same.
fn keep(flow: &Flow<'_>, record: &Record<'_>) -> Option<String> {
    let text = serde_json::to_vec(record).ok()?;
    let kept = flow.head_report::<String>(&["node", "bench-keep"], &text);
    kept.map_err(|e| eprintln!("not kept: {e}")).ok().flatten()
}

fn lines(record: &Record<'_>) -> String {
    let bench = record.bench;
    let mut all = Vec::new();
    for row in &bench.arms {
        let speed = row.verdict.gb_per_sec.map_or_else(|| "no figure".to_owned(), |s| format!("{s:.2} GB/s"));
        let finding = serde_json::to_value(row.verdict.finding).ok();
        let finding = finding.as_ref().and_then(|f| f.as_str()).unwrap_or_default();
        let channels: Vec<String> = row.channels.iter().map(|(name, count)| format!("{count} {name}")).collect();
        all.push(format!(
            "{:<7} {speed:<12} {finding:<11} {} {}",
            row.arm.name(),
            channels.join(", "),
            row.used.join(",")
        ));
        all.extend(row.troubles.iter().map(|t| format!("        {t}")));
        if row.arm != Arm::Socket {
            all.extend(row.verdict.cause.iter().map(|c| format!("        cause: {c}")));
            all.extend(row.verdict.remedy.iter().map(|r| format!("        do: {r}")));
        }
    }
    let word = if bench.passed { "passed" } else { "not passed" };
    all.push(format!("{word}: gate {} GB/s over both halves", bench.gate));
    all.extend(bench.winner.map(|w| format!("best: {}", w.name())));
    all.extend(bench.patch.iter().map(|p| format!("lane: {p}")));
    all.extend(record.kept.iter().map(|k| format!("kept on the head: {k}")));
    all.join("\n")
}
