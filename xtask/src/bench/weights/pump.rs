//! The least that can move and prove files: whole files over plain connections, sendfile on one side, receive, SHA-256 and
//! write on the other. No resumption, no journal, no key: what the real thing costs more is the price of those.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use miette::{IntoDiagnostic, miette};
use sha2::{Digest as _, Sha256};

/// One end of the pump.
#[derive(Debug, clap::Args)]
pub struct PumpArgs {
    /// `send` or `receive`.
    side: String,
    /// Folder.
    dir: Utf8PathBuf,
    /// Addresses, one per rail.
    rails: Vec<SocketAddr>,
}

/// Runs one end.
pub fn run(args: &PumpArgs) -> miette::Result<()> {
    if args.side == "send" { send(args) } else { receive(args) }
}

fn files(dir: &Utf8Path) -> miette::Result<Vec<Utf8PathBuf>> {
    let mut files: Vec<Utf8PathBuf> =
        dir.read_dir_utf8().into_diagnostic()?.flatten().map(|e| e.into_path()).filter(|p| p.is_file()).collect();
    files.sort();
    Ok(files)
}

/// Each connection names a file by number and gets its bytes; the number of files ends the sender.
fn send(args: &PumpArgs) -> miette::Result<()> {
    let files = files(&args.dir)?;
    let listeners: Vec<TcpListener> =
        args.rails.iter().map(TcpListener::bind).collect::<Result<_, _>>().into_diagnostic()?;
    println!("ready");
    std::thread::scope(|scope| {
        for listener in &listeners {
            let files = &files;
            scope.spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    scope.spawn(move || feed(stream, files));
                }
            });
        }
    });
    Ok(())
}

fn feed(mut stream: TcpStream, files: &[Utf8PathBuf]) {
    let mut number = [0; 4];
    while stream.read_exact(&mut number).is_ok() {
        let Some(file) = files.get(u32::from_be_bytes(number) as usize).and_then(|p| File::open(p).ok()) else {
            return;
        };
        let (mut at, mut left) = (0, file.metadata().map_or(0, |m| m.len()));
        while left > 0 {
            match rustix::fs::sendfile(&stream, &file, Some(&mut at), usize::try_from(left).unwrap_or(usize::MAX)) {
                Ok(sent) if sent > 0 => left -= sent as u64,
                _ => return,
            }
        }
    }
}

/// Receives over the files that are in the folder already, by their sizes; two connections per rail.
fn receive(args: &PumpArgs) -> miette::Result<()> {
    let files = files(&args.dir)?;
    let next = AtomicUsize::new(0);
    let work = |rail: SocketAddr| -> miette::Result<()> {
        let mut stream = TcpStream::connect(rail).into_diagnostic()?;
        let mut buffer = vec![0; 1 << 20];
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = files.get(n) else { return Ok(()) };
            stream.write_all(&u32::try_from(n).into_diagnostic()?.to_be_bytes()).into_diagnostic()?;
            let file = File::options().write(true).open(path).into_diagnostic()?;
            let (mut at, size) = (0, file.metadata().into_diagnostic()?.len());
            let mut hasher = Sha256::new();
            while at < size {
                let want = usize::try_from(size - at).unwrap_or(usize::MAX).min(buffer.len());
                let room = buffer.get_mut(..want).unwrap_or_default();
                stream.read_exact(room).into_diagnostic()?;
                hasher.update(&*room);
                file.write_all_at(room, at).into_diagnostic()?;
                at += want as u64;
            }
            let _proved = hasher.finalize();
        }
    };
    std::thread::scope(|scope| {
        let rails = args.rails.iter().chain(&args.rails);
        let threads: Vec<_> = rails.map(|rail| scope.spawn(|| work(*rail))).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(miette!("a pump's thread died"))))
    })
}
