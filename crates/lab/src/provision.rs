//! What a lab gets from the checkout: the flake, the prebuilt programs, the simulator's image.

use std::fs::File;
use std::process::Stdio;

use camino::{Utf8Path, Utf8PathBuf};

use crate::base::remove_tree;
use crate::error::{LabError, Result, Try};
use crate::machine::exec;
use crate::process::Process;
use crate::run::run;

/// Copies the files that git knows into `root/root/sparklane`.
pub fn flake(from: &Utf8Path, root: &Utf8Path) -> Result<()> {
    let list = run(&["git", "-C", from.as_str(), "ls-files", "-z"])?;
    let files: Vec<&str> = list.split('\0').filter(|f| !f.is_empty()).collect();
    replace(&root.join("root/sparklane"), |to| {
        for file in &files {
            // A file that was deleted and not yet committed is still listed.
            if std::fs::symlink_metadata(from.join(file)).is_ok() {
                copy(&from.join(file), &to.join(file))?;
            }
        }
        Ok(())
    })
}

/// Copies the whole folder into `root/root/prebuilt`.
pub fn prebuilt(from: &Utf8Path, root: &Utf8Path) -> Result<()> {
    replace(&root.join("root/prebuilt"), |to| copy_tree(from, to))
}

/// Fills a new folder and puts it in the place of the old one.
fn replace(place: &Utf8Path, fill: impl FnOnce(&Utf8Path) -> Result<()>) -> Result<()> {
    let new: Utf8PathBuf = format!("{place}.new").into();
    remove_tree(&new)?;
    std::fs::create_dir_all(&new).trying(|| format!("make {new}"))?;
    fill(&new)?;
    remove_tree(place)?;
    std::fs::rename(&new, place).trying(|| format!("rename {new}"))
}

fn copy_tree(from: &Utf8Path, to: &Utf8Path) -> Result<()> {
    std::fs::create_dir_all(to).trying(|| format!("make {to}"))?;
    for entry in from.read_dir_utf8().trying(|| format!("list {from}"))? {
        let entry = entry.trying(|| format!("list {from}"))?;
        let target = to.join(entry.file_name());
        if entry.file_type().trying(|| format!("look at {}", entry.path()))?.is_dir() {
            copy_tree(entry.path(), &target)?;
        } else {
            copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Copies a file with its mode, or a link as a link.
fn copy(from: &Utf8Path, to: &Utf8Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).trying(|| format!("make {parent}"))?;
    }
    let what = || format!("copy {from} to {to}");
    if from.is_symlink() {
        let target = from.read_link_utf8().trying(what)?;
        return std::os::unix::fs::symlink(target, to).trying(what);
    }
    std::fs::copy(from, to).map(drop).trying(what)
}

/// Loads the simulator's image into a machine's docker unless this very image is there. True when it was loaded.
pub fn image(prebuilt: &Utf8Path, leader: Process) -> Result<bool> {
    let (tar, facts) = (prebuilt.join("x86_64-linux/sim-image.tar"), prebuilt.join("x86_64-linux/sim-image.json"));
    let text = std::fs::read_to_string(&facts).trying(|| format!("read {facts}"))?;
    let bad = |why: String| LabError::BadFile { path: facts.clone(), why };
    let image: crate::sim_image::ImageFacts = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    let there = exec(leader, &["docker", "image", "inspect", "--format={{.Id}}", &image.reference], Stdio::null())?;
    if there.stdout.trim() == image.config {
        return Ok(false);
    }
    let file = File::open(&tar).trying(|| format!("open {tar}"))?;
    let loaded = exec(leader, &["docker", "load", "--quiet"], Stdio::from(file))?;
    if loaded.code == Some(0) {
        return Ok(true);
    }
    Err(LabError::Command {
        command: "docker load".to_owned(),
        status: format!("{:?}", loaded.code),
        stderr: loaded.stderr,
    })
}
