//! Cables, connections, machines that are off.

use std::time::Duration;

use crate::support::{NODES, Rig};

fn engine_counts(rig: &Rig) -> [usize; 2] {
    NODES.map(|n| rig.txns(n).len())
}

#[test]
#[ignore = "needs the lab"]
fn rails_that_are_back_before_the_nodes_go_back_end_in_a_proved_rollback() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let seen = engine_counts(&rig);
    // Cut while nothing of the new lane runs, so that its ranks never meet; healed when the first node gives up.
    let client = rig.client(&["deploy", "lab-hold", "--activation-timeout", "8"]);
    rig.reaches("worker", seen[1], "switching", 30);
    rig.lab.cut("rails").unwrap();
    for (node, seen) in NODES.iter().zip(seen) {
        rig.reaches(node, seen, "switched", 30);
    }
    rig.until("a node goes back", 30, || NODES.iter().any(|n| rig.states(n).iter().any(|s| s == "rolling-back")));
    rig.lab.heal("rails").unwrap();
    client.wait().is(3, "rolled-back");
    assert_eq!(rig.comes_to_one_release("lab-a", 60), before);
}

#[test]
#[ignore = "needs the lab"]
fn rails_that_stay_cut_leave_the_head_stuck_until_they_are_back() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let seen = engine_counts(&rig);
    let client = rig.client(&["deploy", "lab-hold", "--activation-timeout", "5"]);
    rig.reaches("worker", seen[1], "switching", 30);
    rig.lab.cut("rails").unwrap();
    let said = client.wait();
    said.is(4, "in-doubt");
    // Without rails the old lane cannot pass its gates either: the head says so, within its lane's own budget.
    rig.until("both nodes are at an end", 120, || {
        [rig.state("head"), rig.state("worker")] == [Some("stuck".into()), Some("rolled-back".into())]
    });
    let status = rig.status();
    assert_eq!((status.code, status.text("state")), (4, "in doubt"), "{status:#?}");
    assert!(status.text("next").contains("sparklane txn resolve"), "{status:#?}");
    rig.lab.heal("rails").unwrap();
    std::thread::scope(|scope| {
        for node in NODES {
            let rig = &rig;
            scope.spawn(move || rig.sh(node, &format!("{} txn resolve", crate::support::TOOL)));
        }
    });
    assert_eq!(rig.comes_to_one_release("lab-a", 60), before);
}

#[test]
#[ignore = "needs the lab"]
fn management_link_cut_for_5_s_during_the_switch_is_survived() {
    let rig = Rig::on_a();
    // While the head changes, and while the lane loads: nothing is lost but time.
    for state in ["switching", "switched"] {
        let seen = engine_counts(&rig);
        let client = rig.client(&["deploy", "lab-hold"]);
        rig.reaches("head", seen[0], state, 30);
        rig.lab.cut("control:mgmt").unwrap();
        std::thread::sleep(Duration::from_secs(5));
        rig.lab.heal("control:mgmt").unwrap();
        client.wait().is(0, "committed");
        rig.comes_to_one_release("lab-hold", 30);
        rig.deploy("lab-a").is(0, "committed");
    }
}

#[test]
#[ignore = "needs the lab"]
fn management_link_cut_for_good_ends_in_doubt_and_the_nodes_are_back_at_the_deadline() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let seen = engine_counts(&rig);
    let client = rig.client(&["deploy", "lab-hold", "--activation-timeout", "10", "--confirm-timeout", "2"]);
    rig.reaches("head", seen[0], "switched", 30);
    rig.lab.cut("control:mgmt").unwrap();
    rig.until("both nodes are back", 60, || NODES.iter().all(|n| rig.state(n).as_deref() == Some("rolled-back")));
    let said = client.wait();
    said.is(4, "in-doubt");
    assert!(said.text("next").contains("sparklane status"), "{said:#?}");
    let status = rig.status();
    assert_eq!((status.code, status.text("state")), (4, "unreachable"), "{status:#?}");
    rig.lab.heal("control:mgmt").unwrap();
    rig.until("the nodes can be reached again", 20, || rig.status().code == 0);
    assert_eq!(rig.comes_to_one_release("lab-a", 30), before);
}

#[test]
#[ignore = "needs the lab"]
fn worker_that_is_off_before_is_refused_and_nothing_is_touched_deploy_rs_306() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let seen = engine_counts(&rig);
    rig.sh("worker", "systemctl stop ssh.socket ssh.service");
    let said = rig.deploy("lab-b");
    said.is(1, "refused").because(&["worker"]);
    assert!(said.took < Duration::from_secs(15), "{:?}", said.took);
    assert_eq!(engine_counts(&rig), seen, "a transaction was begun");
    rig.sh("worker", "systemctl start ssh.service");
    assert_eq!(rig.one_release("lab-a"), before);
}

#[test]
#[ignore = "needs the lab"]
fn worker_that_goes_off_after_its_switch_brings_both_back() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let seen = engine_counts(&rig);
    let client = rig.client(&["deploy", "lab-hold", "--activation-timeout", "15", "--confirm-timeout", "2"]);
    rig.reaches("worker", seen[1], "switched", 30);
    rig.lab.kill("worker").unwrap();
    let said = client.wait();
    assert_eq!(said.code, 4, "the worker is off, nobody can say: {said:#?}");
    rig.lab.start("worker").unwrap();
    // Without its worker the head could not prove the old lane; it does now, told once.
    for node in NODES {
        rig.try_sh(node, &format!("{} txn resolve", crate::support::TOOL));
    }
    assert_eq!(rig.comes_to_one_release("lab-a", 60), before);
}

/// A TCP proxy on the control machine: 150 ms each way, and what is connected is cut once when /run/cut appears.
const PROXY: &str = r#"
import os, socket, threading, time
cut = threading.Event()
def pump(a, b):
    try:
        while True:
            data = a.recv(65536)
            if not data: break
            time.sleep(0.15)
            if os.path.exists('/run/cut') and not cut.is_set():
                cut.set(); break
            b.sendall(data)
    except OSError: pass
    for s in (a, b):
        try: s.shutdown(socket.SHUT_RDWR)
        except OSError: pass
        s.close()
server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", 2222)); server.listen(50)
while True:
    a, _ = server.accept()
    b = socket.create_connection(("10.77.0.10", 22))
    for x, y in ((a, b), (b, a)):
        threading.Thread(target=pump, args=(x, y), daemon=True).start()
"#;

#[test]
#[ignore = "needs the lab"]
fn slow_connection_that_breaks_once_is_connected_again_and_commits() {
    let rig = Rig::on_a();
    std::fs::write(rig.lab.root("control").join("root/proxy.py"), PROXY).unwrap();
    // Only the head is reached through it: a block of its own in the operator's ssh configuration.
    let config = "Host 127.0.0.1\\n  Port 2222\\n  HostKeyAlias 10.77.0.10\\n";
    rig.sh(
        "control",
        &format!(
            "printf '{config}' > /root/proxy-config; cat /root/.ssh/config >> /root/proxy-config 2>/dev/null; true"
        ),
    );
    let mut proxy =
        rig.lab.spawn("control", &["sh", "-c", "echo $$ > /run/proxy; exec python3 /root/proxy.py"]).unwrap();
    rig.until("the proxy listens", 10, || rig.try_sh("control", "ss -tln | grep -q 2222"));
    let seen = rig.txns("head").len();
    let through = ["--hostname", "head=127.0.0.1", "--ssh-opts=-F", "--ssh-opts=/root/proxy-config"];
    let client = rig.client(&[&["deploy", "lab-hold"], &through[..]].concat());
    rig.reaches("head", seen, "switching", 60);
    rig.sh("control", "touch /run/cut");
    let said = client.wait();
    rig.sh("control", "kill $(cat /run/proxy); rm /run/cut");
    let _ = proxy.wait();
    // The order is repeated on a new connection, and orders are idempotent.
    said.is(0, "committed");
    rig.one_release("lab-hold");
}

#[test]
#[ignore = "needs the lab"]
fn worker_that_goes_off_during_the_copy_is_refused_and_nothing_is_touched() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let seen = engine_counts(&rig);
    // A closure that the worker has not, and a worker whose store is busy: the copy hangs until the power goes.
    rig.sh("worker", "p=/nix/var/nix/daemon-socket; systemctl stop nix-daemon.socket nix-daemon; mkdir -p $p; rm -f $p/socket; \
        python3 -c 'import socket,time; s=socket.socket(socket.AF_UNIX); s.bind(\"/nix/var/nix/daemon-socket/socket\"); s.listen(9); \
        open(\"/run/held\",\"w\"); time.sleep(600)' >/dev/null 2>&1 & \
        timeout 10 sh -c 'until test -e /run/held; do sleep 0.1; done' && chmod 666 /nix/var/nix/daemon-socket/socket");
    let client =
        rig.client(&["deploy", "lab-b", "--ssh-opts=-oServerAliveInterval=1", "--ssh-opts=-oServerAliveCountMax=3"]);
    rig.until("the copy asks the worker's store", 30, || {
        rig.try_sh("worker", "ss -xp | grep -q daemon-socket.*ESTAB || pgrep -f 'nix-daemon --stdio'")
    });
    rig.lab.kill("worker").unwrap();
    let said = client.wait();
    said.is(1, "refused").because(&["worker"]);
    assert!(said.took < Duration::from_secs(60), "{:?}", said.took);
    rig.lab.start("worker").unwrap();
    assert_eq!(engine_counts(&rig), seen, "a transaction was begun");
    assert_eq!(rig.comes_to_one_release("lab-a", 60), before);
    rig.deploy("lab-b").is(0, "committed");
    rig.one_release("lab-b");
}

/// An ssh server's forced command: every order of a transaction reaches the node twice, and the client hears the answer
/// to the second one only.
const DOUBLER: &str = r#"#!/bin/sh
case "$SSH_ORIGINAL_COMMAND" in
*"txn talk"*)
    while IFS= read -r line; do
        printf '%s\n' "$line" | sh -c "$SSH_ORIGINAL_COMMAND" > /dev/null
        echo twice >> /run/doubled
        printf '%s\n' "$line" | sh -c "$SSH_ORIGINAL_COMMAND"
    done ;;
"") exec "$SHELL" ;;
*) exec sh -c "$SSH_ORIGINAL_COMMAND" ;;
esac
"#;

#[test]
#[ignore = "needs the lab"]
fn orders_that_arrive_twice_with_the_first_answer_lost_do_their_work_once() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let forced = "Match User operator\\n  ForceCommand /root/doubler\\n";
    for node in NODES {
        std::fs::write(rig.lab.root(node).join("root/doubler"), DOUBLER).unwrap();
        rig.sh(
            node,
            &format!(
                "chmod 755 /root /root/doubler; rm -f /run/doubled; touch /run/doubled; chmod 666 /run/doubled; \
            printf '{forced}' > /etc/ssh/sshd_config.d/double.conf; systemctl reload ssh"
            ),
        );
    }
    let there = rig.deploy("lab-b");
    let broken = rig.deploy("lab-broken");
    for node in NODES {
        let doubled = rig.sh(node, "wc -l < /run/doubled").trim().parse::<u32>().unwrap();
        assert!(doubled >= 7, "{node}: only {doubled} orders were doubled");
        rig.sh(node, "rm /etc/ssh/sshd_config.d/double.conf; systemctl reload ssh");
    }
    there.is(0, "committed");
    broken.is(3, "rolled-back");
    assert_eq!(rig.one_release("lab-b"), before + 1);
}
