//! `cargo xtask bench weights`: figures of the transfer beside those of other tools, in rounds whose order is shuffled.
//!
//! Method and traps: this machine's fresh pages are dear (a virtual machine gives them back to its host), so the
//! memory-to-memory part writes over files that are there, in huge pages. Seconds and CPU time are of both ends, start
//! included. Ratios are taken inside a round.

mod kills;
mod ours;
mod peers;
mod pump;
mod rails;
mod table;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use camino::{Utf8Path, Utf8PathBuf};
use miette::{IntoDiagnostic, miette};
use serde_json::{Value, json};
use xshell::{Shell, cmd};

use peers::{Peers, Writes, files};
pub use pump::{PumpArgs, run as run_pump};
use rails::{Pair, children_cpu, run as sh};
use table::Samples;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Times each case is measured; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Megabytes to move.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(64..))]
    size: u64,
    /// A binary of sparklane to measure, instead of a release build.
    #[arg(long, value_name = "FILE")]
    tool: Option<Utf8PathBuf>,
    /// Only the memory-to-memory part.
    #[arg(long)]
    memory_only: bool,
    /// Only the kills.
    #[arg(long, conflicts_with = "memory_only")]
    kills_only: bool,
    /// Gigabytes to move while receivers are killed.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    large: u64,
    /// How often.
    #[arg(long, default_value_t = 20)]
    kills: u32,
    /// Folder on a disk.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    disk: Utf8PathBuf,
}

const FILES: u64 = 8;

/// Measures everything and prints it.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    let tool = match &args.tool {
        Some(tool) => tool.clone(),
        None => build()?,
    };
    let pair = Pair::new()?;
    let on_disk = |what: &dyn Fn(&Utf8Path) -> miette::Result<()>| {
        let disk = args.disk.join(format!("sparklane-bench-{}", std::process::id()));
        std::fs::create_dir_all(&disk).into_diagnostic()?;
        let done = what(&disk);
        std::fs::remove_dir_all(&disk).into_diagnostic()?;
        done
    };
    if args.kills_only {
        on_disk(&|disk| kills::run(&pair, tool.as_str(), disk, (args.large, args.kills)))?;
        return Ok(ExitCode::SUCCESS);
    }
    let memory = Utf8PathBuf::from(format!("/tmp/sparklane-bench-{}", std::process::id()));
    std::fs::create_dir_all(&memory).into_diagnostic()?;
    let _mounted = Mounted::new(&memory, args.size * 3)?;
    let bench = Bench { tool: tool.to_string(), pair, bytes: args.size / FILES * FILES * 1_000_000 };
    bench.compare("memory to memory, in place", &memory, args.rounds, Writes::InPlace)?;
    bench.shaped(&memory)?;
    bench.verify(&memory)?;
    if !args.memory_only {
        let title = "disk to disk, fresh and durable, cold source";
        on_disk(&|disk| bench.compare(title, disk, args.rounds, Writes::Fresh))?;
        on_disk(&|disk| kills::run(&bench.pair, &bench.tool, disk, (args.large, args.kills)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn build() -> miette::Result<Utf8PathBuf> {
    let shell = Shell::new().into_diagnostic()?;
    shell.change_dir(crate::workspace());
    cmd!(shell, "cargo build --release --package sparklane").run().into_diagnostic()?;
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| crate::workspace().join("target").into_string());
    Ok(Utf8PathBuf::from(target).join("release/sparklane"))
}

struct Mounted(Utf8PathBuf);

impl Mounted {
    fn new(dir: &Utf8Path, megabytes: u64) -> miette::Result<Self> {
        let options = format!("size={}m,huge=always", megabytes + 2048);
        sh(&["mount", "-t", "tmpfs", "-o", &options, "tmpfs", dir.as_str()])?;
        Ok(Self(dir.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _gone = (sh(&["umount", self.0.as_str()]), std::fs::remove_dir(&self.0));
    }
}

struct Bench {
    tool: String,
    pair: Pair,
    bytes: u64,
}

/// The folders of one comparison.
struct Place {
    /// The head's store.
    store: Utf8PathBuf,
    /// Its published folder.
    source: Utf8PathBuf,
    /// The worker's store.
    ours: Utf8PathBuf,
    /// Where peers write.
    peers: Utf8PathBuf,
    manifest: Value,
}

const CASES: [&str; 8] = [
    "rsync ssh default",
    "rsync ssh gcm",
    "4 x rsync ssh gcm",
    "rsync daemon",
    "dd on one machine",
    "pump",
    "ours",
    "ours sealed",
];

impl Bench {
    fn place(&self, dir: &Utf8Path) -> miette::Result<Place> {
        let raw = dir.join("raw");
        let (store, ours, peers) = (dir.join("head"), dir.join("worker"), dir.join("peers"));
        for folder in [&raw, &ours, &peers] {
            std::fs::create_dir_all(folder).into_diagnostic()?;
        }
        let size = self.bytes / FILES;
        let mut listed = Vec::new();
        for n in 0..FILES {
            let path = raw.join(format!("f{n}"));
            let count = format!("count={}", size / 1_000_000);
            sh(&["dd", "if=/dev/urandom", &format!("of={path}"), "bs=1000000", &count, "status=none"])?;
            let sum = sh(&["sha256sum", path.as_str()])?;
            let sha256 = sum.split_whitespace().next().unwrap_or_default().to_owned();
            listed.push(json!({"path": format!("f{n}"), "size": size, "sha256": sha256}));
        }
        let manifest = json!({"model": "org/bench", "revision": "0".repeat(40), "files": listed});
        let file = dir.join("manifest.json");
        std::fs::write(&file, manifest.to_string()).into_diagnostic()?;
        let adopt = ["weights", "adopt", raw.as_str(), "--manifest", file.as_str(), "--store", store.as_str()];
        sh(&[&[self.tool.as_str()][..], &adopt].concat())?;
        let source = published(&store)?.ok_or_else(|| miette!("{store}: nothing was published"))?;
        Ok(Place { store, source, ours, peers, manifest })
    }

    fn compare(&self, title: &str, dir: &Utf8Path, rounds: u32, writes: Writes) -> miette::Result<()> {
        let place = self.place(dir)?;
        let peers = Peers::new(dir.join("keys"))?;
        let mut samples: BTreeMap<&str, Samples> = BTreeMap::new();
        // The first round only makes the files that the others write over.
        for round in 0..=rounds {
            let mut order: Vec<&str> = CASES.to_vec();
            // Another order in each round, the same in each run.
            let len = order.len();
            order.sort_by_key(|case| {
                let mix = case
                    .bytes()
                    .fold(u64::from(round) + 1, |m, b| (m ^ u64::from(b)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
                (mix >> 17) % (len as u64 * 1000)
            });
            for case in order {
                self.cool(&place, writes)?;
                let before = children_cpu();
                let cached = cached();
                let seconds = self.one(case, &place, &peers, writes, &mut samples)?;
                let moved = cached.abs_diff(self::cached());
                if round > 0 {
                    let sample = samples.entry(case).or_default();
                    sample.add(self.bytes, seconds, children_cpu() - before, moved);
                }
            }
            eprintln!("{title}: round {round} of {rounds}");
        }
        table::print(title, &CASES, &samples);
        Ok(())
    }

    /// A cold source and no old targets, where that is what is measured.
    fn cool(&self, place: &Place, writes: Writes) -> miette::Result<()> {
        if writes == Writes::InPlace {
            return Ok(());
        }
        for file in files(&place.peers)? {
            std::fs::remove_file(file).into_diagnostic()?;
        }
        sh(&["sync", "-f", place.source.as_str()])?;
        for file in files(&place.source)? {
            sh(&["dd", &format!("if={file}"), "iflag=nocache", "count=0", "status=none"])?;
        }
        Ok(())
    }

    fn one(
        &self,
        case: &'static str,
        place: &Place,
        peers: &Peers,
        writes: Writes,
        samples: &mut BTreeMap<&str, Samples>,
    ) -> miette::Result<f64> {
        let (pair, way) = (&self.pair, (place.source.as_path(), place.peers.as_path()));
        match case {
            "rsync ssh default" => peers.rsync_ssh(pair, way, "", 1, writes),
            "rsync ssh gcm" => peers.rsync_ssh(pair, way, " -c aes128-gcm@openssh.com", 1, writes),
            "4 x rsync ssh gcm" => peers.rsync_ssh(pair, way, " -c aes128-gcm@openssh.com", 4, writes),
            "rsync daemon" => peers.rsync_daemon(pair, way, writes),
            "dd on one machine" => peers.copy(way, writes),
            "pump" => {
                // It writes over files that are there; it is no tool for fresh ones.
                for file in files(&place.source)? {
                    let to = place.peers.join(file.file_name().unwrap_or_default());
                    let target = std::fs::File::options().create(true).append(true).open(&to).into_diagnostic()?;
                    target.set_len(self.bytes / FILES).into_diagnostic()?;
                }
                let seconds = peers.pump(pair, way)?;
                let begin = Instant::now();
                if writes == Writes::Fresh {
                    sh(&["sync", "-f", place.peers.as_str()])?;
                }
                Ok(seconds + begin.elapsed().as_secs_f64())
            }
            _ => {
                let moved = self.send(place, case == "ours sealed", writes, &|_| Ok(()))?;
                let sample = samples.entry(case).or_default();
                sample.peaks = [sample.peaks[0].max(moved.peaks[0]), sample.peaks[1].max(moved.peaks[1])];
                Ok(moved.seconds)
            }
        }
    }

    /// Sends, and puts the files back to where the next reception writes them.
    fn send(
        &self,
        place: &Place,
        seal: bool,
        writes: Writes,
        seen: &dyn Fn(u64) -> miette::Result<()>,
    ) -> miette::Result<ours::Moved> {
        let moved = ours::send(&self.pair, &self.tool, (&place.manifest, &place.store, &place.ours), seal, seen)?;
        let folder = published(&place.ours)?.ok_or_else(|| miette!("{}: nothing was published", place.ours))?;
        if writes == Writes::Fresh {
            std::fs::remove_dir_all(folder).into_diagnostic()?;
            return Ok(moved);
        }
        let name = folder.file_name().unwrap_or_default();
        let parts = place.ours.join(".partial").join(name).join("parts");
        std::fs::create_dir_all(&parts).into_diagnostic()?;
        for (n, file) in files(&folder)?.into_iter().enumerate() {
            std::fs::rename(&file, parts.join(n.to_string())).into_diagnostic()?;
        }
        std::fs::remove_dir_all(folder).into_diagnostic()?;
        Ok(moved)
    }

    /// Rails of unequal speed, and one that is lost for ten seconds.
    fn shaped(&self, dir: &Utf8Path) -> miette::Result<()> {
        let dir = dir.join("shaped");
        let small = Self { tool: self.tool.clone(), pair: Pair::new()?, bytes: 400_000_000 };
        let place = small.place(&dir)?;
        println!("\nrails shaped by tc, 400 MB");
        for mbit in [[800, 100], [800, 400]] {
            for rail in [1, 2] {
                small.pair.shape(rail, mbit.get(usize::from(rail) - 1).copied())?;
            }
            let moved = small.send(&place, false, Writes::InPlace, &|_| Ok(()))?;
            let sum = f64::from(mbit[0] + mbit[1]) / 8.0;
            let millis = moved.receipt["millis"].as_f64().unwrap_or(f64::NAN);
            let rate = small.bytes as f64 / 1000.0 / millis;
            let of = |n: usize| moved.receipt["ways"][n]["bytes"].as_f64().unwrap_or(0.0);
            let (share, fair) = (of(1) / (of(0) + of(1)), f64::from(mbit[1]) / f64::from(mbit[0] + mbit[1]));
            println!(
                "  {}:{} Mbit/s: {rate:.1} of {sum:.1} MB/s ({:.0} %), second rail {:.3} of the bytes (fair {fair:.3}, {:+.0} %)",
                mbit[0],
                mbit[1],
                rate / sum * 100.0,
                share,
                (share / fair - 1.0) * 100.0
            );
        }
        for rail in [1, 2] {
            small.pair.shape(rail, Some(120))?;
        }
        let lost: Cell<Option<Instant>> = Cell::new(None);
        let done = Cell::new(false);
        let moved = small.send(&place, false, Writes::InPlace, &|percent| match lost.get() {
            None if percent >= 20 => {
                lost.set(Some(Instant::now()));
                small.pair.link(1, false)
            }
            Some(at) if !done.get() && at.elapsed().as_secs() >= 10 => {
                done.set(true);
                small.pair.link(1, true)
            }
            _ => Ok(()),
        })?;
        println!("  a rail lost for 10 s: longest pause {} ms", moved.receipt["longestPauseMillis"]);
        std::fs::remove_dir_all(dir).into_diagnostic()
    }

    /// The speed of proofs.
    fn verify(&self, dir: &Utf8Path) -> miette::Result<()> {
        let (store, manifest) = (dir.join("head"), dir.join("manifest.json"));
        let base = [self.tool.as_str(), "weights", "verify", manifest.as_str(), "--store", store.as_str()];
        let begin = Instant::now();
        sh(&base)?;
        println!("\nverify, fast: {:.1} ms for {FILES} files, start included", begin.elapsed().as_secs_f64() * 1000.0);
        let begin = Instant::now();
        sh(&[&base[..], &["--deep"]].concat())?;
        let rate = self.bytes as f64 / 1e6 / begin.elapsed().as_secs_f64();
        println!("verify --deep: {rate:.0} MB/s; sha2 alone on all cores: {:.0} MB/s", hash_rate());
        Ok(())
    }
}

/// MB/s of sha2 on all cores at once.
fn hash_rate() -> f64 {
    use sha2::{Digest as _, Sha256};
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let block = vec![7; 1 << 20];
                let mut hasher = Sha256::new();
                (0..1000).for_each(|_| hasher.update(&block));
                std::hint::black_box(hasher.finalize());
            });
        }
    });
    cores as f64 * 1000.0 * 1.048_576 / begin.elapsed().as_secs_f64()
}

fn published(store: &Utf8Path) -> miette::Result<Option<Utf8PathBuf>> {
    let mut found = store.read_dir_utf8().into_diagnostic()?.flatten().map(|e| e.into_path());
    Ok(found.find(|p| p.file_name().is_some_and(|n| n.contains('@'))))
}

fn cached() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("Cached:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}
