//! `cargo xtask bench deploy`: the figures of the deploy part, all in one run.

use std::process::ExitCode;
use std::time::Instant;

use miette::{Context, IntoDiagnostic, bail};
use serde_json::Value;
use sparklane_lab::{Lab, Paths};
use xshell::Shell;

use super::memory;
use super::peer::{self, Peer};
use super::report::{self, Figures, Times};
use crate::{packages, prebuilt, rehearse, workspace};

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Times each step is measured; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
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

/// The lab cluster's nodes, head first.
pub const NODES: [&str; 2] = ["head", "worker"];

/// From, and to. They differ in one flag.
const LANES: [&str; 2] = ["lab-a", "lab-b"];

const FLAKE: &str = "path:/root/sparklane";
const PREBUILT: [&str; 3] = ["--override-input", "prebuilt", "path:/root/prebuilt"];

/// Measures everything and prints it. A missed aim is printed, not an error: time depends on the machine.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    args.claim.take("cargo xtask bench deploy")?;
    let sh = Shell::new().into_diagnostic()?;
    sh.change_dir(workspace());
    packages::ensure(&sh)?;
    let binary = workspace().join("prebuilt").join(prebuilt::System::X86_64.name()).join("sparklane");
    if !(args.no_build && binary.exists()) {
        prebuilt::run(&prebuilt::Args { system: vec![prebuilt::System::X86_64] })?;
    }
    let peer = Peer::ensure(&sh)?;
    let lab = fresh_lab()?;
    peer.install(&lab)?;
    let copied = lacking(&lab)?;
    let load = report::load();
    let (ours, peer) = rounds(&lab, args.rounds)?;
    let memory = memory::watch(&lab, || our_round(&lab, &mut Times::default()))?;
    let figures = Figures { ours, peer, binaries: binaries(), copied, memory, load: [load, report::load()] };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&figures.json()).into_diagnostic()?);
    } else {
        print!("{}", figures.table());
    }
    Ok(ExitCode::SUCCESS)
}

/// A new lab that serves the first lane.
pub(super) fn fresh_lab() -> miette::Result<Lab> {
    Lab::down(&Paths::from_env()).into_diagnostic()?;
    let lab = rehearse::lab_up()?;
    timed(&lab, &app("deploy", &[LANES[0]]))?;
    Ok(lab)
}

/// Both sides in turn, so that what else the machine does falls on both. Between them the other side takes the nodes over
/// on the first lane, which is not timed.
fn rounds(lab: &Lab, count: u32) -> miette::Result<(Times, Times)> {
    let (mut ours, mut peer) = (Times::default(), Times::default());
    for round in 1..=count {
        our_round(lab, &mut ours)?;
        timed(lab, &peer::argv(LANES[0]))?;
        peer_round(lab, &mut peer)?;
        timed(lab, &app("deploy", &[LANES[0]]))?;
        let last = |t: &Times| {
            let last = |v: &[f64]| v.last().copied().unwrap_or(f64::NAN);
            format!("{:.2} {:.2} {:.2}", last(&t.noop), last(&t.switch), last(&t.rollback))
        };
        let (ours, peer) = (last(&ours), last(&peer));
        eprintln!("xtask: round {round}/{count}: no-op, switch, rollback: sparklane {ours} s, deploy-rs {peer} s");
    }
    Ok((ours, peer))
}

fn our_round(lab: &Lab, times: &mut Times) -> miette::Result<()> {
    times.noop.push(timed(lab, &app("deploy", &[LANES[0]]))?.0);
    let (seconds, verdict) = timed(lab, &app("deploy", &[LANES[1], "--json"]))?;
    times.switch.push(seconds);
    let verdict: Value = serde_json::from_str(&verdict).into_diagnostic().wrap_err("no verdict")?;
    let Some(before) = verdict["previous"].as_u64() else { bail!("the verdict names no release before: {verdict}") };
    times.rollback.push(timed(lab, &app("rollback", &["--to", &before.to_string()]))?.0);
    Ok(())
}

fn peer_round(lab: &Lab, times: &mut Times) -> miette::Result<()> {
    times.noop.push(timed(lab, &peer::argv(LANES[0]))?.0);
    times.switch.push(timed(lab, &peer::argv(LANES[1]))?.0);
    // It has no other way back than to deploy what was before.
    times.rollback.push(timed(lab, &peer::argv(LANES[0]))?.0);
    Ok(())
}

/// Seconds of a whole command on control, and what it printed.
fn timed(lab: &Lab, argv: &[String]) -> miette::Result<(f64, String)> {
    let words: Vec<&str> = argv.iter().map(String::as_str).collect();
    let begin = Instant::now();
    let output = lab.exec("control", &words).into_diagnostic()?;
    let seconds = begin.elapsed().as_secs_f64();
    if output.code != Some(0) {
        bail!("{} ended with {:?}:\n{}{}", words.join(" "), output.code, output.stdout, output.stderr);
    }
    Ok((seconds, output.stdout))
}

/// One of the flake's apps, as an operator runs it.
fn app(name: &str, arguments: &[&str]) -> Vec<String> {
    let mut argv = vec!["nix".to_owned(), "run".to_owned(), format!("{FLAKE}#{name}")];
    argv.extend(PREBUILT.map(str::to_owned));
    argv.push("--".to_owned());
    argv.extend(arguments.iter().map(|a| (*a).to_owned()));
    argv.extend(["--cluster", "lab"].map(str::to_owned));
    argv
}

/// The closures of a lane, in the order of [`NODES`], built on control.
fn closures(lab: &Lab, lane: &str) -> miette::Result<Vec<String>> {
    let installables = NODES.map(|node| format!("{FLAKE}#generation-lab-{lane}-{node}"));
    let mut argv = vec!["nix", "build", "--no-link", "--print-out-paths"];
    argv.extend(PREBUILT);
    argv.extend(installables.iter().map(String::as_str));
    let paths = lab.check("control", &argv).into_diagnostic()?;
    Ok(paths.lines().map(str::to_owned).collect())
}

/// What each node lacks of the second lane while it has the first: the NAR sizes of those paths.
fn lacking(lab: &Lab) -> miette::Result<Vec<(&'static str, u64)>> {
    let closures = closures(lab, LANES[1])?;
    NODES
        .into_iter()
        .zip(&closures)
        .map(|(node, closure)| {
            let sizes = lab.check("control", &["nix", "path-info", "--recursive", "--size", closure]);
            let sizes = sizes.into_diagnostic()?;
            let rows: Vec<(&str, u64)> = sizes.lines().filter_map(path_and_size).collect();
            let mut ask = vec!["nix-store", "--check-validity", "--print-invalid"];
            ask.extend(rows.iter().map(|(path, _)| *path));
            let missing = lab.check(node, &ask).into_diagnostic()?;
            let missing: Vec<&str> = missing.lines().collect();
            Ok((node, rows.iter().filter(|(path, _)| missing.contains(path)).map(|(_, size)| size).sum()))
        })
        .collect()
}

fn path_and_size(line: &str) -> Option<(&str, u64)> {
    let (path, size) = line.split_once(char::is_whitespace)?;
    Some((path, size.trim().parse().ok()?))
}

fn binaries() -> Vec<(&'static str, u64)> {
    let size = |system: prebuilt::System| {
        let file = workspace().join("prebuilt").join(system.name()).join("sparklane");
        Some((system.name(), std::fs::metadata(file).ok()?.len()))
    };
    [prebuilt::System::X86_64, prebuilt::System::Aarch64].into_iter().filter_map(size).collect()
}
