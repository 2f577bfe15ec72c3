//! `sparklane-sim nccl-bench [hang]`: a rank of an all-reduce, where there is neither GPU nor RDMA.
//!
//! It says what NCCL says on such a machine (a real one's words, crates/fabric/tests/fixtures/nccl: socket.log and
//! ib-missing.log) and moves the bytes over TCP for real, so its figure is that of the lab's rails.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long the second rank looks for the first.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of one write.
const PIECE: usize = 1 << 20;

pub fn run(more: &[String]) -> ExitCode {
    let env = |name: &str| std::env::var(name).unwrap_or_default();
    let rank = env("RANK");
    let say = |text: &str| println!("node{rank}:{pid}:{pid} [0] NCCL {text}", pid = std::process::id());
    say("INFO NCCL version 2.28.9+cuda13.0");
    say("INFO NET/IB : No device found.");
    say("INFO Failed to initialize NET plugin IB");
    if env("NCCL_NET") == "IB" {
        say("WARN Failed to initialize any NET plugin");
        return ExitCode::from(1);
    }
    if more.iter().any(|word| word == "hang") {
        std::thread::sleep(Duration::from_secs(3600));
    }
    say("INFO Initialized NET plugin Socket");
    say("INFO Using network Socket");
    match measure(&env, &rank) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("WARN socketProgress: {error}"));
            ExitCode::from(1)
        }
    }
}

fn measure(env: &dyn Fn(&str) -> String, rank: &str) -> std::io::Result<()> {
    let port: u16 = env("MASTER_PORT").parse().unwrap_or(29400);
    let at = (env("MASTER_ADDR"), port);
    let first = rank == "0";
    let mut peer = if first { TcpListener::bind(&at)?.accept()?.0 } else { connect(&at)? };
    peer.set_nodelay(true)?;
    let channel = if first { "1[0] -> 0[0] [receive]" } else { "0[0] -> 1[0] [receive]" };
    println!(
        "node{rank}:{pid}:{pid} [0] NCCL INFO Channel 00/0 : {channel} via NET/Socket/0",
        pid = std::process::id()
    );
    let mut shown = Vec::new();
    for size in env("SPARKLANE_BENCH_SIZES").split(',').filter_map(|s| s.parse::<usize>().ok()) {
        let begin = Instant::now();
        exchange(&mut peer, size)?;
        let secs = begin.elapsed().as_secs_f64();
        // Of two ranks the bus carries what the algorithm moves.
        let speed = size as f64 / secs / 1e9;
        shown.push(speed);
        if first {
            println!("{size:12} {:10.1} {speed:12.4} {speed:12.4}", secs * 1e6);
        }
    }
    if first {
        println!("# Avg bus bandwidth    : {:.4}", shown.iter().sum::<f64>() / shown.len().max(1) as f64);
    }
    Ok(())
}

fn connect(at: &(String, u16)) -> std::io::Result<TcpStream> {
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect(at) {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
            other => return other,
        }
    }
}

/// Each sends the whole message and receives the other's.
fn exchange(peer: &mut TcpStream, size: usize) -> std::io::Result<()> {
    let mut out = peer.try_clone()?;
    let sender = std::thread::spawn(move || {
        let piece = vec![1_u8; PIECE];
        let mut left = size;
        while left > 0 {
            let now = left.min(PIECE);
            out.write_all(&piece[..now])?;
            left -= now;
        }
        out.flush()
    });
    let mut buffer = vec![0_u8; PIECE];
    let mut left = size;
    while left > 0 {
        let want = left.min(PIECE);
        peer.read_exact(&mut buffer[..want])?;
        left -= want;
    }
    sender.join().unwrap_or_else(|_| Err(std::io::Error::other("the sender died")))
}
