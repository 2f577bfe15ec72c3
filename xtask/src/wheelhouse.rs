//! `cargo xtask wheelhouse`: the wheels of a lock in a folder. pip fetches, from wherever it is set up to; the lock has no
//! addresses. What counts are the hashes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;

use camino::{Utf8Path, Utf8PathBuf};
use miette::{Context as _, IntoDiagnostic, bail, ensure};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use xshell::{Shell, cmd};

use crate::{cache, workspace};

/// The lock that is meant when none is named.
const LOCK: &str = "images/ray-2.57.0-cp312-aarch64.lock.json";

/// Which wheels, and where to.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder to fill [default: wheels in the machine-wide cache]
    dir: Option<Utf8PathBuf>,
    /// The lock [default: that of the Ray layer]
    #[arg(long)]
    lock: Option<Utf8PathBuf>,
}

/// One row of a lock.
struct Row {
    requirement: String,
    file: String,
    size: u64,
    sha256: String,
}

/// Fetches what is missing and checks everything.
pub fn run(args: &Args) -> miette::Result<()> {
    let dir = args.dir.clone().unwrap_or_else(folder);
    fill(&args.lock.clone().unwrap_or_else(lock), &dir)?;
    println!("{dir}");
    Ok(())
}

/// The usual folder.
pub fn folder() -> Utf8PathBuf {
    cache("wheels")
}

/// The usual lock.
pub fn lock() -> Utf8PathBuf {
    workspace().join(LOCK)
}

/// Every lock there is.
pub fn locks() -> miette::Result<Vec<Utf8PathBuf>> {
    let entries = workspace().join("images").read_dir_utf8().into_diagnostic()?;
    let paths = entries.map(|e| e.map(|e| e.path().to_owned())).collect::<Result<Vec<_>, _>>().into_diagnostic()?;
    let mut locks: Vec<Utf8PathBuf> = paths.into_iter().filter(|p| p.as_str().ends_with(".lock.json")).collect();
    locks.sort();
    Ok(locks)
}

/// Fetches the wheels of `lock` that `dir` lacks; afterwards every one was hashed.
pub fn fill(lock: &Utf8Path, dir: &Utf8Path) -> miette::Result<()> {
    let text = std::fs::read(lock).into_diagnostic().wrap_err_with(|| format!("cannot read {lock}"))?;
    let lock: Value = serde_json::from_slice(&text).into_diagnostic().wrap_err_with(|| format!("{lock} is no JSON"))?;
    let rows = rows(&lock)?;
    std::fs::create_dir_all(dir).into_diagnostic()?;
    let missing: Vec<&Row> = rows.iter().filter(|row| check(row, dir).is_err()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("xtask: {} of {} wheels are fetched", missing.len(), rows.len());
    for row in &missing {
        // pip takes a file that is there for the right one, or stops at its hash.
        match std::fs::remove_file(dir.join(&row.file)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e).into_diagnostic(),
            _ => {}
        }
    }
    download(&lock, &missing, dir)?;
    rows.iter().try_for_each(|row| check(row, dir))
}

fn rows(lock: &Value) -> miette::Result<Vec<Row>> {
    let Some(wheels) = lock["wheels"].as_array() else { bail!("the lock has no wheels") };
    let row = |w: &Value| {
        let text = |key: &str| w[key].as_str().map(str::to_owned);
        let requirement = format!("{}=={}", text("name")?, text("version")?);
        let (file, sha256) = (text("file").filter(|f| !f.contains('/'))?, text("sha256")?);
        Some(Row { requirement, file, size: w["size"].as_u64()?, sha256 })
    };
    let rows: Option<Vec<Row>> = wheels.iter().map(row).collect();
    rows.ok_or_else(|| miette::miette!("a row of the lock lacks something"))
}

/// Runs pip for the target, whose platform tags are those of the files.
fn download(lock: &Value, rows: &[&Row], dir: &Utf8Path) -> miette::Result<()> {
    let sh = Shell::new().into_diagnostic()?;
    let tag = lock["python"].as_str().unwrap_or_default();
    let Some(minor) = tag.strip_prefix("cp3") else { bail!("the lock's python is {tag:?}, not like cp312") };
    let python = format!("3.{minor}");
    let requirements = dir.join(".requirements.txt");
    let mut file = File::create(&requirements).into_diagnostic()?;
    for row in rows {
        writeln!(file, "{} --hash=sha256:{}", row.requirement, row.sha256).into_diagnostic()?;
    }
    let platforms: BTreeSet<&str> = rows
        .iter()
        .filter_map(|r| r.file.strip_suffix(".whl")?.rsplit('-').next())
        .flat_map(|p| p.split('.'))
        .collect();
    let platforms = platforms.into_iter().filter(|p| *p != "any").flat_map(|p| ["--platform", p]);
    // A file list with hashes and no resolving: nothing but these can come.
    let fetched = cmd!(
        sh,
        "python3 -m pip download --disable-pip-version-check --quiet --only-binary=:all: --no-deps --require-hashes
         --implementation cp --python-version {python} {platforms...} --dest {dir} --requirement {requirements}"
    );
    let fetched = fetched.run().into_diagnostic().wrap_err("pip could not fetch the wheels");
    std::fs::remove_file(&requirements).into_diagnostic()?;
    fetched
}

fn check(row: &Row, dir: &Utf8Path) -> miette::Result<()> {
    let path = dir.join(&row.file);
    let mut file = File::open(&path).into_diagnostic().wrap_err_with(|| format!("cannot read {path}"))?;
    let mut sum = Sha256::new();
    let size = std::io::copy(&mut file, &mut sum).into_diagnostic()?;
    let sum: String = sum.finalize().iter().map(|b| format!("{b:02x}")).collect();
    ensure!(size == row.size && sum == row.sha256, "{path} is not the locked file: {size} bytes, sha256 {sum}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_locked_file_will_do() {
        let dir = std::env::temp_dir().join(format!("sparklane-wheelhouse-{}", std::process::id()));
        let dir = Utf8PathBuf::from_path_buf(dir).unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".to_owned();
        let row = Row { requirement: "a==1".to_owned(), file: "a.whl".to_owned(), size: 3, sha256 };
        assert!(check(&row, &dir).is_err());
        std::fs::write(dir.join("a.whl"), "abd").unwrap();
        assert!(check(&row, &dir).unwrap_err().to_string().contains("not the locked file"));
        std::fs::write(dir.join("a.whl"), "abc").unwrap();
        assert!(check(&row, &dir).is_ok());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_usual_lock_has_rows() {
        let lock: Value = serde_json::from_slice(&std::fs::read(lock()).unwrap()).unwrap();
        assert_eq!(rows(&lock).unwrap().len(), 57);
        assert!(rows(&serde_json::json!({ "wheels": [{ "name": "a" }] })).is_err());
    }
}
