//! From what is to what shall be: the ordered steps of one node, each with what undoes it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sparklane_lane::Generation;
use sparklane_lane::generation::{FileKind, ManagedFile};

use crate::spec::{Side, Spec};

/// The unit that serves the lane.
pub const ENGINE_UNIT: &str = "sparklane-engine.service";

/// The three parts of a switch. The coordinator orders them one by one over all nodes (design.md section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Stop the old lane.
    Stop,
    /// Move files and profile.
    Switch,
    /// Start the new lane.
    Start,
}

/// What stood at a path before the transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase", tag = "was")]
pub enum Before {
    /// Nothing.
    Absent {
        /// Parent folders that did not exist either, outermost first; undo removes them when empty.
        missing_parents: Vec<String>,
    },
    /// A regular file; its bytes are copied to `before/<copy>` of the transaction's folder.
    File {
        /// sha256 of the content, hex.
        sha256: String,
        /// Permission bits.
        mode: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Name of the copy.
        copy: usize,
    },
    /// A symbolic link.
    Link {
        /// Its target.
        target: String,
    },
}

/// What must follow a change of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refresh {
    /// `systemctl daemon-reload`; only when a unit file changed, as it can revoke GPU access of running containers.
    Units,
    /// `netplan generate`, then networkd reload.
    Network,
    /// `sysctl --load` of our files.
    Sysctl,
    /// `systemd-tmpfiles --create` of our files.
    Tmpfiles,
    /// Our nftables table as the file says, or no table where there is no file.
    Firewall,
}

/// The direction in which a refresh acts: after the files are new, or after they are old again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Acts when done.
    Forward,
    /// Acts when undone.
    Backward,
}

/// One idempotent change with its undo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase", tag = "step")]
pub enum Step {
    /// Stop a unit; undo queues its start when it was active.
    StopUnit {
        /// Unit name.
        unit: String,
        /// Whether it was to run before.
        was_active: bool,
    },
    /// Write a managed file; undo puts back what was there.
    Place {
        /// Absolute path.
        path: String,
        /// Content to place.
        file: ManagedFile,
        /// What was there.
        before: Before,
    },
    /// Remove a file that the new generation does not manage, or put back the foreign file we once took over.
    Remove {
        /// Absolute path.
        path: String,
        /// What was there.
        before: Before,
    },
    /// Make services read changed files.
    Refresh {
        /// Which.
        what: Refresh,
        /// When it acts.
        direction: Direction,
    },
    /// Move the profile; undo moves it back to the remembered path.
    Profile {
        /// The new closure.
        to: Side,
        /// The remembered one.
        from: Option<Side>,
    },
    /// Queue the start of a unit; undo stops it.
    StartUnit {
        /// Unit name.
        unit: String,
    },
}

impl Step {
    /// The part this step belongs to.
    #[must_use]
    pub fn part(&self) -> Part {
        match self {
            Self::StopUnit { .. } => Part::Stop,
            Self::StartUnit { .. } => Part::Start,
            _ => Part::Switch,
        }
    }

    /// One line for people.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::StopUnit { unit, .. } => format!("stop {unit}"),
            Self::Place { path, .. } => format!("place {path}"),
            Self::Remove { path, .. } => format!("remove {path}"),
            Self::Refresh { what, .. } => format!("refresh {what:?}").to_lowercase(),
            Self::Profile { to, .. } => format!("profile -> {}", to.path),
            Self::StartUnit { unit } => format!("start {unit}"),
        }
    }
}

/// What stands at a path now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// A file, link or nothing, with what is needed to put it back.
    Known(Before),
    /// Something that cannot be replaced and put back: a folder, a device, an immutable file.
    Blocked(String),
}

/// What a plan needs to know of a node.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// Every path that the old or the new generation manages.
    pub found: BTreeMap<String, Found>,
    /// Whether the engine's unit runs or is about to.
    pub engine_active: bool,
    /// What runs otherwise than the files say that it was made from, though they are as they should be.
    pub astray: BTreeSet<Refresh>,
}

/// Why a plan cannot be made; all reasons at once.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct Refused(pub Vec<String>);

/// The steps from `old` to `new` for a node in the given state.
///
/// # Errors
/// [`Refused`] with every file in the way, before anything is changed.
pub fn plan(
    spec: &Spec,
    old: Option<&Generation>,
    new: &Generation,
    inventory: &Inventory,
) -> Result<Vec<Step>, Refused> {
    let files = file_steps(spec, old, new, inventory)?;
    let mut kinds = changed_kinds(old, new, &files);
    kinds.extend(&inventory.astray);
    if !spec.goal.restarts_engine() {
        // The old engine runs on, behind its own table; the new one's start loads the new table.
        kinds.remove(&Refresh::Firewall);
    }
    let restart =
        spec.goal.restarts_engine() && (spec.restart_engine || !inventory.engine_active || engine_changed(old, new));
    let mut steps = Vec::new();
    if restart {
        steps.push(Step::StopUnit { unit: ENGINE_UNIT.into(), was_active: inventory.engine_active });
    }
    steps.extend(kinds.iter().map(|&what| Step::Refresh { what, direction: Direction::Backward }));
    steps.extend(files);
    steps.extend(kinds.iter().map(|&what| Step::Refresh { what, direction: Direction::Forward }));
    if spec.from.as_ref() != Some(&spec.to) {
        steps.push(Step::Profile { to: spec.to.clone(), from: spec.from.clone() });
    }
    if restart {
        steps.push(Step::StartUnit { unit: ENGINE_UNIT.into() });
    }
    Ok(steps)
}

/// True when the engine must be restarted: its launch, image, weights or unit file differ. A change of gates or
/// budgets alone leaves a serving engine alone.
#[must_use]
pub fn engine_changed(old: Option<&Generation>, new: &Generation) -> bool {
    let Some(old) = old else { return true };
    let units = |g: &Generation| -> BTreeMap<String, String> {
        g.files.iter().filter(|(_, f)| f.kind == FileKind::Unit).map(|(p, f)| (p.clone(), f.sha256.clone())).collect()
    };
    old.engine != new.engine
        || old.image != new.image
        || old.weights != new.weights
        || old.rank != new.rank
        || units(old) != units(new)
}

fn file_steps(
    spec: &Spec,
    old: Option<&Generation>,
    new: &Generation,
    inventory: &Inventory,
) -> Result<Vec<Step>, Refused> {
    let none = BTreeMap::new();
    let old_files = old.map_or(&none, |g| &g.files);
    let paths: BTreeSet<&String> = old_files.keys().chain(new.files.keys()).collect();
    let mut steps = Vec::new();
    let mut refused = Vec::new();
    for path in paths {
        let found = inventory.found.get(path);
        match step_for(spec, path, old_files.get(path), new.files.get(path), found) {
            Ok(step) => steps.extend(step),
            Err(why) => refused.push(why),
        }
    }
    if refused.is_empty() { Ok(steps) } else { Err(Refused(refused)) }
}

fn step_for(
    spec: &Spec,
    path: &str,
    ours: Option<&ManagedFile>,
    wanted: Option<&ManagedFile>,
    found: Option<&Found>,
) -> Result<Option<Step>, String> {
    let absent = Before::Absent { missing_parents: Vec::new() };
    let before = match found {
        Some(Found::Blocked(why)) => return Err(format!("{path}: {why}; move it away by hand")),
        Some(Found::Known(before)) => before.clone(),
        None => absent,
    };
    let matches = |f: &ManagedFile| matches!(&before, Before::File { sha256, mode, .. } if *sha256 == f.sha256 && *mode == f.mode);
    match (ours, &before) {
        (Some(file), _) if matches(file) => {}
        (Some(_), _) if spec.replace_edited => {}
        (Some(_), Before::Absent { .. }) => {
            return Err(format!(
                "{path}: a file of the current generation was removed by hand; put it back or use --replace-edited"
            ));
        }
        (Some(_), _) => {
            return Err(format!(
                "{path}: a file of the current generation was edited by hand; undo the edit or use --replace-edited (a copy is kept)"
            ));
        }
        (None, Before::Absent { .. }) => {}
        // The very bytes we would write: a leftover of an older tool or a restored backup. Nothing is lost by owning it.
        (None, _) if wanted.is_some_and(matches) => {}
        (None, _) if spec.takeover => {}
        (None, _) => {
            return Err(format!(
                "{path}: a file that is not ours is in the way; move it away or use --takeover (it is put back when we leave it)"
            ));
        }
    }
    Ok(match wanted {
        Some(file) if ours == Some(file) && matches(file) => None,
        Some(file) => Some(Step::Place { path: path.to_owned(), file: file.clone(), before }),
        None => Some(Step::Remove { path: path.to_owned(), before }),
    })
}

fn changed_kinds(old: Option<&Generation>, new: &Generation, steps: &[Step]) -> BTreeSet<Refresh> {
    let kind_of = |path: &str| {
        let old_file = old.and_then(|g| g.files.get(path));
        new.files.get(path).or(old_file).map(|f| f.kind)
    };
    steps
        .iter()
        .filter_map(|step| match step {
            Step::Place { path, .. } | Step::Remove { path, .. } => kind_of(path),
            _ => None,
        })
        .filter_map(|kind| match kind {
            FileKind::Unit => Some(Refresh::Units),
            FileKind::Netplan => Some(Refresh::Network),
            FileKind::Sysctl => Some(Refresh::Sysctl),
            FileKind::Tmpfiles => Some(Refresh::Tmpfiles),
            FileKind::Firewall => Some(Refresh::Firewall),
            FileKind::Limits | FileKind::Sudoers | FileKind::Sshd | FileKind::Plain => None,
        })
        .collect()
}
