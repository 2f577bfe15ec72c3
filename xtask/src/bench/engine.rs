//! `cargo xtask bench engine`: how soon a death is noticed and healed, how long a power cut lasts, and what watching costs.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use miette::{IntoDiagnostic, bail};
use serde_json::{Value, json};
use sparklane_lab::Lab;
use xshell::Shell;

use super::deploy::{NODES, fresh_lab};
use crate::{packages, prebuilt, rehearse, workspace};

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Times each harm is done; the median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Print one JSON object with every sample instead of the table.
    #[arg(long)]
    json: bool,
    /// Measure ./prebuilt as it is.
    #[arg(long)]
    no_build: bool,
    #[command(flatten)]
    claim: rehearse::Claim,
}

/// Longest wait for anything; a lab that does not heal by then does not heal.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the idle cost is taken.
const IDLE: Duration = Duration::from_secs(60);
/// A processor's ticks in a second, as /proc counts them on Linux.
const TICKS: f64 = 100.0;

/// Something that goes wrong, and the node that has to notice. What the kits do about it is of `ray-kit.md` and `mp-kit.md`.
struct Harm {
    name: &'static str,
    node: &'static str,
    notices: &'static str,
    script: &'static str,
    kits: &'static str,
}

const KILL_CONTAINER: &str = "docker kill $(docker ps -q)";
const KILL_SUPERVISOR: &str = "systemctl kill --kill-whom=main -s KILL sparklane-engine";
const HANG: &str = "p=$(docker inspect -f '{{.State.Pid}}' $(docker ps -q)) && mkdir -p /proc/$p/root/sim && \
                    echo hang > /proc/$p/root/sim/fail";
const WATCHED: &str = "watchdog 30 s (Ray), timer 5 min (mp)";

const HARMS: [Harm; 5] = [
    Harm { name: "head's container killed", node: "head", notices: "worker", script: KILL_CONTAINER, kits: WATCHED },
    Harm { name: "worker's container killed", node: "worker", notices: "head", script: KILL_CONTAINER, kits: WATCHED },
    Harm { name: "head's supervisor killed", node: "head", notices: "worker", script: KILL_SUPERVISOR, kits: "none" },
    Harm { name: "worker's supervisor killed", node: "worker", notices: "head", script: KILL_SUPERVISOR, kits: "none" },
    Harm {
        name: "engine hangs, health 200",
        node: "head",
        notices: "head",
        script: HANG,
        kits: "timer 5 min + 90 s (mp)",
    },
];

/// One harm's samples, in seconds.
#[derive(Default)]
struct Times {
    noticed: Vec<f64>,
    healed: Vec<f64>,
}

/// Measures everything and prints it.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    args.claim.take("cargo xtask bench engine")?;
    let sh = Shell::new().into_diagnostic()?;
    sh.change_dir(workspace());
    packages::ensure(&sh)?;
    if !args.no_build {
        prebuilt::run(&prebuilt::Args { system: vec![prebuilt::System::X86_64] })?;
    }
    let lab = fresh_lab()?;
    serving(&lab, "")?;
    let idle = idle(&lab)?;
    let mut rows: Vec<(&Harm, Times)> = HARMS.iter().map(|harm| (harm, Times::default())).collect();
    let (mut cut, mut power) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        for (harm, times) in &mut rows {
            let (noticed, healed) = harmed(&lab, harm)?;
            eprintln!("xtask: round {round}: {}: noticed {noticed:.2} s, healed {healed:.2} s", harm.name);
            times.noticed.push(noticed);
            times.healed.push(healed);
        }
        cut.push(rails_cut(&lab)?);
        power.push(power_cut(&lab)?);
    }
    print(args, &rows, &cut, &power, &idle)
}

fn print(
    args: &Args,
    rows: &[(&Harm, Times)],
    cut: &[f64],
    power: &[f64],
    idle: &[(&str, f64, u64)],
) -> miette::Result<ExitCode> {
    if args.json {
        let harms: Vec<Value> = rows
            .iter()
            .map(|(harm, t)| json!({ "harm": harm.name, "noticed": t.noticed, "healed": t.healed, "kits": harm.kits }))
            .collect();
        let idle: Vec<Value> =
            idle.iter().map(|(node, cpu, bytes)| json!({ "node": node, "cpuShare": cpu, "bytes": bytes })).collect();
        let all = json!({ "harms": harms, "railsCut": cut, "powerToServing": power, "idle": idle });
        println!("{}", serde_json::to_string_pretty(&all).into_diagnostic()?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("| | noticed | serves again | the kits notice |\n|---|---|---|---|");
    for (harm, times) in rows {
        let (noticed, healed) = (median(&times.noticed), median(&times.healed));
        println!("| {} | {noticed:.1} s | {healed:.1} s | {} |", harm.name, harm.kits);
    }
    println!("| both rails cut, told on both nodes | {:.1} s | | never |", median(cut));
    println!("| power back on both nodes, booted to serving | | {:.1} s | |", median(power));
    for (node, cpu, bytes) in idle {
        println!("supervisor of {node}, serving, idle: {:.2} % of a core, {:.1} MB", cpu * 100.0, *bytes as f64 / 1e6);
    }
    Ok(ExitCode::SUCCESS)
}

fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What a node's supervisor says of itself.
fn engine(lab: &Lab, node: &str) -> Value {
    let said = lab.exec(node, &["cat", "/run/sparklane/engine.json"]);
    said.ok().and_then(|output| serde_json::from_str(&output.stdout).ok()).unwrap_or_default()
}

fn until(what: &str, is: impl Fn() -> bool) -> miette::Result<()> {
    let begin = Instant::now();
    while !is() {
        if begin.elapsed() > PATIENCE {
            bail!("{what}: not within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Waits until both nodes serve in one attempt other than `before`; gives it.
fn serving(lab: &Lab, before: &str) -> miette::Result<String> {
    until("both nodes serve", || {
        let [head, worker] = NODES.map(|node| engine(lab, node));
        let good = |e: &Value| e["state"] == "SERVING";
        good(&head) && good(&worker) && head["attempt"] == worker["attempt"] && head["attempt"] != before
    })?;
    Ok(engine(lab, "head")["attempt"].as_str().unwrap_or_default().to_owned())
}

fn harmed(lab: &Lab, harm: &Harm) -> miette::Result<(f64, f64)> {
    // What failed before makes the next start pause: begun on purpose, it counts no more.
    for node in NODES {
        lab.check(node, &["systemctl", "restart", "--no-block", "sparklane-engine"]).into_diagnostic()?;
    }
    std::thread::sleep(Duration::from_secs(2));
    let before = serving(lab, "")?;
    let begin = Instant::now();
    lab.check(harm.node, &["sh", "-c", harm.script]).into_diagnostic()?;
    until("the other node notices", || {
        let now = engine(lab, harm.notices);
        now["state"] != "SERVING" || now["attempt"] != before.as_str()
    })?;
    let noticed = begin.elapsed().as_secs_f64();
    serving(lab, &before)?;
    Ok((noticed, begin.elapsed().as_secs_f64()))
}

/// Seconds until both nodes say that the other is silent.
fn rails_cut(lab: &Lab) -> miette::Result<f64> {
    let before = serving(lab, "")?;
    lab.cut("rails").into_diagnostic()?;
    let begin = Instant::now();
    let told = until("both nodes doubt", || NODES.iter().all(|node| engine(lab, node)["state"] == "DEGRADED"));
    let seconds = begin.elapsed().as_secs_f64();
    lab.heal("rails").into_diagnostic()?;
    told?;
    until("both nodes serve", || NODES.iter().all(|node| engine(lab, node)["state"] == "SERVING"))?;
    eprintln!("xtask: rails cut: told after {seconds:.2} s (attempt {before})");
    Ok(seconds)
}

/// Seconds from the second node's boot to serving, after a power cut of both.
fn power_cut(lab: &Lab) -> miette::Result<f64> {
    let before = serving(lab, "")?;
    for node in NODES {
        lab.kill(node).into_diagnostic()?;
    }
    for node in NODES {
        lab.start(node).into_diagnostic()?;
    }
    let begin = Instant::now();
    serving(lab, &before)?;
    let seconds = begin.elapsed().as_secs_f64();
    eprintln!("xtask: power back: serving {seconds:.2} s after the second boot");
    Ok(seconds)
}

/// Node, share of a core, and bytes in memory of each supervisor while the lane serves nobody but its own canaries.
fn idle(lab: &Lab) -> miette::Result<Vec<(&'static str, f64, u64)>> {
    let ticks = |node: &str| -> miette::Result<(u64, u64)> {
        let pid = engine(lab, node)["pid"].as_u64().unwrap_or_default();
        let text = lab.check(node, &["cat", &format!("/proc/{pid}/stat")]).into_diagnostic()?;
        // After the name in brackets: state is the first, utime the 12th, stime the 13th, resident pages the 22nd.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or_default();
        Ok((field(11) + field(12), field(21) * 4096))
    };
    let before = NODES.map(ticks);
    std::thread::sleep(IDLE);
    let mut rows = Vec::new();
    for (node, before) in NODES.iter().zip(before) {
        let (after, bytes) = ticks(node)?;
        rows.push((*node, (after - before?.0) as f64 / TICKS / IDLE.as_secs_f64(), bytes));
    }
    Ok(rows)
}
