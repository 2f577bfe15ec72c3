//! Builds for the other architecture, in a Debian root file system that has its compiler and libraries.

use camino::{Utf8Path, Utf8PathBuf};
use miette::{Context, IntoDiagnostic, bail};
use sha2::{Digest, Sha256};
use xshell::{Shell, cmd};

use crate::prebuilt::{System, cargo_home, rust_flags, target_dir};
use crate::{cache, workspace};

const SUITE: &str = "trixie";
/// Packages of the release itself.
const PACKAGES: &[&str] = &["ca-certificates", "gcc", "libc6-dev", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
/// Packages of its backports, which have a Rust new enough for this workspace.
const BACKPORTS: &[&str] = &["rustc", "cargo", "libstd-rust-dev:arm64"];
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Raise it when the way of making the root changes.
const VERSION: &str = "1";

/// Builds the binary for `system` and gives back the folder that holds it.
pub fn build(sh: &Shell, system: System) -> miette::Result<Utf8PathBuf> {
    if system != System::Aarch64 {
        bail!("only aarch64-linux is cross-built; build {} on such a machine", system.name());
    }
    let root = root(sh)?;
    let home = cargo_home()?;
    {
        let _dir = sh.push_dir(workspace());
        cmd!(sh, "cargo fetch --locked --quiet").run().into_diagnostic()?;
    }
    let output = target_dir().join("cross");
    sh.create_dir(&output).into_diagnostic()?;
    let target = system.target();
    let flags = rust_flags("/src", "/cargo");
    let variables = [
        "PATH=/usr/bin:/bin".to_owned(),
        "HOME=/root".to_owned(),
        "CARGO_HOME=/cargo".to_owned(),
        "CARGO_NET_OFFLINE=true".to_owned(),
        "CARGO_TARGET_DIR=/target".to_owned(),
        format!("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER={LINKER}"),
        format!("CC_aarch64_unknown_linux_gnu={LINKER}"),
        format!("CARGO_ENCODED_RUSTFLAGS={flags}"),
    ];
    let script = Mounts { root: &root, binds: [(workspace(), "/src"), (&home, "/cargo"), (&output, "/target")] };
    script.enter(
        sh,
        &variables,
        &[
            "cargo",
            "build",
            "--manifest-path=/src/Cargo.toml",
            "--release",
            "--locked",
            "--offline",
            "--target",
            target,
            "--package",
            "sparklane",
            "--bin",
            "sparklane",
        ],
    )?;
    Ok(output.join(target).join("release"))
}

/// The root with folders of this host bound into it, in a mount namespace that ends with the command.
struct Mounts<'a> {
    root: &'a Utf8Path,
    binds: [(&'a Utf8Path, &'a str); 3],
}

impl Mounts<'_> {
    fn enter(&self, sh: &Shell, variables: &[String], argv: &[&str]) -> miette::Result<()> {
        let root = self.root;
        let mut arguments = vec![
            "--quiet".to_owned(),
            "--console=pipe".to_owned(),
            "--register=no".to_owned(),
            "--keep-unit".to_owned(),
            "--as-pid2".to_owned(),
            "--resolv-conf=off".to_owned(),
            "--timezone=off".to_owned(),
            "--link-journal=no".to_owned(),
            // The root stays as it is: what a build writes besides its output is dropped.
            "--volatile=overlay".to_owned(),
            format!("--directory={root}"),
        ];
        arguments.extend(self.binds.iter().map(|(from, to)| format!("--bind={from}:{to}")));
        arguments.extend(variables.iter().map(|v| format!("--setenv={v}")));
        let _env = sh.push_env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1");
        cmd!(sh, "systemd-nspawn {arguments...} -- {argv...}").quiet().run().into_diagnostic()
    }
}

/// The Debian root file system with both compilers, made once per version of its description.
fn root(sh: &Shell) -> miette::Result<Utf8PathBuf> {
    let mut hash = Sha256::new();
    for text in [VERSION, SUITE].iter().chain(PACKAGES).chain(BACKPORTS) {
        hash.update(text);
        hash.update([0]);
    }
    let id: String = hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect();
    let done = cache(&format!("cross-{id}"));
    if done.join("usr/bin/cargo").exists() {
        return Ok(done);
    }
    eprintln!("xtask: making the root file system for cross builds (once; about a minute)");
    let making: Utf8PathBuf = format!("{done}.new").into();
    sh.remove_path(&making).into_diagnostic()?;
    if let Some(parent) = making.parent() {
        sh.create_dir(parent).into_diagnostic()?;
    }
    make(sh, &making).wrap_err("cannot make the root file system for cross builds")?;
    std::fs::rename(&making, &done).into_diagnostic()?;
    Ok(done)
}

fn make(sh: &Shell, root: &Utf8Path) -> miette::Result<()> {
    let include = format!("--include={}", PACKAGES.join(","));
    cmd!(sh, "mmdebstrap --quiet --variant=apt --architectures=amd64,arm64 {include} {SUITE} {root}")
        .run()
        .into_diagnostic()?;
    // mmdebstrap wrote the line of the suite that it used, with this site's mirror: the backports lie beside it.
    let list = root.join("etc/apt/sources.list");
    let text = sh.read_file(&list).into_diagnostic()?;
    let suite = format!(" {SUITE} ");
    let Some(line) = text.lines().find(|l| l.starts_with("deb ") && l.contains(&suite)) else {
        bail!("{list} has no line for {SUITE}");
    };
    let more = line.replace(&suite, &format!(" {SUITE}-backports "));
    sh.write_file(root.join("etc/apt/sources.list.d/backports.list"), more + "\n").into_diagnostic()?;
    let _env = sh.push_env("DEBIAN_FRONTEND", "noninteractive");
    let suite = format!("--target-release={SUITE}-backports");
    cmd!(sh, "chroot {root} apt-get update --quiet=2").run().into_diagnostic()?;
    cmd!(sh, "chroot {root} apt-get install --yes --quiet=2 --no-install-recommends {suite} {BACKPORTS...}")
        .run()
        .into_diagnostic()?;
    cmd!(sh, "chroot {root} apt-get clean").run().into_diagnostic()
}
