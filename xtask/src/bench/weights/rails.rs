//! Two network namespaces with two rails between them, and processes in them whose CPU time is counted.

use std::process::{Child, Command, Stdio};

use std::sync::atomic::{AtomicUsize, Ordering};

use miette::{IntoDiagnostic, bail, miette};

/// Runs a command to its end.
pub fn run(argv: &[&str]) -> miette::Result<String> {
    let Some((program, args)) = argv.split_first() else { bail!("nothing to run") };
    let out = Command::new(program).args(args).output().map_err(|e| miette!("{program}: {e}"))?;
    if !out.status.success() {
        bail!("{}: {}", argv.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Namespaces made so far, for their names.
static MADE: AtomicUsize = AtomicUsize::new(0);

/// A node.
#[derive(Debug)]
pub struct Space(pub String);

impl Space {
    /// A command in it.
    pub fn command(&self, argv: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).args(argv);
        command
    }

    /// Starts a command in it, with pipes.
    pub fn spawn(&self, argv: &[&str]) -> miette::Result<Child> {
        let mut command = self.command(argv);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command.spawn().into_diagnostic()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _gone = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Head and worker.
#[derive(Debug)]
pub struct Pair {
    /// Sends.
    pub head: Space,
    /// Receives.
    pub worker: Space,
}

/// Address of a node on a rail.
pub fn address(rail: u8, host: u8) -> String {
    format!("10.98.{rail}.{host}")
}

impl Pair {
    /// Two namespaces and two veth rails with jumbo frames.
    pub fn new() -> miette::Result<Self> {
        let space = |name: &str| {
            let nth = MADE.fetch_add(1, Ordering::Relaxed);
            let space = Space(format!("slb-{name}-{}-{nth}", std::process::id()));
            run(&["ip", "netns", "add", &space.0])?;
            run(&["ip", "-n", &space.0, "link", "set", "lo", "up"])?;
            Ok::<_, miette::Report>(space)
        };
        let pair = Self { head: space("head")?, worker: space("worker")? };
        let (head, worker) = (&pair.head.0, &pair.worker.0);
        for n in [1, 2] {
            let rail = format!("rail{n}");
            run(&["ip", "-n", head, "link", "add", &rail, "type", "veth", "peer", "name", &rail, "netns", worker])?;
            for (space, host) in [(head, 10), (worker, 11)] {
                let address = format!("{}/24", address(n, host));
                run(&["ip", "-n", space, "addr", "add", &address, "dev", &rail])?;
                run(&["ip", "-n", space, "link", "set", &rail, "mtu", "9000", "up"])?;
            }
        }
        Ok(pair)
    }

    /// Shapes what the head sends on a rail; `None` frees it.
    pub fn shape(&self, rail: u8, mbit: Option<u32>) -> miette::Result<()> {
        let device = format!("rail{rail}");
        let base = ["ip", "netns", "exec", &self.head.0, "tc", "qdisc"];
        // There may be none.
        let _freed = run(&[&base[..], &["del", "dev", &device, "root"]].concat());
        let Some(mbit) = mbit else { return Ok(()) };
        let rate = format!("{mbit}mbit");
        let set = ["add", "dev", &device, "root", "tbf", "rate", &rate, "burst", "2mb", "latency", "50ms"];
        run(&[&base[..], &set].concat()).map(drop)
    }

    /// Cuts or heals a rail.
    pub fn link(&self, rail: u8, up: bool) -> miette::Result<()> {
        run(&["ip", "-n", &self.head.0, "link", "set", &format!("rail{rail}"), if up { "up" } else { "down" }])
            .map(drop)
    }
}

/// CPU seconds of all processes that we started and reaped, and of those that they reaped.
pub fn children_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = after.split_whitespace().skip(13).take(2).filter_map(|f| f.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}
