//! `lane clients`: files for the agents that use a lane, and what is wrong with those that somebody has.

use std::process::ExitCode;

use camino::{Utf8Path, Utf8PathBuf};
use miette::{Context as _, IntoDiagnostic as _, miette};
use serde_json::json;
use sparklane_deploy::quote::command_line;
use sparklane_lane::clients::{Finding, Served, claude, codex};

use super::print_json;
use crate::given;

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

/// A file to write: nothing is written when one of them cannot be.
struct Wanted {
    path: Utf8PathBuf,
    text: String,
}

impl Wanted {
    /// Why it is better left alone, if so.
    fn refusal(&self, replace: bool) -> Option<String> {
        let found = self.path.symlink_metadata().ok()?;
        if !found.is_file() {
            return Some(format!("{:?} is there and no file", self.path));
        }
        let same = std::fs::read(&self.path).is_ok_and(|bytes| bytes == self.text.as_bytes());
        (!same && !replace)
            .then(|| format!("{:?} is there and differs: name another --out, or add --replace", self.path))
    }
}

fn write(served: &Served, dir: &Utf8Path, replace: bool, as_json: bool) -> miette::Result<()> {
    let dir = camino::absolute_utf8(dir).into_diagnostic()?;
    let catalog = dir.join("codex/catalog.json");
    let text = serde_json::to_string_pretty(&codex::catalog(served)).into_diagnostic()? + "\n";
    let files = [
        Wanted { path: dir.join("codex/config.toml"), text: codex::config(served, catalog.as_str()) },
        Wanted { path: catalog, text },
        Wanted { path: dir.join("claude-code.env"), text: claude::env(served) },
    ];
    if let Some(why) = files.iter().find_map(|file| file.refusal(replace)) {
        return Err(miette!("{why}; nothing was written"));
    }
    let codex = dir.join("codex");
    std::fs::create_dir_all(&codex).into_diagnostic().wrap_err_with(|| format!("cannot make {codex:?}"))?;
    for Wanted { path, text } in &files {
        sparklane_durable::write(path, text.as_bytes(), 0o644).into_diagnostic()?;
    }
    let paths: Vec<&Utf8Path> = files.iter().map(|file| file.path.as_path()).collect();
    if as_json {
        return print_json(&json!({ "served": served, "files": paths }));
    }
    paths.iter().for_each(|path| println!("{path}"));
    tell_how(served, &dir);
    Ok(())
}

fn tell_how(served: &Served, dir: &Utf8Path) {
    let word = |text: String| command_line(&[text]);
    let key = if served.key_file.is_some() { "…" } else { "none" };
    eprintln!("Codex:       CODEX_HOME={} VLLM_API_KEY={key} codex", word(format!("{dir}/codex")));
    eprintln!("Claude Code: set -a; . {}; set +a; claude", word(format!("{dir}/claude-code.env")));
    if let Some(tunnel) = &served.tunnel {
        eprintln!("The API listens on the head's loopback only. From another machine: {tunnel}");
    }
    if let Some(file) = &served.key_file {
        eprintln!("The key itself is in {file} on the head and is in none of these files.");
    }
}

/// Longer than any configuration; what somebody sent need not be one.
const LONGEST: u64 = 4 << 20;

fn check(served: &Served, file: &Utf8Path, as_json: bool) -> miette::Result<ExitCode> {
    let read =
        given::bytes(file.as_str(), LONGEST).and_then(|bytes| String::from_utf8(bytes).map_err(|e| e.to_string()));
    let text = read.map_err(|why| miette!("cannot read {file:?}: {}", shown(&why)))?;
    let checked =
        codex::check(&text, served).map_err(|why| miette!("{file:?} is no configuration of Codex: {}", shown(&why)))?;
    let mut findings = checked.findings;
    if let Some(path) = checked.catalog {
        findings.extend(match given::bytes(&path, LONGEST) {
            Ok(bytes) => codex::check_catalog(&bytes, served),
            Err(why) => {
                let remedy = "write it: sparklane lane clients LANE --out DIR".to_owned();
                vec![Finding {
                    gotcha: Some("G10"),
                    seen: format!("the catalogue {path} cannot be read: {why}"),
                    remedy,
                }]
            }
        });
    }
    if as_json {
        print_json(&json!({ "fits": findings.is_empty(), "findings": findings }))?;
    } else {
        for Finding { gotcha, seen, remedy } in &findings {
            println!(
                "{}{}\n  do: {}",
                gotcha.map(|g| format!("{g}: ")).unwrap_or_default(),
                shown(seen),
                shown(remedy)
            );
        }
        if findings.is_empty() {
            println!("{file:?} fits {}", served.model);
        }
    }
    Ok(ExitCode::from(u8::from(!findings.is_empty())))
}

/// Most of a stranger's words that is shown.
const SHOWN: usize = 400;

/// A stranger's words for a terminal: one line of harmless characters, and not all of a long one.
fn shown(text: &str) -> String {
    let mut all = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut start: String = all.by_ref().take(SHOWN).collect();
    if all.next().is_some() {
        start.push('…');
    }
    start
}
