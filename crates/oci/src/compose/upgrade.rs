//! Layers of wheels on a base that may hold some of their distributions already (R29, R34).

use std::collections::{BTreeMap, BTreeSet};

use camino::Utf8Path;

use super::edits::{Parts, stale};
use super::spec::{Upgrade, Wheels, absolute};
use crate::base::index::{Distribution, TreeIndex};
use crate::base::paths::Overlay;
use crate::layer::entry::TreePath;
use crate::wheel::lock::{Lock, Locked};
use crate::wheel::name::same_version;
use crate::wheel::{Interpreter, Site, Wheel, install};

/// The entries of a layer of wheels, which are in `folder`.
///
/// # Errors
/// When the base's python does not import from the folder, a wheel does not fit, or a distribution of the base cannot go.
pub fn parts(wheels: &Wheels, overlay: &Overlay<'_>, folder: &Utf8Path, epoch: u64) -> Result<Parts, String> {
    let site = site(wheels, epoch)?;
    let mut parts = Parts::default();
    let mut wanted: Vec<&Locked> = wheels.lock.wheels.iter().collect();
    if let Some(index) = overlay.base() {
        check_python(wheels, overlay, index)?;
        check_glibc(&wheels.lock, index)?;
        wanted = settle(wheels, wanted, overlay, index, &mut parts)?;
    }
    let opened: Result<Vec<Wheel>, _> = wanted.iter().map(|row| row.open(folder)).collect();
    let opened = opened.map_err(|e| e.to_string())?;
    let installed = install(&opened, &site).map_err(|e| e.to_string())?;
    parts.warnings = installed.warnings;
    parts.entries = installed.entries;
    if let Some(index) = overlay.base() {
        let known: BTreeSet<String> = parts.removes.iter().map(|(p, _)| p.clone()).collect();
        for entry in &parts.entries {
            let real = overlay.resolve(entry.path.as_str())?;
            let old = stale(index, &real).into_iter().filter(|p| !known.contains(p) && overlay.at(p).is_some());
            parts.removes.extend(old.map(|pyc| (pyc, entry.from.clone())));
        }
    }
    Ok(parts)
}

fn site(wheels: &Wheels, mtime: u64) -> Result<Site, String> {
    let (site_packages, bin) = (absolute(&wheels.site)?, absolute(&wheels.scripts)?);
    let prefix = bin.as_str().rsplit_once('/').map(|(prefix, _)| prefix);
    let data = TreePath::new(prefix.ok_or_else(|| format!("{} is in no folder", wheels.scripts))?)?;
    let target = wheels.lock.target()?;
    let headers = TreePath::new(format!("{}/include/python3.{}", data.as_str(), target.minor))?;
    Ok(Site {
        target,
        site_packages,
        bin,
        data,
        headers: Some(headers),
        python: Interpreter::new(&wheels.interpreter)?,
        mtime,
        pyc: false,
    })
}

/// The interpreter is there, of the lock's version, and imports from the folder (R29).
fn check_python(wheels: &Wheels, overlay: &Overlay<'_>, index: &TreeIndex) -> Result<(), String> {
    let path = absolute(&wheels.interpreter)?;
    let (named, real) = (overlay.resolve(path.as_str())?, overlay.follow(path.as_str())?);
    let found = index.pythons.get(&named).or_else(|| index.pythons.get(&real));
    let python = found.ok_or_else(|| format!("the base has no python at {}", wheels.interpreter))?;
    let wanted = format!("3.{}", wheels.lock.target()?.minor);
    if python.version != wanted {
        return Err(format!("{} is python {}, the lock is for {wanted}", wheels.interpreter, python.version));
    }
    let site = overlay.follow(absolute(&wheels.site)?.as_str())?;
    if python.sites.iter().any(|s| overlay.follow(s).is_ok_and(|s| s == site)) {
        return Ok(());
    }
    let sites: Vec<String> = python.sites.iter().map(|s| format!("/{s}")).collect();
    Err(format!("{} does not import from {}, but from {}", wheels.interpreter, wheels.site, sites.join(", ")))
}

fn check_glibc(lock: &Lock, index: &TreeIndex) -> Result<(), String> {
    let Some(has) = &index.glibc else { return Ok(()) };
    let parsed = has.split_once('.').and_then(|(a, b)| Some((a.parse::<u32>().ok()?, b.parse::<u32>().ok()?)));
    let needs = lock.target()?.glibc;
    match parsed {
        Some(has) if has < needs => {
            Err(format!("the lock is for glibc {}.{}, the base has {}.{}", needs.0, needs.1, has.0, has.1))
        }
        _ => Ok(()),
    }
}

/// Leaves out what the base has in the same version; takes out what it has in another one.
fn settle<'a>(
    wheels: &Wheels,
    wanted: Vec<&'a Locked>,
    overlay: &Overlay<'_>,
    index: &TreeIndex,
    parts: &mut Parts,
) -> Result<Vec<&'a Locked>, String> {
    let mut install = Vec::with_capacity(wanted.len());
    let mut goes: BTreeMap<&str, (&Distribution, &str)> = BTreeMap::new();
    for row in wanted {
        let there = |folder: &&str| overlay.at(&format!("{folder}/METADATA")).is_some();
        let old: Vec<_> = index.named(&row.name).filter(|(folder, _)| there(folder)).collect();
        if let [(_, one)] = old.as_slice()
            && same_version(&one.version, &row.version)
        {
            parts.why.push(format!("{} {} is in the base already", row.name, row.version));
            continue;
        }
        for (folder, one) in old {
            if wheels.upgrade == Upgrade::Refuse {
                return Err(format!("{} is in the base as {}, the lock has {}", row.name, one.version, row.version));
            }
            parts.why.push(format!("{} {} of the base gives way to {}", row.name, one.version, row.version));
            goes.insert(folder, (one, row.file.as_str()));
        }
        install.push(row);
    }
    uninstall(&goes, overlay, index, parts)?;
    Ok(install)
}

/// Takes distributions out by their RECORD, with compiled modules that no RECORD lists; what another distribution lists as
/// well stays.
fn uninstall(
    goes: &BTreeMap<&str, (&Distribution, &str)>,
    overlay: &Overlay<'_>,
    index: &TreeIndex,
    parts: &mut Parts,
) -> Result<(), String> {
    let stay = index.distributions.iter().filter(|(folder, _)| !goes.contains_key(folder.as_str()));
    let shared: BTreeSet<&str> = stay.flat_map(|(_, d)| d.files.iter().flatten()).map(String::as_str).collect();
    let mut gone: BTreeMap<String, String> = BTreeMap::new();
    for (folder, (old, by)) in goes {
        let files = old.files.as_ref().ok_or_else(|| {
            format!(
                "{} {} of the base (/{folder}) has no RECORD, so nobody knows its files; remove it in a files layer \
                 below, or leave {by} out",
                old.name, old.version
            )
        })?;
        let (from, to) = (format!("{folder}/"), format!("{folder}0"));
        let info = index.nodes.range(from..to).filter(|(_, n)| !n.is_dir()).map(|(path, _)| path.clone());
        for path in files.iter().cloned().chain(info) {
            if shared.contains(path.as_str()) {
                continue;
            }
            let real = overlay.resolve(&path)?;
            for path in stale(index, &real).into_iter().chain([real]) {
                let file = overlay.at(&path).is_some_and(|k| k != crate::base::paths::Kind::Directory);
                if file {
                    gone.insert(path, (*by).to_owned());
                }
            }
        }
    }
    parts.removes.extend(gone);
    Ok(())
}
