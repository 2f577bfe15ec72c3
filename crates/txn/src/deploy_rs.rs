//! Being driven by stock deploy-rs 1.0.0: its node-side command line, and a transaction of one node that its client
//! confirms by deleting a file. Pure; files and processes are behind [`Canary`] and [`Pace`].
//!
//! The stock node side reports success for a node that rolled back when its canary is stale or its confirmation late.
//! Here (1) the canary and our own ready mark are cleared before anything else, (2) the ready mark is made only after the
//! gates and names its transaction, and `wait` believes it only while that transaction waits for its commit, (3) the canary
//! is removed *before* going back, and whoever deletes it first decides, (4) all of it runs in the transaction's process.

use serde::{Deserialize, Serialize};
use sparklane_lane::generation::GateScope;
use sparklane_lane::{Role, StorePath, TxnId};

use crate::goal::Goal;
use crate::machine::{Order, Reply};
use crate::plan::Part;
use crate::record::State;
use crate::spec::Fault;

/// Seconds that the machine's own deadline lies behind the window in which a confirmation counts, so that a confirmation
/// at the last moment is still committed.
pub const GRACE_SECS: u64 = 15;
/// Seconds after which a cancel mark that was there before `wait` counts as this deployment's.
const STALE_CANCEL_SECS: u64 = 10;

/// A command line of `activate-rs`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// `activate CLOSURE …`
    Activate(Activate),
    /// `wait CLOSURE …`
    Wait(Wait),
    /// `revoke …`
    Revoke {
        /// The profile to take back.
        profile: Profile,
    },
}

/// `activate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activate {
    /// Closure to activate.
    pub closure: StorePath,
    /// Profile to move.
    pub profile: Profile,
    /// Folder of the canary.
    pub temp_path: String,
    /// Seconds in which the client must confirm.
    pub confirm_secs: u16,
    /// Whether the client confirms at all.
    pub magic_rollback: bool,
    /// Whether a failed activation goes back.
    pub auto_rollback: bool,
    /// `--dry-activate`, `--boot`, `--test`, or none of them.
    pub goal: Goal,
}

/// `wait`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Closure that is being activated.
    pub closure: StorePath,
    /// Folder of the canary.
    pub temp_path: String,
    /// Seconds to wait; without it there is no end.
    pub activation_secs: Option<u16>,
}

/// Which profile is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Profile {
    /// By path.
    Path(String),
    /// By user and name, where deploy-rs looks for it.
    Named {
        /// User.
        user: String,
        /// Name.
        name: String,
    },
}

/// A command line that deploy-rs 1.0.0 does not write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Options that are followed by a value.
const VALUED: [&str; 7] = [
    "--log-dir",
    "--profile-path",
    "--profile-user",
    "--profile-name",
    "--temp-path",
    "--confirm-timeout",
    "--activation-timeout",
];
/// Options that stand alone.
const FLAGS: [&str; 7] =
    ["-d", "--debug-logs", "--magic-rollback", "--auto-rollback", "--dry-activate", "--boot", "--test"];

/// Reads the arguments after the program's name.
///
/// # Errors
/// [`Usage`], with what is wrong.
pub fn parse(args: &[String]) -> Result<Call, Usage> {
    let words = Words::split(args)?;
    let mut positional = words.positional.iter();
    let command = positional.next().ok_or_else(|| Usage("activate, wait or revoke is missing".to_owned()))?;
    let closure = positional.next();
    if let Some(extra) = positional.next() {
        return Err(Usage(format!("{extra:?} is one argument too many")));
    }
    match command.as_str() {
        "activate" => words.activate(closure).map(Call::Activate),
        "wait" => words.wait(closure).map(Call::Wait),
        "revoke" => {
            words.only(&["--log-dir", "--profile-path", "--profile-user", "--profile-name"])?;
            Ok(Call::Revoke { profile: words.profile()? })
        }
        other => Err(Usage(format!("{other:?} is none of activate, wait, revoke"))),
    }
}

#[derive(Default)]
struct Words {
    positional: Vec<String>,
    flags: Vec<String>,
    values: Vec<(String, String)>,
}

impl Words {
    fn split(args: &[String]) -> Result<Self, Usage> {
        let mut words = Self::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (arg.as_str(), None),
            };
            if VALUED.contains(&name) {
                let value = inline.or_else(|| rest.next().cloned());
                let value = value.ok_or_else(|| Usage(format!("{name} needs a value")))?;
                if words.value(name).is_some() {
                    return Err(Usage(format!("{name} is given twice")));
                }
                words.values.push((name.to_owned(), value));
            } else if FLAGS.contains(&arg.as_str()) {
                words.flags.push(arg.clone());
            } else if arg.starts_with('-') {
                return Err(Usage(format!("{arg} is no option of activate-rs 1.0.0")));
            } else {
                words.positional.push(arg.clone());
            }
        }
        Ok(words)
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|f| f == name)
    }

    fn need(&self, name: &str) -> Result<String, Usage> {
        self.value(name).map(str::to_owned).ok_or_else(|| Usage(format!("{name} is missing")))
    }

    /// Refuses options of other subcommands: one that does nothing would be a lie.
    fn only(&self, allowed: &[&str]) -> Result<(), Usage> {
        let always = |f: &str| matches!(f, "-d" | "--debug-logs");
        let given = self.flags.iter().map(String::as_str).chain(self.values.iter().map(|(n, _)| n.as_str()));
        match given.into_iter().find(|g| !always(g) && !allowed.contains(g)) {
            Some(stray) => Err(Usage(format!("{stray} does not belong to this subcommand"))),
            None => Ok(()),
        }
    }

    fn profile(&self) -> Result<Profile, Usage> {
        let named = (self.value("--profile-user"), self.value("--profile-name"));
        match (self.value("--profile-path"), named) {
            (Some(path), (None, None)) => Ok(Profile::Path(path.to_owned())),
            (None, (Some(user), Some(name))) => Ok(Profile::Named { user: user.to_owned(), name: name.to_owned() }),
            _ => Err(Usage("give --profile-path, or --profile-user and --profile-name".to_owned())),
        }
    }

    fn seconds(&self, name: &str) -> Result<Option<u16>, Usage> {
        let read = |text: &str| text.parse().map_err(|_| Usage(format!("{name} {text:?} is not 0 to 65535 seconds")));
        self.value(name).map(read).transpose()
    }

    fn activate(&self, closure: Option<&String>) -> Result<Activate, Usage> {
        self.only(&[
            "--log-dir",
            "--profile-path",
            "--profile-user",
            "--profile-name",
            "--temp-path",
            "--confirm-timeout",
            "--magic-rollback",
            "--auto-rollback",
            "--dry-activate",
            "--boot",
            "--test",
        ])?;
        let goal = match (self.flag("--dry-activate"), self.flag("--boot"), self.flag("--test")) {
            (false, false, false) => Goal::Switch,
            (true, _, _) => Goal::DryActivate,
            (_, true, false) => Goal::Boot,
            (_, false, true) => Goal::Test,
            _ => return Err(Usage("--boot and --test exclude each other".to_owned())),
        };
        Ok(Activate {
            closure: store_path(closure)?,
            profile: self.profile()?,
            temp_path: self.need("--temp-path")?,
            confirm_secs: self
                .seconds("--confirm-timeout")?
                .ok_or_else(|| Usage("--confirm-timeout is missing".to_owned()))?,
            magic_rollback: self.flag("--magic-rollback"),
            auto_rollback: self.flag("--auto-rollback"),
            goal,
        })
    }

    fn wait(&self, closure: Option<&String>) -> Result<Wait, Usage> {
        self.only(&["--log-dir", "--temp-path", "--activation-timeout"])?;
        Ok(Wait {
            closure: store_path(closure)?,
            temp_path: self.need("--temp-path")?,
            activation_secs: self.seconds("--activation-timeout")?,
        })
    }
}

fn store_path(text: Option<&String>) -> Result<StorePath, Usage> {
    let text = text.ok_or_else(|| Usage("the closure is missing".to_owned()))?;
    text.parse().map_err(|e| Usage(format!("{e}")))
}

impl Activate {
    /// Why this node does not carry the order out, before anything is changed.
    ///
    /// `own` is the profile that sparklane manages; `temp` is owner and mode of the temp folder, if it is one.
    #[must_use]
    pub fn refusal(&self, own: &str, temp: Option<(u32, u32)>) -> Option<String> {
        if self.profile != Profile::Path(own.to_owned()) {
            return Some(format!("a sparklane generation goes to one profile only: set profilePath = \"{own}\""));
        }
        if self.goal.changes_nodes() && !self.auto_rollback {
            let why = "a failed sparklane activation always goes back; autoRollback = false is not supported";
            return Some(why.to_owned());
        }
        match temp {
            None => Some(format!("tempPath {} is no folder on this node; set tempPath = \"/run\"", self.temp_path)),
            // Who can make files there can confirm in the operator's place.
            Some((uid, mode)) if uid != 0 || mode & 0o022 != 0 => Some(format!(
                "tempPath {} can be written by others than root, who could confirm or block a deployment; set tempPath = \"/run\"",
                self.temp_path
            )),
            Some(_) => None,
        }
    }

    /// How the transaction is confirmed; `None` when it commits after its gates.
    #[must_use]
    pub fn confirm(&self) -> Confirm {
        let confirmed = self.magic_rollback && matches!(self.goal, Goal::Switch | Goal::Test);
        Confirm {
            temp_path: self.temp_path.clone(),
            closure: self.closure.clone(),
            window_secs: confirmed.then_some(u64::from(self.confirm_secs)),
        }
    }
}

/// What the transaction's process must know to be confirmed by deploy-rs; kept beside its journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Confirm {
    /// Folder of the canary.
    pub temp_path: String,
    /// The closure; its hash names the canary.
    pub closure: StorePath,
    /// Seconds in which the client must confirm; `None` when nobody confirms.
    pub window_secs: Option<u64>,
}

impl Confirm {
    /// The file that the client deletes to confirm, as deploy-rs 1.0.0 names it.
    #[must_use]
    pub fn canary(&self) -> String {
        self.file("deploy-rs-canary")
    }

    /// Our mark that the gates passed; holds the transaction's id.
    #[must_use]
    pub fn ready_mark(&self) -> String {
        self.file("sparklane-ready")
    }

    /// Our mark that the activation is over; holds the transaction's id.
    #[must_use]
    pub fn over_mark(&self) -> String {
        self.file("sparklane-over")
    }

    fn file(&self, prefix: &str) -> String {
        let hash = self.closure.base_name().split('-').next().unwrap_or_default();
        format!("{}/{prefix}-{hash}", self.temp_path.trim_end_matches('/'))
    }
}

/// Whether a removal found its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was there and is gone now: nobody confirmed, nobody can.
    Here,
    /// It was gone already: the client confirmed.
    Gone,
}

/// The files that speak with the client.
pub trait Canary {
    /// Removes whatever an earlier deployment of the closure left.
    ///
    /// # Errors
    /// When something stays.
    fn clear(&mut self) -> Result<(), String>;
    /// Makes the canary, then the ready mark.
    ///
    /// # Errors
    /// When one of them cannot be made.
    fn arm(&mut self, txn: &TxnId) -> Result<(), String>;
    /// True once our ready mark names this transaction.
    fn armed(&mut self, txn: &TxnId) -> bool;
    /// True while the canary is there.
    fn waits(&mut self) -> bool;
    /// Removes the canary.
    ///
    /// # Errors
    /// When it is there and stays.
    fn take(&mut self) -> Result<Taken, String>;
    /// Tells `wait` that nothing more will come.
    fn over(&mut self, txn: &TxnId);
}

/// Time of the confirm window, by `CLOCK_BOOTTIME`.
pub trait Pace {
    /// Milliseconds since some fixed moment.
    fn millis(&self) -> u64;
    /// Lets a little time pass.
    fn pause(&mut self);
}

/// What the driver works with.
pub struct Alone<'a> {
    /// Gives an order to the node's machine.
    pub order: &'a mut dyn FnMut(&Order) -> Result<Reply, Fault>,
    /// The client's files.
    pub canary: &'a mut dyn Canary,
    /// Time.
    pub pace: &'a mut dyn Pace,
    /// The transaction.
    pub txn: TxnId,
    /// The node's role; a head also waits for the cluster's gates.
    pub role: Role,
    /// The goal.
    pub goal: Goal,
}

/// Why a passed `--test` goes back; a reader of the journal knows success by it.
pub const TEST_PASSED: &str = "the test passed";

/// Drives a staged transaction of this node alone, with the client's confirmation in place of a cluster's commit.
///
/// # Errors
/// When the machine cannot be given orders; it then acts at its own deadline.
pub fn drive(alone: &mut Alone<'_>, window_secs: Option<u64>) -> Result<Reply, Fault> {
    if let Err(why) = alone.canary.clear() {
        return alone.back(&format!("a former deployment's files stay: {why}"));
    }
    for order in orders(alone.goal, alone.role) {
        let reply = (alone.order)(&order)?;
        if !reply.done {
            // Nobody was told ready yet, so there is no canary to race with.
            let why = reply.detail.clone().unwrap_or_else(|| format!("stopped in state {}", reply.state));
            return alone.back(&why);
        }
    }
    match window_secs {
        Some(secs) => alone.window(secs),
        None => alone.finish(),
    }
}

fn orders(goal: Goal, role: Role) -> Vec<Order> {
    let mut orders = vec![Order::Prepare];
    orders.extend([Part::Stop, Part::Switch, Part::Start].map(|part| Order::Run { part }));
    if goal.restarts_engine() {
        orders.push(Order::Gate { scope: GateScope::Node });
        if role.decides() {
            orders.push(Order::Gate { scope: GateScope::Cluster });
        }
    }
    orders.push(Order::Vote);
    orders
}

impl Alone<'_> {
    fn window(&mut self, secs: u64) -> Result<Reply, Fault> {
        if let Err(why) = self.canary.arm(&self.txn) {
            return self.back(&format!("the canary cannot be made: {why}"));
        }
        let end = self.pace.millis().saturating_add(secs.saturating_mul(1000));
        while self.canary.waits() {
            let now = (self.order)(&Order::Report)?;
            if now.state != State::Gated {
                // Someone else ended it, e.g. an abort by hand.
                let _taken = self.canary.take();
                self.canary.over(&self.txn);
                return Ok(now);
            }
            if self.pace.millis() >= end {
                return self.give_up(&format!("the client did not confirm within {secs} s"));
            }
            self.pace.pause();
        }
        self.finish()
    }

    /// The canary goes first: from then on no confirmation can succeed. One that came just before counts.
    fn give_up(&mut self, why: &str) -> Result<Reply, Fault> {
        match self.canary.take() {
            Ok(Taken::Gone) => self.finish(),
            Ok(Taken::Here) => self.back(why),
            Err(stays) => self.back(&format!("{why}; the canary stays: {stays}")),
        }
    }

    fn finish(&mut self) -> Result<Reply, Fault> {
        if !self.goal.commits() {
            return self.back(TEST_PASSED);
        }
        let reply = (self.order)(&Order::Commit)?;
        self.canary.over(&self.txn);
        Ok(reply)
    }

    fn back(&mut self, why: &str) -> Result<Reply, Fault> {
        let reply = (self.order)(&Order::Abort { why: why.to_owned() })?;
        self.canary.over(&self.txn);
        Ok(reply)
    }
}

/// What a new process of the transaction does with an open vote, before the machine's own recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// The client had confirmed: commit.
    Commit,
    /// It had not, and cannot any more: recover as usual (which goes back).
    Back,
}

/// Decides after a kill -9. The ready mark proves that the window was open, so a missing canary then means a confirmation.
#[must_use]
pub fn recovery(state: State, goal: Goal, canary: &mut dyn Canary, txn: &TxnId) -> Recovery {
    let open = state == State::Gated && canary.armed(txn);
    let taken = canary.take();
    canary.over(txn);
    if open && taken == Ok(Taken::Gone) && goal.commits() { Recovery::Commit } else { Recovery::Back }
}

/// True when the end of a transaction is what the client asked for.
#[must_use]
pub fn succeeded(goal: Goal, state: State, detail: Option<&str>) -> bool {
    match state {
        State::Committed => true,
        State::RolledBack => goal == Goal::Test && detail.is_some_and(|d| d.ends_with(TEST_PASSED)),
        _ => false,
    }
}

/// What `wait` found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The gates passed and the node waits for the client's confirmation.
    Ready,
    /// Nothing will come any more.
    Over(String),
    /// Look again.
    NotYet,
}

/// The memory of one `wait`.
#[derive(Debug, Clone, Default)]
pub struct Waiter {
    first: Option<Option<TxnId>>,
}

impl Waiter {
    /// Judges the marks. `ready` and `over` are the transactions they name, `state` reads a transaction's journal.
    pub fn look(
        &mut self,
        ready: Option<&TxnId>,
        over: Option<&TxnId>,
        waited_secs: u64,
        state: &mut dyn FnMut(&TxnId) -> Option<State>,
    ) -> Seen {
        // What was there when we came may be of an earlier deployment that ours has not cleared away yet.
        let stale = self.first.get_or_insert_with(|| over.cloned()).clone();
        if let Some(txn) = ready
            && state(txn) == Some(State::Gated)
        {
            return Seen::Ready;
        }
        match over {
            Some(txn) if Some(txn) != stale.as_ref() || waited_secs >= STALE_CANCEL_SECS => {
                let end = state(txn).map_or_else(|| "unknown".to_owned(), |s| s.to_string());
                Seen::Over(format!("transaction {txn} is over: {end}"))
            }
            _ => Seen::NotYet,
        }
    }
}

#[cfg(test)]
#[path = "deploy_rs_tests.rs"]
mod tests;
