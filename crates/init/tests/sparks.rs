//! Two Sparks, made after fabric-real.md: what is proposed of a good pair, and of each fault that keeps it from being one.
//! The plans are goldens (`INSTA_UPDATE=always cargo test -p sparklane-init` writes them anew).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by failing")]

#[path = "../../fabric/tests/support/mod.rs"]
mod support;

use serde_json::{Value, json};
use sparklane_fabric::facts::{Root, recorded};
use sparklane_init::apply::Task;
use sparklane_init::propose::Level;
use sparklane_init::{Machine, Proposal, Survey, Wanted, Wishes, nix, plan, propose, show};
use sparklane_lane::{Cluster, Role, System};
use support::Spark;

const KEY: &str = "home-1:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";

/// Two machines that were never anything: DGX OS as it comes, with a user in docker's group.
struct Pair {
    head: Spark,
    worker: Spark,
    machines: [Machine; 2],
}

fn machine(n: u8) -> Machine {
    let host_key = format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA{}", char::from(b'A' + n).to_string().repeat(44));
    Machine {
        hostname: format!("spark-{n}"),
        system: Some(System::Aarch64Linux),
        distribution: vec!["ubuntu".into(), "debian".into()],
        apt: true,
        groups: vec!["operator".into(), "docker".into()],
        nix: sparklane_init::machine::Nix {
            hidden: sparklane_init::machine::PROGRAMS.iter().map(|name| ((*name).to_owned(), None)).collect(),
            ..Default::default()
        },
        host_keys: vec![host_key],
        free: [("/var/lib".to_owned(), 3_400_u64 << 30)].into(),
        sys_resource: true,
        ..Machine::default()
    }
}

impl Pair {
    fn new() -> Self {
        let spark = |last: u32| {
            let spark = Spark::new(last);
            for (n, netdev) in
                ["enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1", "enP7s7"].iter().enumerate()
            {
                spark.put(&format!("sys/class/net/{netdev}/address"), &format!("4c:bb:47:00:{last:02}:{n:02}"));
            }
            spark
        };
        Self { head: spark(1), worker: spark(2), machines: [machine(0), machine(1)] }
    }

    fn both(&mut self, change: impl Fn(&mut Spark)) {
        change(&mut self.head);
        change(&mut self.worker);
    }

    fn surveys(&self) -> Vec<Survey> {
        let of = |(spark, machine): (&Spark, &Machine)| Survey {
            facts: recorded("0.1.0", &Root::new(spark.tree())).unwrap(),
            machine: machine.clone(),
        };
        [&self.head, &self.worker].into_iter().zip(&self.machines).map(of).collect()
    }

    fn proposal(&self, wishes: &Wishes) -> Proposal {
        propose(wishes, &self.surveys())
    }

    fn tasks(&self, wishes: &Wishes) -> Vec<Task> {
        let machines: Vec<(&Wanted, &Machine)> = wishes.nodes.iter().zip(&self.machines).collect();
        let made = plan(&machines, &wishes.user, Some(KEY));
        assert!(made.findings.is_empty(), "{:#?}", made.findings);
        made.steps.into_iter().map(Task::Node).collect()
    }
}

fn wishes() -> Wishes {
    let wanted =
        |name: &str, role, rank, host: &str| Wanted { name: name.parse().unwrap(), role, rank, host: host.into() };
    Wishes {
        name: "home".parse().unwrap(),
        user: "operator".into(),
        ssh_opts: Vec::new(),
        nodes: vec![wanted("head", Role::Head, 0, "192.168.1.11"), wanted("worker", Role::Worker, 1, "192.168.1.12")],
        lane: None,
        usual: ["ray-0731", "lab-a"].map(|lane| lane.parse().unwrap()),
        rails: None,
        build_system: System::X86_64Linux,
        trusted_key: Some(KEY.into()),
        existing: None,
    }
}

/// The plan as it is printed, and the file.
fn shown(pair: &Pair, wishes: &Wishes) -> String {
    let proposal = pair.proposal(wishes);
    let tasks = if proposal.cluster.is_some() { pair.tasks(wishes) } else { Vec::new() };
    let text = show::plan(wishes, &pair.surveys(), &proposal, &tasks);
    let orders = tasks.iter().flat_map(|task| match task {
        Task::Node(step) => step.action.orders().into_iter().map(|o| format!("{}: {:?}", step.node, o.argv)).collect(),
        Task::File(_) => Vec::new(),
    });
    let orders: Vec<String> = orders.collect();
    let file = proposal.cluster.as_ref().map_or_else(|| "no file\n".to_owned(), nix::file);
    format!("{text}--- commands\n{}\n--- file\n{file}", orders.join("\n"))
}

/// Nothing is proposed, and the reason and remedy hold these words.
#[track_caller]
fn stops(change: impl FnOnce(&mut Pair), word: &str, remedy: &str) {
    let mut pair = Pair::new();
    change(&mut pair);
    let proposal = pair.proposal(&wishes());
    assert_eq!(proposal.cluster, None);
    let stop = proposal.findings.iter().find(|f| f.level == Level::Stops && f.what.contains(word));
    assert!(stop.is_some_and(|f| f.remedy.contains(remedy)), "{word}: {:#?}", proposal.findings);
}

#[test]
fn a_rail_is_neither_the_way_in_nor_the_way_out() {
    let named = |netdev: &str| {
        let rails = Some([netdev.to_owned(), "enP2p1s0f0np0".to_owned()]);
        let proposal = Pair::new().proposal(&Wishes { rails, ..wishes() });
        proposal.findings.into_iter().filter(|f| f.level == Level::Stops).map(|f| f.what).collect::<Vec<_>>()
    };
    assert!(named("enP7s7").iter().all(|what| what.contains("is managed") || what.contains("default route")));
    assert_eq!(named("enP7s7").len(), 2, "on both nodes");
    assert!(named("enp1s0f0np0").is_empty());
}

/// A cluster is proposed, with these addresses of rail 1 and rail 2 of head and worker.
#[track_caller]
fn proposes(pair: &Pair, expected: [[&str; 2]; 2]) -> (Cluster, Vec<String>) {
    let proposal = pair.proposal(&wishes());
    let told = proposal.findings.iter().map(|f| f.what.clone()).collect();
    let cluster = proposal.cluster.unwrap_or_else(|| panic!("{told:#?}"));
    let nodes = cluster.by_rank();
    let found: Vec<[&str; 2]> =
        nodes.iter().map(|(_, n)| [n.rail1.address.as_str(), n.rail2.address.as_str()]).collect();
    assert_eq!(found, expected, "{told:#?}");
    (cluster, told)
}

const CUSTOMARY: [[&str; 2]; 2] = [["10.0.0.1", "10.0.1.1"], ["10.0.0.2", "10.0.1.2"]];

/// Addresses of the rails in what is not in files; everything else stays.
fn readdress(spark: &mut Spark, rails: &[(&str, &str)]) {
    let all = spark.live["addresses"].as_array_mut().unwrap();
    all.retain(|a| !["enp1s0f0np0", "enP2p1s0f0np0"].contains(&a["netdev"].as_str().unwrap()));
    all.extend(rails.iter().map(|(netdev, address)| json!({"netdev": netdev, "address": address, "prefix": 24})));
}

const RAIL1: &str = "enp1s0f0np0";
const RAIL2: &str = "enP2p1s0f0np0";

#[test]
fn a_good_pair_keeps_its_addresses_and_gets_what_a_deployment_needs() {
    let pair = Pair::new();
    insta::assert_snapshot!("good", shown(&pair, &wishes()));
    let (cluster, told) = proposes(&pair, CUSTOMARY);
    assert_eq!(told, Vec::<String>::new());
    // Beside names and keys it is the example that the flake ships.
    let mut shipped: Cluster = serde_json::from_value(support::cluster()).unwrap();
    shipped.fabric.preflight = true;
    assert_eq!(cluster.fabric, shipped.fabric);
    for (name, node) in &cluster.nodes {
        let other = &shipped.nodes[name];
        assert_eq!((&node.rail1, &node.rail2, node.system), (&other.rail1, &other.rail2, other.system));
        assert!(node.memory_bytes.is_some_and(|bytes| bytes.abs_diff(130_620_000_000) < 100_000_000));
    }
}

/// The cable in the cage farther from the RJ45 port.
#[test]
fn the_cage_with_the_cable_is_taken() {
    let mut pair = Pair::new();
    pair.both(|spark| {
        spark.other_cage();
        readdress(spark, &[]);
        spark.live["routes"].as_array_mut().unwrap().retain(|r| r["netdev"] == "enP7s7");
    });
    insta::assert_snapshot!("cage1", shown(&pair, &wishes()));
    let (cluster, _) = proposes(&pair, CUSTOMARY);
    let (_, head) = cluster.head().unwrap();
    assert_eq!((head.rail1.netdev.as_str(), head.rail2.rdma.as_deref()), ("enp1s0f1np1", Some("roceP2p1s0f1")));
}

#[test]
fn what_has_no_whole_cable_is_refused_with_what_to_do() {
    // Uncabled at boot with power saving: gone from the bus.
    stops(|p| p.worker.without_nic(), "no ConnectX-7 on the PCI bus", "reboot both machines with it in");
    // Uncabled with power saving off: names, no link.
    let dark = |p: &mut Pair| [RAIL1, RAIL2].iter().for_each(|netdev| p.head.carrier(netdev, false));
    stops(dark, "no link on any of enP2p1s0f0np0", "plug the cable");
    // One of the two HCAs.
    stops(|p| p.head.carrier(RAIL2, false), "enP2p1s0f0np0 has no link though", "ip link set dev enP2p1s0f0np0 up");
    // One half up in each cage (ibdev-split-cages).
    let split = |p: &mut Pair| {
        p.head.carrier(RAIL2, false);
        p.head.carrier("enP2p1s0f1np1", true);
    };
    stops(split, "one half is up in each cage", "both halves");
    stops(|p| p.head.remove("sys/class/infiniband/rocep1s0f0"), "enp1s0f0np0 has no RDMA device", "mlx5_ib");
    let pair = Pair::new();
    pair.worker.without_nic();
    insta::assert_snapshot!("no_cable", shown(&pair, &wishes()));
}

#[test]
fn a_half_that_is_switched_off_is_a_note() {
    let pair = Pair::new();
    pair.head.remove("sys/class/net/enP2p1s0f0np0/carrier");
    let (_, told) = proposes(&pair, CUSTOMARY);
    assert!(told[0].contains("enP2p1s0f0np0 is switched off"), "{told:#?}");
}

#[test]
fn two_cables_are_one_too_many_to_guess_and_the_first_is_taken() {
    let mut pair = Pair::new();
    pair.both(|spark| ["enp1s0f1np1", "enP2p1s0f1np1"].iter().for_each(|netdev| spark.carrier(netdev, true)));
    let (_, told) = proposes(&pair, CUSTOMARY);
    assert!(told.iter().all(|t| t.contains("cage p0 is taken")), "{told:#?}");
}

#[test]
fn missing_addresses_are_proposed_off_everything_that_is_in_use() {
    let mut pair = Pair::new();
    pair.both(|spark| readdress(spark, &[]));
    proposes(&pair, CUSTOMARY);
    // Link-local ones, as some guides have them, are none.
    pair.both(|spark| readdress(spark, &[(RAIL1, "169.254.10.20"), (RAIL2, "169.254.11.20")]));
    insta::assert_snapshot!("addresses_missing", shown(&pair, &wishes()));
    // The office is on 10.0.0.0/23.
    let office = json!({"netdev": "enP7s7", "destination": "10.0.0.0", "prefix": 23, "gateway": null});
    pair.head.live["routes"].as_array_mut().unwrap().push(office);
    proposes(&pair, [["10.0.2.1", "10.0.3.1"], ["10.0.2.2", "10.0.3.2"]]);
    // One end has some: the other follows.
    let mut pair = Pair::new();
    readdress(&mut pair.worker, &[(RAIL1, "10.0.0.1")]);
    readdress(&mut pair.head, &[]);
    let (_, told) = proposes(&pair, [["10.0.0.2", "10.0.1.1"], ["10.0.0.1", "10.0.1.2"]]);
    assert!(told.iter().any(|t| t.contains("rail1: 1 of 2 have no address yet")), "{told:#?}");
}

#[test]
fn rails_on_one_subnet_are_taken_apart() {
    let mut pair = Pair::new();
    readdress(&mut pair.head, &[(RAIL1, "10.0.0.1"), (RAIL2, "10.0.0.11")]);
    readdress(&mut pair.worker, &[(RAIL1, "10.0.0.2"), (RAIL2, "10.0.0.12")]);
    insta::assert_snapshot!("one_subnet", shown(&pair, &wishes()));
    let (_, told) = proposes(&pair, CUSTOMARY);
    assert!(told.iter().any(|t| t.contains("10.0.0.11/24, which gives way to 10.0.1.1")), "{told:#?}");
}

#[test]
fn swapped_ends_get_new_subnets() {
    let mut pair = Pair::new();
    readdress(&mut pair.worker, &[(RAIL1, "10.0.1.2"), (RAIL2, "10.0.0.2")]);
    let (_, told) = proposes(&pair, [["10.0.2.1", "10.0.3.1"], ["10.0.2.2", "10.0.3.2"]]);
    assert!(told.iter().any(|t| t.contains("its ends are in different subnets")), "{told:#?}");
}

#[test]
fn one_machine_named_twice_and_unlike_machines_are_refused() {
    let pair = Pair::new();
    let twice = Pair { head: Spark::new(1), ..Pair::new() };
    let surveys = [twice.surveys()[0].clone(), twice.surveys()[0].clone()];
    let proposal = propose(&wishes(), &surveys);
    assert!(proposal.findings.iter().any(|f| f.what.contains("are the same machine")), "{:#?}", proposal.findings);
    let mut surveys = pair.surveys();
    surveys[1].facts.files.system.gpus.clear();
    let proposal = propose(&wishes(), &surveys);
    assert!(proposal.cluster.is_none() && proposal.findings.iter().any(|f| f.what.contains("different kinds")));
}

#[test]
fn a_machine_that_lacks_docker_or_room_is_warned_about() {
    let mut pair = Pair::new();
    pair.head.live["docker"] = Value::Null;
    pair.machines[1].free = [("/var/lib".to_owned(), 50_u64 << 30)].into();
    let (_, told) = proposes(&pair, CUSTOMARY);
    assert!(told[0].contains("docker does not answer") && told[1].contains("50 GiB are free"), "{told:#?}");
}

/// What a file says beside the machines is its owner's; asked again, nothing differs.
#[test]
fn an_edited_file_is_kept_and_only_what_the_machines_say_is_brought_up_to_date() {
    let pair = Pair::new();
    let first = pair.proposal(&wishes()).cluster.unwrap();
    let mut edited = first.clone();
    edited.description = "in the cellar".into();
    edited.default_lane = "mp-base".parse().unwrap();
    edited.host.sysctl.clear();
    let again = |existing: &Cluster, pair: &Pair| {
        let wishes = Wishes { name: existing.name.clone(), existing: Some(existing.clone()), ..wishes() };
        pair.proposal(&wishes).cluster.unwrap()
    };
    assert_eq!(again(&edited, &pair), edited);
    let mut moved = pair;
    moved.machines[1].host_keys = vec![format!("ssh-ed25519 AAAA{}", "Z".repeat(60))];
    let after = again(&edited, &moved);
    let lines = sparklane_init::difference::lines(&nix::plain(&edited), &nix::plain(&after));
    assert!(lines.len() == 1 && lines[0].starts_with("nodes.worker.hostKeys: "), "{lines:#?}");
    // Keys that sshd does not show are not written over those that someone wrote.
    moved.machines[1].host_keys.clear();
    assert_eq!(again(&edited, &moved), edited);
    let finding = moved.proposal(&wishes()).findings.into_iter().find(|f| f.what.contains("host key"));
    assert_eq!(finding.map(|f| f.level), Some(Level::Note));
}

/// The template's file is one for Sparks: other machines are told what to do with it, and get a file without it.
#[test]
fn machines_without_rdma_are_told_what_a_file_for_sparks_lacks() {
    let mut pair = Pair::new();
    let sparks = pair.proposal(&wishes()).cluster.unwrap();
    // A NIC whose RDMA is not loaded is no machine without it.
    let mut unloaded = Pair::new();
    unloaded.both(|spark| spark.remove("sys/class/infiniband"));
    let rails = Some(["enp1s0f0np0", "enP2p1s0f0np0"].map(str::to_owned));
    assert_eq!(unloaded.proposal(&Wishes { rails, ..wishes() }).cluster, None);
    pair.both(|spark| {
        spark.without_nic();
        spark.put("sys/class/net/eth1/ifindex", "8");
        spark.put("sys/class/net/eth2/ifindex", "9");
    });
    let rails = Some(["eth1", "eth2"].map(str::to_owned));
    let mine = Wishes { rails, ..wishes() };
    let proposal = pair.proposal(&Wishes { existing: Some(sparks), ..mine.clone() });
    assert_eq!(proposal.cluster, None);
    let stop = proposal.findings.iter().find(|f| f.level == Level::Stops).unwrap();
    assert!(stop.what.contains("nodes.head.rail1.rdma: is missing") && stop.what.contains("absent = ["), "{stop:#?}");
    assert!(stop.remedy.contains("--file FILE"), "{stop:#?}");
    let made = pair.proposal(&mine).cluster.unwrap();
    assert!(!made.has(sparklane_lane::cluster::Absent::Rdma) && made.nodes.values().all(|n| n.rail1.rdma.is_none()));
}

#[test]
fn further_arguments_of_ssh_are_what_a_deployment_needs_too() {
    let opts = ["-p", "2222"].map(str::to_owned).to_vec();
    let wishes = Wishes { ssh_opts: opts.clone(), ..wishes() };
    assert_eq!(Pair::new().proposal(&wishes).cluster.unwrap().ssh.opts, opts);
}

/// The file is what Nix and our own reader make of the same cluster.
#[test]
fn nix_reads_the_file_as_the_same_cluster() {
    let cluster = Pair::new().proposal(&wishes()).cluster.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("home.nix");
    std::fs::write(&file, nix::file(&cluster)).unwrap();
    let output =
        std::process::Command::new("nix-instantiate").args(["--eval", "--strict", "--json"]).arg(&file).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(serde_json::from_slice::<Cluster>(&output.stdout).unwrap(), cluster);
}
