//! `sparklane txn …`: the transactions of this node.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use sparklane_host::decide::{self, Word};
use sparklane_host::{HostError, HostPaths, peer, resolve, serve, talk, txns};
use sparklane_lane::TxnId;
use sparklane_txn::{Boot, State};

use crate::node::{exit, print};
use crate::parts;

/// Transactions of this node.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane txn list
  sudo sparklane txn resolve
  sudo sparklane txn decide 20261130-101500-a1b2c3 aborted")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print every transaction this node knows, one line each.
    List,
    /// Run a staged transaction to its end (what sparklane-txn@ID.service does).
    #[command(hide = true)]
    Run {
        /// Transaction
        id: TxnId,
    },
    /// Pass orders from stdin to a running transaction.
    #[command(hide = true)]
    Talk {
        /// Transaction
        id: TxnId,
    },
    /// Say what the head decided (asked by workers).
    Decision {
        /// Transaction; taken from ssh's original command with --ssh.
        id: Option<TxnId>,
        /// Run as a forced command.
        #[arg(long, conflicts_with = "id")]
        ssh: bool,
    },
    /// On a worker in doubt whose head is gone for good: say yourself what became of the transaction.
    ///
    /// Refused while the head answers. `committed` keeps the new lane, `aborted` returns to the old one.
    Decide {
        /// Transaction in doubt
        id: TxnId,
        /// What became of it
        #[arg(value_parser = words())]
        word: Word,
    },
    /// End what a crash left: to exactly the old or exactly the new generation.
    Resolve {
        /// Run before the lane, from the boot unit: waits for nothing.
        #[arg(long)]
        boot: bool,
    },
}

/// What a person may decide.
fn words() -> impl TypedValueParser<Value = Word> {
    let shown = |word: Word| PossibleValue::new(word.as_str()).help(word.meaning());
    PossibleValuesParser::new(Word::ALL.map(shown)).try_map(|text| text.parse::<Word>())
}

/// Asking the head takes up to fifteen seconds, going back a stop, a start and the proof.
const FOLLOW: Duration = Duration::from_secs(120);

/// systemd takes death by SIGTERM for a wanted end and starts nothing; as a failure it is a crash like any other, and the
/// next process ends the transaction by its journal.
fn fail_on_terminate() -> std::io::Result<()> {
    crate::signals::on(tokio::signal::unix::SignalKind::terminate(), || std::process::exit(143))
}

/// Runs the subcommand. Exit codes: 0 done, 1 refused, 4 in doubt or stuck, 5 busy.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let paths = HostPaths::system();
    let done = match args.command {
        Command::List => list(&paths),
        Command::Run { id } => {
            if let Err(error) = fail_on_terminate() {
                tracing::warn!(%error, "a SIGTERM would end the transaction's process for good");
            }
            serve::run(&paths, &id, parts::real()).map(drop)
        }
        Command::Talk { id } => talk::talk(&paths, &id, std::io::stdin().lock(), std::io::stdout().lock()),
        Command::Decision { id, ssh } => decision(&paths, id, ssh),
        Command::Decide { id, word } => return Ok(decide(&paths, &id, word)),
        Command::Resolve { boot } => return Ok(resolve(&paths, boot)),
    };
    Ok(exit(done))
}

fn list(paths: &HostPaths) -> Result<(), HostError> {
    for txn in txns::list(paths)? {
        let (state, spec) = (txn.state().map_or("unreadable", State::as_str), txn.spec());
        let (owner, to) = spec.map_or(("", ""), |s| (s.owner.as_str(), s.to.path.as_str()));
        println!("{}  {state}  {owner}  {to}", txn.id);
    }
    Ok(())
}

fn decision(paths: &HostPaths, id: Option<TxnId>, ssh: bool) -> Result<(), HostError> {
    let original = std::env::var("SSH_ORIGINAL_COMMAND").unwrap_or_default();
    let id = if ssh { peer::asked_for(&original) } else { id };
    let Some(id) = id else {
        return Err(HostError::Refused("this key may only ask: sparklane txn decision ID".into()));
    };
    print(&txns::decision(paths, &id)?)
}

fn decide(paths: &HostPaths, id: &TxnId, word: Word) -> ExitCode {
    if let Err(error) = decide::decide(paths, id, word, |id| peer::ask(paths, id)) {
        return exit(Err(error));
    }
    // The process in doubt asks every two seconds and holds the lock; without one we end it ourselves.
    match resolve::resolve(paths, Boot::Same, &parts::real) {
        Ok(_) | Err(HostError::Busy(_)) => {}
        Err(error) => return exit(Err(error)),
    }
    match decide::followed(paths, id, FOLLOW) {
        Ok(Some(state @ (State::Committed | State::RolledBack))) => {
            println!("{id}: {state}, by your word. When the head is back: sparklane status, then deploy");
            ExitCode::SUCCESS
        }
        Ok(state) => {
            let is = state.map_or("gone", State::as_str);
            eprintln!("{id}: is {is}; look: journalctl -u 'sparklane-txn@*'");
            ExitCode::from(4)
        }
        Err(error) => exit(Err(error)),
    }
}

fn any_doubt(paths: &HostPaths) -> bool {
    // A journal that cannot be read is a doubt too.
    txns::list(paths).map_or(true, |all| all.iter().any(|t| t.state() == Some(State::InDoubt)))
}

fn resolve(paths: &HostPaths, boot: bool) -> ExitCode {
    let when = if boot { Boot::Early } else { Boot::Same };
    let resolved = match resolve::resolve(paths, when, &parts::real) {
        Ok(resolved) => resolved,
        // The lane is started by a living transaction, which has the lock and decides; only a doubt keeps it down.
        Err(HostError::Busy(_)) if boot && !any_doubt(paths) => return ExitCode::SUCCESS,
        Err(error) => return exit(Err(error)),
    };
    let mut code = 0;
    for one in resolved {
        let why = one.why.map_or_else(String::new, |w| format!(": {w}"));
        println!("{}: {} -> {}{why}", one.txn, one.from, one.to);
        if !matches!(one.to, State::Committed | State::RolledBack) {
            code = 4;
        }
        // Nobody waits in the boot unit: a process of its own goes on asking and starts the lane when it may.
        if boot && matches!(one.to, State::InDoubt | State::Gated) {
            code = 4;
            let tool = format!("{}/bin/sparklane", paths.tool());
            let argv = [tool, "txn".into(), "run".into(), one.txn.to_string()];
            let unit = format!("sparklane-txn@{}.service", one.txn);
            if let Err(error) = parts::real().units.spawn(&unit, "sparklane transaction in doubt", &argv) {
                eprintln!("{error}");
            }
        }
    }
    if code == 0 && !boot {
        match resolve::wake(paths, &*parts::real().units) {
            Ok(started) => started.iter().for_each(|unit| println!("started {unit}, which the boot had left down")),
            Err(error) => return exit(Err(error)),
        }
    }
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_persons_word_is_one_of_the_hosts() {
        for word in Word::ALL {
            let line = Line::try_parse_from(["txn", "decide", "20261130-101500-a1b2c3", word.as_str()]).unwrap();
            assert!(matches!(line.args.command, Command::Decide { word: given, .. } if given == word));
        }
        let error = Line::try_parse_from(["txn", "decide", "20261130-101500-a1b2c3", "maybe"]).unwrap_err();
        assert!(error.to_string().contains("committed, aborted"), "{error}");
        assert!(
            Line::command()
                .find_subcommand_mut("decide")
                .unwrap()
                .render_long_help()
                .to_string()
                .contains("The new lane stays")
        );
    }
}
