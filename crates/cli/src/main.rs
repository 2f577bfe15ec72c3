//! The `sparklane` command: a thin clap layer over the crates, dispatched by argv[0] for the flake's apps.

#[macro_use]
mod say;

mod build;
mod deploy;
mod deploy_rs;
mod doctor;
mod engine;
mod entry;
mod fabric;
mod given;
mod image;
mod init;
mod lab;
mod lane;
mod node;
mod parts;
#[cfg(test)]
mod reference;
mod report;
mod signals;
mod txn;
mod watchdog;
mod weights;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use sparklane_deploy::VerdictKind;

/// Puts a serving lane on a pair of DGX Sparks as one pinned, reversible generation.
#[derive(Debug, Parser)]
#[command(name = "sparklane", version, about, long_about = None)]
struct Cli {
    /// How log lines look.
    #[arg(long, global = true, value_enum, default_value_t = report::LogFormat::Text)]
    log_format: report::LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make machines a cluster: look at them, propose the cluster file, bring each to where a deployment can begin.
    Init(init::Args),
    /// Bring all nodes to a lane, or leave all as they were.
    Deploy(deploy::DeployArgs),
    /// Return all nodes to a prior release, by number or by lane.
    Rollback(deploy::RollbackArgs),
    /// Show what a deployment would change, on which node.
    Plan(deploy::PlanArgs),
    /// Show what each node serves, and what is open or in doubt.
    Status(deploy::StatusArgs),
    /// Look for everything that is known to go wrong, on all nodes, and explain it.
    Doctor(doctor::Args),
    /// List the cluster's releases.
    Releases(deploy::ReleasesArgs),
    /// A node's part of a deployment (run by `deploy` on the nodes).
    Node(node::Args),
    /// Transactions of this node.
    Txn(txn::Args),
    /// This node's engine.
    Engine(engine::Args),
    /// Rehearsal machines on this host: control, head and worker.
    Lab(lab::Args),
    /// List, show, check and compare lanes.
    Lane(lane::Args),
    /// Weights: lock, fetch, verify, send between nodes, adopt, collect.
    Weights(weights::Args),
    /// The machines and the cable between them: verify, measure, judge measurements.
    Fabric(fabric::Args),
    /// Pin, fetch, serve and send the images that lanes run.
    Image(image::Args),
    /// Build a derivation's output (run by Nix).
    #[command(hide = true)]
    Build(build::Args),
    /// Process 1 of the engine's container.
    #[command(hide = true)]
    Entry(entry::Args),
}

/// Names under which the flake's apps call the binary; each is the subcommand of that name.
const APPS: [&str; 6] = ["deploy", "rollback", "plan", "status", "releases", "lane"];

fn main() -> ExitCode {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let called = base_name(&argv);
    if deploy_rs::NAMES.contains(&called.as_str()) {
        report::start_log(report::LogFormat::Text);
        let args: Vec<String> = argv.iter().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
        return deploy_rs::run(&called, &args);
    }
    let argv = arguments(argv);
    let json = argv.iter().any(|a| a == "--json");
    let moves = argv.get(1).is_some_and(|a| a == "deploy" || a == "rollback");
    let cli = match Cli::command().try_get_matches_from(argv).and_then(|m| Cli::from_arg_matches(&m)) {
        Ok(cli) => cli,
        Err(error) => return not_understood(&error, json, moves),
    };
    report::start_log(cli.log_format);
    let done = match cli.command {
        Command::Init(args) => init::run(&args),
        Command::Deploy(args) => deploy::deploy(args),
        Command::Rollback(args) => deploy::rollback(args),
        Command::Plan(args) => deploy::plan(args),
        Command::Status(args) => deploy::status(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Releases(args) => deploy::releases(args),
        Command::Node(args) => node::run(args),
        Command::Txn(args) => txn::run(args),
        Command::Engine(args) => engine::run(args),
        Command::Lab(args) => lab::run(args),
        Command::Lane(args) => lane::run(args),
        Command::Weights(args) => weights::run(args),
        Command::Fabric(args) => fabric::run(args),
        Command::Image(args) => image::run(args),
        Command::Build(args) => build::run(args),
        Command::Entry(args) => entry::run(args),
    };
    done.unwrap_or_else(|error| match error.downcast_ref::<report::Usage>() {
        Some(usage) if json => usage_object(&usage.0, false),
        Some(_) => {
            eprintln!("{error:?}");
            ExitCode::from(2)
        }
        None => {
            eprintln!("{error:?}");
            if json {
                let why: Vec<String> = error.chain().map(ToString::to_string).collect();
                println!("{}", report::Failure::of(1, &why.join(": ")).json());
            }
            ExitCode::from(1)
        }
    })
}

/// `--help`, or what clap did not understand; programs get their one object for that too.
fn not_understood(error: &clap::Error, json: bool, moves: bool) -> ExitCode {
    if !error.use_stderr() {
        let _shown = error.print();
        return ExitCode::SUCCESS;
    }
    if json {
        return usage_object(error.to_string().trim(), moves);
    }
    let _shown = error.print();
    ExitCode::from(2)
}

/// Commands that move the cluster have one shape of answer, whatever becomes of them.
fn usage_object(why: &str, moves: bool) -> ExitCode {
    let whole = || {
        let about = sparklane_deploy::Subject::default();
        let verdict = sparklane_deploy::Verdict::plain(&about, VerdictKind::Usage, Some(why.to_owned()));
        serde_json::to_string(&verdict).ok()
    };
    println!("{}", moves.then(whole).flatten().unwrap_or_else(|| report::Failure::of(2, why).json()));
    ExitCode::from(2)
}

/// The name the program was called by.
fn base_name(argv: &[OsString]) -> String {
    let name = argv.first().and_then(|a| std::path::Path::new(a).file_name()).and_then(|n| n.to_str());
    name.unwrap_or_default().to_owned()
}

/// `deploy X` by a link named `deploy` is `sparklane deploy X`.
fn arguments(argv: Vec<OsString>) -> Vec<OsString> {
    let name = base_name(&argv);
    if !APPS.contains(&name.as_str()) {
        return argv;
    }
    let name = OsString::from(name);
    std::iter::once(OsString::from("sparklane")).chain([name]).chain(argv.into_iter().skip(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_app_is_its_subcommand() {
        let argv = arguments(vec!["/nix/store/x/bin/deploy".into(), "lab-a".into()]);
        assert_eq!(argv, ["sparklane", "deploy", "lab-a"]);
        let argv = arguments(vec!["./sparklane".into(), "status".into()]);
        assert_eq!(argv, ["./sparklane", "status"]);
    }
}
