//! `lane list | show | check | diff | ladder | clients`: what lanes are, without any machine.

mod clients;

use std::process::{Command, ExitCode};

use camino::{Utf8Path, Utf8PathBuf};
use clap::Subcommand;
use miette::{Context as _, IntoDiagnostic as _, miette};
use serde::Serialize;
use serde_json::json;
use sparklane_lane::catalog::{Deviation, FileProblem, RawCatalog, any_refused};
use sparklane_lane::diff::{NodeDiff, argv_table, diff};
use sparklane_lane::ladder::{self, patch};
use sparklane_lane::render::{Input, render_all};
use sparklane_lane::{Catalog, Generation, NodeName, rules};

use crate::report::Usage;

/// List, show, check and compare lanes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  nix run .#lane -- list
  nix run .#lane -- show ray-0731 --node head
  nix run .#lane -- diff ray-0731 mp-0251
  sparklane lane check --data .
  nix run .#lane -- clients ray-0731 --out clients
  nix run .#lane -- clients ray-0731 --check ~/.codex/config.toml
  sparklane lane ladder ray-0731 --data .

Exit codes: 0 sound, 1 refused, 2 usage.")]
pub struct Args {
    #[command(subcommand)]
    command: What,
    /// Lanes to read: a lanes.json, or a checkout that Nix evaluates [default: those of the app]
    #[arg(long, global = true, value_name = "FILE|DIR")]
    data: Option<Utf8PathBuf>,
    /// Print one JSON value on stdout.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// All lanes with the clusters that can run them.
    List,
    /// What a lane starts on each node, where it differs from its recipe, and what the checks found.
    Show {
        /// Name of the lane.
        lane: String,
        #[command(flatten)]
        on: On,
    },
    /// Read every file and report every problem.
    Check,
    /// The next step down for a lane that runs out of memory, as a patch of its file.
    Ladder {
        /// Name of the lane.
        lane: String,
    },
    /// Files for Codex and Claude Code that fit a lane, or what is wrong with those you have.
    ///
    /// They name the lane's address and model, its limits, and the tokens beyond which this model goes wrong. No key is
    /// written into them.
    Clients {
        /// Name of the lane.
        lane: String,
        /// The cluster; needed when more than one can run the lane.
        #[arg(long)]
        cluster: Option<String>,
        #[command(flatten)]
        what: clients::Do,
        /// Write over files that differ.
        #[arg(long, requires = "out")]
        replace: bool,
    },
    /// What changes on each node from one lane to another.
    Diff {
        /// The lane before.
        old: String,
        /// The lane after.
        new: String,
        #[command(flatten)]
        on: On,
    },
}

/// Where a lane runs.
#[derive(Debug, clap::Args)]
struct On {
    /// The cluster; needed when more than one can run the lane.
    #[arg(long)]
    cluster: Option<String>,
    /// Only this node.
    #[arg(long)]
    node: Option<NodeName>,
}

/// Runs the command.
///
/// # Errors
/// When lanes cannot be read, or a name is unknown.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let raw = load(args.data.as_deref())?;
    let (catalog, problems) = Catalog::read(&raw);
    match args.command {
        What::List => list(&catalog, args.json),
        What::Show { lane, on } => show(&catalog, &problems, &lane, &on, args.json),
        What::Check => return Ok(check(&catalog, &problems, args.json)),
        What::Ladder { lane } => ladder(&catalog, &lane, args.data.as_deref(), args.json),
        What::Clients { lane, cluster, what, replace } => {
            let on = On { cluster, node: None };
            let served = sparklane_lane::clients::Served::of(&place(&catalog, &lane, &on)?);
            return clients::run(&served, &what, replace, args.json);
        }
        What::Diff { old, new, on } => compare(&catalog, (&old, &new), &on, args.json),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Reads the lanes of the app, of a file, or of a checkout.
fn load(data: Option<&Utf8Path>) -> miette::Result<RawCatalog> {
    let beside = crate::deploy::share_beside_app().join("lanes.json");
    let path = data.unwrap_or(&beside);
    let bytes = if path.is_dir() { evaluate(path)? } else { read(path)? };
    serde_json::from_slice(&bytes).into_diagnostic().wrap_err_with(|| format!("{path} holds no lanes"))
}

fn read(path: &Utf8Path) -> miette::Result<Vec<u8>> {
    let bytes = std::fs::read(path).into_diagnostic();
    bytes.wrap_err_with(|| format!("cannot read {path}; run the flake's app (nix run .#lane), or name one with --data"))
}

fn evaluate(checkout: &Utf8Path) -> miette::Result<Vec<u8>> {
    let catalog = checkout.join("nix/catalog.nix");
    let output = Command::new("nix-instantiate")
        .args(["--eval", "--strict", "--json", "--arg", "prebuilt", "null"])
        .arg(&catalog)
        .output()
        .into_diagnostic()
        .wrap_err("cannot run nix-instantiate")?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(miette!("{}", String::from_utf8_lossy(&output.stderr).trim())
        .wrap_err(format!("Nix cannot evaluate {catalog}")))
}

fn list(catalog: &Catalog, as_json: bool) -> miette::Result<()> {
    let rows = catalog.lanes.values().map(|lane| {
        let clusters = catalog.clusters.values().filter(|c| catalog.lanes_of(c).iter().any(|i| i.lane == lane));
        let clusters: Vec<String> = clusters.map(|c| c.name.to_string()).collect();
        (lane, clusters)
    });
    if as_json {
        let rows: Vec<_> = rows
            .map(|(lane, clusters)| json!({"lane": lane.name, "description": lane.description, "clusters": clusters}))
            .collect();
        return print_json(&rows);
    }
    let width = catalog.lanes.keys().map(String::len).max().unwrap_or(0);
    for (lane, clusters) in rows {
        println!("{:width$}  {}  [{}]", lane.name.as_str(), lane.description, clusters.join(", "));
    }
    Ok(())
}

fn check(catalog: &Catalog, problems: &[FileProblem], as_json: bool) -> ExitCode {
    if as_json {
        println!("{}", json!({"sound": !any_refused(problems), "problems": problems}));
    } else {
        problems.iter().for_each(|problem| println!("{problem}"));
    }
    if any_refused(problems) {
        return ExitCode::from(1);
    }
    if !as_json {
        println!("{} lanes and {} clusters are sound", catalog.lanes.len(), catalog.clusters.len());
    }
    ExitCode::SUCCESS
}

/// What `show --json` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    generations: Vec<Generation>,
    deviations: Vec<&'a Deviation>,
    problems: Vec<&'a FileProblem>,
}

fn show(catalog: &Catalog, problems: &[FileProblem], lane: &str, on: &On, as_json: bool) -> miette::Result<()> {
    let input = place(catalog, lane, on)?;
    let generations = generations(input, on)?;
    let deviations: Vec<&Deviation> = catalog.deviations_of(lane).collect();
    let file = sparklane_lane::catalog::lane_file(lane);
    let problems: Vec<&FileProblem> = problems.iter().filter(|p| p.file == file).collect();
    if as_json {
        return print_json(&Shown { generations, deviations, problems });
    }
    println!("{lane} on {}: {}", input.cluster.name, input.lane.description);
    println!("  image    {}", image_line(&input));
    if let Some(weights) = input.weights {
        let manifest = &weights.manifest;
        let (files, bytes) = (manifest.files.len(), manifest.bytes());
        println!("  weights  {} @ {} ({files} files, {bytes} bytes)", manifest.model, manifest.revision);
    }
    generations.iter().for_each(print_generation);
    if !deviations.is_empty() {
        println!("differs from its recipe");
        for Deviation { key, kit, ours, reason, .. } in deviations {
            let side = |value: &Option<String>| value.as_ref().map_or("(none)".to_owned(), |v| format!("{v:?}"));
            println!("  {key}  {} -> {}: {reason}", side(kit), side(ours));
        }
    }
    problems.iter().for_each(|p| println!("{}", p.problem));
    Ok(())
}

fn image_line(input: &Input<'_>) -> String {
    let image = input.image;
    match &image.manifest {
        Some(digest) => format!("{} {digest}", image.reference),
        None => format!("{} (digest unknown; deploy needs `{}`)", image.reference, image.pin_command()),
    }
}

fn print_generation(generation: &Generation) {
    println!("{} ({}, rank {})", generation.node, generation.role, generation.rank);
    let argv = &generation.engine.argv;
    let positional = argv.iter().take_while(|a| !a.starts_with("--")).cloned().collect::<Vec<_>>();
    println!("  {}", positional.join(" "));
    for (flag, value) in argv_table(argv).iter().filter(|(flag, _)| flag.starts_with("--")) {
        println!("    {flag} {value}");
    }
    println!("  environment");
    for (name, value) in &generation.engine.env {
        println!("    {name}={value}");
    }
    println!("  files");
    for (path, file) in &generation.files {
        println!("    {path} {:04o}", file.mode);
    }
    println!("  gates");
    for gate in &generation.gates {
        println!("    {} within {} s", gate.name, gate.budget_secs);
    }
}

fn compare(catalog: &Catalog, (old, new): (&str, &str), on: &On, as_json: bool) -> miette::Result<()> {
    let after = place(catalog, new, on)?;
    let before = place(catalog, old, &On { cluster: Some(after.cluster.name.to_string()), node: None })?;
    let (before, after) = (generations(before, on)?, generations(after, on)?);
    let diffs: Vec<NodeDiff> = before.iter().zip(&after).map(|(old, new)| diff(old, new)).collect();
    if as_json {
        return print_json(&diffs);
    }
    diffs.iter().for_each(|diff| print!("{diff}"));
    Ok(())
}

/// Prints the patch; what it means goes to stderr, so that the patch can be piped on.
fn ladder(catalog: &Catalog, lane: &str, data: Option<&Utf8Path>, as_json: bool) -> miette::Result<()> {
    let any = catalog.clusters.keys().next().map_or("", String::as_str);
    let input = catalog.input(any, lane).map_err(named)?;
    let Some(rung) = ladder::next(input.lane, input.image) else {
        return Err(miette!("{lane} is at the ladder's end: what is left is another lane, or more memory"));
    };
    let name = sparklane_lane::catalog::lane_file(lane);
    let checkout = data.filter(|path| path.is_dir()).unwrap_or(Utf8Path::new("."));
    let file = checkout.join(&name);
    let text = std::fs::read_to_string(&file).into_diagnostic().wrap_err_with(|| {
        format!("cannot read the lane's file {file}; run this in the checkout of the flake, or name it with --data DIR")
    })?;
    let changed = patch::apply(&text, &rung.changes)
        .ok_or_else(|| miette!("{file} is not of the form `import BASE {{ … }}`: set by hand {:?}", rung.changes))?;
    let patch = patch::unified(&name, &text, &changed);
    if as_json {
        return print_json(&json!({ "lane": lane, "rung": rung, "patch": patch }));
    }
    eprintln!("{lane}: next {}", rung.what);
    for change in &rung.changes {
        eprintln!("  serve.{}: {} -> {}", change.key, change.old, change.new);
    }
    eprintln!("Apply it, deploy, judge the answers anew, and go on only if memory still runs out.");
    print!("{patch}");
    Ok(())
}

/// The lane on the named cluster, or on the only one that can run it.
fn place<'a>(catalog: &'a Catalog, lane: &str, on: &On) -> miette::Result<Input<'a>> {
    if let Some(cluster) = &on.cluster {
        let input = catalog.input(cluster, lane).map_err(named)?;
        return if rules::fits(&input) { Ok(input) } else { Err(Usage(cannot_run(&input)).into()) };
    }
    let all = catalog.clusters.values().flat_map(|c| catalog.lanes_of(c));
    let fitting: Vec<Input<'_>> = all.filter(|i| i.lane.name.as_str() == lane).collect();
    match fitting[..] {
        [only] => Ok(only),
        [] => {
            // Says which name is unknown, when one is.
            let any = catalog.clusters.keys().next().map_or("", String::as_str);
            catalog.input(any, lane).map_err(named)?;
            Err(Usage(format!("no cluster of this flake can run {lane}: see its image's systems")).into())
        }
        _ => {
            let names: Vec<&str> = fitting.iter().map(|i| i.cluster.name.as_str()).collect();
            Err(Usage(format!("which cluster? --cluster {}", names.join(" | "))).into())
        }
    }
}

fn cannot_run(input: &Input<'_>) -> String {
    let systems: Vec<String> = input.image.systems.iter().map(ToString::to_string).collect();
    let (cluster, lane, image) = (&input.cluster.name, &input.lane.name, &input.lane.image);
    format!("cluster {cluster} cannot run {lane}: its image {image} is for {} only", systems.join(", "))
}

fn generations(input: Input<'_>, on: &On) -> miette::Result<Vec<Generation>> {
    let all = render_all(input).into_diagnostic()?.into_iter().map(|r| r.generation);
    let chosen: Vec<Generation> = all.filter(|g| on.node.as_ref().is_none_or(|n| *n == g.node)).collect();
    if chosen.is_empty() {
        let names: Vec<String> = input.cluster.nodes.keys().map(ToString::to_string).collect();
        let (name, names) = (&input.cluster.name, names.join(", "));
        return Err(Usage(format!("cluster {name} has the nodes: {names}")).into());
    }
    Ok(chosen)
}

fn named(problems: Vec<sparklane_lane::problem::Problem>) -> miette::Report {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Usage(lines.join("\n")).into()
}

fn print_json(value: &impl Serialize) -> miette::Result<()> {
    println!("{}", serde_json::to_string(value).into_diagnostic()?);
    Ok(())
}
