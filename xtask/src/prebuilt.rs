//! `cargo xtask prebuilt`: the static programs that the flake takes as its input `prebuilt`.

use camino::{Utf8Path, Utf8PathBuf};
use clap::ValueEnum;
use miette::{Context, IntoDiagnostic, bail, ensure};
use xshell::{Shell, cmd};

use crate::{cross, packages, workspace};

/// What to build.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// Build only this system; may be repeated [default: both]
    #[arg(long)]
    pub system: Vec<System>,
}

/// A system as Nix names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// The build machines and the lab.
    #[value(name = "x86_64-linux")]
    X86_64,
    /// The Sparks.
    #[value(name = "aarch64-linux")]
    Aarch64,
}

impl System {
    /// Nix's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-linux",
            Self::Aarch64 => "aarch64-linux",
        }
    }

    /// Rust's name.
    pub fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The machine number in an ELF header.
    fn elf_machine(self) -> u16 {
        match self {
            Self::X86_64 => 62,
            Self::Aarch64 => 183,
        }
    }
}

/// Builds what was asked for into ./prebuilt.
pub fn run(args: &Args) -> miette::Result<()> {
    let sh = Shell::new().into_diagnostic()?;
    packages::ensure(&sh)?;
    let systems = if args.system.is_empty() { vec![System::X86_64, System::Aarch64] } else { args.system.clone() };
    for system in systems {
        build(&sh, system).wrap_err_with(|| format!("cannot build for {}", system.name()))?;
    }
    Ok(())
}

fn build(sh: &Shell, system: System) -> miette::Result<()> {
    let place = workspace().join("prebuilt").join(system.name());
    sh.create_dir(&place).into_diagnostic()?;
    // The simulator runs in the lab only, and the lab has this host's architecture.
    let native = std::env::consts::ARCH == system.name().trim_end_matches("-linux");
    let built = if native { native_build(sh, system)? } else { cross::build(sh, system)? };
    let program = sh.read_binary_file(built.join("sparklane")).into_diagnostic()?;
    check_elf(&program, system)?;
    let changed = put(&place.join("sparklane"), &program, 0o755)?;
    check_runs(sh, &place.join("sparklane"), system, native)?;
    if native {
        put_image(sh, &built, &place, system)?;
    }
    let size = program.len() as f64 / 1e6;
    eprintln!("xtask: prebuilt/{}/sparklane, {size:.1} MB{}", system.name(), if changed { "" } else { ", unchanged" });
    Ok(())
}

/// Flags that make a program static and free of this machine's folder names.
pub fn rust_flags(workspace: &str, cargo_home: &str) -> String {
    let flags = [
        "-Ctarget-feature=+crt-static".to_owned(),
        // A panic aborts and the symbols are stripped: nobody would read a tenth of the file.
        "-Cforce-unwind-tables=no".to_owned(),
        format!("--remap-path-prefix={workspace}=/src"),
        format!("--remap-path-prefix={cargo_home}=/cargo"),
    ];
    // Cargo's own separator, safe for folders with blanks.
    flags.join("\x1f")
}

/// Cargo's home: its registry copies are used by both builds.
pub fn cargo_home() -> miette::Result<Utf8PathBuf> {
    if let Ok(home) = std::env::var("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var("HOME").into_diagnostic().wrap_err("neither CARGO_HOME nor HOME is set")?;
    Ok(Utf8PathBuf::from(home).join(".cargo"))
}

/// Where cargo puts its output.
pub fn target_dir() -> Utf8PathBuf {
    std::env::var("CARGO_TARGET_DIR").map_or_else(|_| workspace().join("target"), Utf8PathBuf::from)
}

fn native_build(sh: &Shell, system: System) -> miette::Result<Utf8PathBuf> {
    let target = system.target();
    let _dir = sh.push_dir(workspace());
    let _flags = sh.push_env("CARGO_ENCODED_RUSTFLAGS", rust_flags(workspace().as_str(), cargo_home()?.as_str()));
    // One call for both: two would build shared dependencies twice, with other features.
    let what = ["--package", "sparklane", "--bin", "sparklane", "--package", "sparklane-lab", "--bin", "sparklane-sim"];
    cmd!(sh, "cargo build --release --locked --target {target} {what...}").run().into_diagnostic()?;
    Ok(target_dir().join(target).join("release"))
}

fn put_image(sh: &Shell, built: &Utf8Path, place: &Utf8Path, system: System) -> miette::Result<()> {
    let program = sh.read_binary_file(built.join("sparklane-sim")).into_diagnostic()?;
    check_elf(&program, system)?;
    let architecture = if system == System::X86_64 { "amd64" } else { "arm64" };
    let image = sparklane_lab::sim_image::build(&program, architecture).into_diagnostic()?;
    let facts = serde_json::to_string_pretty(&image.facts).into_diagnostic()? + "\n";
    put(&place.join("sim-image.tar"), &image.tar, 0o644)?;
    put(&place.join("sim-image.json"), facts.as_bytes(), 0o644).map(drop)
}

/// Puts a file into place in one step; false when it was the same already.
fn put(path: &Utf8Path, content: &[u8], mode: u32) -> miette::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    if std::fs::read(path).is_ok_and(|old| old == content) {
        return Ok(false);
    }
    let new: Utf8PathBuf = format!("{path}.new").into();
    std::fs::write(&new, content).into_diagnostic()?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode)).into_diagnostic()?;
    std::fs::rename(&new, path).into_diagnostic()?;
    Ok(true)
}

/// Refuses a program for another machine, or one that needs a dynamic loader.
fn check_elf(program: &[u8], system: System) -> miette::Result<()> {
    let machine = program.get(18..20).map(|b| u16::from_le_bytes([b[0], b[1]]));
    ensure!(program.starts_with(b"\x7fELF"), "the program is no ELF file");
    ensure!(machine == Some(system.elf_machine()), "its ELF machine is {machine:?}, not {}", system.elf_machine());
    ensure!(!has_interpreter(program), "it is not static: it names a loader");
    Ok(())
}

/// True when a 64-bit little-endian ELF file has a program header of type PT_INTERP.
fn has_interpreter(program: &[u8]) -> bool {
    let number = |at: usize, len: usize| -> Option<usize> {
        let bytes = program.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0, |sum, b| sum << 8 | usize::from(*b)))
    };
    let (Some(start), Some(size), Some(count)) = (number(32, 8), number(54, 2), number(56, 2)) else {
        return false;
    };
    (0..count).any(|i| number(start + i * size, 4) == Some(3))
}

fn check_runs(sh: &Shell, program: &Utf8Path, system: System, native: bool) -> miette::Result<()> {
    let says = if native {
        cmd!(sh, "{program} --version").read().into_diagnostic()?
    } else {
        let emulator = format!("qemu-{}-static", system.name().trim_end_matches("-linux"));
        cmd!(sh, "{emulator} {program} --version").read().into_diagnostic()?
    };
    if says.starts_with("sparklane ") {
        return Ok(());
    }
    bail!("{program} --version says {says:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_static_from_dynamic_and_machines_apart() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(has_interpreter(&own), "cargo test programs are dynamic");
        let right = if cfg!(target_arch = "x86_64") { System::X86_64 } else { System::Aarch64 };
        assert!(check_elf(&own, right).unwrap_err().to_string().contains("not static"));
        let wrong = if right == System::X86_64 { System::Aarch64 } else { System::X86_64 };
        assert!(check_elf(&own, wrong).unwrap_err().to_string().contains("ELF machine"));
    }
}
