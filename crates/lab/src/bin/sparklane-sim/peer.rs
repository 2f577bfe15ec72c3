//! The ranks' rendezvous and their steps, over one TCP connection per rank to `--master-addr:--master-port`.
//!
//! As in vLLM's native multi-node mode, rank 0 never watches an idle peer: it learns of a death at its next step, and a
//! headless rank that serves never learns of the head's death at all.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Rank 0 says this when all have joined; a rank says it when it has loaded.
const READY: u8 = b'r';
/// Rank 0 asks for one step of the model; the rank answers the same.
const STEP: u8 = b's';

/// A rank is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dead;

impl From<std::io::Error> for Dead {
    fn from(_: std::io::Error) -> Self {
        Self
    }
}

/// Rank 0's connections to the others.
#[derive(Debug, Default)]
pub struct Peers(Vec<TcpStream>);

impl Peers {
    /// Waits, without a word, until all other ranks have come.
    pub async fn wait(port: u16, nodes: u32) -> std::io::Result<Self> {
        let Some(others) = nodes.checked_sub(1).filter(|n| *n > 0) else {
            return Ok(Self::default());
        };
        let listener = listen(port)?;
        let mut seats: Vec<Option<TcpStream>> = (0..others).map(|_| None).collect();
        while seats.iter().any(Option::is_none) {
            let (mut stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            // Whoever connects and says nothing (a port probe) must not keep the ranks waiting.
            let hello = tokio::time::timeout(Duration::from_secs(2), stream.read_u8()).await;
            let Ok(Ok(rank)) = hello else { continue };
            if let Some(seat) = usize::from(rank).checked_sub(1).and_then(|i| seats.get_mut(i)) {
                *seat = Some(stream);
            }
        }
        let mut peers = Self(seats.into_iter().flatten().collect());
        for stream in &mut peers.0 {
            stream.write_u8(READY).await?;
        }
        Ok(peers)
    }

    /// Waits until all have loaded.
    pub async fn loaded(&mut self) -> Result<(), Dead> {
        for stream in &mut self.0 {
            expect(stream, READY).await?;
        }
        Ok(())
    }

    /// One step on all ranks. Hangs while a rail is cut, as the real one does.
    pub async fn step(&mut self) -> Result<(), Dead> {
        for stream in &mut self.0 {
            stream.write_u8(STEP).await?;
            expect(stream, STEP).await?;
        }
        Ok(())
    }
}

fn listen(port: u16) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(([0, 0, 0, 0], port).into())?;
    socket.listen(16)
}

async fn expect(stream: &mut TcpStream, word: u8) -> Result<(), Dead> {
    if stream.read_u8().await? == word { Ok(()) } else { Err(Dead) }
}

/// Another rank's connection to rank 0.
#[derive(Debug)]
pub struct Head(TcpStream);

impl Head {
    /// Tries again and again until rank 0 has all ranks together.
    pub async fn join(master: &(String, u16), rank: u32) -> Self {
        loop {
            if let Ok(head) = Self::try_join(master, rank).await {
                return head;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn try_join(master: &(String, u16), rank: u32) -> Result<Self, Dead> {
        let connect = TcpStream::connect((master.0.as_str(), master.1));
        let mut stream = tokio::time::timeout(Duration::from_secs(2), connect).await.map_err(|_| Dead)??;
        stream.set_nodelay(true)?;
        stream.write_u8(u8::try_from(rank).map_err(|_| Dead)?).await?;
        expect(&mut stream, READY).await?;
        Ok(Self(stream))
    }

    /// Tells rank 0 that this rank has loaded.
    pub async fn loaded(&mut self) -> Result<(), Dead> {
        Ok(self.0.write_u8(READY).await?)
    }

    /// True when rank 0 has gone; it sends nothing while ranks load.
    pub async fn gone(&mut self) -> bool {
        let mut byte = [0];
        !matches!(self.0.peek(&mut byte).await, Ok(1))
    }

    /// Answers rank 0's steps, for ever: the head's death goes unnoticed.
    pub async fn serve(mut self) {
        while let Ok(STEP) = self.0.read_u8().await {
            if self.0.write_u8(STEP).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    }
}
