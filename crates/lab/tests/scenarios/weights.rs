//! Weights that nodes do not have, have damaged, or receive while cables, processes and machines fail.

use std::fs;
use std::os::unix::fs::FileExt as _;

use serde_json::Value;

use crate::model::{FILE, FILES, LANE, MIB, Mirror, Model};
use crate::support::{Client, NODES, Rig, Said, TOOL};

/// The lab on lab-a, with the model published and its lane known.
fn with_model() -> (Rig, Model) {
    let rig = Rig::on_a();
    let model = Model::publish(&rig);
    (rig.rebuilt(), model)
}

fn engine(rig: &Rig, node: &str) -> String {
    rig.sh(node, "systemctl show -p MainPID --value sparklane-engine").trim().to_owned()
}

fn sending(rig: &Rig, more: &[&str]) -> Client {
    rig.client(&[&["sparklane", "weights", "send", FILE][..], more].concat())
}

fn send(rig: &Rig, more: &[&str]) -> Said {
    sending(rig, more).wait()
}

/// The receipt of a receiver.
#[track_caller]
fn receipt<'s>(said: &'s Said, node: &str) -> &'s Value {
    assert_eq!(said.code, 0, "{said:#?}");
    let rows = said.json["receivers"].as_array().unwrap();
    &rows.iter().find(|row| row["node"] == node).unwrap_or_else(|| panic!("{said:#?}"))["receipt"]
}

fn bytes_of(receipt: &Value, way: &str) -> u64 {
    let ways = receipt["ways"].as_array().unwrap();
    ways.iter().find(|w| w["name"] == way).and_then(|w| w["bytes"].as_u64()).unwrap()
}

/// What a slow connection holds at the end is asked for on another, too; more comes no second time.
#[track_caller]
fn fetched_once(receipt: &Value, bytes: u64) {
    let fetched = receipt["fetched"].as_u64().unwrap();
    assert!((bytes..bytes + 16 * MIB as u64).contains(&fetched), "{bytes}: {receipt:#}");
}

#[test]
#[ignore = "needs the lab"]
fn a_lane_whose_weights_no_node_has_is_fetched_once_sent_over_both_rails_and_only_then_switched_to() {
    let (rig, model) = with_model();
    let before = rig.one_release("lab-a");
    let serving = NODES.map(|node| engine(&rig, node));

    // Nobody downloads unasked.
    rig.deploy(LANE).is(1, "refused").because(&["no node has the weights", "lab/tiny", "adopt"]);
    assert_eq!(rig.one_release("lab-a"), before);

    let mirror = Mirror::start(&rig);
    let fetch =
        format!("{TOOL} weights fetch {FILE} --mirror http://10.77.0.1:8099 --plain-http 10.77.0.1:8099 --json");
    let fetched: Value = serde_json::from_str(&rig.sh("head", &fetch)).unwrap();
    drop(mirror);
    assert_eq!(fetched["bytes"], model.manifest.bytes());
    model.exact(&rig, "head");
    let said = rig.app(&["sparklane", "weights", "status"]);
    assert_eq!(said.code, 1, "{said:#?}");
    let differs = said.json["differences"][0].as_str().unwrap_or_default();
    assert!(differs.contains("proved on head, absent on worker") && differs.contains("--from head"), "{said:#?}");

    // The worker's come from the head while both serve, and no switch begins before they are proved.
    let before_rails = rig.rails_carried("worker");
    let client = rig.client(&["deploy", LANE, "--while-serving", "15M"]);
    let mut seen = 0;
    rig.until("the worker has them", 90, || {
        let (now, tokens) = (NODES.map(|node| engine(&rig, node)), rig.tokens());
        let there = model.folder(&rig, "worker").exists();
        // What was asked before the folder was seen to be absent was asked before any switch.
        if !there && model.durable(&rig, "worker") > 0 {
            assert_eq!((&now, tokens > 0), (&serving, true), "serving was touched");
            seen += 1;
        }
        there
    });
    let said = client.wait();
    said.is(0, "committed");
    assert!(seen > 1, "the transfer was over before anyone could look");
    assert_eq!(rig.one_release(LANE), before + 1);
    model.exact(&rig, "worker");
    let after_rails = rig.rails_carried("worker");
    for (before, after) in before_rails.iter().zip(&after_rails) {
        assert!(after.1 - before.1 > 5 * MIB as u64, "{before_rails:?} {after_rails:?}");
    }
    for node in NODES {
        let mounted = rig.sh(node, "docker inspect --format '{{json .Mounts}}' $(docker ps -q)");
        assert!(mounted.contains(&model.name) && mounted.contains("/models/tiny"), "{node}: {mounted}");
    }
    let said = rig.app(&["sparklane", "weights", "status"]);
    assert_eq!((said.code, said.json["differences"].as_array().map(Vec::len)), (0, Some(0)), "{said:#?}");
    // Staged once, they are there for good.
    rig.app(&["rollback"]).is(0, "committed");
    let again = rig.deploy(LANE);
    again.is(0, "committed");
    let moved = |n: usize| rig.rails_carried("worker")[n].1 - after_rails[n].1;
    assert!(moved(0) + moved(1) < 5 * MIB as u64, "sent again");
    rig.deploy("lab-a").is(0, "committed");
}

#[test]
#[ignore = "needs the lab"]
fn a_damaged_file_keeps_the_lane_from_starting_and_only_its_bad_range_is_sent_again() {
    let (rig, model) = with_model();
    model.adopt_on_head(&rig);
    rig.deploy(LANE).is(0, "committed");
    let release = rig.one_release(LANE);
    let (path, at) = (FILES[0].0, 41 * MIB as u64 + 77);

    let against =
        |more: &[&str]| rig.app(&[&["sparklane", "weights", "verify", FILE, "--against", "worker"][..], more].concat());
    assert_eq!(against(&["--deep"]).code, 0);

    // Noticed by its time: the engine's unit says which file, on which node, and what to do.
    model.damage(&rig, "worker", path, at);
    let said = rig.status();
    assert_eq!(
        (said.code, said.text("state")),
        (1, &*format!("release {release}, weights unproved on worker")),
        "{said:#?}"
    );
    let said = against(&[]);
    assert_eq!(said.code, 3, "{said:#?}");
    assert_eq!(said.text("next"), format!("sparklane weights send {FILE} --from head --to worker"));
    assert!(said.json["nodes"][1]["has"]["why"][0].as_str().unwrap().contains(path), "{said:#?}");
    let since = rig.sh("worker", "date +%s").trim().to_owned();
    assert!(!rig.try_sh("worker", "systemctl restart sparklane-engine"), "started on damaged weights");
    let words = rig.sh("worker", &format!("journalctl -o cat -u sparklane-engine --since @{since}"));
    for word in [path, "worker", "weights verify --deep"] {
        assert!(words.contains(word), "{word}: {words}");
    }
    // The worker's own tool names the file whose bytes are wrong.
    let deep = rig.lab.exec("worker", &[TOOL, "weights", "verify", FILE, "--deep", "--json"]).unwrap();
    assert_eq!(deep.code, Some(3), "{deep:?}");
    assert!(deep.stdout.contains(path) && deep.stdout.contains("sha256 is"), "{deep:?}");
    let said = send(&rig, &[]);
    let got = receipt(&said, "worker");
    assert_eq!(got["repaired"][0]["path"], path, "{got:#}");
    assert_eq!(got["repaired"][0]["offsets"].as_array().unwrap().len(), 1, "{got:#}");
    assert_eq!(got["repaired"][0]["offsets"][0], 41 * MIB, "{got:#}");
    assert_eq!(got["fetched"], MIB, "{got:#}");
    model.exact(&rig, "worker");
    rig.sh("worker", "systemctl reset-failed; systemctl start --no-block sparklane-engine");
    assert_eq!(rig.comes_to_one_release(LANE, 90), release);

    // Beside an engine that serves, the disk is read when nobody else wants it.
    let deep = rig.lab.exec("worker", &[TOOL, "weights", "verify", FILE, "--deep"]).unwrap();
    assert!(deep.code == Some(0) && deep.stderr.contains("nice 19"), "{deep:?}");

    // Changed with its time set back: only reading finds it; then a deployment mends it before it switches.
    rig.deploy("lab-a").is(0, "committed");
    let place = model.folder(&rig, "worker").join(path);
    let time = fs::metadata(&place).unwrap().modified().unwrap();
    model.damage(&rig, "worker", path, at);
    fs::File::options().write(true).open(&place).unwrap().set_modified(time).unwrap();
    assert!(rig.try_sh("worker", &format!("{TOOL} weights verify {FILE}")));
    assert!(!rig.try_sh("worker", &format!("{TOOL} weights verify {FILE} --deep")));
    let said = rig.deploy(LANE);
    said.is(0, "committed");
    model.exact(&rig, "worker");
    rig.one_release(LANE);

    // Damaged on both nodes nobody can mend it: refused, and what serves goes on.
    rig.deploy("lab-a").is(0, "committed");
    let before = rig.one_release("lab-a");
    NODES.iter().for_each(|node| model.damage(&rig, node, path, at));
    rig.deploy(LANE).is(1, "refused").because(&["no node has", path, "verify --deep"]);
    assert_eq!(rig.one_release("lab-a"), before);
    model.forget(&rig);
}

/// Waits until the worker's journal holds more than the first file's first 64 MiB.
fn well_under_way(rig: &Rig, model: &Model) {
    rig.until("64 MiB are durable on the worker", 60, || model.durable(rig, "worker") >= 64 * MIB as u64);
}

#[test]
#[ignore = "needs the lab"]
fn a_receiver_that_is_killed_and_a_node_without_power_go_on_where_they_were() {
    let (rig, model) = with_model();
    model.adopt_on_head(&rig);
    let all = model.manifest.bytes();

    let client = sending(&rig, &["--rate", "25"]);
    well_under_way(&rig, &model);
    rig.sh("worker", "for p in $(pgrep -f '[w]eights pull'); do kill -KILL $p; done");
    let said = client.wait();
    assert_eq!(said.code, 3, "{said:#?}");
    for word in ["worker", "kept", "run it again"] {
        assert!(said.stderr.contains(word), "{word}: {said:#?}");
    }
    assert!(!model.folder(&rig, "worker").exists(), "half a model is visible");
    let had = model.durable(&rig, "worker");
    let said = send(&rig, &[]);
    let got = receipt(&said, "worker");
    // Small files that no record speaks of yet are read again, not fetched.
    assert!(got["had"].as_u64().unwrap() >= had, "{had}: {got:#}");
    fetched_once(got, all - got["had"].as_u64().unwrap());
    assert!(got["firstByteMillis"].as_u64().unwrap() < 2000, "{got:#}");
    model.exact(&rig, "worker");

    // The sender; the receiver keeps what it has.
    model.forget(&rig);
    model.adopt_on_head(&rig);
    let client = sending(&rig, &["--rate", "25", "--give-up", "4"]);
    well_under_way(&rig, &model);
    rig.sh("head", "for p in $(pgrep -f '[w]eights serve'); do kill -KILL $p; done");
    let said = client.wait();
    assert_eq!(said.code, 3, "{said:#?}");
    for word in ["worker", "no byte for", "kept", "head: the sender ended before"] {
        assert!(said.stderr.contains(word), "{word}: {said:#?}");
    }
    let had = model.durable(&rig, "worker");

    // The machine itself.
    let client = sending(&rig, &["--rate", "4"]);
    let parts = Model::store(&rig, "worker").join(".partial").join(&model.name).join("lock");
    rig.until("the receiver is back", 30, || rig.try_sh("worker", "pgrep -f '[w]eights pull'") && parts.exists());
    rig.lab.kill("worker").unwrap();
    let said = client.wait();
    assert_eq!(said.code, 3, "{said:#?}");
    assert!(said.stderr.contains("worker"), "{said:#?}");
    rig.lab.start("worker").unwrap();
    assert!(!model.folder(&rig, "worker").exists(), "half a model is visible");
    assert!(model.durable(&rig, "worker") >= had);
    let said = send(&rig, &[]);
    assert!(receipt(&said, "worker")["had"].as_u64().unwrap() >= had, "{had}: {said:#?}");
    model.exact(&rig, "worker");

    rig.comes_to_one_release("lab-a", 90);
    rig.deploy(LANE).is(0, "committed");
    rig.deploy("lab-a").is(0, "committed");
    model.forget(&rig);
}

#[test]
#[ignore = "needs the lab"]
fn a_transfer_outlives_a_rail_and_without_any_it_ends_and_keeps_what_it_has() {
    let (rig, model) = with_model();
    model.adopt_on_head(&rig);
    let half = |rig: &Rig| {
        rig.until("the worker receives", 60, || {
            // The whole length is reserved from the start; bytes are there when they are no zeros.
            let part = Model::store(rig, "worker").join(".partial").join(&model.name).join("parts/3");
            let mut some = [0; 8];
            fs::File::open(part).is_ok_and(|f| f.read_exact_at(&mut some, 20 * MIB as u64).is_ok()) && some != [0; 8]
        });
    };
    // Slow enough that a dead connection is noticed before the other rail has brought the rest.
    let client = sending(&rig, &["--rate", "12"]);
    half(&rig);
    rig.lab.cut("worker:rail1").unwrap();
    let said = client.wait();
    rig.lab.heal("worker:rail1").unwrap();
    let got = receipt(&said, "worker");
    assert!(bytes_of(got, "rail2") > bytes_of(got, "rail1"), "{got:#}");
    assert!(bytes_of(got, "rail1") > 0 && !got["ways"][0]["lastError"].is_null(), "{got:#}");
    assert!(got["longestPauseMillis"].as_u64().unwrap() < 5000, "{got:#}");
    model.exact(&rig, "worker");

    model.forget(&rig);
    model.adopt_on_head(&rig);
    let client = sending(&rig, &["--rate", "20", "--give-up", "6"]);
    half(&rig);
    rig.lab.cut("worker:rails").unwrap();
    let said = client.wait();
    rig.lab.heal("worker:rails").unwrap();
    assert_eq!(said.code, 3, "{said:#?}");
    for word in ["worker", "no byte for", "rail1", "rail2", "kept"] {
        assert!(said.stderr.contains(word), "{word}: {said:#?}");
    }
    assert!(!model.folder(&rig, "worker").exists());
    let said = send(&rig, &[]);
    assert_eq!(receipt(&said, "worker")["bytes"], model.manifest.bytes());
    model.exact(&rig, "worker");
    model.forget(&rig);
    rig.comes_to_one_release("lab-a", 60);
}

/// A third machine on both rails, in a cluster file of its own: here the control machine, which is on no rail usually.
pub struct Third<'a>(&'a Rig);

impl<'a> Third<'a> {
    pub fn join(rig: &'a Rig) -> Self {
        let batch: String = ["rail1", "rail2"]
            .iter()
            .map(|rail| {
                format!(
                    "link add third-{rail} mtu 9000 type veth peer name {rail} mtu 9000 netns sl-control\n\
                     link set third-{rail} master {rail} up\n"
                )
            })
            .collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), batch).unwrap();
        let ip = std::process::Command::new("ip").args(["-n", "sl-fabric", "-batch"]).arg(file.path()).status();
        assert!(ip.unwrap().success());
        rig.sh(
            "control",
            "for n in 1 2; do ip address add 10.77.$n.1/24 dev rail$n; ip link set rail$n up; done; \
             mkdir -p /home/operator/.ssh /nix/var/nix/gcroots/sparklane/tool/bin && \
             cat /root/.ssh/id_ed25519.pub > /home/operator/.ssh/authorized_keys && \
             chown operator /home/operator/.ssh/authorized_keys && \
             ln -sfn /root/prebuilt/x86_64-linux/sparklane /nix/var/nix/gcroots/sparklane/tool/bin/sparklane",
        );
        // Of another architecture, so that no lane claims to fit three nodes.
        let cluster = "let lab = import ./lab.nix; in lab // {\n  name = \"lab3\";\n  nodes = lab.nodes // { third = \
            lab.nodes.worker // {\n    rank = 2;\n    system = \"aarch64-linux\";\n    host = \"10.77.0.1\";\n    rail1 = { netdev = \"rail1\"; address = \
            \"10.77.1.1\"; };\n    rail2 = { netdev = \"rail2\"; address = \"10.77.2.1\"; };\n  }; };\n}\n";
        fs::write(rig.lab.root("control").join("root/sparklane/nix/clusters/lab3.nix"), cluster).unwrap();
        Self(rig)
    }
}

impl Drop for Third<'_> {
    fn drop(&mut self) {
        let _gone = fs::remove_file(self.0.lab.root("control").join("root/sparklane/nix/clusters/lab3.nix"));
        let script = "ip link delete rail1; ip link delete rail2; rm -rf /var/lib/sparklane/weights \
                      /nix/var/nix/gcroots/sparklane/tool /home/operator/.ssh/authorized_keys";
        self.0.try_sh("control", script);
    }
}

/// Where the sender listens; the engine beside it has addresses of its own.
const SENDER_LISTENS: &str =
    "for p in $(pgrep -f '[w]eights serve'); do ss -Htlnp | grep \"pid=$p,\" | awk '{print $4}'; done; true";

#[test]
#[ignore = "needs the lab"]
fn two_receivers_are_served_at_once_and_a_stranger_is_not() {
    let (rig, model) = with_model();
    model.adopt_on_head(&rig);
    let third = Third::join(&rig);
    let argv = ["sparklane", "weights", "send", FILE, "--cluster", "lab3", "--rate", "25", "--json"];
    let mut argv = argv.map(str::to_owned).to_vec();
    argv[0] = format!("{}/sparklane", crate::support::apps(&rig.lab));
    let client = rig.run(&argv, "");
    rig.until("the head listens on its rails", 60, || rig.sh("head", SENDER_LISTENS).lines().count() == 2);
    // On the rails' addresses only; and whoever has not the key gets nothing.
    let listening = rig.sh("head", SENDER_LISTENS);
    let own = |line: &str| ["10.77.1.10:", "10.77.2.10:"].iter().any(|a| line.starts_with(a));
    assert!(listening.lines().all(own), "{listening}");
    let address = listening.lines().next().unwrap().replace(':', " ");
    let (host, port) = address.split_once(' ').unwrap();
    let knock = format!(
        "import socket\ns = socket.create_connection(('{host}', {port}), 5)\ns.settimeout(20)\ns.sendall(b'x' * 400)\n\
         n = 0\ntry:\n  while d := s.recv(65536): n += len(d)\nexcept ConnectionError: pass\nprint(n)"
    );
    let given = rig.lab.check("control", &["python3", "-c", &knock]).unwrap();
    assert!(given.trim().parse::<u64>().unwrap() < 100, "a stranger was given {given} bytes");
    let said = client.wait();
    for (node, machine) in [("worker", "worker"), ("third", "control")] {
        let got = receipt(&said, node);
        fetched_once(got, model.manifest.bytes());
        assert!(bytes_of(got, "rail1") > 0 && bytes_of(got, "rail2") > 0, "{got:#}");
        model.exact(&rig, machine);
    }
    drop(third);
    model.forget(&rig);
}
