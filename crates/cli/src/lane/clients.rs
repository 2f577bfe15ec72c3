//! `lane clients`: files for the agents that use a lane, and what is wrong with those that somebody has.

use std::process::ExitCode;

use camino::{Utf8Path, Utf8PathBuf};
use miette::{Context as _, IntoDiagnostic as _, miette};
use serde_json::json;
use sparklane_lane::clients::{Finding, Served, claude, codex};

use super::print_json;

/// What to do, exactly one of them.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct Do {
    /// Write codex/config.toml, codex/catalog.json and claude-code.env into this folder.
    #[arg(long, value_name = "DIR")]
    out: Option<Utf8PathBuf>,
    /// Judge a config.toml of Codex, and the catalogue it names, against the lane.
    #[arg(long, value_name = "FILE")]
    check: Option<Utf8PathBuf>,
}

/// Writes or judges; 1 when a file of theirs will not work with the lane.
pub(super) fn run(served: &Served, what: &Do, replace: bool, as_json: bool) -> miette::Result<ExitCode> {
    match (&what.out, &what.check) {
        (Some(dir), _) => write(served, dir, replace, as_json).map(|()| ExitCode::SUCCESS),
        (None, Some(file)) => check(served, file, as_json),
        (None, None) => Err(crate::report::Usage("--out DIR or --check FILE".to_owned()).into()),
    }
}

fn write(served: &Served, dir: &Utf8Path, replace: bool, as_json: bool) -> miette::Result<()> {
    let dir = camino::absolute_utf8(dir).into_diagnostic()?;
    let catalog = dir.join("codex/catalog.json");
    let text = serde_json::to_string_pretty(&codex::catalog(served)).into_diagnostic()? + "\n";
    let files = [
        (dir.join("codex/config.toml"), codex::config(served, catalog.as_str())),
        (catalog, text),
        (dir.join("claude-code.env"), claude::env(served)),
    ];
    let theirs =
        files.iter().find(|(path, text)| path.exists() && std::fs::read(path).ok().as_deref() != Some(text.as_bytes()));
    if let Some((path, _)) = theirs.filter(|_| !replace) {
        return Err(miette!("{path} is there and differs; nothing was written: name another --out, or add --replace"));
    }
    std::fs::create_dir_all(dir.join("codex"))
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot make {dir}/codex"))?;
    for (path, text) in &files {
        sparklane_durable::write(path, text.as_bytes(), 0o644).into_diagnostic()?;
    }
    let paths: Vec<&Utf8Path> = files.iter().map(|(path, _)| path.as_path()).collect();
    if as_json {
        return print_json(&json!({ "served": served, "files": paths }));
    }
    paths.iter().for_each(|path| println!("{path}"));
    eprintln!("Codex:       CODEX_HOME={dir}/codex VLLM_API_KEY=none codex");
    eprintln!("Claude Code: set -a; . {dir}/claude-code.env; set +a; claude");
    if let Some(tunnel) = &served.tunnel {
        eprintln!("The API listens on the head's loopback only. From another machine: {tunnel}");
    }
    if let Some(file) = &served.key_file {
        eprintln!("The key itself is in {file} on the head and is in none of these files.");
    }
    Ok(())
}

fn check(served: &Served, file: &Utf8Path, as_json: bool) -> miette::Result<ExitCode> {
    let text = std::fs::read_to_string(file).into_diagnostic().wrap_err_with(|| format!("cannot read {file}"))?;
    let checked = codex::check(&text, served).map_err(|why| miette!("{file} is no configuration of Codex: {why}"))?;
    let mut findings = checked.findings;
    if let Some(path) = checked.catalog {
        findings.extend(match std::fs::read(&path) {
            Ok(bytes) => codex::check_catalog(&bytes, served),
            Err(error) => {
                let remedy = "write it: sparklane lane clients LANE --out DIR".to_owned();
                vec![Finding {
                    gotcha: Some("G10"),
                    seen: format!("the catalogue {path} cannot be read: {error}"),
                    remedy,
                }]
            }
        });
    }
    if as_json {
        print_json(&json!({ "fits": findings.is_empty(), "findings": findings }))?;
    } else {
        for Finding { gotcha, seen, remedy } in &findings {
            println!("{}{seen}\n  do: {remedy}", gotcha.map(|g| format!("{g}: ")).unwrap_or_default());
        }
        if findings.is_empty() {
            println!("{file} fits {}", served.model);
        }
    }
    Ok(ExitCode::from(u8::from(!findings.is_empty())))
}
