//! `cargo xtask bench image`: the loopback registry and the client beside Debian's docker-registry and curl.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use miette::{IntoDiagnostic, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use xshell::Shell;

use super::report::{load, median};
use crate::{packages, prebuilt, workspace};

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Times each thing is measured; the median counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// MiB of the layer that is moved.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..))]
    mib: u64,
    /// Folder for the layer and its copies [default: /var/tmp]
    #[arg(long)]
    dir: Option<Utf8PathBuf>,
    /// Print one JSON object with every sample instead of the table.
    #[arg(long)]
    json: bool,
    /// Measure ./prebuilt as it is.
    #[arg(long)]
    no_build: bool,
}

/// A server that ends with the bench.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    /// Processor seconds that it has used.
    fn cpu(&self) -> miette::Result<f64> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = std::fs::read_to_string(&path).into_diagnostic()?;
        // After the name in parentheses: utime and stime are fields 14 and 15 (proc(5)), in ticks of 10 ms.
        let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |n: usize| fields.get(n).and_then(|t| t.parse::<f64>().ok()).unwrap_or(0.0);
        Ok((ticks(11) + ticks(12)) / 100.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends with us, whatever it says to that.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Seconds of every round.
#[derive(Default)]
struct Times {
    ours_serves: Vec<f64>,
    peer_serves: Vec<f64>,
    ours_cpu: Vec<f64>,
    peer_cpu: Vec<f64>,
    ours_pulls: Vec<f64>,
    curl: Vec<f64>,
    curl_synced: Vec<f64>,
}

/// Measures everything and prints it. A missed aim is printed, not an error: time depends on the machine.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    let sh = Shell::new().into_diagnostic()?;
    sh.change_dir(workspace());
    packages::ensure(&sh)?;
    let tool = workspace().join("prebuilt").join(prebuilt::System::X86_64.name()).join("sparklane");
    if !(args.no_build && tool.exists()) {
        prebuilt::run(&prebuilt::Args { system: vec![prebuilt::System::X86_64] })?;
    }
    let parent = args.dir.clone().unwrap_or_else(|| "/var/tmp".into());
    let dir = parent.join(format!("sparklane-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).into_diagnostic()?;
    let measured = measure(args, &tool, &dir);
    std::fs::remove_dir_all(&dir).into_diagnostic()?;
    let (times, load) = measured?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&times.json(args, &load)).into_diagnostic()?);
    } else {
        print!("{}", times.table(args, &load));
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args, tool: &Utf8Path, dir: &Utf8Path) -> miette::Result<(Times, [String; 2])> {
    let (layout, layer) = make_layout(&dir.join("layout"), args.mib)?;
    let ours = ours(tool, &layout)?;
    let peer = peer(dir)?;
    let reference = |server: &Server| format!("127.0.0.1:{}/bench/x:1", server.port);
    run_quietly(Command::new(tool).args(["image", "push", &reference(&peer), "--layout", layout.as_str()]))?;
    let url = |server: &Server| format!("http://127.0.0.1:{}/v2/bench/x/blobs/{layer}", server.port);
    let mut times = Times::default();
    let before = load();
    for _ in 0..args.rounds {
        for (server, list) in [
            (&ours, (&mut times.ours_serves, &mut times.ours_cpu)),
            (&peer, (&mut times.peer_serves, &mut times.peer_cpu)),
        ] {
            let before = server.cpu()?;
            list.0.push(discard(server.port, &layer, args.mib << 20)?);
            list.1.push(server.cpu()? - before);
        }
        let (file, to) = (dir.join("curl"), dir.join("to"));
        let mut curl = Command::new("curl");
        times.curl.push(timed(curl.args(["-sS", "--fail", "-o", file.as_str(), &url(&ours)]))?);
        // The client's blob is on disk when it is done; so must be curl's.
        let synced = timed(Command::new("sync").arg(&file))?;
        times.curl_synced.push(times.curl.last().copied().unwrap_or(0.0) + synced);
        std::fs::remove_file(&file).into_diagnostic()?;
        let mut pull = Command::new(tool);
        pull.args(["image", "pull", &reference(&ours), "--layout", to.as_str(), "--platform", "linux/amd64", "--json"]);
        times.ours_pulls.push(timed(&mut pull)?);
        std::fs::remove_dir_all(&to).into_diagnostic()?;
    }
    Ok((times, [before, load()]))
}

fn run_quietly(command: &mut Command) -> miette::Result<()> {
    let output = command.stdin(Stdio::null()).output().into_diagnostic()?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{:?}: {words}", command.get_program());
    Ok(())
}

fn timed(command: &mut Command) -> miette::Result<f64> {
    let begin = Instant::now();
    run_quietly(command)?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Fetches the layer and throws it away in the kernel (MSG_TRUNC), so that the server is what is measured; seconds.
fn discard(port: u16, layer: &str, bytes: u64) -> miette::Result<f64> {
    let begin = Instant::now();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).into_diagnostic()?;
    write!(stream, "GET /v2/bench/x/blobs/{layer} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .into_diagnostic()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).into_diagnostic()?;
        head.push(byte[0]);
    }
    ensure!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    let (mut left, mut room) = (bytes, vec![0u8; 1 << 20]);
    while left > 0 {
        let (_, n) =
            rustix::net::recv(&stream, room.as_mut_slice(), rustix::net::RecvFlags::TRUNC).into_diagnostic()?;
        ensure!(n > 0, "the server ended {left} bytes early");
        left = left.saturating_sub(n as u64);
    }
    Ok(begin.elapsed().as_secs_f64())
}

/// A layout with one image of one layer that does not compress; gives the layer's digest.
fn make_layout(root: &Utf8Path, mib: u64) -> miette::Result<(Utf8PathBuf, String)> {
    let blobs = root.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).into_diagnostic()?;
    let temp = blobs.join("new");
    let mut file = std::io::BufWriter::new(std::fs::File::create(&temp).into_diagnostic()?);
    let (mut state, mut sum) = (0x9e37_79b9_7f4a_7c15_u64, Sha256::new());
    let mut piece = vec![0u8; 1 << 20];
    for _ in 0..mib {
        for chunk in piece.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes());
        }
        sum.update(&piece);
        file.write_all(&piece).into_diagnostic()?;
    }
    file.into_inner().into_diagnostic()?.sync_all().into_diagnostic()?;
    let layer = hex(&sum.finalize());
    std::fs::rename(temp, blobs.join(&layer)).into_diagnostic()?;
    let put = |bytes: &[u8]| -> miette::Result<String> {
        let digest = hex(&Sha256::digest(bytes));
        std::fs::write(blobs.join(&digest), bytes).into_diagnostic()?;
        Ok(digest)
    };
    let row = |media: &str, digest: &str, size: u64| json!({ "mediaType": media, "digest": format!("sha256:{digest}"), "size": size });
    let rootfs = json!({ "type": "layers", "diff_ids": [format!("sha256:{layer}")] });
    let config = json!({ "architecture": "amd64", "os": "linux", "rootfs": rootfs }).to_string();
    let config = row("application/vnd.oci.image.config.v1+json", &put(config.as_bytes())?, config.len() as u64);
    let rows = [row("application/vnd.oci.image.layer.v1.tar", &layer, mib << 20)];
    let media = "application/vnd.oci.image.manifest.v1+json";
    let manifest = json!({ "schemaVersion": 2, "mediaType": media, "config": config, "layers": rows }).to_string();
    let mut entry = row(media, &put(manifest.as_bytes())?, manifest.len() as u64);
    entry["annotations"] = json!({ "org.opencontainers.image.ref.name": "1" });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] });
    std::fs::write(root.join("index.json"), index.to_string()).into_diagnostic()?;
    std::fs::write(root.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).into_diagnostic()?;
    Ok((root.to_owned(), format!("sha256:{layer}")))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn free_port() -> miette::Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").into_diagnostic()?;
    Ok(listener.local_addr().into_diagnostic()?.port())
}

fn listening(mut command: Command, port: u16) -> miette::Result<Server> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().into_diagnostic()?;
    let server = Server { child, port };
    let until = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() >= until {
            bail!("{:?} does not listen", command.get_program());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(server)
}

fn ours(tool: &Utf8Path, layout: &Utf8Path) -> miette::Result<Server> {
    let port = free_port()?;
    let mut command = Command::new(tool);
    command.args(["image", "serve", "--layout", layout.as_str(), "--port", &port.to_string()]);
    listening(command, port)
}

fn peer(dir: &Utf8Path) -> miette::Result<Server> {
    let (port, config) = (free_port()?, dir.join("registry.yml"));
    let text = format!(
        "version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n\
         storage: {{filesystem: {{rootdirectory: {dir}/registry}}}}\nhttp: {{addr: 127.0.0.1:{port}}}\n"
    );
    std::fs::write(&config, text).into_diagnostic()?;
    let mut command = Command::new("docker-registry");
    command.arg("serve").arg(&config);
    listening(command, port)
}

impl Times {
    fn json(&self, args: &Args, load: &[String; 2]) -> Value {
        json!({
            "mib": args.mib,
            "seconds": {
                "serve": self.ours_serves, "docker-registry": self.peer_serves,
                "serve, cpu": self.ours_cpu, "docker-registry, cpu": self.peer_cpu, "pull": self.ours_pulls,
                "curl": self.curl, "curl and sync": self.curl_synced,
            },
            "load": load,
        })
    }

    fn table(&self, args: &Args, load: &[String; 2]) -> String {
        let speed = |times: &[f64]| args.mib as f64 / median(times);
        let row = |what: &str, ours: &[f64], peer: &str, theirs: &[f64], aim: f64| {
            let ratio = speed(ours) / speed(theirs);
            let met = if ratio >= aim { "met" } else { "missed" };
            let (ours, theirs) = (speed(ours), speed(theirs));
            format!("| {what} | {ours:.0} MiB/s | {peer} {theirs:.0} MiB/s | {ratio:.2} | ≥ {aim} | {met} |\n")
        };
        let mut text = format!(
            "one layer of {} MiB, {} rounds, medians; load before {}, after {}\n\n| | sparklane | peer | ratio | aim | |\n\
             |---|---|---|---|---|---|\n",
            args.mib, args.rounds, load[0], load[1]
        );
        text += &row("loopback serve", &self.ours_serves, "docker-registry", &self.peer_serves, 5.0);
        let per_gib = |times: &[f64]| median(times) * 1024.0 / args.mib as f64;
        let (ours, theirs) = (per_gib(&self.ours_cpu), per_gib(&self.peer_cpu));
        text += &format!("| the server's CPU per GiB | {ours:.2} s | {theirs:.2} s | {:.2} | | |\n", theirs / ours);
        text += &row("pull, hashed, on disk", &self.ours_pulls, "curl and sync", &self.curl_synced, 0.9);
        let page_cache = speed(&self.ours_pulls) / speed(&self.curl);
        text +=
            &format!("| the same, curl not synced | | curl {:.0} MiB/s | {page_cache:.2} | | |\n", speed(&self.curl));
        text
    }
}
