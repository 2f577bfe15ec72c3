//! The kernel's netlink answers, with structures of the fuzzer's choice.

use std::collections::BTreeMap;

use sparklane_fabric::facts::netlink;
use sparklane_lane::fabric::Transport;

/// One input.
pub fn run(data: &[u8]) {
    let names = BTreeMap::from([(1, "lo".to_owned()), (2, "eth0".to_owned())]);
    let found = netlink::read(data, data, &[(data.to_vec(), Transport::Tcp)], &names);
    // A message is at least its header, a hop of a route 8 bytes.
    assert!(found.addresses.len() + found.sockets.len() <= data.len() / 16);
    assert!(found.routes.len() <= data.len() / 8);
    assert!(found.addresses.iter().all(|a| names.values().any(|n| *n == a.netdev)));
}
