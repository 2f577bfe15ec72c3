//! Connections over named rails: bound to the rail's own address, and to its device when it is named. Never a third way.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::channel::{Channel, ChannelError, Key};
use super::line::{Dial, Line, LineError};
use super::sched::Want;
use super::wire::{Answer, MAX_HASHES, Request};
use crate::buffer::{Buffer, EXTENT};
use crate::error::WeightsError;
use crate::hash::Sha;

/// Time for a connection to stand; rails are cables.
const CONNECT: Duration = Duration::from_secs(2);
/// A connection that brings no byte for so long is given up; its extents go to others.
const STALL: Duration = Duration::from_secs(3);
/// Time and bytes of a probe.
const PROBE: Duration = Duration::from_millis(100);
const PROBE_BYTES: u64 = 32 * 1024 * 1024;

/// A rail as the receiver uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rail {
    /// Name, e.g. `rail1`.
    pub name: String,
    /// Own address.
    pub source: IpAddr,
    /// Own device; binding to it needs root.
    pub device: Option<String>,
    /// Where the sender listens on this rail.
    pub peer: SocketAddr,
}

impl FromStr for Rail {
    type Err = WeightsError;

    /// `NAME=SOURCE[%DEVICE]=PEER:PORT`.
    fn from_str(text: &str) -> Result<Self, WeightsError> {
        let bad = || WeightsError::Refused(format!("{text:?} is not NAME=SOURCE[%DEVICE]=PEER:PORT"));
        let mut parts = text.splitn(3, '=');
        let (Some(name), Some(from), Some(peer)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(bad());
        };
        let (source, device) = from.split_once('%').map_or((from, None), |(s, d)| (s, Some(d.to_owned())));
        let rail = Self {
            name: name.to_owned(),
            source: source.parse().map_err(|_| bad())?,
            device,
            peer: peer.parse().map_err(|_| bad())?,
        };
        if rail.name.is_empty() || rail.source.is_ipv4() != rail.peer.is_ipv4() { Err(bad()) } else { Ok(rail) }
    }
}

impl Rail {
    fn connect(&self) -> Result<TcpStream, LineError> {
        let lost = |what: &str, e: std::io::Error| LineError::lost(format!("{}: {what}: {e}", self.name));
        let socket = Socket::new(Domain::for_address(self.peer), Type::STREAM, Some(Protocol::TCP))
            .map_err(|e| lost("socket", e))?;
        if let Some(device) = &self.device {
            socket.bind_device(Some(device.as_bytes())).map_err(|e| lost(&format!("device {device}"), e))?;
        }
        socket
            .bind(&SockAddr::from(SocketAddr::new(self.source, 0)))
            .map_err(|e| lost(&format!("bind to {}", self.source), e))?;
        socket.connect_timeout(&SockAddr::from(self.peer), CONNECT).map_err(|e| lost(&format!("{}", self.peer), e))?;
        let stream = TcpStream::from(socket);
        let bound = stream.local_addr().map_err(|e| lost("address", e))?;
        if bound.ip() != self.source {
            return Err(LineError::lost(format!("{}: bound to {bound} instead of {}", self.name, self.source)));
        }
        let set = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(STALL)));
        set.and_then(|()| stream.set_write_timeout(Some(STALL))).map_err(|e| lost("set up", e))?;
        Ok(stream)
    }
}

/// A sender that is reached over rails.
#[derive(Debug, Clone)]
pub struct Rails {
    /// The rails.
    pub rails: Vec<Rail>,
    /// The transfer's key.
    pub key: Key,
    /// The set that both ends mean.
    pub set: Sha,
}

/// What a rail delivered before the transfer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Probe {
    /// Bytes per second of one connection.
    pub bytes_per_second: u64,
    /// Largest TCP segment: below 8900 the rail has no jumbo frames.
    pub segment: u32,
}

impl Rails {
    fn open(&self, way: usize) -> Result<RailLine, LineError> {
        let rail = self.rails.get(way).ok_or_else(|| LineError::lost("no such rail"))?;
        let stream = rail.connect()?;
        let channel = Channel::connect(stream, &self.key, self.set).map_err(|e| of_channel(&rail.name, e))?;
        Ok(RailLine { channel, name: rail.name.clone() })
    }

    /// Measures one rail.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn probe(&self, way: usize) -> Result<Probe, LineError> {
        let mut line = self.open(way)?;
        let segment = socket2::SockRef::from(line.channel.stream()).tcp_mss().unwrap_or(0);
        let mut buffer = Buffer::new();
        let (start, mut bytes) = (Instant::now(), 0_u64);
        let len = EXTENT as u32 / 4;
        let want = Want { file: u32::MAX, offset: 0, len };
        while start.elapsed() < PROBE && bytes < PROBE_BYTES {
            line.say(&Request::Probe { len })?;
            match line.hear()? {
                Answer::Probe { len: told } if told == len => {}
                _ => return Err(line.odd()),
            }
            let room = buffer.whole().get_mut(..len as usize).unwrap_or_default();
            line.channel.receive_bytes(&want, room, &|| false).map_err(|e| of_channel(&line.name, e))?;
            bytes += u64::from(len);
        }
        let nanos = start.elapsed().as_nanos().max(1);
        let rate = u128::from(bytes) * 1_000_000_000 / nanos;
        Ok(Probe { bytes_per_second: u64::try_from(rate).unwrap_or(u64::MAX), segment })
    }
}

fn of_channel(rail: &str, error: ChannelError) -> LineError {
    match error {
        ChannelError::Lost(why) => LineError::lost(format!("{rail}: {why}")),
        ChannelError::Wrong(why) => LineError::Fatal(WeightsError::Peer(format!("{rail}: {why}"))),
    }
}

impl Dial for Rails {
    fn ways(&self) -> Vec<String> {
        self.rails.iter().map(|r| r.name.clone()).collect()
    }

    fn dial(&self, way: usize) -> Result<Box<dyn Line>, LineError> {
        Ok(Box::new(self.open(way)?))
    }
}

/// One connection over one rail.
struct RailLine {
    channel: Channel,
    name: String,
}

impl RailLine {
    fn say(&mut self, request: &Request) -> Result<(), LineError> {
        self.channel.send(&request.encode()).map_err(|e| of_channel(&self.name, e))
    }

    fn hear(&mut self) -> Result<Answer, LineError> {
        let bytes = self.channel.receive().map_err(|e| of_channel(&self.name, e))?;
        match Answer::decode(&bytes) {
            Some(Answer::Refused(why)) => Err(LineError::Fatal(WeightsError::Peer(format!("the sender: {why}")))),
            Some(answer) => Ok(answer),
            None => Err(self.odd()),
        }
    }

    fn odd(&self) -> LineError {
        LineError::Fatal(WeightsError::Peer(format!("{}: the sender's answer is not of this protocol", self.name)))
    }
}

impl Line for RailLine {
    fn ask(&mut self, want: &Want) -> Result<(), LineError> {
        self.say(&Request::Get(*want))
    }

    fn take(&mut self, buffer: &mut Buffer, unwanted: &dyn Fn() -> bool) -> Result<Want, LineError> {
        let Answer::Data(want) = self.hear()? else { return Err(self.odd()) };
        let len = want.len as usize;
        let room = buffer.whole().get_mut(..len).unwrap_or_default();
        self.channel.receive_bytes(&want, room, unwanted).map_err(|e| of_channel(&self.name, e))?;
        buffer.set_len(len);
        Ok(want)
    }

    fn hashes(&mut self, file: u32, offset: u64, count: u32) -> Result<Option<Vec<Sha>>, LineError> {
        let count = count.min(MAX_HASHES);
        // The sender reads a gigabyte for this.
        let patience = self.channel.stream().set_read_timeout(Some(STALL * 40));
        patience.map_err(|e| LineError::lost(e.to_string()))?;
        self.say(&Request::Hashes { file, offset, count })?;
        let answer = self.hear()?;
        let usual = self.channel.stream().set_read_timeout(Some(STALL));
        usual.map_err(|e| LineError::lost(e.to_string()))?;
        match answer {
            Answer::Hashes(hashes) if hashes.len() <= count as usize => Ok(Some(hashes)),
            _ => Err(self.odd()),
        }
    }

    fn bye(&mut self) {
        // The sender also ends by itself.
        let _told = self.say(&Request::Bye);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_is_a_name_and_two_numeric_addresses() {
        let rail: Rail = "rail1=10.77.1.11%rail1=10.77.1.10:4000".parse().unwrap();
        assert_eq!(rail.device.as_deref(), Some("rail1"));
        assert_eq!(rail.peer.port(), 4000);
        let rail: Rail = "r=::1=[::1]:9".parse().unwrap();
        assert_eq!(rail.device, None);
        for bad in ["", "r", "r=1.2.3.4", "r=1.2.3.4=host:1", "r=1.2.3.4=[::1]:1", "=1.2.3.4=1.2.3.4:1"] {
            assert!(bad.parse::<Rail>().is_err(), "{bad}");
        }
    }
}
