//! `cargo xtask test`: every check.

use std::process::ExitCode;
use std::time::Instant;

use camino::Utf8PathBuf;
use miette::IntoDiagnostic;
use xshell::{Shell, cmd};

use crate::{cache, hf_client, packages, prebuilt, real_vllm, rehearse, wheelhouse, workspace};

/// What to check.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Leave out what needs the lab.
    #[arg(long)]
    no_lab: bool,
    /// Only try an image of ours with podman, runc, skopeo and umoci, which it installs.
    #[arg(long, conflicts_with = "no_lab")]
    consumers: bool,
    /// Only try lanes with a real vLLM on processors (2.6 GB, 15 minutes). No part of the rest.
    #[arg(long, conflicts_with_all = ["no_lab", "consumers"])]
    real_vllm: bool,
    #[command(flatten)]
    claim: rehearse::Claim,
}

type Check = fn(&Shell) -> miette::Result<()>;

const CHECKS: &[(&str, Check)] = &[
    ("format", |sh| cmd!(sh, "cargo fmt --all --check").run().into_diagnostic()),
    ("lints", |sh| cmd!(sh, "cargo clippy --workspace --all-targets --locked -- -D warnings").run().into_diagnostic()),
    ("dependencies", dependencies),
    ("unit tests", |sh| cmd!(sh, "cargo test --workspace --locked").run().into_diagnostic()),
    ("the hub's own client", hf_client::check),
    ("a large file", |sh| {
        cmd!(sh, "cargo test --package sparklane-weights --locked --test large -- --ignored six_gigabytes")
            .run()
            .into_diagnostic()
    }),
];

const LAB_CHECKS: &[(&str, Check)] = &[
    ("prebuilt", |_| prebuilt::run(&prebuilt::Args::default())),
    ("stock deploy-rs", stock_deploy_rs),
    ("wheels", wheels),
    ("wheel tests", |sh| {
        cmd!(sh, "cargo test --package sparklane --test lock_wheels --locked -- --ignored").run().into_diagnostic()?;
        cmd!(sh, "cargo test --package sparklane-oci --test ray_layer --locked -- --ignored").run().into_diagnostic()
    }),
    ("flake check", flake_check),
    ("lab tests", |sh| {
        cmd!(sh, "cargo test --package sparklane-lab --locked --no-fail-fast -- --ignored --test-threads=1")
            .run()
            .into_diagnostic()
    }),
];

/// Runs all checks and says at the end which failed.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    let sh = Shell::new().into_diagnostic()?;
    sh.change_dir(workspace());
    if !args.no_lab && !args.consumers {
        args.claim.take("cargo xtask test")?;
    }
    packages::ensure(&sh)?;
    if args.consumers {
        return consumers(&sh).map(|()| ExitCode::SUCCESS);
    }
    if args.real_vllm {
        return real_vllm::check(&sh).map(|()| ExitCode::SUCCESS);
    }
    let lab = if args.no_lab { &[] } else { LAB_CHECKS };
    let mut failed = Vec::new();
    for (name, check) in CHECKS.iter().chain(lab) {
        eprintln!("xtask: {name}");
        let start = Instant::now();
        let result = check(&sh);
        let seconds = start.elapsed().as_secs_f32();
        match result {
            Ok(()) => eprintln!("xtask: {name}: ok, {seconds:.0} s"),
            Err(e) => {
                eprintln!("xtask: {name}: FAILED, {seconds:.0} s: {e}");
                failed.push(*name);
            }
        }
    }
    let passed = CHECKS.len() + lab.len() - failed.len();
    println!("{passed} passed, {} failed", failed.len());
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("xtask: failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The wheels of every lock, for the tests that make images of them.
fn wheels(sh: &Shell) -> miette::Result<()> {
    sh.set_var("SPARKLANE_WHEELS", wheelhouse::folder());
    wheelhouse::locks()?.iter().try_for_each(|lock| wheelhouse::fill(lock, &wheelhouse::folder()))
}

/// Other people's consumers of images; CI does without them.
fn consumers(sh: &Shell) -> miette::Result<()> {
    packages::install(sh, packages::CONSUMERS)?;
    wheels(sh)?;
    cmd!(sh, "cargo test --package sparklane-lab --features consumers --test consumers --locked -- --ignored")
        .run()
        .into_diagnostic()
}

/// Licences, sources and duplicates of the dependencies, by cargo-deny.
fn dependencies(sh: &Shell) -> miette::Result<()> {
    let program = installed(sh, "cargo-deny", "0.20.2")?.join("bin/cargo-deny");
    cmd!(sh, "{program} --log-level error check bans licenses sources").run().into_diagnostic()
}

/// The real client that drives our nodes in crates/lab/tests/deploy_rs.rs.
fn stock_deploy_rs(sh: &Shell) -> miette::Result<()> {
    let root = installed(sh, "deploy-rs", "1.0.0")?;
    sh.set_var("SPARKLANE_DEPLOY_RS", root.join("bin/deploy"));
    Ok(())
}

/// A program from the Rust registry, built once into the cache.
pub fn installed(sh: &Shell, package: &str, version: &str) -> miette::Result<Utf8PathBuf> {
    let root = cache(&format!("{package}-{version}"));
    // Cargo's own lists are there from the build's first minute on.
    if !root.join("bin").read_dir().is_ok_and(|mut programs| programs.next().is_some()) {
        eprintln!("xtask: building {package} {version} (once; some minutes)");
        cmd!(sh, "cargo install --quiet --locked --version {version} --root {root} {package}")
            .run()
            .into_diagnostic()?;
    }
    Ok(root)
}

/// The flake's own checks, on the lab's control machine: it has Nix, and no network but ours.
fn flake_check(_sh: &Shell) -> miette::Result<()> {
    let lab = rehearse::lab_up()?;
    let argv = [
        "nix",
        "flake",
        "check",
        "path:/root/sparklane",
        "--print-build-logs",
        "--override-input",
        "prebuilt",
        "path:/root/prebuilt",
    ];
    lab.check("control", &argv).map(drop).into_diagnostic()
}
