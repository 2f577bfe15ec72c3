//! Addresses, routes and listening sockets, asked of the kernel by netlink (rtnetlink(7), sock_diag(7)): three dumps,
//! encoded here because the crates that do it bring more code than these few structures.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use sparklane_lane::fabric::Transport;

use super::{Address, Route};
use crate::error::FabricError;

const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `1 << TCP_LISTEN`.
const LISTENING: u32 = 1 << 10;
/// `1 << TCP_CLOSE`, which is what the kernel says of a UDP socket without a peer.
const UNCONNECTED: u32 = 1 << 7;
const MAIN_TABLE: u32 = 254;
const UNICAST: u8 = 1;

/// A socket that anybody may write to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Socket {
    /// TCP or UDP.
    pub protocol: Transport,
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Owner.
    pub uid: u32,
    /// Its inode, by which its process is found.
    pub inode: u32,
}

/// What the kernel answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Addresses of all netdevs.
    pub addresses: Vec<Address>,
    /// Routes of the main table.
    pub routes: Vec<Route>,
    /// TCP sockets that listen, UDP sockets without a peer.
    pub sockets: Vec<Socket>,
}

/// Asks the kernel for addresses, routes of the main table, TCP sockets that listen and UDP sockets without a peer.
///
/// # Errors
/// When a question is not answered to its end.
pub fn ask(names: &BTreeMap<u32, String>) -> Result<Found, FabricError> {
    let failed = |what| move |source| FabricError::Netlink { what, source };
    let addresses = dump(None, RTM_GETADDR, &[0; 8]).map_err(failed("addresses"))?;
    let routes = dump(None, RTM_GETROUTE, &[0; 12]).map_err(failed("routes"))?;
    let mut sockets = Vec::new();
    for (family, protocol) in [AF_INET, AF_INET6].into_iter().flat_map(|f| [(f, Transport::Tcp), (f, Transport::Udp)]) {
        let found = dump(Some(netlink::SOCK_DIAG), SOCK_DIAG_BY_FAMILY, &diag_request(family, protocol));
        sockets.push((found.map_err(failed("sockets"))?, protocol));
    }
    Ok(read(&addresses, &routes, &sockets, names))
}

/// What the bytes of answers say: to the questions for addresses, for routes, and for sockets of each family and protocol.
#[must_use]
pub fn read(addresses: &[u8], routes: &[u8], sockets: &[(Vec<u8>, Transport)], names: &BTreeMap<u32, String>) -> Found {
    Found {
        addresses: self::addresses(addresses, names),
        routes: self::routes(routes, names),
        sockets: sockets.iter().flat_map(|(dump, protocol)| self::sockets(dump, *protocol)).collect(),
    }
}

/// `struct inet_diag_req_v2`: family, protocol, ext, pad, states, and a `struct inet_diag_sockid` of zeroes.
fn diag_request(family: u8, protocol: Transport) -> Vec<u8> {
    let (number, states) = match protocol {
        Transport::Tcp => (IPPROTO_TCP, LISTENING),
        Transport::Udp => (IPPROTO_UDP, UNCONNECTED),
    };
    let mut body = vec![family, number, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend([0; 48]);
    body
}

/// One question with many answers; their bytes.
fn dump(protocol: Option<Protocol>, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut request = Vec::with_capacity(HEADER + body.len());
    request.extend(length.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(DUMP.to_ne_bytes());
    request.extend([0; 8]);
    request.extend(body);
    rustix::net::send(&socket, &request, SendFlags::empty())?;
    let mut all = Vec::new();
    let mut buffer = vec![0_u8; 64 * 1024];
    loop {
        let (read, _) = rustix::net::recv(&socket, buffer.as_mut_slice(), RecvFlags::empty())?;
        let got = buffer.get(..read).unwrap_or_default();
        let (mut done, mut refused) = (read == 0, 0);
        for (kind, body) in messages(got) {
            match kind {
                NLMSG_DONE => done = true,
                NLMSG_ERROR => refused = body.first_chunk().map_or(-1, |b| i32::from_ne_bytes(*b)),
                _ => {}
            }
        }
        if refused != 0 {
            return Err(io::Error::from_raw_os_error(-refused));
        }
        all.extend_from_slice(got);
        if done {
            return Ok(all);
        }
    }
}

/// The messages of a buffer: type and body each. A length that does not fit ends it.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let kind = u16_at(bytes, 4)?;
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The attributes of a message: type without its flag bits, and value.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

const fn aligned(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
        16 => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// `struct ifaddrmsg` and its attributes.
fn addresses(dump: &[u8], names: &BTreeMap<u32, String>) -> Vec<Address> {
    let one = |body: &[u8]| {
        let prefix = *body.get(1)?;
        let netdev = names.get(&u32_at(body, 4)?)?.clone();
        let (mut address, mut local) = (None, None);
        for (kind, value) in attributes(body.get(8..)?) {
            match kind {
                1 => address = ip(value),
                // On a point-to-point link IFA_ADDRESS is the peer's.
                2 => local = ip(value),
                _ => {}
            }
        }
        Some(Address { netdev, address: local.or(address)?, prefix })
    };
    messages(dump).filter(|(kind, _)| *kind == RTM_NEWADDR).filter_map(|(_, body)| one(body)).collect()
}

/// `struct rtmsg` and its attributes; a route of several hops is several routes.
fn routes(dump: &[u8], names: &BTreeMap<u32, String>) -> Vec<Route> {
    let mut found = Vec::new();
    for (_, body) in messages(dump).filter(|(kind, _)| *kind == RTM_NEWROUTE) {
        let (Some(&prefix), Some(&table), Some(&UNICAST)) = (body.get(1), body.get(4), body.get(7)) else { continue };
        let (mut destination, mut gateway, mut table) = (None, None, u32::from(table));
        let mut hops: Vec<(u32, Option<IpAddr>)> = Vec::new();
        for (kind, value) in attributes(body.get(12..).unwrap_or_default()) {
            match kind {
                1 => destination = ip(value),
                4 => hops.extend(u32_at(value, 0).map(|index| (index, None))),
                5 => gateway = ip(value),
                9 => hops.extend(next_hops(value)),
                15 => table = u32_at(value, 0).unwrap_or(table),
                _ => {}
            }
        }
        if table == MAIN_TABLE {
            let named = hops.into_iter().filter_map(|(index, hop)| Some((names.get(&index)?.clone(), hop)));
            found.extend(named.map(|(netdev, hop)| Route { netdev, destination, prefix, gateway: hop.or(gateway) }));
        }
    }
    found
}

/// `struct rtnexthop`: length, flags, hops, index, attributes.
fn next_hops(mut bytes: &[u8]) -> Vec<(u32, Option<IpAddr>)> {
    let mut hops = Vec::new();
    while let (Some(length), Some(index)) = (u16_at(bytes, 0).map(usize::from), u32_at(bytes, 4)) {
        let Some(inner) = bytes.get(8..length) else { break };
        hops.push((index, attributes(inner).find(|(kind, _)| *kind == 5).and_then(|(_, value)| ip(value))));
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
    }
    hops
}

/// `struct inet_diag_msg`: family, state, timer, retrans, id (ports in network order, addresses of 16 bytes), expires,
/// two queues, uid, inode.
fn sockets(dump: &[u8], protocol: Transport) -> Vec<Socket> {
    let one = |body: &[u8]| {
        let address = match *body.first()? {
            AF_INET => ip(body.get(8..12)?)?,
            AF_INET6 => ip(body.get(8..24)?)?,
            _ => return None,
        };
        let port = u16::from_be_bytes(*body.get(4..)?.first_chunk()?);
        Some(Socket { protocol, address, port, uid: u32_at(body, 64)?, inode: u32_at(body, 68)? })
    };
    messages(dump).filter(|(kind, _)| *kind == SOCK_DIAG_BY_FAMILY).filter_map(|(_, body)| one(body)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> BTreeMap<u32, String> {
        BTreeMap::from([(1, "lo".to_owned()), (2, "eth0".to_owned())])
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(HEADER + body.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    #[test]
    fn the_kernel_of_this_machine_answers() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let Found { addresses, sockets, .. } = ask(&names()).unwrap();
        assert!(addresses.iter().any(|a| a.netdev == "lo" && a.address.to_string() == "127.0.0.1"), "{addresses:?}");
        let ours = sockets.iter().find(|s| s.port == port && s.protocol == Transport::Tcp).unwrap();
        assert!(ours.address.is_loopback() && ours.inode != 0, "{ours:?}");
    }

    #[test]
    fn a_udp_socket_is_seen_until_it_has_a_peer() {
        let here = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = here.local_addr().unwrap().port();
        let seen = || {
            let Found { sockets, .. } = ask(&names()).unwrap();
            sockets.iter().any(|s| s.port == port && s.protocol == Transport::Udp && s.address.is_loopback())
        };
        assert!(seen());
        here.connect("127.0.0.1:9").unwrap();
        assert!(!seen());
    }

    #[test]
    fn a_default_route_over_two_hops_is_two_routes() {
        let mut hops = Vec::new();
        for (index, last) in [(1_u32, 7_u8), (2, 8)] {
            let gateway = attribute(5, &[10, 0, 0, last]);
            hops.extend(u16::try_from(8 + gateway.len()).unwrap().to_ne_bytes());
            hops.extend([0, 0]);
            hops.extend(index.to_ne_bytes());
            hops.extend(gateway);
        }
        let mut body = vec![AF_INET, 0, 0, 0, 254, 3, 0, UNICAST, 0, 0, 0, 0];
        body.extend(attribute(9, &hops));
        let found = routes(&message(RTM_NEWROUTE, &body), &names());
        assert_eq!(found.len(), 2);
        assert_eq!((found[1].netdev.as_str(), found[1].destination), ("eth0", None));
        assert_eq!(found[1].gateway, Some("10.0.0.8".parse().unwrap()));
        // Another table than the main one is not read.
        body[4] = 255;
        assert_eq!(routes(&message(RTM_NEWROUTE, &body), &names()), []);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_loop(bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 18_u16..28) {
            let _ = (addresses(&bytes, &names()), routes(&bytes, &names()), sockets(&bytes, Transport::Udp), next_hops(&bytes));
            let framed = message(kind, &bytes);
            let _ = (addresses(&framed, &names()), routes(&framed, &names()), sockets(&framed, Transport::Tcp));
        }
    }
}
