//! The hub's own client in a Python environment of its own: our store is read, and its store is adopted, by the real thing.

use camino::Utf8PathBuf;
use miette::{Context as _, IntoDiagnostic};
use sha2::{Digest as _, Sha256};
use xshell::{Shell, cmd};

use crate::{cache, workspace};

/// Names, versions and hashes; pip fetches from wherever it is set up to.
const LOCK: &str = "crates/weights/tests/hf-client.txt";

/// The Python that has it; made once into the cache, anew when the lock or Python's version changes.
pub fn python(sh: &Shell) -> miette::Result<Utf8PathBuf> {
    let lock = workspace().join(LOCK);
    let text = sh.read_file(&lock).into_diagnostic()?;
    let version = cmd!(sh, "python3 --version").read().into_diagnostic()?;
    let id: String = Sha256::digest(format!("{version}\n{text}")).iter().take(6).map(|b| format!("{b:02x}")).collect();
    let (dir, complete) = (cache(&format!("hf-client-{id}")), "complete");
    if !dir.join(complete).exists() {
        eprintln!("xtask: making a Python environment of {LOCK}");
        cmd!(sh, "python3 -m venv --clear {dir}").run().into_diagnostic().wrap_err("python3-venv is needed")?;
        let pip = dir.join("bin/pip");
        cmd!(
            sh,
            "{pip} install --quiet --disable-pip-version-check --only-binary=:all: --no-deps --require-hashes -r {lock}"
        )
        .run()
        .into_diagnostic()?;
        sh.write_file(dir.join(complete), version).into_diagnostic()?;
    }
    Ok(dir.join("bin/python"))
}

/// Runs the tests that need it.
pub fn check(sh: &Shell) -> miette::Result<()> {
    let _python = sh.push_env("SPARKLANE_HF_PYTHON", python(sh)?);
    cmd!(sh, "cargo test --package sparklane-weights --locked --test hub -- --ignored hubs_own").run().into_diagnostic()
}
