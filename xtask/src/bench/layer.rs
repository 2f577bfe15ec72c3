//! `cargo xtask bench layer`: from the wheels of ray[default] to a finished layer, beside pip, tar, gzip -6 and sha256sum.

use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};
use miette::{IntoDiagnostic, bail, ensure};
use serde_json::{Value, json};
use xshell::{Shell, cmd};

use super::report::{load, median};
use crate::{wheelhouse, workspace};

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Times each side is measured; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Folder for the layers [default: /var/tmp]
    #[arg(long)]
    dir: Option<Utf8PathBuf>,
    /// Print one JSON object with every sample instead of the table.
    #[arg(long)]
    json: bool,
}

/// The most that the issue allows: CPU seconds, bytes of memory, the layer as a share of gzip's; and how much less CPU.
const CPU: f64 = 2.0;
const MEMORY: f64 = 64e6;
const SIZE: f64 = 1.03;
const TIMES: f64 = 9.0;

/// Seconds of every round, and sizes.
#[derive(Default)]
struct Figures {
    ours_cpu: Vec<f64>,
    ours_wall: Vec<f64>,
    peer_cpu: Vec<f64>,
    peer_wall: Vec<f64>,
    memory: Vec<f64>,
    ours_bytes: u64,
    peer_bytes: u64,
    digest: String,
}

/// Measures and prints. A missed aim is printed, not an error: time depends on the machine.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    let sh = Shell::new().into_diagnostic()?;
    sh.change_dir(workspace());
    let (lock, wheels) = (wheelhouse::lock(), wheelhouse::folder());
    wheelhouse::fill(&lock, &wheels)?;
    cmd!(sh, "cargo build --release --package sparklane-oci --example layer").run().into_diagnostic()?;
    let parent = args.dir.clone().unwrap_or_else(|| "/var/tmp".into());
    let dir = parent.join(format!("sparklane-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).into_diagnostic()?;
    let bench = Bench { tool: example()?, lock, wheels, dir: dir.clone() };
    let before = load();
    let measured = bench.measure(args.rounds);
    std::fs::remove_dir_all(&dir).into_diagnostic()?;
    let (figures, load) = (measured?, [before, load()]);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&figures.json(&load)).into_diagnostic()?);
    } else {
        print!("{}", figures.table(args.rounds, &load));
    }
    Ok(ExitCode::SUCCESS)
}

/// Where cargo put the example.
fn example() -> miette::Result<Utf8PathBuf> {
    let target = std::env::var("CARGO_TARGET_DIR").map_or_else(|_| workspace().join("target"), Utf8PathBuf::from);
    let tool = target.join("release/examples/layer");
    ensure!(tool.exists(), "cargo did not build {tool}");
    Ok(tool)
}

struct Bench {
    tool: Utf8PathBuf,
    lock: Utf8PathBuf,
    wheels: Utf8PathBuf,
    dir: Utf8PathBuf,
}

impl Bench {
    fn measure(&self, rounds: u32) -> miette::Result<Figures> {
        let mut figures = Figures::default();
        let seed = std::process::id();
        // One round of each warms the page cache and is not counted.
        for round in 0..=rounds {
            let mut both = Figures::default();
            // Who begins changes at random, so that neither always runs after the other.
            let first = (seed ^ round).wrapping_mul(0x9e37_79b1) >> 31 == 0;
            for ours in [first, !first] {
                if ours { self.ours(&mut both)? } else { self.peer(&mut both)? }
            }
            eprintln!("xtask: round {round}/{rounds}: {:.2?} and {:.2?} CPU s", both.ours_cpu, both.peer_cpu);
            if round > 0 {
                figures.add(both);
            }
        }
        Ok(figures)
    }

    fn ours(&self, figures: &mut Figures) -> miette::Result<()> {
        let out = self.dir.join("ours.tar.gz");
        let (cpu, wall, words) = timed(Command::new(&self.tool).args([&self.lock, &self.wheels, &out]))?;
        let parts: Vec<&str> = words.split_whitespace().collect();
        let [digest, bytes, memory, _] = parts.as_slice() else { bail!("the example said {words:?}") };
        figures.ours_cpu.push(cpu);
        figures.ours_wall.push(wall);
        figures.memory.push(memory.parse().into_diagnostic()?);
        figures.ours_bytes = bytes.parse().into_diagnostic()?;
        figures.digest = (*digest).to_owned();
        std::fs::remove_file(out).into_diagnostic()
    }

    fn peer(&self, figures: &mut Figures) -> miette::Result<()> {
        let (tree, out) = (self.dir.join("tree"), self.dir.join("peer.tar.gz"));
        let lock: Value = serde_json::from_slice(&std::fs::read(&self.lock).into_diagnostic()?).into_diagnostic()?;
        let files = lock["wheels"].as_array().into_iter().flatten().filter_map(|w| w["file"].as_str());
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps", "--no-index"]);
        pip.args(["--no-compile", "--only-binary=:all:", "--implementation", "cp", "--python-version", "3.12"]);
        for platform in ["manylinux2014_aarch64", "manylinux_2_17_aarch64", "manylinux_2_28_aarch64"] {
            pip.args(["--platform", platform]);
        }
        pip.args(["--target", tree.as_str()]).args(files.map(|f| self.wheels.join(f)));
        let script = "set -e; tar --sort=name --mtime=@1700000000 --owner=0 --group=0 --numeric-owner -C \"$1\" -cf - . \
                      | gzip -6 -n > \"$2\"; sha256sum \"$2\"";
        let mut rest = Command::new("sh");
        rest.args(["-c", script, "sh", tree.as_str(), out.as_str()]);
        let (a, b) = (timed(&mut pip)?, timed(&mut rest)?);
        figures.peer_cpu.push(a.0 + b.0);
        figures.peer_wall.push(a.1 + b.1);
        figures.peer_bytes = size(&out)?;
        std::fs::remove_file(out).into_diagnostic()?;
        std::fs::remove_dir_all(tree).into_diagnostic()
    }
}

fn size(path: &Utf8Path) -> miette::Result<u64> {
    Ok(std::fs::metadata(path).into_diagnostic()?.len())
}

/// CPU seconds of a command and all its children, wall seconds, and what it printed.
fn timed(command: &mut Command) -> miette::Result<(f64, f64, String)> {
    let (before, begin) = (children()?, Instant::now());
    let output = command.stdin(Stdio::null()).output().into_diagnostic()?;
    let wall = begin.elapsed().as_secs_f64();
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{:?}: {words}", command.get_program());
    Ok((children()? - before, wall, String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// CPU seconds of all children so far that were waited for, theirs included: cutime and cstime, fields 16 and 17 of
/// proc(5), in ticks of 10 ms.
fn children() -> miette::Result<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").into_diagnostic()?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |n: usize| fields.get(n).and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0);
    Ok((ticks(13) + ticks(14)) / 100.0)
}

impl Figures {
    fn add(&mut self, round: Self) {
        self.ours_cpu.extend(round.ours_cpu);
        self.ours_wall.extend(round.ours_wall);
        self.peer_cpu.extend(round.peer_cpu);
        self.peer_wall.extend(round.peer_wall);
        self.memory.extend(round.memory);
        (self.ours_bytes, self.peer_bytes, self.digest) = (round.ours_bytes, round.peer_bytes, round.digest);
    }

    fn json(&self, load: &[String; 2]) -> Value {
        json!({
            "digest": self.digest,
            "bytes": { "sparklane": self.ours_bytes, "gzip -6": self.peer_bytes },
            "seconds": {
                "cpu": self.ours_cpu, "wall": self.ours_wall, "peer, cpu": self.peer_cpu, "peer, wall": self.peer_wall,
            },
            "memory": self.memory,
            "load": load,
        })
    }

    fn table(&self, rounds: u32, load: &[String; 2]) -> String {
        let row = |what: &str, ours: String, peer: String, aim: String, met: bool| {
            format!("| {what} | {ours} | {peer} | {aim} | {} |\n", if met { "met" } else { "missed" })
        };
        let (cpu, theirs) = (median(&self.ours_cpu), median(&self.peer_cpu));
        let (memory, share) = (median(&self.memory), self.ours_bytes as f64 / self.peer_bytes as f64);
        let mut text = format!(
            "wheels to layer, {rounds} rounds, medians; load before {}, after {}\n{}\n\n| | sparklane | pip, tar, gzip -6, \
             sha256sum | aim | |\n|---|---|---|---|---|\n",
            load[0], load[1], self.digest
        );
        let wall = [&self.ours_wall, &self.peer_wall].map(|w| format!("{:.2} s wall", median(w)));
        text += &format!("| wall time | {} | {} | | |\n", wall[0], wall[1]);
        text += &row("CPU", format!("{cpu:.2} s"), format!("{theirs:.2} s"), format!("≤ {CPU} s"), cpu <= CPU);
        let times = theirs / cpu;
        text += &row("less CPU", format!("{times:.1} ×"), String::new(), format!("≥ {TIMES} ×"), times >= TIMES);
        let [mb, aim] = [memory, MEMORY].map(|m| format!("{:.1} MB", m / 1e6));
        text += &row("peak anonymous memory", mb, String::new(), format!("≤ {aim}"), memory <= MEMORY);
        let [ours, peer] = [self.ours_bytes, self.peer_bytes].map(|b| format!("{:.1} MB", b as f64 / 1e6));
        text +=
            &row(&format!("layer ({:+.1} %)", (share - 1.0) * 100.0), ours, peer, "≤ +3 %".to_owned(), share <= SIZE);
        text
    }
}
