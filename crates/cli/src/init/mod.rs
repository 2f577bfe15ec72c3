//! `sparklane init`: machines become a cluster.

mod ask;
mod file;
mod reach;
mod tool;

use std::process::ExitCode;
use std::time::Instant;

use camino::Utf8PathBuf;
use serde::Serialize;
use sparklane_init::apply::{State, Task, apply};
use sparklane_init::plan::plan;
use sparklane_init::propose::{Finding, Level, Proposal, Wishes, propose};
use sparklane_init::remote::Ssh;
use sparklane_init::{InitError, Survey, show};
use sparklane_lane::{ClusterName, LaneName, NodeName, System};

use crate::report::refused;
use ask::Manner;
use reach::Reached;

/// Make machines a cluster: look at them, propose the cluster file, bring each to where a deployment passes its checks.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane init 192.168.1.10 192.168.1.11 --dry-run
  sparklane init spark-a spark-b --name home
  sparklane init 192.168.1.10 192.168.1.11 --yes --accept-host-keys --json
  sparklane init 10.77.0.10 10.77.0.11 --name lab2 --lane lab-a --rails rail1,rail2

Machines without RDMA or a GPU rehearse: no NIC tells which netdevs are the rails, so name two of them with --rails, neither
the one by which you come in nor that of the default route. A new file says what they lack (`absent`, so that checks say
n/a) and, without a GPU, takes lab-a. A file made for Sparks, as the template's cluster.nix, does not fit them and is refused: move it away
first, or name another with --file.

The nodes need an ssh login and sudo without a password, and nothing else: a program is copied to each, asked and removed.
Run again, it goes on where it was cut off, and changes nothing when nothing is left to do.

Exit codes: 0 done, or nothing to do; 1 refused before any change; 2 usage; 3 failed on the way, or a step was declined.")]
pub struct Args {
    /// Name or address of each node on the management network; the head comes first.
    #[arg(required = true, num_args = 2.., value_name = "HOST")]
    hosts: Vec<String>,
    /// The cluster's name [default: that of the file that is there, else home]
    #[arg(long)]
    name: Option<ClusterName>,
    /// The cluster file [default: nix/clusters/NAME.nix where that folder is, else cluster.nix]
    #[arg(long, value_name = "FILE")]
    file: Option<Utf8PathBuf>,
    /// User on the nodes, with sudo and no password [default: who calls]
    #[arg(long, value_name = "USER")]
    ssh_user: Option<String>,
    /// One further argument of ssh; repeat it for more.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    ssh_opts: Vec<String>,
    /// Lane that `deploy` takes when none is named [default: ray-0731; lab-a for machines without a GPU]
    #[arg(long)]
    lane: Option<LaneName>,
    /// Netdevs of rail 1 and rail 2, the same on all nodes [default: the halves of the ConnectX-7 with the cable]
    #[arg(long, value_name = "NETDEV,NETDEV", value_parser = two)]
    rails: Option<[String; 2]>,
    /// File with the secret key that signs closures; made when it is missing.
    #[arg(long, value_name = "FILE", default_value = "/etc/sparklane/signing.key")]
    signing_key: Utf8PathBuf,
    /// Program to copy to nodes of a system, as cargo xtask prebuilt makes it: SYSTEM=FILE.
    #[arg(long, value_name = "SYSTEM=FILE", value_parser = tool::of_system)]
    tool: Vec<(System, Utf8PathBuf)>,
    /// Believe a node whose host key is not known yet when it is this one; SHA256:… as ssh-keygen -l prints it.
    #[arg(long, value_name = "HOST=FINGERPRINT", value_parser = pair)]
    host_key: Vec<(String, String)>,
    /// Believe host keys that are not known yet without comparing them. A key that has changed is never believed.
    #[arg(long)]
    accept_host_keys: bool,
    /// Do every step without asking.
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
    /// Show what would be done, do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

fn two(text: &str) -> Result<[String; 2], String> {
    match text.split_once(',') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() && a != b => Ok([a.to_owned(), b.to_owned()]),
        _ => Err("is not two netdevs: NETDEV,NETDEV".to_owned()),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (host, print) = text.split_once('=').ok_or("is not HOST=SHA256:…")?;
    if print.starts_with("SHA256:") { Ok((host.to_owned(), print.to_owned())) } else { Err("is no SHA256:…".into()) }
}

/// A task and what became of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    /// `None` for this host.
    node: Option<NodeName>,
    what: String,
    #[serde(flatten)]
    state: RowState,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RowState {
    state: State,
}

/// The whole run, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// `unchanged`, `planned`, `done`, `refused`, `failed`.
    verdict: &'static str,
    exit_code: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    cluster: ClusterName,
    file: Utf8PathBuf,
    /// What the file is to hold; `None` when something stops it.
    text: Option<String>,
    findings: Vec<Finding>,
    steps: Vec<Row>,
    millis: u64,
}

/// Everything that was seen and is to be done.
struct Seen {
    wishes: Wishes,
    proposal: Proposal,
    surveys: Vec<Survey>,
    tasks: Vec<Task>,
    file: file::ClusterFile,
    hands: Ssh,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    let begin = Instant::now();
    match go(args) {
        Ok(mut report) => {
            report.millis = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
            let code = report.exit_code;
            if args.json {
                println!("{}", serde_json::to_string(&report).unwrap_or_default());
            }
            if let Some(why) = &report.why {
                eprintln!("{}: {why}", report.verdict);
            }
            Ok(ExitCode::from(code))
        }
        Err(error) => Ok(refused(args.json, error.exit_code(), &error.to_string())),
    }
}

fn go(args: &Args) -> Result<Report, InitError> {
    let manner = Manner::of(args);
    let control = sparklane_deploy::ssh::control_dir()?;
    let mut seen = look(args, manner, &control)?;
    let text = show::plan(&seen.wishes, &seen.surveys, &seen.proposal, &seen.tasks);
    if !args.json {
        print!("{text}");
        if let Some(more) = seen.file.shown() {
            print!("{more}");
        }
    }
    let planned = vec![State::Planned; seen.tasks.len()];
    if seen.proposal.cluster.is_none() {
        let stops = seen.proposal.findings.iter().filter(|f| f.level == Level::Stops).cloned().collect::<Vec<_>>();
        return Ok(report(&seen, planned, ("refused", 1), Some(show::findings(&stops).trim_end().to_owned())));
    }
    if seen.tasks.is_empty() {
        return Ok(report(&seen, planned, ("unchanged", 0), None));
    }
    let mut asks = match manner {
        Manner::DryRun => return Ok(report(&seen, planned, ("planned", 0), None)),
        Manner::Nobody => {
            let why =
                "nothing was changed: there is no terminal to ask at. --yes does every step, --dry-run only shows them";
            return Ok(report(&seen, planned, ("refused", 1), Some(why.to_owned())));
        }
        Manner::All | Manner::Terminal => ask::Operator::new(manner),
    };
    let states = apply(&seen.tasks, &mut seen.hands, &mut asks);
    Ok(judge(args, &mut seen, states))
}

/// Looks at everything.
fn look(args: &Args, manner: Manner, control: &tempfile::TempDir) -> Result<Seen, InitError> {
    let mut file = file::ClusterFile::find(args)?;
    let (wishes, key) = file.wishes(args)?;
    let Reached { remotes, surveys } = reach::all(args, &wishes, manner, control)?;
    let mut proposal = propose(&wishes, &surveys);
    let machines: Vec<_> = wishes.nodes.iter().zip(surveys.iter().map(|s| &s.machine)).collect();
    let plan = plan(&machines, &wishes.user, wishes.trusted_key.as_deref());
    if !plan.findings.is_empty() {
        proposal.cluster = None;
        proposal.findings.extend(plan.findings);
        proposal.findings.sort();
    }
    let mut tasks: Vec<Task> = key.into_iter().map(Task::File).collect();
    tasks.extend(plan.steps.into_iter().map(Task::Node));
    if let Some(cluster) = &proposal.cluster {
        tasks.extend(file.task(cluster).map(Task::File));
    } else {
        tasks.clear();
    }
    Ok(Seen { wishes, proposal, surveys, tasks, file, hands: Ssh { remotes } })
}

/// What became of it, read back from the nodes.
fn judge(args: &Args, seen: &mut Seen, states: Vec<State>) -> Report {
    let failed = seen.tasks.iter().zip(&states).find_map(|(task, state)| match state {
        State::Failed(why) => Some(format!("{}: {}: {why}", place(task), task.says())),
        _ => None,
    });
    let begun = states.iter().any(|s| matches!(s, State::Done | State::Failed(_)));
    let again = "run the same command again: it goes on from there";
    if let Some(why) = failed {
        return report(seen, states, ("failed", 3), Some(format!("{why}\n{again}")));
    }
    if states.iter().any(|s| *s != State::Done) {
        let (verdict, code) = if begun { ("failed", 3) } else { ("refused", 1) };
        let why = format!("not every step was agreed to; {again}");
        return report(seen, states, (verdict, code), Some(why));
    }
    match reach::left(args, &seen.wishes, &seen.hands.remotes) {
        Ok(left) if left.is_empty() => {
            if !args.json {
                print!("{}", seen.file.next(&seen.wishes));
            }
            report(seen, states, ("done", 0), None)
        }
        Ok(left) => {
            let why = format!("read back, this is still to be done: {}", left.join("; "));
            report(seen, states, ("failed", 3), Some(why))
        }
        Err(error) => report(seen, states, ("failed", 3), Some(format!("{error}\n{again}"))),
    }
}

fn place(task: &Task) -> &str {
    task.node().map_or("here", NodeName::as_str)
}

fn report(seen: &Seen, states: Vec<State>, (verdict, exit_code): (&'static str, u8), why: Option<String>) -> Report {
    let row = |(task, state): (&Task, State)| Row {
        node: task.node().cloned(),
        what: task.says(),
        state: RowState { state },
    };
    Report {
        verdict,
        exit_code,
        why,
        cluster: seen.wishes.name.clone(),
        file: seen.file.path().to_owned(),
        text: seen.proposal.cluster.as_ref().map(sparklane_init::nix::file),
        findings: seen.proposal.findings.clone(),
        steps: seen.tasks.iter().zip(states).map(row).collect(),
        millis: 0,
    }
}
