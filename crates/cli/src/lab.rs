//! `sparklane lab …`: the rehearsal machines.

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use camino::Utf8PathBuf;
use clap::Subcommand;
use miette::{Context, IntoDiagnostic, miette};
use serde_json::json;
use sparklane_lab::{Lab, LabError, Paths, Status, UpOptions, owner};

/// Rehearsal machines on this host: control, head and worker.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane lab up
  sparklane lab shell control
  sparklane lab shell head -- docker ps
  sparklane lab cut head:rail1
  sparklane lab heal rails
  sparklane lab down")]
pub struct Args {
    /// Print one JSON object instead of lines for people.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make and start the three machines; what runs is left alone, the checkout's files are brought up to date.
    Up(Up),
    /// End the machines and remove everything but the caches.
    Down,
    /// Say what runs and which cables are pulled. Exit code 1 when not all machines run.
    Status,
    /// Run a command in a machine as root, or a shell without one.
    Shell {
        /// control, head or worker
        node: String,
        /// The command and its arguments.
        #[arg(last = true)]
        argv: Vec<String>,
    },
    /// Restart a machine in an orderly way and wait until it has booted.
    Reboot {
        /// control, head or worker
        node: String,
    },
    /// Cut a machine's power: all its processes end at once.
    Kill {
        /// control, head or worker
        node: String,
    },
    /// Start a machine that is off.
    Start {
        /// control, head or worker
        node: String,
    },
    /// Pull cables: NODE:mgmt, NODE:rail1, NODE:rail2, NODE:rails, or a network's name for all its cables.
    Cut {
        /// e.g. head:rail1, worker:mgmt, rails
        link: String,
    },
    /// Plug cables in again.
    Heal {
        /// e.g. head:rail1, worker:mgmt, rails
        link: String,
    },
}

#[derive(Debug, clap::Args)]
struct Up {
    /// Checkout to put into control:/root/sparklane [default: the one that holds the current folder]
    #[arg(long, value_name = "DIR")]
    flake: Option<Utf8PathBuf>,
    /// What `cargo xtask prebuilt` made [default: prebuilt in the checkout]
    #[arg(long, value_name = "DIR")]
    prebuilt: Option<Utf8PathBuf>,
    /// Give head and worker a file system of this size for /var/lib/sparklane, for disk-full tests
    #[arg(long, value_name = "MIB")]
    state_size: Option<u64>,
}

/// Runs the command.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let paths = Paths::from_env();
    match args.command {
        Command::Up(up) => return run_up(paths, up, args.json),
        Command::Down => {
            Lab::down(&paths).into_diagnostic()?;
            owner::disown(&paths).into_diagnostic()?;
        }
        Command::Status => return show(&paths, args.json),
        Command::Shell { node, argv } => return shell(&node, &argv),
        Command::Reboot { node } => attach()?.reboot(&node).into_diagnostic()?,
        Command::Kill { node } => attach()?.kill(&node).into_diagnostic()?,
        Command::Start { node } => attach()?.start(&node).into_diagnostic()?,
        Command::Cut { link } => attach()?.cut(&link).into_diagnostic()?,
        Command::Heal { link } => attach()?.heal(&link).into_diagnostic()?,
    }
    if args.json {
        println!("{}", json!({ "ok": true }));
    }
    Ok(ExitCode::SUCCESS)
}

fn attach() -> miette::Result<Lab> {
    Lab::attach().into_diagnostic()
}

fn run_up(paths: Paths, up: Up, as_json: bool) -> miette::Result<ExitCode> {
    let flake = match up.flake {
        Some(dir) => Some(dir),
        None => checkout(),
    };
    let prebuilt = up.prebuilt.or_else(|| flake.as_ref().map(|f| f.join("prebuilt")).filter(|p| p.exists()));
    if flake.is_none() {
        eprintln!("note: not in a checkout, so control has no /root/sparklane (say --flake DIR)");
    }
    if prebuilt.is_none() {
        eprintln!("note: no prebuilt programs, so nothing can be deployed; make them with: cargo xtask prebuilt");
    }
    let options = UpOptions { flake, prebuilt, state_size_mib: up.state_size };
    owner::disown(&paths).into_diagnostic()?;
    let lab = Lab::up(paths, &options, &|text| eprintln!("{text}")).into_diagnostic().wrap_err("the lab is not up")?;
    show(lab.paths(), as_json)
}

/// The checkout that holds the current folder: where `flake.nix` or `.git` is.
fn checkout() -> Option<Utf8PathBuf> {
    let here = Utf8PathBuf::from_path_buf(std::env::current_dir().ok()?).ok()?;
    here.ancestors().find(|d| d.join(".git").exists()).map(Utf8PathBuf::from)
}

fn show(paths: &Paths, as_json: bool) -> miette::Result<ExitCode> {
    let status = Lab::status(paths).into_diagnostic()?;
    if as_json {
        println!("{}", serde_json::to_string(&status).into_diagnostic()?);
    } else {
        print(&status);
    }
    Ok(if status.up { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn print(status: &Status) {
    for node in &status.nodes {
        let addresses: Vec<String> = node.addresses.iter().map(|(net, a)| format!("{net} {a}")).collect();
        println!("{:8} {:9} {}", node.name, node.state, addresses.join("  "));
    }
    if !status.cut.is_empty() {
        println!("cut: {}", status.cut.join(" "));
    }
}

fn shell(node: &str, argv: &[String]) -> miette::Result<ExitCode> {
    let argv: Vec<&str> = if argv.is_empty() { vec!["bash", "-l"] } else { argv.iter().map(String::as_str).collect() };
    let mut command = attach()?.command(node, &argv).into_diagnostic()?;
    if std::io::stdin().is_terminal() {
        command.env("TERM", std::env::var("TERM").unwrap_or_else(|_| "xterm".to_owned()));
    }
    // The command takes this process's place, so its exit code and signals are exactly its own.
    let error: LabError = LabError::Io { what: "start nsenter".to_owned(), source: command.exec() };
    Err(miette!("{error}"))
}
