//! A packet of the whole MTU over each rail to each peer: ICMP echo by a raw socket, not to be fragmented, bound to the
//! rail's netdev. Small packets pass a rail whose MTU is lower at one end; new connections hang there.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

/// Longest wait for an answer.
const WAIT: Duration = Duration::from_millis(700);
/// Tries; the first packet may find no neighbour yet.
const TRIES: u16 = 2;
/// Bytes of IPv4 and ICMP headers.
const HEADERS: usize = 28;

/// Where to send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// `rail1` or `rail2`.
    pub rail: String,
    /// Netdev to send by.
    pub netdev: String,
    /// The peer's name.
    pub peer: String,
    /// Its address on that rail.
    pub address: Ipv4Addr,
    /// Bytes of the whole IP packet.
    pub mtu: u16,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ping {
    /// Where it was sent.
    pub target: Target,
    /// Microseconds until the answer.
    pub micros: Option<u64>,
    /// Why there is none.
    pub error: Option<String>,
    /// True when a packet of 84 bytes was answered.
    pub small: bool,
}

/// Pings all targets at once.
#[must_use]
pub fn all(targets: &[Target]) -> Vec<Ping> {
    std::thread::scope(|scope| {
        let numbered = targets.iter().zip(1_u16..);
        let threads: Vec<_> = numbered.map(|(target, id)| (target, scope.spawn(move || one(target, id)))).collect();
        let failed = |target: &Target| Ping {
            target: target.clone(),
            micros: None,
            error: Some("its thread died".into()),
            small: false,
        };
        threads.into_iter().map(|(target, thread)| thread.join().unwrap_or_else(|_| failed(target))).collect()
    })
}

fn one(target: &Target, id: u16) -> Ping {
    // Distinct from those of another run on this machine at the same time.
    let id = id ^ u16::try_from(std::process::id() & 0xffff).unwrap_or(0);
    // Both at once: where the whole packet is lost, the small one's answer has come meanwhile.
    let (whole, small) = std::thread::scope(|scope| {
        let small = scope.spawn(|| echo(target, id ^ 0x5555, 56));
        let whole = echo(target, id, usize::from(target.mtu).saturating_sub(HEADERS));
        (whole, small.join().is_ok_and(|small| small.is_ok()))
    });
    let small = small || whole.is_ok();
    let (micros, error) = match whole {
        Ok(took) => (Some(u64::try_from(took.as_micros()).unwrap_or(u64::MAX)), None),
        Err(error) => (None, Some(error.to_string())),
    };
    Ping { target: target.clone(), micros, error, small }
}

fn echo(target: &Target, id: u16, payload: usize) -> io::Result<Duration> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4))?;
    socket.bind_device(Some(target.netdev.as_bytes()))?;
    set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?;
    socket.set_send_buffer_size(64 * 1024)?;
    let to = SocketAddrV4::new(target.address, 0).into();
    for sequence in 1..=TRIES {
        let begin = Instant::now();
        socket.send_to(&request(id, sequence, payload), &to)?;
        if let Some(took) = answer(&socket, (target.address, id, sequence, payload), begin)? {
            return Ok(took);
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {} ms", WAIT.as_millis() * u128::from(TRIES))))
}

fn answer(socket: &Socket, expected: (Ipv4Addr, u16, u16, usize), begin: Instant) -> io::Result<Option<Duration>> {
    let mut buffer = [0_u8; 128];
    loop {
        let left = WAIT.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        socket.set_read_timeout(Some(left))?;
        // Only the head is looked at: the kernel has checked the rest, and tells the packet's whole length in it.
        match rustix::net::recv(socket, buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((read, _)) if is_answer(buffer.get(..read).unwrap_or_default(), expected) => {
                return Ok(Some(begin.elapsed()));
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// An ICMP echo request.
fn request(id: u16, sequence: u16, payload: usize) -> Vec<u8> {
    let mut packet = vec![8, 0, 0, 0];
    packet.extend(id.to_be_bytes());
    packet.extend(sequence.to_be_bytes());
    packet.extend((0..payload).map(|n| u8::try_from(n & 0xff).unwrap_or(0)));
    let sum = checksum(&packet);
    if let Some(place) = packet.get_mut(2..4) {
        place.copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let word =
        |pair: &[u8]| u32::from(pair.first().copied().unwrap_or(0)) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = bytes.chunks(2).map(word).fold(0, u32::wrapping_add);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

/// True for the echo reply that is waited for: from that address, with that number, of the whole length.
fn is_answer(packet: &[u8], (from, id, sequence, payload): (Ipv4Addr, u16, u16, usize)) -> bool {
    let header = usize::from(packet.first().copied().unwrap_or(0) & 0x0f) * 4;
    let u16_at = |at: usize| Some(u16::from_be_bytes(*packet.get(at..)?.first_chunk()?));
    let source = packet.get(12..).and_then(|p| p.first_chunk::<4>()).map(|b| Ipv4Addr::from(*b));
    source == Some(from)
        && packet.get(header).copied() == Some(0)
        && u16_at(header + 4) == Some(id)
        && u16_at(header + 6) == Some(sequence)
        && u16_at(2).map(usize::from) == Some(header + 8 + payload)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_sums_to_nothing() {
        for payload in [0, 1, 56, 8972] {
            let packet = request(7, 1, payload);
            assert_eq!(packet.len(), payload + 8);
            assert_eq!(checksum(&packet), 0);
        }
    }

    #[test]
    fn only_the_peers_own_answer_of_the_whole_length_counts() {
        let from = Ipv4Addr::new(10, 77, 1, 11);
        let reply = |kind: u8, id: u16, total: u16| {
            let mut packet = vec![0x45, 0];
            packet.extend(total.to_be_bytes());
            packet.extend([0; 8]);
            packet.extend(from.octets());
            packet.extend([0; 4]);
            packet.extend([kind, 0, 0, 0]);
            packet.extend(id.to_be_bytes());
            packet.extend(1_u16.to_be_bytes());
            packet
        };
        let expected = (from, 7, 1, 8972);
        assert!(is_answer(&reply(0, 7, 9000), expected));
        assert!(!is_answer(&reply(0, 8, 9000), expected));
        assert!(!is_answer(&reply(0, 7, 1500), expected));
        // Sent by ourselves to ourselves, as loopback would show it.
        assert!(!is_answer(&reply(8, 7, 9000), expected));
        assert!(!is_answer(&reply(0, 7, 9000), (Ipv4Addr::LOCALHOST, 7, 1, 8972)));
    }

    proptest! {
        #[test]
        fn no_packet_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            let _ = is_answer(&bytes, (Ipv4Addr::LOCALHOST, 1, 1, 8972));
        }
    }
}
