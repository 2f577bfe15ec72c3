//! Debian packages that the tasks need: said first, then installed.

use miette::{IntoDiagnostic, bail};
use sparklane_lab::{PROGRAMS, Program, missing_programs};
use xshell::{Shell, cmd};

/// What the lab does not need and the tasks do.
const MORE: &[Program] = &[
    Program { name: "gcc", package: "gcc" },
    // Real peers of the registry client and server.
    Program { name: "skopeo", package: "skopeo" },
    Program { name: "docker-registry", package: "docker-registry" },
    // Fetches and resolves wheels.
    Program { name: "pip3", package: "python3-pip" },
    // Schemas of the image specification, to judge our documents by.
    Program {
        name: "/usr/share/gocode/src/github.com/opencontainers/image-spec/schema/defs.json",
        package: "golang-github-opencontainers-image-spec-dev",
    },
    // Tests of the shipped lanes evaluate them.
    Program { name: "nix-instantiate", package: "nix-bin" },
    // The hub's own client runs in an environment of its own.
    Program { name: "python3", package: "python3-venv" },
    // Static programs for the other architecture are run once after their build.
    Program { name: "qemu-aarch64-static", package: "qemu-user-static" },
];

/// For `cargo xtask test --consumers`.
pub const CONSUMERS: &[Program] = &[
    Program { name: "podman", package: "podman" },
    Program { name: "runc", package: "runc" },
    Program { name: "umoci", package: "umoci" },
];

/// Installs what the tasks need, as [`install`].
pub fn ensure(sh: &Shell) -> miette::Result<()> {
    install(sh, &PROGRAMS.iter().chain(MORE).copied().collect::<Vec<_>>())
}

/// Installs the packages whose programs are missing, after saying which.
pub fn install(sh: &Shell, programs: &[Program]) -> miette::Result<()> {
    let mut packages: Vec<&str> = missing_programs(programs).iter().map(|p| p.package).collect();
    packages.sort_unstable();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    eprintln!("xtask: installing the Debian packages {}", packages.join(" "));
    if !std::path::Path::new("/usr/bin/apt-get").exists() {
        bail!("no apt-get here; install by hand what brings: {}", packages.join(" "));
    }
    let _env = sh.push_env("DEBIAN_FRONTEND", "noninteractive");
    cmd!(sh, "apt-get update --quiet=2").run().into_diagnostic()?;
    cmd!(sh, "apt-get install --yes --quiet=2 --no-install-recommends {packages...}").run().into_diagnostic()
}
