//! Which process holds a socket.

use std::collections::BTreeMap;

use super::Listener;
use super::netlink::Socket;
use super::root::Root;

/// Names the processes of listening sockets; the lowest process number where several hold one.
pub fn of(root: &Root, sockets: Vec<Socket>) -> Vec<Listener> {
    let wanted: BTreeMap<u32, usize> = sockets.iter().enumerate().map(|(at, s)| (s.inode, at)).collect();
    let mut owners: BTreeMap<usize, u32> = BTreeMap::new();
    let mut pids: Vec<u32> = root.list("proc").iter().filter_map(|n| n.parse().ok()).collect();
    pids.sort_unstable();
    for pid in pids {
        if owners.len() == sockets.len() {
            break;
        }
        let folder = format!("proc/{pid}/fd");
        let held = root.list(&folder).into_iter().filter_map(|fd| inode(&root.link(&format!("{folder}/{fd}"))?));
        for at in held.filter_map(|inode| wanted.get(&inode)) {
            owners.entry(*at).or_insert(pid);
        }
    }
    let named = |(at, socket): (usize, Socket)| {
        let pid = owners.get(&at);
        Listener {
            protocol: socket.protocol,
            address: socket.address,
            port: socket.port,
            uid: socket.uid,
            // A process may name itself anything, a line of a table too.
            process: pid
                .and_then(|pid| root.text(&format!("proc/{pid}/comm")))
                .map(|name| name.replace(char::is_control, "\u{fffd}")),
            container: pid.and_then(|pid| container(&root.text(&format!("proc/{pid}/cgroup"))?)),
        }
    };
    let mut all: Vec<Listener> = sockets.into_iter().enumerate().map(named).collect();
    all.sort_by_key(|l| (l.protocol, l.port, l.address));
    all
}

/// `socket:[4711]`.
fn inode(link: &str) -> Option<u32> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// docker's id in `0::/system.slice/docker-<id>.scope` or `…/docker/<id>`.
fn container(cgroup: &str) -> Option<String> {
    let part = cgroup.lines().find_map(|l| l.split_once("docker-").or_else(|| l.split_once("docker/")))?.1;
    let id: String = part.chars().take_while(char::is_ascii_hexdigit).collect();
    (id.len() == 64).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_in_both_forms_of_a_cgroup() {
        let id = "ab".repeat(32);
        assert_eq!(container(&format!("0::/system.slice/docker-{id}.scope")), Some(id.clone()));
        assert_eq!(container(&format!("12:cpu:/docker/{id}\n0::/x")), Some(id));
        assert_eq!(container("0::/system.slice/docker-short.scope"), None);
        assert_eq!(container("0::/system.slice/docker.service"), None);
        assert_eq!((inode("socket:[12]"), inode("pipe:[12]")), (Some(12), None));
    }
}
