//! The command line of `activate-rs` 1.0.0, and what this node refuses of it. Pure.

use sparklane_lane::StorePath;

use super::Confirm;
use crate::goal::Goal;

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
