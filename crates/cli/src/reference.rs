//! docs/reference.md and docs/schema are made from the program itself; this test keeps them current.
//! `SPARKLANE_BLESS=1 cargo test -p sparklane reference` writes them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Every visible command's help, one section each.
fn sections(command: &mut Command, path: &str, out: &mut String) {
    let mut shown = command.clone().bin_name(path).term_width(110);
    let help = shown.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _fits = write!(out, "\n## `{path}`\n\n```text\n{}\n```\n", lines.join("\n").trim_end());
    for sub in command.get_subcommands_mut().filter(|s| !s.is_hide_set() && s.get_name() != "help") {
        let path = format!("{path} {}", sub.get_name());
        sections(sub, &path, out);
    }
}

fn reference() -> String {
    let mut text = "# Reference\n\nMade from the program (`SPARKLANE_BLESS=1 cargo test -p sparklane reference`); \
                    do not edit. The flake's apps `deploy`, `rollback`, `plan`, `status`, `releases` and `lane` are the \
                    commands of the same names.\n"
        .to_owned();
    sections(&mut crate::Cli::command(), "sparklane", &mut text);
    text
}

fn keep(path: &Path, text: &str) {
    if std::env::var_os("SPARKLANE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let is = std::fs::read_to_string(path).unwrap_or_default();
    assert!(is == text, "{} is not current: SPARKLANE_BLESS=1 cargo test -p sparklane reference", path.display());
}

#[test]
fn reference_of_the_commands_is_current() {
    keep(&docs().join("reference.md"), &reference());
}

#[test]
fn reference_of_the_files_is_current() {
    let schemas = [
        ("lane", sparklane_lane::schema::lane()),
        ("cluster", sparklane_lane::schema::cluster()),
        ("image", sparklane_lane::schema::image()),
        ("generation", sparklane_lane::schema::generation()),
        ("release", sparklane_lane::schema::release()),
    ];
    for (name, schema) in schemas {
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        keep(&docs().join("schema").join(format!("{name}.json")), &text);
    }
}

/// Lines of the docs that a reader would type: apps of the flake and the command itself.
fn examples() -> Vec<Vec<String>> {
    let root = docs().join("..");
    let mut texts = vec![std::fs::read_to_string(root.join("README.md")).unwrap()];
    for name in ["operations.md", "reference.md", "bench.md", "images.md", "weights.md"] {
        texts.extend(std::fs::read_to_string(docs().join(name)).ok());
    }
    let lines = texts.iter().flat_map(|text| text.lines()).map(str::trim);
    lines.filter_map(example).collect()
}

fn example(line: &str) -> Option<Vec<String>> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    match words.first().map(String::as_str)? {
        "nix" if words.get(1).is_some_and(|w| w == "run") => {
            let app = words.get(2)?.strip_prefix(".#")?.to_owned();
            let rest = words.into_iter().skip(3).filter(|w| w != "--");
            // The app `sparklane` is the command itself.
            let app = (app != "sparklane").then_some(app);
            Some(std::iter::once("sparklane".to_owned()).chain(app).chain(rest).collect())
        }
        "sparklane" | "sudo" if line.contains("sparklane ") => {
            let at = words.iter().position(|w| w == "sparklane")?;
            Some(words[at..].to_vec())
        }
        _ => None,
    }
}

#[test]
fn every_example_of_the_docs_is_understood() {
    let examples = examples();
    assert!(examples.len() > 15, "the docs lost their examples: {examples:?}");
    for words in examples {
        if let Err(error) = crate::Cli::command().try_get_matches_from(&words) {
            assert!(!error.use_stderr(), "{}: {error}", words.join(" "));
        }
    }
}
