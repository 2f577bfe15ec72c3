//! Whose lab runs: one that a developer task made may be replaced by the next task; a person's may not, unless told to.
//!
//! The mark lies beside the lab's folder and outlives it: a task takes its lab down and up as often as it likes.

use crate::error::{LabError, Result, Try};
use crate::paths::Paths;
use crate::state::State;

/// Names of the machines that run.
///
/// # Errors
/// When the lab's record cannot be read.
pub fn running(paths: &Paths) -> Result<Vec<String>> {
    let machines = State::load(paths)?.map_or_else(Default::default, |state| state.machines);
    Ok(machines.into_iter().filter(|(_, process)| process.alive()).map(|(name, _)| name).collect())
}

/// Takes the lab for a task, before it replaces what runs. Gives what it replaces, in words, when something runs.
///
/// # Errors
/// [`LabError::Taken`] when a lab runs that no task made, unless `replace`.
pub fn claim(paths: &Paths, task: &str, replace: bool) -> Result<Option<String>> {
    let mark = paths.owner();
    let owner = std::fs::read_to_string(&mark).ok();
    let nodes = running(paths)?;
    let replaced = match (nodes.is_empty(), owner) {
        (true, _) => None,
        (false, Some(owner)) => Some(format!("the lab of {}", owner.trim())),
        (false, None) if replace => Some(format!("a lab that runs in {}", paths.dir())),
        (false, None) => return Err(LabError::Taken { dir: paths.dir().to_owned(), nodes: nodes.join(", ") }),
    };
    if let Some(parent) = mark.parent() {
        std::fs::create_dir_all(parent).trying(|| format!("make {parent}"))?;
    }
    std::fs::write(&mark, format!("{task}\n")).trying(|| format!("write {mark}"))?;
    Ok(replaced)
}

/// A person takes the lab over, or ends it: from now on no task may replace it unasked.
///
/// # Errors
/// When the mark is there and stays.
pub fn disown(paths: &Paths) -> Result<()> {
    crate::base::remove_file(&paths.owner())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::process::Process;

    #[test]
    fn a_persons_lab_is_replaced_only_when_told_to_and_a_tasks_own_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let dir = camino::Utf8Path::from_path(dir.path()).unwrap();
        let paths = Paths::below(dir);
        assert_eq!(claim(&paths, "cargo xtask rehearse", false).unwrap(), None, "nothing runs");
        disown(&paths).unwrap();
        // A machine that runs: this process stands for it.
        let me = Process::find(i32::try_from(std::process::id()).unwrap()).unwrap();
        let machines = BTreeMap::from([("head".to_owned(), me)]);
        std::fs::create_dir_all(paths.dir()).unwrap();
        State { complete: true, base: dir.into(), machines, state_size_mib: None }.save(&paths).unwrap();
        let refused = claim(&paths, "cargo xtask rehearse", false).unwrap_err().to_string();
        for part in [paths.dir().as_str(), "head", "sparklane lab down", "--replace"] {
            assert!(refused.contains(part), "{part} is not in {refused}");
        }
        assert!(!paths.owner().exists(), "refused, and marked all the same");
        assert!(claim(&paths, "cargo xtask rehearse", true).unwrap().unwrap().contains(paths.dir().as_str()));
        assert_eq!(claim(&paths, "cargo xtask test", false).unwrap().unwrap(), "the lab of cargo xtask rehearse");
        disown(&paths).unwrap();
        disown(&paths).unwrap();
        assert!(claim(&paths, "cargo xtask test", false).is_err());
    }
}
