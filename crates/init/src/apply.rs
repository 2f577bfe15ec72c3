//! Carrying a plan out: one task after the other, each after a yes, none after a failure.

use camino::Utf8PathBuf;
use serde::Serialize;
use sparklane_lane::NodeName;

use crate::plan::{Action, Order, Step};

/// A file of the control host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalFile {
    /// Where.
    pub path: Utf8PathBuf,
    /// Its whole content.
    pub text: String,
    /// Its mode.
    pub mode: u32,
    /// For people: what it is.
    pub says: String,
}

/// One change, here or on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// On a node.
    Node(Step),
    /// On this host.
    File(LocalFile),
}

impl Task {
    /// The node; `None` for this host.
    #[must_use]
    pub fn node(&self) -> Option<&NodeName> {
        match self {
            Self::Node(step) => Some(&step.node),
            Self::File(_) => None,
        }
    }

    /// For people: what will be different.
    #[must_use]
    pub fn says(&self) -> String {
        match self {
            Self::Node(step) => step.action.says(),
            Self::File(file) => file.says.clone(),
        }
    }
}

/// What became of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Not begun: only planned, or the run ended before it.
    Planned,
    /// Done.
    Done,
    /// The operator said no.
    Declined,
    /// Left out, as what it builds on was declined.
    Skipped,
    /// It failed; why.
    Failed(String),
}

/// Effects.
pub trait Hands {
    /// Runs a command on a node as root, to its end.
    ///
    /// # Errors
    /// Why it failed, in the node's words.
    fn run(&mut self, node: &NodeName, order: &Order) -> Result<(), String>;
    /// Forgets the login to a node: the next command comes with the groups that its user has by then.
    fn forget(&mut self, node: &NodeName);
    /// Writes a file of this host, whole or not at all.
    ///
    /// # Errors
    /// Why it could not be written.
    fn write(&mut self, file: &LocalFile) -> Result<(), String>;
}

/// An operator's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consent {
    /// This one.
    Yes,
    /// Not this one.
    No,
    /// Nothing more.
    Stop,
}

/// Who is asked before each change.
pub trait Ask {
    /// Asks.
    fn ask(&mut self, task: &Task) -> Consent;
    /// Hears what becomes of it.
    fn told(&mut self, task: &Task, state: &State);
}

/// Does the tasks in order; one state for each.
pub fn apply(tasks: &[Task], hands: &mut dyn Hands, ask: &mut dyn Ask) -> Vec<State> {
    let mut states: Vec<State> = Vec::new();
    for task in tasks {
        let state = if states.iter().any(|s| matches!(s, State::Failed(_))) || stopped(&states) {
            State::Planned
        } else if builds_on_declined(task, tasks, &states) {
            State::Skipped
        } else {
            one(task, hands, ask)
        };
        ask.told(task, &state);
        states.push(state);
    }
    states
}

/// A stop leaves its task planned, which nothing else does before the end.
fn stopped(states: &[State]) -> bool {
    states.contains(&State::Planned)
}

/// A node's later steps build on its earlier ones, and everything on this host's files.
fn builds_on_declined(task: &Task, tasks: &[Task], states: &[State]) -> bool {
    let mut before = tasks.iter().zip(states);
    before.any(|(other, state)| {
        matches!(state, State::Declined | State::Skipped) && (other.node().is_none() || other.node() == task.node())
    })
}

fn one(task: &Task, hands: &mut dyn Hands, ask: &mut dyn Ask) -> State {
    match ask.ask(task) {
        Consent::Yes => {}
        Consent::No => return State::Declined,
        Consent::Stop => return State::Planned,
    }
    let done = match task {
        Task::File(file) => hands.write(file),
        Task::Node(step) => step.action.orders().iter().try_for_each(|order| hands.run(&step.node, order)),
    };
    if let Task::Node(Step { node, action: Action::JoinGroup { .. } }) = task {
        hands.forget(node);
    }
    match done {
        Ok(()) => State::Done,
        Err(why) => State::Failed(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Fake {
        log: Vec<String>,
        fails_at: Option<usize>,
    }

    impl Fake {
        fn act(&mut self, what: String) -> Result<(), String> {
            if self.fails_at == Some(self.log.len()) {
                return Err("no space left".into());
            }
            self.log.push(what);
            Ok(())
        }
    }

    impl Hands for Fake {
        fn run(&mut self, node: &NodeName, order: &Order) -> Result<(), String> {
            self.act(format!("{node} {}", order.argv.join(" ")))
        }
        fn forget(&mut self, node: &NodeName) {
            self.log.push(format!("{node} forget"));
        }
        fn write(&mut self, file: &LocalFile) -> Result<(), String> {
            self.act(file.path.to_string())
        }
    }

    struct Says(Vec<Consent>);

    impl Ask for Says {
        fn ask(&mut self, _: &Task) -> Consent {
            if self.0.is_empty() { Consent::Yes } else { self.0.remove(0) }
        }
        fn told(&mut self, _: &Task, _: &State) {}
    }

    fn step(node: &str, action: Action) -> Task {
        Task::Node(Step { node: node.parse().unwrap(), action })
    }

    fn tasks() -> Vec<Task> {
        let join = || Action::JoinGroup { user: "op".into(), group: "nix-users".into() };
        let file = LocalFile { path: "c.nix".into(), text: "{ }".into(), mode: 0o644, says: "file".into() };
        vec![
            step("head", Action::InstallNix),
            step("head", join()),
            step("worker", Action::InstallNix),
            step("worker", join()),
            Task::File(file),
        ]
    }

    #[test]
    fn all_is_done_in_order_and_a_new_group_gets_a_new_login() {
        let mut hands = Fake::default();
        let states = apply(&tasks(), &mut hands, &mut Says(vec![]));
        assert!(states.iter().all(|s| *s == State::Done), "{states:?}");
        let at = |word: &str| hands.log.iter().position(|l| l.contains(word)).unwrap();
        assert!(at("head usermod") < at("head forget") && at("head forget") < at("worker env"), "{:#?}", hands.log);
        assert_eq!(hands.log.last().unwrap(), "c.nix");
    }

    #[test]
    fn nothing_is_done_after_a_failure() {
        for fails_at in 0..6 {
            let mut hands = Fake { fails_at: Some(fails_at), ..Fake::default() };
            let states = apply(&tasks(), &mut hands, &mut Says(vec![]));
            let failed = states.iter().position(|s| matches!(s, State::Failed(_)));
            if let Some(at) = failed {
                assert!(
                    states[..at].iter().all(|s| *s == State::Done)
                        && states[at + 1..].iter().all(|s| *s == State::Planned)
                );
            }
            assert!(hands.log.iter().filter(|l| !l.ends_with("forget")).count() <= fails_at.max(1) + 6);
        }
    }

    #[test]
    fn what_builds_on_a_declined_step_is_left_out_and_the_other_node_is_not() {
        let mut hands = Fake::default();
        let states = apply(&tasks(), &mut hands, &mut Says(vec![Consent::No]));
        assert_eq!(states, [State::Declined, State::Skipped, State::Done, State::Done, State::Done]);
        assert!(!hands.log.iter().any(|l| l.starts_with("head")), "{:#?}", hands.log);
        let mut hands = Fake::default();
        let states = apply(&tasks(), &mut hands, &mut Says(vec![Consent::Yes, Consent::Stop]));
        assert_eq!(states[0], State::Done);
        assert!(states[1..].iter().all(|s| *s == State::Planned), "{states:?}");
        assert_eq!(hands.log.len(), 2);
    }
}
