//! The operator: at a terminal, by `--yes`, or not there.

use std::io::{BufRead as _, IsTerminal as _};

use sparklane_init::apply::{Ask, Consent, State, Task};

use super::{Args, place};

/// How consent is had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Given beforehand.
    All,
    /// Not wanted: nothing is done.
    DryRun,
    /// Asked for at the terminal.
    Terminal,
    /// Nobody is there to ask.
    Nobody,
}

impl Manner {
    /// By the arguments and by who is there.
    pub fn of(args: &Args) -> Self {
        match (args.yes, args.dry_run) {
            (true, _) => Self::All,
            (_, true) => Self::DryRun,
            _ if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() => Self::Terminal,
            _ => Self::Nobody,
        }
    }
}

/// One answer from the terminal; an end of input is a no.
pub fn line(question: &str) -> String {
    crate::say::err(format_args!("{question} "));
    let mut text = String::new();
    let _read = std::io::stdin().lock().read_line(&mut text);
    text.trim().to_lowercase()
}

/// Asks before each change, and tells what became of it.
pub struct Operator {
    all: bool,
}

impl Operator {
    /// Someone who was asked already, or is at the terminal.
    pub fn new(manner: Manner) -> Self {
        Self { all: manner == Manner::All }
    }
}

impl Ask for Operator {
    fn ask(&mut self, task: &Task) -> Consent {
        if self.all {
            eprintln!("{:<8} {}", place(task), task.says());
            return Consent::Yes;
        }
        let question = format!("{}: {}? [y]es, [n]o, [a]ll, [q]uit:", place(task), task.says());
        match line(&question).as_str() {
            "y" | "yes" => Consent::Yes,
            "a" | "all" => {
                self.all = true;
                Consent::Yes
            }
            "n" | "no" => Consent::No,
            _ => Consent::Stop,
        }
    }

    fn told(&mut self, task: &Task, state: &State) {
        match state {
            State::Done => eprintln!("{:<8} done", place(task)),
            State::Failed(why) => eprintln!("{:<8} failed: {why}", place(task)),
            State::Declined => eprintln!("{:<8} declined", place(task)),
            State::Skipped => {
                eprintln!("{:<8} left out, as what it builds on was declined: {}", place(task), task.says())
            }
            State::Planned => {}
        }
    }
}
