//! `sparklane fabric judge`: what a bandwidth test's output means.

use std::process::ExitCode;

use camino::Utf8PathBuf;
use serde::Serialize;
use sparklane_fabric::nccl::{Log, parse};
use sparklane_fabric::verdict::{Expected, GATE, Verdict, judge};

use super::gate;
use crate::report::refused;

/// Judge what a bandwidth test printed: the transport really used, and the likely cause of a low figure.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane fabric judge all_reduce.log --devices rocep1s0f0,roceP2p1s0f0
  NCCL_DEBUG=INFO ./all_reduce_perf -b 256M -e 4G -f 2 2>&1 | sparklane fabric judge -

The test must have run with NCCL_DEBUG=INFO. Several files (one per rank) are read as one log.
Never measure more than 4G a message: on unified memory the 16G test freezes the machine.

Exit codes: 0 passed, 1 not so.")]
pub struct Args {
    /// Output of nccl-tests or of a torch.distributed loop; - is stdin.
    #[arg(required = true)]
    files: Vec<Utf8PathBuf>,
    /// RDMA devices that must all carry channels.
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME")]
    devices: Vec<String>,
    /// Least GB/s of the bus.
    #[arg(long, default_value_t = GATE, value_parser = gate)]
    gate: f64,
    /// One JSON object on stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Judged<'a> {
    exit_code: u8,
    #[serde(flatten)]
    verdict: &'a Verdict,
    used_devices: Vec<&'a str>,
    log: &'a Log,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    let mut text = String::new();
    for file in &args.files {
        let read = if file == "-" {
            std::io::read_to_string(std::io::stdin())
        } else {
            std::fs::read(file).map(|b| String::from_utf8_lossy(&b).into_owned())
        };
        match read {
            Ok(more) => {
                text.push_str(&more);
                text.push('\n');
            }
            Err(error) => return Ok(refused(args.json, 1, &format!("{file}: {error}"))),
        }
    }
    let log = parse(&text);
    let verdict = judge(&log, &Expected { devices: args.devices.clone(), gate: args.gate });
    let exit_code = u8::from(!verdict.passed());
    let judged =
        Judged { exit_code, verdict: &verdict, used_devices: log.used_devices().into_iter().collect(), log: &log };
    println!(
        "{}",
        if args.json { serde_json::to_string(&judged).unwrap_or_default() } else { lines(&judged, args.gate) }
    );
    Ok(ExitCode::from(exit_code))
}

fn lines(judged: &Judged<'_>, gate: f64) -> String {
    let (verdict, log) = (judged.verdict, judged.log);
    let speed = verdict.gb_per_sec.map_or_else(|| "no figure".to_owned(), |s| format!("{s:.2} GB/s"));
    let finding = serde_json::to_value(verdict.finding).ok();
    let finding = finding.as_ref().and_then(|f| f.as_str()).unwrap_or_default();
    let channels: Vec<String> = log.channels().iter().map(|(name, count)| format!("{count} {name}")).collect();
    let mut all = vec![
        format!("{finding}: {speed}, gate {gate} GB/s"),
        format!("NCCL      {}", log.version.as_deref().unwrap_or("not told")),
        format!("channels  {}", if channels.is_empty() { "not told".to_owned() } else { channels.join(", ") }),
        format!(
            "devices   {}",
            if judged.used_devices.is_empty() { "none".to_owned() } else { judged.used_devices.join(", ") }
        ),
    ];
    all.extend(log.warnings.iter().map(|w| format!("NCCL said {w}")));
    all.extend(verdict.cause.iter().map(|c| format!("cause     {c}")));
    all.extend(verdict.remedy.iter().map(|r| format!("do        {r}")));
    all.join("\n")
}
