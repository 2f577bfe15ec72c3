//! The node's profile, moved with the real `nix-env`, read back after every move.

use std::fs;

use sparklane_lane::StorePath;
use sparklane_txn::spec::Side;

use crate::closure;
use crate::error::HostError;
use crate::paths::HostPaths;
use crate::process;

/// What moves the profile link.
pub trait Mover {
    /// Makes `path` the profile's current generation, as a new entry of the profile.
    ///
    /// # Errors
    /// When the profile did not move.
    fn set(&self, profile: &camino::Utf8Path, path: &StorePath) -> Result<(), HostError>;
}

/// `nix-env`, so that `nix-env --list-generations` and every garbage collector understand our profile.
#[derive(Debug, Clone, Copy)]
pub struct NixEnv;

impl Mover for NixEnv {
    fn set(&self, profile: &camino::Utf8Path, path: &StorePath) -> Result<(), HostError> {
        process::run("nix-env", &["--profile", profile.as_str(), "--set", path.as_str()]).map(drop)
    }
}

/// The store path the profile points at; `None` when there is no profile.
///
/// # Errors
/// When the link exists but leads to no store path (a profile that is not ours).
pub fn current_path(paths: &HostPaths) -> Result<Option<StorePath>, HostError> {
    if fs::symlink_metadata(&paths.profile).is_err() {
        return Ok(None);
    }
    let odd = |why: String| HostError::Content {
        path: paths.profile.clone(),
        why: format!("{why}. To begin anew: sudo mv {0} {0}.lost, then deploy", paths.profile),
    };
    let real = fs::canonicalize(&paths.profile).map_err(|e| odd(format!("leads nowhere ({e})")))?;
    let text = real.to_string_lossy().into_owned();
    let short = text.rfind("/nix/store/").map_or(text.as_str(), |at| &text[at..]);
    short.parse().map(Some).map_err(|e: sparklane_lane::BadId| odd(e.to_string()))
}

/// The current generation by path and content; `None` when there is no profile.
///
/// # Errors
/// When the profile is not one of ours (deploy-rs#86): it holds no generation.json.
pub fn current(paths: &HostPaths) -> Result<Option<Side>, HostError> {
    let Some(path) = current_path(paths)? else { return Ok(None) };
    let generation = closure::id(&paths.in_store(&path)).map_err(|_| HostError::Content {
        path: paths.profile.clone(),
        why: format!("points to {path}, which is not a sparklane generation; move this profile away (it is not ours)"),
    })?;
    Ok(Some(Side { path, generation }))
}

/// Moves the profile to `to` if it is at `to` or at `from`: compare-and-swap on what is current, never "one below".
///
/// # Errors
/// When it is at something else, or does not move.
pub fn swap(paths: &HostPaths, mover: &dyn Mover, from: Option<&Side>, to: Option<&Side>) -> Result<(), HostError> {
    let now = current_path(paths)?;
    let at = |side: Option<&Side>| side.map(|s| &s.path) == now.as_ref();
    if at(to) {
        return Ok(());
    }
    if !at(from) {
        let now = now.map_or_else(|| "nothing".to_owned(), |p| p.to_string());
        return Err(HostError::Content {
            path: paths.profile.clone(),
            why: format!("points to {now}: someone else moved it; not touched"),
        });
    }
    match to {
        Some(side) => mover.set(&paths.profile, &side.path)?,
        None => remove(paths)?,
    }
    let after = current_path(paths)?;
    if after.as_ref() == to.map(|s| &s.path) {
        return Ok(());
    }
    Err(HostError::Content { path: paths.profile.clone(), why: "did not move".into() })
}

/// Removes a profile that a first deployment made and nobody confirmed: the link and its only entries.
fn remove(paths: &HostPaths) -> Result<(), HostError> {
    let (Some(dir), Some(name)) = (paths.profile.parent(), paths.profile.file_name()) else { return Ok(()) };
    crate::files::remove(&paths.profile)?;
    let entries = fs::read_dir(dir).map_err(HostError::file("list", dir))?;
    for entry in entries.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let number = file.strip_prefix(name).and_then(|r| r.strip_prefix('-')).and_then(|r| r.strip_suffix("-link"));
        if number.is_some_and(|n| n.parse::<u64>().is_ok()) {
            crate::files::remove(&dir.join(&file))?;
        }
    }
    Ok(())
}
