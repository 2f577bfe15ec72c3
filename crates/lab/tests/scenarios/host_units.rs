//! Our units' sandboxes as systemd scores them, what an unprivileged user finds, and the gate `fabric`.

use crate::host::Cluster;
use crate::support::{NODES, Rig, workspace};

/// Units and the score that docs/operations.md promises.
fn promised() -> Vec<(String, f64)> {
    let text = std::fs::read_to_string(workspace().join("docs/operations.md")).unwrap();
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let unit = cells.next()?.trim_matches('`').to_owned();
        (unit.starts_with("sparklane-") && unit.ends_with(".service")).then_some(())?;
        Some((unit, cells.next()?.parse().ok()?))
    });
    rows.collect()
}

fn score(rig: &Rig, unit: &str) -> f64 {
    let said = rig.sh("head", &format!("systemd-analyze security --no-pager {unit}"));
    let line = said.lines().find(|l| l.contains("Overall exposure level")).unwrap_or_else(|| panic!("{said}"));
    let number = line.rsplit(": ").next().and_then(|rest| rest.split(' ').next());
    number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
#[ignore = "needs the lab"]
fn every_unit_of_ours_is_as_closed_as_the_docs_say() {
    let mut rig = Rig::on_a();
    let cluster = Cluster::and(&mut rig, "host.firewall = { };");
    let seen = rig.txns("head").len();
    let client = rig.client(&["deploy", "lab-hold"]);
    rig.reaches("head", seen, "switched", 30);
    let running = format!("sparklane-txn@{}.service", rig.txns("head").pop().unwrap());
    let promised = promised();
    assert_eq!(promised.len(), 4, "{promised:?}");
    let found = |unit: &String| score(&rig, if unit.contains("txn@") { &running } else { unit });
    let told: Vec<(String, f64, f64)> =
        promised.into_iter().map(|(unit, most)| (unit.clone(), found(&unit), most)).collect();
    eprintln!("{told:?}");
    assert!(
        told.iter().all(|(_, found, most)| found <= most && *most <= 4.0),
        "unit, score, what the docs say: {told:?}"
    );
    client.wait().is(0, "committed");
    // No unit of ours is left out.
    let ours = rig.sh("head", "ls /etc/systemd/system | grep '^sparklane-.*service$'");
    for unit in ours.lines() {
        assert!(self::promised().iter().any(|(name, _)| name == unit), "{unit} has no score in docs/operations.md");
    }
    rig.one_release("lab-hold");
    drop(cluster);
    rig.app(&["rollback", "--to", "lane:lab-a"]).is(0, "committed");
}

#[test]
#[ignore = "needs the lab"]
fn a_user_without_rights_can_change_nothing_of_ours_and_read_no_secret() {
    let rig = Rig::on_a();
    let seen = rig.txns("head").len();
    let client = rig.client(&["deploy", "lab-hold"]);
    rig.reaches("head", seen, "switched", 30);
    for node in NODES {
        let as_nobody = |script: &str| {
            let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs";
            rig.sh(node, &format!("{nobody} sh -c \"{script}\"")).trim().to_owned()
        };
        assert_eq!(as_nobody("id -u"), "65534");
        // Nothing to write, also not by a group.
        let all = "/var/lib/sparklane /run/sparklane /etc/sparklane /nix/var/nix/gcroots/sparklane";
        assert_eq!(as_nobody(&format!("find {all} -writable -not -type l 2>/dev/null; true")), "", "{node}");
        assert_eq!(rig.sh(node, &format!("find {all} -perm /022 -not -type l; true")), "", "{node}");
        // No keys, no copies of files that may hold secrets. What names the head and its host key is public.
        let public = "-not -name '*.pub' -not -name known_hosts -not -name head.json";
        let keys = rig.sh(node, &format!("find /var/lib/sparklane/keys -type f {public}; true"));
        assert!(!keys.trim().is_empty(), "{node}: a test without keys shows nothing");
        let secrets = "/var/lib/sparklane/keys /var/lib/sparklane/kept /var/lib/sparklane/foreign";
        let read = as_nobody(&format!("find {secrets} -type f {public} -readable 2>/dev/null; true"));
        assert_eq!(read, "", "{node}");
        let copies = "find /var/lib/sparklane/txn -path '*/before/*' -type f -readable 2>/dev/null; true";
        assert_eq!(as_nobody(copies), "", "{node}");
        // Sockets take nobody's orders.
        let sockets = rig.sh(node, "find /run/sparklane -type s");
        assert!(!sockets.trim().is_empty(), "{node}: a transaction runs");
        for socket in sockets.lines() {
            let knock = format!("import socket; socket.socket(socket.AF_UNIX).connect('{socket}')");
            let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-c", &knock];
            let said = rig.lab.exec(node, &nobody).unwrap();
            assert!(said.code != Some(0) && said.stderr.contains("PermissionError"), "{socket}: {said:?}");
        }
    }
    client.wait().is(0, "committed");
}

#[test]
#[ignore = "needs the lab"]
fn a_lane_that_asks_for_it_goes_back_when_its_node_is_not_as_it_must_be() {
    let mut rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let lanes = rig.lab.root("control").join("root/sparklane/nix/lanes");
    let gate = "gates = import ./base/gates.nix { nodeSecs = 20; apiSecs = 20; tokenSecs = 20; } ++ [ { name = \"fabric\"; \
                scope = \"node\"; budgetSecs = 8; check.kind = \"fabric\"; } ];";
    let lane = format!(
        "import ./base/lab.nix {{\n  name = \"lab-fabric\";\n  description = \"looks at itself\";\n  {gate}\n}}\n"
    );
    std::fs::write(lanes.join("lab-fabric.nix"), lane).unwrap();
    rig.bin = crate::support::apps(&rig.lab);
    rig.sh("worker", "ip link set rail2 mtu 1500");
    let said = rig.deploy("lab-fabric");
    rig.sh("worker", "ip link set rail2 mtu 9000");
    said.is(3, "rolled-back").because(&["worker", "gate fabric", "rail2: 1500"]);
    assert_eq!(rig.one_release("lab-a"), before);
    let said = rig.deploy("lab-fabric");
    std::fs::remove_file(lanes.join("lab-fabric.nix")).unwrap();
    said.is(0, "committed");
    let serving = rig.one_release("lab-fabric");
    // What no transaction has changed keeps nobody from going back to it.
    rig.sh(
        "worker",
        "systemd-run --quiet --collect --unit sl-stray systemd-socket-activate --accept -l 0.0.0.0:9999 cat",
    );
    rig.deploy("lab-broken").is(3, "rolled-back").because(&["tokens"]);
    rig.sh("worker", "systemctl stop sl-stray");
    assert_eq!(rig.one_release("lab-fabric"), serving);
    rig.app(&["rollback", "--to", "lane:lab-a"]).is(0, "committed");
}
