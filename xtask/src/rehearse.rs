//! `cargo xtask rehearse`: the main job on the lab.

use std::process::ExitCode;

use miette::{Context, IntoDiagnostic, bail};
use sparklane_lab::{Lab, Paths, UpOptions, owner};
use xshell::Shell;

use crate::{packages, prebuilt, workspace};

/// What to rehearse.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Leave the lab as it is after its start: deploy nothing.
    #[arg(long)]
    no_deploy: bool,
    #[command(flatten)]
    claim: Claim,
}

/// What to do about a lab that runs.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Claim {
    /// Replace a running lab, also one that no `cargo xtask` command made.
    #[arg(long)]
    replace: bool,
}

impl Claim {
    /// Before a task makes a lab anew: says what goes, and refuses when that is a person's.
    ///
    /// # Errors
    /// When a lab runs that no task made, and nobody said to replace it.
    pub fn take(self, task: &str) -> miette::Result<()> {
        if let Some(replaced) = owner::claim(&Paths::from_env(), task, self.replace).into_diagnostic()? {
            eprintln!("xtask: replaces {replaced}");
        }
        Ok(())
    }
}

/// The steps, each an app of the flake and its arguments, run on the control machine.
const STEPS: &[&[&str]] = &[&["deploy", "lab-a"], &["deploy", "lab-b"], &["rollback", "--to", "1"]];

/// Runs it; the exit code is that of the first step that fails.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    args.claim.take("cargo xtask rehearse")?;
    let sh = Shell::new().into_diagnostic()?;
    packages::ensure(&sh)?;
    prebuilt::run(&prebuilt::Args { system: vec![prebuilt::System::X86_64] })?;
    // Releases count from 1 only on nodes that nothing was deployed to.
    Lab::down(&Paths::from_env()).into_diagnostic()?;
    let lab = lab_up()?;
    eprintln!("xtask: the lab is up (control, head, worker)");
    if args.no_deploy {
        return Ok(ExitCode::SUCCESS);
    }
    for step in STEPS {
        let code = run_app(&lab, step)?;
        if code != 0 {
            eprintln!("xtask: {} ended with exit code {code}", step.join(" "));
            return Ok(ExitCode::from(code));
        }
    }
    eprintln!("xtask: look around with `sparklane lab shell control`, end with `sparklane lab down`");
    Ok(ExitCode::SUCCESS)
}

/// Starts the lab with this checkout's files.
pub fn lab_up() -> miette::Result<Lab> {
    let options = UpOptions {
        flake: Some(workspace().to_owned()),
        prebuilt: Some(workspace().join("prebuilt")),
        state_size_mib: None,
    };
    Lab::up(Paths::from_env(), &options, &|text| eprintln!("xtask: {text}")).into_diagnostic().wrap_err("no lab")
}

/// Runs one of the flake's apps on the control machine, its output on ours.
fn run_app(lab: &Lab, step: &[&str]) -> miette::Result<u8> {
    let [app, arguments @ ..] = step else { bail!("an empty step") };
    let installable = format!("path:/root/sparklane#{app}");
    let mut argv = vec!["nix", "run", &installable, "--override-input", "prebuilt", "path:/root/prebuilt", "--"];
    argv.extend(arguments);
    argv.extend(["--cluster", "lab"]);
    eprintln!("control# {}", argv.join(" "));
    let status = lab.command("control", &argv).into_diagnostic()?.status().into_diagnostic()?;
    Ok(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(u8::MAX))
}
