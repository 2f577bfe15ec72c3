//! A connection both ends of which have the transfer's key: Noise `NNpsk0` (noiseprotocol.org), then sealed messages.
//!
//! The key is made for one transfer and handed to both ends over ssh. Whoever has it not learns nothing, gets a few
//! seconds of one thread and no byte of disk.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::str::FromStr;
use std::time::{Duration, Instant};

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use snow::{Builder, HandshakeState, TransportState};

use super::sched::Want;
use super::wire::{Hello, Welcome};
use crate::error::WeightsError;
use crate::hash::Sha;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Both ends must mean the same protocol before a key is even tried.
const PROLOGUE: &[u8] = b"sparklane blobs 1";
/// Largest message of Noise.
const MAX_MESSAGE: usize = 65535;
/// Bytes after which a receiver asks itself whether it still wants the rest: a slow rail must not hold the end.
const PIECE: usize = 128 * 1024;
/// Time for both handshake messages together, so that a peer that trickles is a peer that is gone.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A transfer's key.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// A fresh key.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn random() -> Result<Self, WeightsError> {
        let mut key = [0; 32];
        fill(&mut key)?;
        Ok(Self(key))
    }

    /// Its 64 hex digits, for the one place it is handed over: the stdin of an ssh command.
    #[must_use]
    pub fn expose(&self) -> String {
        Sha(self.0).to_string()
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl FromStr for Key {
    type Err = WeightsError;
    fn from_str(text: &str) -> Result<Self, WeightsError> {
        // The text is a secret: it is not repeated.
        let sha: Sha = text.trim().parse().map_err(|_| WeightsError::Refused("the key is not 64 hex digits".into()))?;
        Ok(Self(sha.0))
    }
}

fn fill(bytes: &mut [u8]) -> Result<(), WeightsError> {
    SystemRandom::new().fill(bytes).map_err(|_| WeightsError::Failed("the system gives no randomness".into()))
}

/// A connection that is proved.
pub struct Channel {
    stream: TcpStream,
    noise: TransportState,
    seal: Option<Seal>,
    buffer: Vec<u8>,
}

/// AES-128-GCM over extents; a key per connection, a nonce per extent.
struct Seal {
    key: LessSafeKey,
    count: u64,
}

impl Seal {
    fn new(key: &[u8; 16]) -> Result<Self, WeightsError> {
        let key =
            UnboundKey::new(&AES_128_GCM, key).map_err(|_| WeightsError::Failed("the seal's key is odd".into()))?;
        Ok(Self { key: LessSafeKey::new(key), count: 0 })
    }

    fn next(&mut self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.count.to_be_bytes());
        self.count += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

fn aad(want: &Want) -> Aad<[u8; 16]> {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&want.file.to_be_bytes());
    bytes[4..12].copy_from_slice(&want.offset.to_be_bytes());
    bytes[12..].copy_from_slice(&want.len.to_be_bytes());
    Aad::from(bytes)
}

/// Why a connection is no channel.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The connection broke, was closed or was silent; another one may do better.
    #[error("{0}")]
    Lost(String),
    /// The other end is not who it should be, or wants something else.
    #[error("{0}")]
    Wrong(String),
}

impl ChannelError {
    fn io(what: &str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Lost(format!("{what}: silent for too long")),
            ErrorKind::UnexpectedEof => Self::Lost(format!("{what}: closed by the other end")),
            _ => Self::Lost(format!("{what}: {error}")),
        }
    }
}

impl Channel {
    /// The receiver's side: names the set it wants, and learns that the other end has the key and that set.
    ///
    /// # Errors
    /// [`ChannelError::Wrong`] for another set; a wrong key shows as a connection that is closed.
    pub fn connect(mut stream: TcpStream, key: &Key, set: Sha) -> Result<Self, ChannelError> {
        let until = Instant::now() + HANDSHAKE;
        let mut noise = builder(key, true)?;
        let mut out = vec![0; 1024];
        let len = noise.write_message(&Hello { set }.encode(), &mut out).map_err(odd)?;
        write_framed(&mut stream, out.get(..len).unwrap_or_default())?;
        let sealed = read_framed(&mut stream, Some(until), 1024).map_err(|error| match error {
            ChannelError::Lost(why) => ChannelError::Lost(format!("{why} (a wrong key looks like this)")),
            wrong @ ChannelError::Wrong(_) => wrong,
        })?;
        let mut plain = vec![0; 1024];
        let len = noise.read_message(&sealed, &mut plain).map_err(odd)?;
        let welcome = Welcome::decode(plain.get(..len).unwrap_or_default())
            .ok_or_else(|| ChannelError::Wrong("the sender speaks another version".into()))?;
        if welcome.set != set {
            return Err(ChannelError::Wrong(format!("the sender has set {}, this end wants {set}", welcome.set)));
        }
        let seal = welcome.seal.as_ref().map(Seal::new).transpose().map_err(wrong)?;
        Ok(Self { stream, noise: noise.into_transport_mode().map_err(odd)?, seal, buffer: vec![0; MAX_MESSAGE] })
    }

    /// The sender's side. A peer that wants another set is told so; one without the key is told nothing.
    ///
    /// # Errors
    /// As [`Channel::connect`].
    pub fn accept(mut stream: TcpStream, key: &Key, set: Sha, sealed: bool) -> Result<Self, ChannelError> {
        let until = Instant::now() + HANDSHAKE;
        let mut noise = builder(key, false)?;
        let first = read_framed(&mut stream, Some(until), 1024)?;
        let mut plain = vec![0; 1024];
        let len = noise.read_message(&first, &mut plain).map_err(odd)?;
        let hello = Hello::decode(plain.get(..len).unwrap_or_default())
            .ok_or_else(|| ChannelError::Wrong("the receiver speaks another version".into()))?;
        let mut secret = [0; 16];
        fill(&mut secret).map_err(wrong)?;
        let seal = sealed.then_some(secret);
        let mut out = vec![0; 1024];
        let len = noise.write_message(&Welcome { set, seal }.encode(), &mut out).map_err(odd)?;
        write_framed(&mut stream, out.get(..len).unwrap_or_default())?;
        if hello.set != set {
            return Err(ChannelError::Wrong(format!("the receiver wants set {}, this end has {set}", hello.set)));
        }
        let seal = seal.as_ref().map(Seal::new).transpose().map_err(wrong)?;
        Ok(Self { stream, noise: noise.into_transport_mode().map_err(odd)?, seal, buffer: vec![0; MAX_MESSAGE] })
    }

    /// The connection.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// True when extents travel sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn send(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        let len = self.noise.write_message(message, &mut self.buffer).map_err(odd)?;
        write_framed(&mut self.stream, self.buffer.get(..len).unwrap_or_default())
    }

    /// Receives a message.
    ///
    /// # Errors
    /// When the connection is lost, or the message is not the other end's.
    pub fn receive(&mut self) -> Result<Vec<u8>, ChannelError> {
        let sealed = read_framed(&mut self.stream, None, MAX_MESSAGE)?;
        let len = self.noise.read_message(&sealed, &mut self.buffer).map_err(odd)?;
        Ok(self.buffer.get(..len).unwrap_or_default().to_vec())
    }

    /// Sends the bytes of an extent.
    ///
    /// # Errors
    /// When the connection is lost.
    pub fn send_bytes(&mut self, want: &Want, bytes: &mut [u8]) -> Result<(), ChannelError> {
        let tag = match &mut self.seal {
            None => None,
            Some(seal) => {
                let nonce = seal.next();
                let tag = seal.key.seal_in_place_separate_tag(nonce, aad(want), bytes);
                Some(tag.map_err(|_| ChannelError::Wrong("an extent cannot be sealed".into()))?)
            }
        };
        self.stream.write_all(bytes).map_err(ChannelError::io("send"))?;
        tag.map_or(Ok(()), |tag| self.stream.write_all(tag.as_ref()).map_err(ChannelError::io("send")))
    }

    /// Receives the bytes of an extent, as long as someone wants them.
    ///
    /// # Errors
    /// When the connection is lost, a sealed extent is not as it was sent, or `unwanted` says so.
    pub fn receive_bytes(
        &mut self,
        want: &Want,
        bytes: &mut [u8],
        unwanted: &dyn Fn() -> bool,
    ) -> Result<(), ChannelError> {
        for piece in bytes.chunks_mut(PIECE) {
            self.stream.read_exact(piece).map_err(ChannelError::io("receive"))?;
            if unwanted() {
                return Err(ChannelError::Lost("no longer wanted".into()));
            }
        }
        let Some(seal) = &mut self.seal else { return Ok(()) };
        let mut tag = [0; 16];
        self.stream.read_exact(&mut tag).map_err(ChannelError::io("receive"))?;
        let nonce = seal.next();
        // A flipped bit: this connection is done with, the extent is asked for on another.
        let opened = seal.key.open_in_place_separate_tag(nonce, aad(want), Tag::from(tag), bytes, 0..);
        opened.map(drop).map_err(|_| ChannelError::Lost("a sealed extent was changed on its way".into()))
    }
}

fn builder(key: &Key, initiator: bool) -> Result<HandshakeState, ChannelError> {
    let params = PATTERN.parse().map_err(odd)?;
    let builder = Builder::new(params).prologue(PROLOGUE).and_then(|b| b.psk(0, &key.0)).map_err(odd)?;
    if initiator { builder.build_initiator() } else { builder.build_responder() }.map_err(odd)
}

fn odd(error: snow::Error) -> ChannelError {
    ChannelError::Lost(format!("not the other end of this transfer ({error})"))
}

fn wrong(error: WeightsError) -> ChannelError {
    ChannelError::Wrong(error.to_string())
}

fn write_framed(stream: &mut TcpStream, message: &[u8]) -> Result<(), ChannelError> {
    let len = u16::try_from(message.len()).map_err(|_| ChannelError::Wrong("a message is too long".into()))?;
    let framed = [&len.to_be_bytes()[..], message].concat();
    stream.write_all(&framed).map_err(ChannelError::io("send"))
}

fn read_framed(stream: &mut TcpStream, until: Option<Instant>, most: usize) -> Result<Vec<u8>, ChannelError> {
    let mut len = [0; 2];
    read_by(stream, &mut len, until)?;
    let len = usize::from(u16::from_be_bytes(len));
    if len > most {
        return Err(ChannelError::Lost("not the other end of this transfer (its first message is too long)".into()));
    }
    let mut message = vec![0; len];
    read_by(stream, &mut message, until)?;
    Ok(message)
}

/// Reads it all, within the stream's own timeout per byte, and before `until` when there is one.
fn read_by(stream: &mut TcpStream, bytes: &mut [u8], until: Option<Instant>) -> Result<(), ChannelError> {
    let Some(until) = until else { return stream.read_exact(bytes).map_err(ChannelError::io("receive")) };
    let before = stream.read_timeout().map_err(ChannelError::io("receive"))?;
    let mut have = 0;
    while let Some(rest) = bytes.get_mut(have..).filter(|r| !r.is_empty()) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChannelError::Lost("silent for too long".into()));
        }
        stream.set_read_timeout(Some(left)).map_err(ChannelError::io("receive"))?;
        match stream.read(rest) {
            Ok(0) => return Err(ChannelError::Lost("closed by the other end".into())),
            Ok(read) => have += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(ChannelError::io("receive")(error)),
        }
    }
    stream.set_read_timeout(before).map_err(ChannelError::io("receive"))
}
