//! `sparklane image lock-wheels`: pip resolves, for the target instead of for this machine; the lock has names and hashes only.

use std::fs;
use std::process::{Command, ExitCode};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use sparklane_oci::OciError;
use sparklane_oci::layout::write_atomic;
use sparklane_oci::wheel::{Arch, Lock, Target, glibc_version, python_minor};

use super::common::{answer, size};

/// pip's own code with the target's environment in place of this machine's.
const DRIVER: &str = include_str!("target_env.py");

/// Resolve requirements with pip for the image's python and processor, and write the lock of the wheels.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image lock-wheels 'ray[default]==2.57.0' --out images/ray.lock.json
  sparklane image lock-wheels ray==2.57.0 --python cp311 --arch x86_64 --glibc 2.36 --out ray.lock.json

Needs python3 with pip. Where packages come from is pip's own configuration; the lock has no address. The lock's glibc is the
newest that a wheel may need: that of the image's base, or older.")]
pub struct Args {
    /// What is wanted, as pip has it: `name[extra]==version`.
    #[arg(required = true)]
    requirements: Vec<String>,
    /// The image's python.
    #[arg(long, value_name = "TAG", default_value = "cp312", value_parser = minor)]
    python: u32,
    /// The image's processor.
    #[arg(long, default_value = "aarch64", value_parser = arch)]
    arch: Arch,
    /// The image's glibc.
    #[arg(long, value_name = "VERSION", default_value = "2.28", value_parser = glibc)]
    glibc: (u32, u32),
    /// The lock to write.
    #[arg(long, value_name = "FILE")]
    out: Utf8PathBuf,
    /// Keep the wheels in this folder.
    #[arg(long, value_name = "DIR")]
    wheels: Option<Utf8PathBuf>,
    /// Print the lock as JSON on stdout.
    #[arg(long)]
    json: bool,
}

fn minor(text: &str) -> Result<u32, String> {
    python_minor(text).ok_or_else(|| "is no tag like cp312".into())
}

fn arch(text: &str) -> Result<Arch, String> {
    let known = [Arch::Aarch64, Arch::X86_64];
    known.into_iter().find(|a| a.name() == text).ok_or_else(|| "is neither aarch64 nor x86_64".into())
}

fn glibc(text: &str) -> Result<(u32, u32), String> {
    glibc_version(text).filter(|(major, _)| *major == 2).ok_or_else(|| "is no version like 2.28".into())
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    Ok(answer(args.json, locked(&args), |lock| text(lock, &args.out)))
}

fn locked(args: &Args) -> Result<Lock, OciError> {
    if let Some(option) = args.requirements.iter().find(|r| r.starts_with('-')) {
        return Err(OciError::document(option, "a requirement does not begin with a dash"));
    }
    let target = Target { minor: args.python, arch: args.arch, glibc: args.glibc };
    // Beside the place where the wheels stay, so that they can be renamed into it.
    let near =
        args.wheels.clone().unwrap_or_else(|| Utf8PathBuf::from_path_buf(std::env::temp_dir()).unwrap_or_default());
    fs::create_dir_all(&near).map_err(OciError::io("create", &near))?;
    let scratch = tempfile::tempdir_in(&near).map_err(OciError::io("create a folder in", &near))?;
    let folder =
        Utf8Path::from_path(scratch.path()).ok_or_else(|| OciError::document(near.as_str(), "is not UTF-8"))?;
    resolve(&target, &args.requirements, folder)?;
    let lock = Lock::of_folder(folder, target, args.requirements.clone())?;
    if let Some(wheels) = &args.wheels {
        for row in &lock.wheels {
            let to = wheels.join(&row.file);
            fs::rename(folder.join(&row.file), &to).map_err(OciError::io("move a wheel to", &to))?;
        }
    }
    let text = lock.text().map_err(|e| OciError::document(args.out.as_str(), e.to_string()))?;
    write_atomic(&args.out, text.as_bytes())?;
    Ok(lock)
}

/// What `; markers` of requirements are judged by (PEP 508).
fn environment(target: &Target) -> Value {
    json!({
        "implementation_name": "cpython",
        "implementation_version": format!("3.{}.0", target.minor),
        "os_name": "posix",
        "platform_machine": target.arch.name(),
        "platform_system": "Linux",
        "platform_python_implementation": "CPython",
        "python_full_version": format!("3.{}.0", target.minor),
        "python_version": format!("3.{}", target.minor),
        "sys_platform": "linux",
    })
}

/// pip's arguments.
fn arguments(target: &Target, requirements: &[String], folder: &Utf8Path) -> Vec<String> {
    let fixed = ["download", "--disable-pip-version-check", "--quiet", "--only-binary=:all:", "--implementation", "cp"];
    let mut args: Vec<String> = fixed.map(str::to_owned).to_vec();
    args.extend(["--python-version".to_owned(), format!("3.{}", target.minor)]);
    args.extend(target.platform_tags().into_iter().flat_map(|tag| ["--platform".to_owned(), tag]));
    args.extend(["--dest".to_owned(), folder.to_string(), "--".to_owned()]);
    args.extend(requirements.iter().cloned());
    args
}

fn resolve(target: &Target, requirements: &[String], folder: &Utf8Path) -> Result<(), OciError> {
    eprintln!("pip resolves {} for {target}", requirements.join(", "));
    let mut pip = Command::new("python3");
    pip.args(["-c", DRIVER, &environment(target).to_string()]).args(arguments(target, requirements, folder));
    let done = pip.output().map_err(OciError::io("run", "python3"))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let why = match said.contains("No module named 'pip") {
        true => "python3 has no pip; on Debian install python3-pip".to_owned(),
        false => said.trim().to_owned(),
    };
    Err(OciError::document(format!("pip ({})", done.status), why))
}

fn text(lock: &Lock, out: &Utf8Path) -> String {
    let bytes = lock.wheels.iter().map(|w| w.size).sum();
    format!("{out}: {} wheels, {}", lock.wheels.len(), size(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_is_told_of_the_target_alone() {
        let target = Target { minor: 12, arch: Arch::Aarch64, glibc: (2, 18) };
        let args = arguments(&target, &["six==1".to_owned()], Utf8Path::new("/w"));
        let text = args.join(" ");
        assert!(text.ends_with(
            "--python-version 3.12 --platform manylinux_2_18_aarch64 --platform manylinux_2_17_aarch64 \
             --platform manylinux2014_aarch64 --platform linux_aarch64 --dest /w -- six==1"
        ));
        assert_eq!(environment(&target)["python_version"], "3.12");
    }

    #[test]
    fn targets_are_read() {
        assert_eq!((minor("cp312"), glibc("2.39")), (Ok(12), Ok((2, 39))));
        assert!(minor("py3").is_err() && glibc("3.1").is_err() && glibc("2").is_err() && arch("arm64").is_err());
    }
}
