//! Build, sign and copy with the real `nix`.

use std::process::{Command, Stdio};

use camino::Utf8PathBuf;
use sparklane_lane::{GenerationId, LaneName, NodeName, StorePath};
use sparklane_txn::spec::Side;

use crate::error::DeployError;
use crate::site::Site;
use crate::ssh::Remote;

const FEATURES: [&str; 2] = ["--extra-experimental-features", "nix-command flakes"];

/// Builds the generations of a lane for all nodes in one evaluation; in the order of `nodes`.
///
/// # Errors
/// With Nix's own words: a lane that does not validate names its file and key there.
pub fn build(site: &Site, lane: &LaneName, nodes: &[NodeName]) -> Result<Vec<Side>, DeployError> {
    let mut command = Command::new("nix");
    command.args(FEATURES).args(["build", "--no-link", "--print-out-paths", "--no-write-lock-file"]);
    for (input, folder) in &site.flake.inputs {
        command.args(["--override-input", input, &format!("path:{folder}")]);
    }
    for node in nodes {
        command.arg(format!("path:{}#generation-{}-{lane}-{node}", site.flake.flake, site.cluster.name));
    }
    let out = run(command, "build")?;
    let sides: Result<Vec<Side>, DeployError> = out.lines().map(side).collect();
    let sides = sides?;
    if sides.len() == nodes.len() {
        return Ok(sides);
    }
    Err(DeployError::Refused(format!("nix built {} generations for {} nodes", sides.len(), nodes.len())))
}

/// A generation by its path in this host's store.
///
/// # Errors
/// When the path is no store path or holds no generation.
pub fn side(path: &str) -> Result<Side, DeployError> {
    let refused = |why: String| DeployError::Refused(format!("{path}: {why}"));
    let store: StorePath = path.trim().parse().map_err(|e: sparklane_lane::BadId| refused(e.to_string()))?;
    let id = std::fs::read_to_string(Utf8PathBuf::from(store.as_str()).join("generation.id"));
    let id = id.map_err(|e| refused(e.to_string()))?;
    let generation: GenerationId = id.trim().parse().map_err(|e: sparklane_lane::BadId| refused(e.to_string()))?;
    Ok(Side { path: store, generation })
}

/// Signs closures with the cluster's key; the key's file is named, never read here.
///
/// # Errors
/// When Nix refuses the key file.
pub fn sign(paths: &[&StorePath], key_file: &str) -> Result<(), DeployError> {
    let mut command = Command::new("nix");
    command.args(FEATURES).args(["store", "sign", "--recursive", "--key-file", key_file]);
    command.args(paths.iter().map(|p| p.as_str()));
    run(command, "sign").map(drop)
}

/// Copies a closure to a node over its shared connection; what the node has is not sent again.
///
/// # Errors
/// With Nix's own words and, for a missing signature, which key the node has to trust.
pub fn copy(remote: &Remote, path: &StorePath) -> Result<(), DeployError> {
    let mut command = Command::new("nix");
    command.args(FEATURES).args(["copy", "--to", &remote.store(), path.as_str()]);
    command.env("NIX_SSHOPTS", remote.ssh_args().join(" "));
    run(command, "copy").map(drop).map_err(|error| {
        let hint = if error.to_string().contains("signature") {
            ". Sign with the cluster's key and add its public half to trusted-public-keys in the node's /etc/nix/nix.conf; \
             never make the user a trusted-user, that equals root"
        } else {
            ""
        };
        DeployError::Refused(format!("{}: {error}{hint}", remote.name))
    })
}

fn run(mut command: Command, what: &str) -> Result<String, DeployError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().map_err(|e| DeployError::Refused(format!("nix cannot be started: {e}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let told: Vec<&str> = stderr.lines().filter(|l| !l.trim().is_empty() && !l.starts_with("warning:")).collect();
    let tail = told[told.len().saturating_sub(20)..].join("\n");
    let hint = if tail.contains("does not provide attribute") && tail.contains("generation-") {
        "\nThe prebuilt folder may lack the nodes' program: cargo xtask prebuilt --system aarch64-linux"
    } else {
        ""
    };
    Err(DeployError::Refused(format!("nix {what} failed ({}):\n{tail}{hint}", output.status)))
}
