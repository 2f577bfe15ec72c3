//! Stock deploy-rs 1.0.0 with the same closures and the same engine unit.

use camino::Utf8PathBuf;
use miette::{Context, IntoDiagnostic, bail};
use sparklane_lab::Lab;
use xshell::Shell;

use super::deploy::NODES;
use crate::test;

const VERSION: &str = "1.0.0";
/// Where its flake lies on control.
const FLAKE: &str = "/root/peer";

/// The two programs, built once into the cache.
pub struct Peer {
    bin: Utf8PathBuf,
}

impl Peer {
    /// Installs deploy-rs from the Rust registry unless it is there.
    pub fn ensure(sh: &Shell) -> miette::Result<Self> {
        Ok(Self { bin: test::installed(sh, "deploy-rs", VERSION)?.join("bin") })
    }

    /// Puts the client and its flake on control, and locks the flake's inputs as a user would have done.
    pub fn install(&self, lab: &Lab) -> miette::Result<()> {
        let control = lab.root("control");
        let (programs, flake) = (control.join("root/deploy-rs"), control.join(FLAKE.trim_start_matches('/')));
        for folder in [&programs, &flake] {
            std::fs::create_dir_all(folder).into_diagnostic()?;
        }
        copy(self.bin.join("deploy"), control.join("usr/local/bin/deploy"))?;
        copy(self.bin.join("activate"), programs.join("activate"))?;
        let here = crate::workspace().join("tests/bench/deploy-rs");
        for file in ["flake.nix", "activate.sh"] {
            copy(here.join(file), flake.join(file))?;
        }
        lab.check("control", &["nix", "flake", "lock", &format!("path:{FLAKE}")]).into_diagnostic()?;
        let version = lab.check("control", &["deploy", "--version"]).into_diagnostic()?;
        if version.contains(VERSION) { Ok(()) } else { bail!("the peer is {}, not {VERSION}", version.trim()) }
    }
}

/// The command for one lane: the worker first, as its engine must run before the head's can become active.
pub fn argv(lane: &str) -> Vec<String> {
    let mut argv: Vec<String> = ["deploy", "--skip-checks", "--targets"].map(str::to_owned).to_vec();
    argv.extend(NODES.iter().rev().map(|node| format!("path:{FLAKE}#{lane}-{node}")));
    argv
}

fn copy(from: Utf8PathBuf, to: Utf8PathBuf) -> miette::Result<()> {
    std::fs::copy(&from, &to).map(drop).into_diagnostic().wrap_err_with(|| format!("cannot copy {from} to {to}"))
}
