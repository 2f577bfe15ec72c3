//! What a generation makes of the machines themselves: the firewall as a third machine meets it, and the network's files.

use std::time::Duration;

use serde_json::Value;

use crate::support::{NODES, Rig, Said};
use crate::weights::Third;

/// The lab's cluster file with more in it, for as long as this lives; the rig's apps are built from it.
pub struct Cluster {
    file: camino::Utf8PathBuf,
    text: String,
}

impl Cluster {
    pub fn with(rig: &mut Rig, change: impl Fn(&str) -> String) -> Self {
        let file = rig.lab.root("control").join("root/sparklane/nix/clusters/lab.nix");
        let text = std::fs::read_to_string(&file).unwrap();
        let changed = change(&text);
        assert_ne!(changed, text);
        std::fs::write(&file, changed).unwrap();
        let kept = Self { file, text };
        rig.bin = crate::support::apps(&rig.lab);
        kept
    }

    /// With lines of their own before `absent`.
    pub fn and(rig: &mut Rig, lines: &str) -> Self {
        Self::with(rig, |text| text.replacen("  absent =", &format!("  {lines}\n  absent ="), 1))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        std::fs::write(&self.file, &self.text).unwrap();
    }
}

const RENDEZVOUS: u16 = 25000;
/// Another program's, on the API's port of another address, and on a port that is none of ours.
const STRAYS: [(&str, &str, u16); 2] = [("stray-api", "10.77.0.10", 8000), ("stray", "10.77.0.10", 8088)];
/// A table of somebody else's, which counts what ours has let through.
const THEIRS: &str = "add table inet theirs; add chain inet theirs input { type filter hook input priority 0; }; \
    add rule inet theirs input ip saddr 10.77.0.1 udp dport 25010 counter; \
    add rule inet theirs input ip saddr 10.77.1.1 udp dport 25010 counter";

fn listen(rig: &Rig, unit: &str, address: &str, port: u16) {
    let script = format!(
        "systemd-run --unit={unit} python3 -m http.server {port} --bind {address}; \
         for n in $(seq 200); do ss -tln | grep -q {address}:{port} && exit 0; sleep 0.05; done; exit 1"
    );
    rig.sh("head", &script);
}

/// Whether a machine gets a connection.
fn reaches(rig: &Rig, node: &str, to: &str, port: u16) -> bool {
    let knock = format!("import socket; socket.create_connection(('{to}', {port}), 1.5)");
    rig.lab.exec(node, &["python3", "-c", &knock]).unwrap().code == Some(0)
}

/// Heartbeats' port on every path of the control machine; what came through, by the foreign table's counters.
fn beats_through(rig: &Rig) -> u64 {
    let count = || -> u64 {
        let text = rig.sh("head", "nft --json list chain inet theirs input");
        let listed: Value = serde_json::from_str(&text).unwrap();
        let rules = listed["nftables"].as_array().unwrap().iter().filter_map(|item| item["rule"]["expr"].as_array());
        rules.flatten().filter_map(|e| e["counter"]["packets"].as_u64()).sum()
    };
    let before = count();
    for to in ["10.77.0.10", "10.77.1.10"] {
        let say =
            format!("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('{to}', 25010))");
        rig.lab.check("control", &["python3", "-c", &say]).unwrap();
        // An answer to a ping that is sent afterwards: the datagram was there before it.
        rig.sh("control", &format!("ping -c1 -W2 {to}"));
    }
    count() - before
}

/// Paths of the control machine to the head: management, the rail itself, and the rail's address over management.
struct Paths<'a> {
    rig: &'a Rig,
    /// Dropped before the rig.
    _third: Third<'a>,
}

const OVER_MANAGEMENT: &str = "ip route add 10.77.1.10/32 via 10.77.0.10 dev mgmt src 10.77.0.1";

impl<'a> Paths<'a> {
    fn of(rig: &'a Rig) -> Self {
        let third = Third::join(rig);
        for (unit, address, port) in STRAYS {
            listen(rig, unit, address, port);
        }
        rig.sh("head", &format!("nft '{THEIRS}'"));
        Self { rig, _third: third }
    }

    /// Open or closed: rendezvous over each path, heartbeats, the API's port; and what is not ours, always open.
    #[track_caller]
    fn are(&self, open: bool) {
        let rig = self.rig;
        // As vLLM's store, which stays on every interface while it serves; the simulator's is gone by then.
        listen(rig, "stray-store", "0.0.0.0", RENDEZVOUS);
        assert_eq!(reaches(rig, "control", "10.77.0.10", RENDEZVOUS), open, "management");
        assert_eq!(reaches(rig, "control", "10.77.1.10", RENDEZVOUS), open, "a stranger on the rail");
        rig.sh("control", OVER_MANAGEMENT);
        let there = rig.sh("control", "ip route get 10.77.1.10");
        assert!(there.contains("dev mgmt"), "{there}");
        let weak = reaches(rig, "control", "10.77.1.10", RENDEZVOUS);
        let beats = beats_through(rig);
        rig.sh("control", "ip route del 10.77.1.10/32 via 10.77.0.10 dev mgmt");
        assert_eq!(weak, open, "the rail's address over management");
        assert_eq!(beats, if open { 2 } else { 0 }, "heartbeats over management");
        assert_eq!(beats_through(rig), if open { 2 } else { 0 }, "heartbeats over the rail");
        assert_eq!(reaches(rig, "worker", "10.77.0.10", RENDEZVOUS), open, "the worker over management");
        assert_eq!(reaches(rig, "control", "10.77.0.10", 8000), open, "the API's port");
        assert!(reaches(rig, "control", "10.77.0.10", 8088), "a port that is not ours");
        assert!(reaches(rig, "control", "10.77.1.10", 22), "ssh on a rail");
        // The worker, on the rail, whatever else.
        assert!(reaches(rig, "worker", "10.77.1.10", RENDEZVOUS), "the worker on the rail");
        rig.sh("head", "systemctl stop stray-store");
    }

    fn theirs(&self) -> String {
        self.rig.sh("head", "nft --stateless list table inet theirs")
    }
}

impl Drop for Paths<'_> {
    fn drop(&mut self) {
        self.rig.try_sh("control", "ip route del 10.77.1.10/32 via 10.77.0.10 dev mgmt; true");
        self.rig.try_sh(
            "head",
            "systemctl stop stray stray-api stray-store; systemctl reset-failed; nft delete table inet theirs; true",
        );
    }
}

fn verify(rig: &Rig) -> Said {
    rig.app(&["sparklane", "fabric", "verify"])
}

fn outcomes(said: &Said, check: &str) -> Vec<String> {
    let rows = said.json["rows"].as_array().unwrap_or_else(|| panic!("{said:#?}"));
    rows.iter().filter(|r| r["check"] == check).map(|r| r["outcome"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn firewall_rows(rig: &Rig, expected: [&str; 2]) {
    assert_eq!(outcomes(&verify(rig), "firewall"), expected);
}

#[test]
#[ignore = "needs the lab"]
fn the_ranks_ports_are_reached_over_the_rails_by_the_other_rank_only() {
    let mut rig = Rig::on_a();
    let open = rig.one_release("lab-a");
    let cluster = Cluster::and(&mut rig, "host.firewall = { };");
    let rig = rig;
    let paths = Paths::of(&rig);
    let theirs = paths.theirs();
    paths.are(true);
    firewall_rows(&rig, ["skipped", "skipped"]);

    // With --boot what serves keeps its ports as they are; the boot loads the table before it starts an engine.
    rig.app(&["deploy", "lab-a", "--boot"]).is(0, "committed");
    paths.are(true);
    for node in NODES {
        assert!(rig.try_sh(node, "test -e /etc/sparklane/firewall.nft"), "{node}");
        assert!(!rig.try_sh(node, "nft list table inet sparklane"), "{node}");
    }
    let status = rig.plain(&["status"]);
    assert!(status.code == 1 && status.stdout.contains("is gone: its ports are open"), "{status:#?}");
    drop(paths);
    for node in NODES {
        rig.lab.reboot(node).unwrap();
    }
    rig.comes_to_one_release("lab-a", 120);
    let at = |unit: &str, what: &str| -> u64 {
        let micros = rig.sh("head", &format!("systemctl show -P ExecMain{what}TimestampMonotonic {unit}"));
        micros.trim().parse().unwrap()
    };
    let (table, engine) = (at("sparklane-firewall", "Exit"), at("sparklane-engine", "Start"));
    assert!(0 < table && table <= engine, "{table} {engine}");
    let paths = Paths::of(&rig);
    paths.are(false);
    firewall_rows(&rig, ["ok", "ok"]);
    assert_eq!(paths.theirs(), theirs);

    // Changed by hand, gone, and mended.
    let mend = "systemctl start sparklane-firewall.service";
    for (harm, word) in [
        ("nft insert rule inet sparklane input meta l4proto { tcp, udp } accept", "changed by hand"),
        ("nft delete table inet sparklane", "gone"),
    ] {
        rig.sh("head", harm);
        let status = rig.plain(&["status"]);
        assert!(status.code == 1 && status.stdout.contains(word) && status.stdout.contains(mend), "{status:#?}");
        firewall_rows(&rig, ["failed", "ok"]);
        paths.are(true);
        rig.sh("head", mend);
        firewall_rows(&rig, ["ok", "ok"]);
        paths.are(false);
    }

    // A deployment of the same lane brings it back too, and a lost link to the node's tool with it, without a new engine.
    let tool = "/nix/var/nix/gcroots/sparklane/tool";
    let pids = || NODES.map(|n| rig.sh(n, "systemctl show -P MainPID sparklane-engine"));
    let serving = pids();
    rig.sh("worker", &format!("nft delete table inet sparklane; rm {tool}"));
    rig.sh("head", &format!("ln -sfn /nix/store/gone {tool}"));
    let status = rig.plain(&["status"]);
    assert!(status.code == 1 && status.stdout.contains(&format!("{tool} is missing")), "{status:#?}");
    assert!(status.stdout.contains(&format!("{tool} leads to /nix/store/gone")), "{status:#?}");
    rig.deploy("lab-a").is(0, "committed");
    assert!(NODES.iter().all(|node| rig.try_sh(node, &format!("test -x {tool}/bin/sparklane"))));
    assert_eq!(pids(), serving);
    paths.are(false);
    rig.deploy("lab-a").is(0, "unchanged");

    // What keeps the table from being loaded keeps an engine from starting, and only for as long as it does.
    rig.sh("head", "mv /usr/sbin/nft /usr/sbin/nft.away && docker kill sparklane-engine");
    rig.until("the unit failed", 30, || {
        rig.sh("head", "journalctl -q -o cat -u sparklane-firewall -n 20").contains("nft was not found")
    });
    rig.sh("head", "mv /usr/sbin/nft.away /usr/sbin/nft");
    rig.comes_to_one_release("lab-a", 60);

    // A lane that fails leaves the table as it was.
    rig.deploy("lab-broken").is(3, "rolled-back");
    paths.are(false);
    firewall_rows(&rig, ["ok", "ok"]);

    rig.app(&["rollback", "--to", &open.to_string()]).is(0, "committed");
    paths.are(true);
    for node in NODES {
        assert!(!rig.try_sh(node, "nft list table inet sparklane"), "{node}");
        assert!(!rig.try_sh(node, "test -e /etc/sparklane/firewall.nft"), "{node}");
    }
    assert_eq!(paths.theirs(), theirs);
    drop((paths, cluster));
    rig.one_release("lab-a");
}

fn mtu(rig: &Rig, node: &str) -> String {
    rig.sh(node, "cat /sys/class/net/rail1/mtu /sys/class/net/rail2/mtu").replace('\n', " ").trim().to_owned()
}

/// networkd applies what `netplan generate` made of the managed file: MTU and addresses, there and back.
#[test]
#[ignore = "needs the lab"]
fn a_sound_change_of_the_rails_network_is_applied_and_taken_back() {
    let mut rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let cluster = Cluster::and(&mut rig, "host.rails.mtu = 8000;");
    rig.deploy("lab-a").is(0, "committed");
    rig.one_release("lab-a");
    for node in NODES {
        rig.until("networkd has set the MTU", 20, || mtu(&rig, node) == "8000 8000");
        let file = rig.sh(node, "networkctl status rail1 | grep -F 'Network File'");
        assert!(file.contains("netplan"), "{file}");
        assert_eq!(rig.sh(node, "stat -c %a /etc/netplan/60-sparklane-rails.yaml").trim(), "600");
    }
    let said = verify(&rig);
    assert_eq!(said.code, 0, "{said:#?}");
    rig.app(&["rollback", "--to", &before.to_string()]).is(0, "committed");
    for node in NODES {
        rig.until("networkd has set the MTU back", 20, || mtu(&rig, node) == "9000 9000");
    }
    drop(cluster);
    rig.one_release("lab-a");
}

/// What DGX OS ships and its vendor's guide adds: NetworkManager renders everything, the rails from a file of the owner's.
/// Nothing but the rails is given to it here.
const MANAGED_BY_NM: &str = r"set -e
systemctl unmask NetworkManager.service NetworkManager-dispatcher.service
cat > /etc/NetworkManager/conf.d/10-rails.conf <<END
[main]
no-auto-default=*
dns=none
[keyfile]
unmanaged-devices=*,except:interface-name:rail1,except:interface-name:rail2
END
echo '{network: {version: 2, renderer: NetworkManager}}' > /etc/netplan/01-network-manager-all.yaml
cat > /etc/netplan/40-cx7.yaml <<END
network:
  version: 2
  ethernets:
    rail1: {addresses: [10.77.1.11/24], mtu: 9000}
    rail2: {addresses: [10.77.2.11/24], mtu: 9000}
END
chmod 600 /etc/netplan/*.yaml
rm /etc/systemd/network/90-rail?.network
networkctl reload
netplan generate
systemctl start NetworkManager
for rail in rail1 rail2; do nmcli --wait 20 connection up id netplan-$rail; done";

/// The worker's rails are NetworkManager's, the head's are networkd's: each is told what changed.
#[test]
#[ignore = "needs the lab"]
fn rails_that_networkmanager_renders_take_a_change_too_and_give_it_back() {
    let mut rig = Rig::fresh();
    rig.sh("worker", MANAGED_BY_NM);
    rig.deploy("lab-a").is(0, "committed");
    let before = rig.one_release("lab-a");
    let active = |rig: &Rig| rig.sh("worker", "nmcli -g NAME,DEVICE connection show --active | grep rail | sort");
    assert_eq!(active(&rig), "netplan-rail1:rail1\nnetplan-rail2:rail2\n");
    let cluster = Cluster::and(&mut rig, "host.rails.mtu = 8000;");
    // Somebody stopped it; the rails have their addresses all the same.
    rig.sh("worker", "systemctl stop NetworkManager");
    rig.deploy("lab-a").is(0, "committed");
    for node in NODES {
        rig.until("the MTU is set", 20, || mtu(&rig, node) == "8000 8000");
    }
    assert_eq!(active(&rig), "netplan-rail1:rail1\nnetplan-rail2:rail2\n");
    assert!(rig.sh("worker", "ip -4 -o address show rail1").matches("10.77.1.11/24").count() == 1);
    let said = verify(&rig);
    assert_eq!(said.code, 0, "{said:#?}");
    rig.app(&["rollback", "--to", &before.to_string()]).is(0, "committed");
    for node in NODES {
        rig.until("the MTU is as it was", 20, || mtu(&rig, node) == "9000 9000");
    }
    assert_eq!(active(&rig), "netplan-rail1:rail1\nnetplan-rail2:rail2\n");

    // A power cut in such a change: the boot unit goes back while NetworkManager is only starting, and that is no failure.
    let before = rig.one_release("lab-a");
    let slow = "/etc/systemd/system/NetworkManager.service.d";
    rig.sh("worker", &format!("mkdir {slow} && printf '[Service]\\nExecStartPre=/bin/sleep 6\\n' > {slow}/slow.conf"));
    rig.sh("worker", "systemctl enable NetworkManager && systemctl daemon-reload");
    rig.slow_restart("worker");
    rig.crash_at("worker", "switched 0 before-fsync");
    let client = rig.client(&["deploy", "lab-a", "--activation-timeout", "30", "--confirm-timeout", "2"]);
    rig.until("the worker's process is killed", 60, || rig.crashed("worker"));
    assert_eq!(mtu(&rig, "worker"), "8000 8000");
    rig.lab.kill("worker").unwrap();
    rig.lab.start("worker").unwrap();
    let said = client.wait();
    assert!([3, 4].contains(&said.code), "{said:#?}");
    assert_eq!(rig.comes_to_one_release("lab-a", 120), before);
    rig.until("the MTU is as it was", 20, || mtu(&rig, "worker") == "9000 9000");
    drop(cluster);
    drop(rig);
    drop(Rig::fresh());
}

/// netplan reads all files together, so one that it refuses is found before anything stops, whoever wrote it.
#[test]
#[ignore = "needs the lab"]
fn somebody_elses_netplan_file_that_is_broken_refuses_before_anything_stops() {
    let mut rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let cluster = Cluster::and(&mut rig, "host.rails.mtu = 8000;");
    let theirs = "/etc/netplan/01-admin.yaml";
    rig.sh("worker", &format!("mkdir -p /etc/netplan && printf 'network: [\\n' > {theirs} && chmod 600 {theirs}"));
    let started = rig.sh("head", "systemctl show -P ActiveEnterTimestampMonotonic sparklane-engine");
    let said = rig.deploy("lab-b");
    rig.sh("worker", &format!("rm {theirs}"));
    said.is(1, "refused").because(&["worker", "01-admin.yaml"]);
    assert_eq!(rig.sh("head", "systemctl show -P ActiveEnterTimestampMonotonic sparklane-engine"), started);
    drop(cluster);
    assert_eq!(rig.one_release("lab-a"), before);
}

/// The interface that the operator comes in by, taken for a rail: it loses its address, and nobody can help from outside.
#[test]
#[ignore = "needs the lab"]
fn a_cluster_file_that_takes_management_for_a_rail_is_taken_back_by_the_node_alone() {
    for (node, address) in [("head", "10.77.2.10"), ("worker", "10.77.2.11")] {
        let mut rig = Rig::on_a();
        let before = rig.one_release("lab-a");
        let cluster = Cluster::with(&mut rig, |text| {
            let rail = format!("rail2 = {{ netdev = \"rail2\"; address = \"{address}\"; }};");
            let taken = text.replace(&rail, &rail.replace("\"rail2\"", "\"mgmt\""));
            assert_ne!(taken, text);
            taken.replacen("  absent =", "  host.rails.mtu = 1500;\n  absent =", 1)
        });
        let begin = std::time::Instant::now();
        let client = rig.client(&["deploy", "lab-hold"]);
        let gone = || !rig.try_sh("control", &format!("ping -c1 -W1 {node}"));
        rig.until("the node is cut off", 60, gone);
        rig.until("it is back by itself", 120, || !gone());
        let said = client.wait();
        assert!([3, 4].contains(&said.code), "{said:#?}");
        let took = begin.elapsed();
        eprintln!("{node}: back after {took:?}, the client said {} ({})", said.code, said.why());
        drop(cluster);
        assert_eq!(rig.comes_to_one_release("lab-a", 120), before);
        let records = rig.records(node);
        let why = records.last().unwrap()["why"].as_str().unwrap_or_default();
        assert!(why.contains("netplan"), "{why}");
        assert!(took < Duration::from_secs(150), "{took:?}");
        assert!(!rig.try_sh(node, "test -e /etc/netplan/60-sparklane-rails.yaml"));
        assert_eq!(mtu(&rig, node), "9000 9000");
    }
}
