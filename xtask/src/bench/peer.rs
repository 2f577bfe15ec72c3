//! Stock deploy-rs 1.0.0 with the same closures and the same engine unit.

use camino::Utf8PathBuf;
use miette::{Context, IntoDiagnostic, bail};
use serde_json::json;
use sparklane_lab::Lab;
use xshell::{Shell, cmd};

use super::deploy::{self, NODES};
use crate::cache;

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
        let root = cache("deploy-rs");
        let peer = Self { bin: root.join("bin") };
        if !peer.bin.join("deploy").exists() || !peer.bin.join("activate").exists() {
            eprintln!("xtask: building deploy-rs {VERSION} (once; some minutes)");
            cmd!(sh, "cargo install --quiet --locked --version {VERSION} --root {root} deploy-rs")
                .run()
                .into_diagnostic()?;
        }
        Ok(peer)
    }

    /// Puts the client and its flake on control; the flake's profiles hold our closures of both lanes.
    pub fn install(&self, lab: &Lab) -> miette::Result<()> {
        let control = lab.root("control");
        copy(self.bin.join("deploy"), control.join("usr/local/bin/deploy"))?;
        copy(self.bin.join("activate"), control.join("root/activate"))?;
        let version = lab.check("control", &["deploy", "--version"]).into_diagnostic()?;
        if !version.contains(VERSION) {
            bail!("the peer says it is {}, not {VERSION}", version.trim());
        }
        let activate = lab.check("control", &["nix-store", "--add", "/root/activate"]).into_diagnostic()?;
        let mut profiles = serde_json::Map::new();
        for lane in deploy::LANES {
            for (node, closure) in NODES.iter().zip(deploy::closures(lab, lane)?) {
                let given = json!({"closure": closure, "host": node.address, "role": node.role});
                profiles.insert(format!("{lane}-{}", node.name), given);
            }
        }
        let given = json!({"activate": activate.trim(), "profiles": profiles});
        let here = crate::workspace().join("tests/bench/deploy-rs");
        let there = control.join(FLAKE.trim_start_matches('/'));
        std::fs::create_dir_all(&there).into_diagnostic()?;
        for file in ["flake.nix", "activate.sh"] {
            copy(here.join(file), there.join(file))?;
        }
        std::fs::write(there.join("closures.json"), given.to_string()).into_diagnostic()
    }
}

/// The command for one lane: the worker first, as its engine must run before the head's can become active.
pub fn argv(lane: &str) -> Vec<String> {
    let mut argv: Vec<String> = ["deploy", "--skip-checks", "--targets"].map(str::to_owned).to_vec();
    argv.extend(NODES.iter().rev().map(|node| format!("path:{FLAKE}#{lane}-{}", node.name)));
    argv
}

fn copy(from: Utf8PathBuf, to: Utf8PathBuf) -> miette::Result<()> {
    std::fs::copy(&from, &to).map(drop).into_diagnostic().wrap_err_with(|| format!("cannot copy {from} to {to}"))
}
