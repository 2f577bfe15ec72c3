//! Host keys: fingerprints, whose a key is, and which ones are recorded.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest as _, Sha256};
use sparklane_lane::cluster::Node;
use sparklane_lane::{Cluster, NodeName};

/// `SHA256:…` of a public key `type base64`, as `ssh-keygen -l` prints it; `None` when it is no key.
#[must_use]
pub fn fingerprint(key: &str) -> Option<String> {
    let body = key.split_whitespace().nth(1)?;
    let bytes = STANDARD.decode(body).ok()?;
    Some(format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(bytes))))
}

/// The keys that the cluster file is to hold: those of the machine's files, when sshd shows one of them and nothing else.
/// sshd may have others than those in the usual place, and a cluster file with the wrong ones would lock everybody out:
/// then none.
#[must_use]
pub fn recordable(files: &[String], shown: &[String]) -> Vec<String> {
    let proved = !shown.is_empty() && shown.iter().all(|key| files.contains(key));
    if proved { files.to_vec() } else { Vec::new() }
}

/// Why a machine that shows these keys is not the one whose fingerprints the operator named; `None` when it is.
#[must_use]
pub fn unlike(shown: &[String], named: &[&str]) -> Option<String> {
    let prints: Vec<String> = shown.iter().filter_map(|key| fingerprint(key)).collect();
    if prints.iter().any(|print| named.contains(&print.as_str())) {
        return None;
    }
    let kind = shown.first().and_then(|key| key.split_whitespace().next()).unwrap_or("ssh-ed25519");
    Some(format!(
        "its host key is {}, not {} as --host-key says. Somebody may be between you, or that is the fingerprint of another \
         machine, or of a key of another kind than the {kind} one shown here. Nothing was changed; on the machine's own \
         console `cat /etc/ssh/ssh_host_*_key.pub | ssh-keygen -lf -` prints the right ones",
        if prints.is_empty() { "none that can be read".to_owned() } else { prints.join(" ") },
        named.join(" or ")
    ))
}

/// What is to be said when a machine shows the key that the cluster file records for another of its nodes; `None` when it
/// does not. ssh proves that who shows a key holds its secret half, so that nobody is in between then.
#[must_use]
pub fn swapped(name: &NodeName, host: &str, shown: &[String], file: &Cluster) -> Option<String> {
    let own = |node: &Node| shown.iter().any(|key| node.host_keys.contains(key));
    let (other, _) = file.nodes.iter().find(|(other, node)| *other != name && own(node))?;
    let shows = format!("{host} shows the host key that the cluster file records for {other}, not {name}");
    if file.nodes.get(name).is_some_and(|node| node.host == host) {
        return Some(format!(
            "the addresses are swapped: {shows}, though it names {host} for {name}. Give the machines their addresses \
             again, or have the file take the new ones: sparklane init {}",
            in_order(file, Some((name, other)))
        ));
    }
    Some(format!(
        "the names are swapped: {shows}. Name the machines in the file's order: sparklane init {}. If {host} is to become \
         {name}, take hostKeys out of the file first",
        in_order(file, None)
    ))
}

/// The file's hosts by rank, as `init` takes them, with those of two nodes exchanged.
fn in_order(file: &Cluster, exchanged: Option<(&NodeName, &NodeName)>) -> String {
    let mut ranked: Vec<(u32, &NodeName)> = file.nodes.iter().map(|(name, node)| (node.rank, name)).collect();
    ranked.sort_unstable();
    let host = |(_, name): (u32, &NodeName)| {
        let at = match exchanged {
            Some((a, b)) if name == a => b.clone(),
            Some((a, b)) if name == b => a.clone(),
            _ => name.clone(),
        };
        file.nodes.get(&at).map(|node| node.host.clone())
    };
    ranked.into_iter().filter_map(host).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    const ED: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
    const ED_PRINT: &str = "SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU";
    const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJm";
    const RSA: &str = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQC7";
    const ECDSA: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTY";

    #[test]
    fn fingerprints_are_ssh_keygens() {
        // ssh-keygen -lf of this key.
        assert_eq!(fingerprint(ED).as_deref(), Some(ED_PRINT));
        assert_eq!((fingerprint("ssh-ed25519"), fingerprint("a !"), fingerprint("")), (None, None, None));
    }

    #[test]
    fn keys_are_recorded_only_when_sshd_shows_what_the_files_hold() {
        let files = keys(&[ECDSA, ED, RSA]);
        // The same, in whatever order; fewer than the files hold, as a login shows one.
        assert_eq!(recordable(&files, &files), files);
        assert_eq!(recordable(&files, &keys(&[RSA, ECDSA, ED])), files);
        for one in [ED, RSA, ECDSA] {
            assert_eq!(recordable(&files, &keys(&[one])), files);
        }
        // One that no file holds: none is recorded, also when another one is as it should be.
        assert_eq!(recordable(&files, &keys(&[OTHER])), [""; 0]);
        assert_eq!(recordable(&files, &keys(&[ED, OTHER])), [""; 0]);
        assert_eq!(recordable(&keys(&[RSA, ECDSA]), &keys(&[ED])), [""; 0]);
        // The same bytes are another key under another kind's name.
        assert_eq!(recordable(&files, &[ED.replace("ssh-ed25519", "ssh-rsa")]), [""; 0]);
        assert_eq!(recordable(&files, &[]), [""; 0]);
        assert_eq!(recordable(&[], &keys(&[ED])), [""; 0]);
    }

    #[test]
    fn a_named_fingerprint_is_that_of_a_key_shown_or_both_are_told() {
        let wrong = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU";
        assert_eq!(unlike(&keys(&[ED]), &[ED_PRINT]), None);
        assert_eq!(unlike(&keys(&[RSA, ED]), &[wrong, ED_PRINT]), None);
        let why = unlike(&keys(&[ED]), &[wrong]).unwrap();
        assert!(why.starts_with(&format!("its host key is {ED_PRINT}, not {wrong} as --host-key says")), "{why}");
        assert!(why.contains("the ssh-ed25519 one shown") && why.contains("Nothing was changed"), "{why}");
        assert!(unlike(&keys(&["ssh-ed25519 !"]), &[wrong]).is_some_and(|why| why.contains("none that can be read")));
        assert!(unlike(&[], &[wrong]).is_some() && unlike(&keys(&[ED]), &[""]).is_some());
    }

    fn file(keys: [&str; 2]) -> Cluster {
        let rail = |address: &str| serde_json::json!({ "netdev": "rail1", "address": address, "prefix": 24 });
        let node = |role: &str, rank: u32, host: &str, key: &str| {
            serde_json::json!({ "role": role, "rank": rank, "system": "aarch64-linux", "host": host, "hostKeys": [key],
                "rail1": rail("10.0.1.1"), "rail2": rail("10.0.2.1") })
        };
        // The head's name sorts last: rank counts.
        serde_json::from_value(serde_json::json!({
            "name": "home", "description": "d", "defaultLane": "x", "buildSystem": "x86_64-linux", "ssh": { "user": "u" },
            "nodes": { "b-head": node("head", 0, "10.9.0.1", keys[0]), "a-worker": node("worker", 1, "10.9.0.2", keys[1]) },
        }))
        .unwrap()
    }

    #[test]
    fn names_in_the_wrong_order_are_no_attack() {
        let file = file([ED, OTHER]);
        let (head, worker) = ("b-head".parse::<NodeName>().unwrap(), "a-worker".parse().unwrap());
        // init 10.9.0.2 10.9.0.1
        let why = swapped(&head, "10.9.0.2", &keys(&[OTHER]), &file).unwrap();
        assert_eq!(
            why,
            "the names are swapped: 10.9.0.2 shows the host key that the cluster file records for a-worker, not b-head. \
             Name the machines in the file's order: sparklane init 10.9.0.1 10.9.0.2. If 10.9.0.2 is to become b-head, take \
             hostKeys out of the file first"
        );
        let why = swapped(&worker, "10.9.0.1", &keys(&[ED]), &file).unwrap();
        assert!(why.contains("records for b-head, not a-worker") && why.contains("init 10.9.0.1 10.9.0.2"), "{why}");
        // init 10.9.0.1 10.9.0.2, and DHCP gave each the other's address.
        let why = swapped(&head, "10.9.0.1", &keys(&[OTHER]), &file).unwrap();
        assert!(why.starts_with("the addresses are swapped: ") && why.ends_with("init 10.9.0.2 10.9.0.1"), "{why}");
        // A key that is nobody's may be an attack, and one's own is as it should be.
        assert_eq!(swapped(&head, "10.9.0.1", &keys(&[RSA]), &file), None);
        assert_eq!(swapped(&head, "10.9.0.1", &keys(&[ED]), &file), None);
        assert_eq!(swapped(&head, "10.9.0.1", &[], &file), None);
    }
}
