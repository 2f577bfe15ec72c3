//! Full and read-only disks, and journals that were torn.

use std::io::Write as _;

use crate::support::{NODES, Rig, TOOL};

/// A command of this host.
fn host(argv: &[&str]) -> String {
    let output = std::process::Command::new(argv[0]).args(&argv[1..]).output().unwrap();
    assert!(output.status.success(), "{argv:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
#[ignore = "needs the lab"]
fn full_disk_is_refused_before_any_change_deploy_rs_154() {
    let rig = Rig::fresh_small(160);
    let before = rig.one_release("lab-a");
    rig.sh(
        "worker",
        "dd if=/dev/zero of=/var/lib/sparklane/big bs=1M count=200 status=none; test -s /var/lib/sparklane/big",
    );
    let seen = rig.txns("worker").len();
    rig.deploy("lab-b").is(1, "refused").because(&["worker", "disk space", "make room"]);
    assert_eq!(rig.txns("worker").len(), seen);
    rig.sh("worker", "rm /var/lib/sparklane/big");
    assert_eq!(rig.one_release("lab-a"), before);

    // It fills up in the middle, to the last byte: the room kept for the journal carries the way back.
    let client = rig.client(&["deploy", "lab-crash"]);
    rig.reaches("worker", seen, "switching", 30);
    rig.sh("worker", "dd if=/dev/zero of=/var/lib/sparklane/big bs=4k status=none; true");
    client.wait().is(3, "rolled-back");
    rig.sh("worker", "rm /var/lib/sparklane/big");
    rig.sh("worker", &format!("{TOOL} txn resolve"));
    assert_eq!(rig.comes_to_one_release("lab-a", 60), before);
    rig.deploy("lab-b").is(0, "committed");
    rig.one_release("lab-b");

    // A read-only disk, once the last transaction's process has let go of its journal.
    std::thread::sleep(std::time::Duration::from_secs(5));
    rig.sh("head", "mount -o remount,ro /var/lib/sparklane");
    let said = rig.deploy("lab-a");
    rig.sh("head", "mount -o remount,rw /var/lib/sparklane");
    assert_eq!(said.code, 1, "{said:#?}");
    said.because(&["head", "ead-only"]);
    let number = rig.one_release("lab-b");

    // It turns read-only in the middle, as after a fault of the disk: the way back needs no record.
    let seen = rig.txns("worker").len();
    let client = rig.client(&["deploy", "lab-hold", "--activation-timeout", "60"]);
    rig.reaches("worker", seen, "switched", 30);
    let state = rig.lab.bound("worker", "/var/lib/sparklane");
    let device = host(&["findmnt", "-no", "SOURCE", state.as_str()]);
    // ext4 turns read-only at an error, as it does on a bad disk.
    let trigger = format!("/sys/fs/ext4/{}/trigger_fs_error", device.trim_start_matches("/dev/"));
    std::fs::write(trigger, "a test").unwrap();
    client.wait().is(3, "rolled-back").because(&["worker"]);
    rig.lab.kill("worker").unwrap();
    // What it holds goes to a new disk: the faulty one stays as it is until nobody has it open.
    let (copy, disk) = (state.with_extension("copy"), state.with_extension("new"));
    host(&["cp", "-a", state.as_str(), copy.as_str()]);
    host(&["umount", "-l", state.as_str()]);
    host(&["truncate", "-s", "160M", disk.as_str()]);
    host(&["mkfs.ext4", "-q", "-m", "0", disk.as_str()]);
    host(&["mount", "-o", "loop", disk.as_str(), state.as_str()]);
    host(&["cp", "-a", "-T", copy.as_str(), state.as_str()]);
    rig.lab.start("worker").unwrap();
    rig.sh("head", "systemctl restart sparklane-engine");
    assert_eq!(rig.comes_to_one_release("lab-b", 60), number);
    drop(rig);
    // The next scenario gets a lab with room.
    drop(Rig::fresh());
}

#[test]
#[ignore = "needs the lab"]
fn torn_journal_and_leftover_temporary_files_are_told_and_hinder_nobody_system_manager_452() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    // A crash in the window, on a node whose last record was half written; the process is not started again.
    let seen = NODES.map(|node| rig.txns(node).len());
    let client = rig.client(&["deploy", "lab-hold", "--activation-timeout", "60"]);
    for (node, seen) in NODES.iter().zip(seen) {
        rig.reaches(node, seen, "switched", 30);
    }
    rig.kill_client_and_ssh(&client);
    client.wait();
    for node in NODES {
        let unit = format!("sparklane-txn@{}.service", rig.txns(node).pop().unwrap());
        // Two signals: the unit is down before systemd can start it anew. By itself it refuses to be stopped.
        let allow = format!("/run/systemd/system/{unit}.d");
        rig.sh(
            node,
            &format!(
                "mkdir -p {allow} && printf '[Unit]\\nRefuseManualStop=no\\n' > {allow}/allow.conf && systemctl daemon-reload; \
                 systemctl kill -s KILL {unit}; systemctl stop {unit}; rm -r {allow}; systemctl daemon-reload"
            ),
        );
        assert_eq!(rig.state(node).as_deref(), Some("switched"), "{node}");
    }
    let file = rig.journal_file("worker", &rig.txns("worker").pop().unwrap());
    let text = std::fs::read(&file).unwrap();
    std::fs::write(&file, &text[..text.len() - 9]).unwrap();
    for (node, path) in [
        ("worker", "/etc/systemd/system/.sparklane-engine.service.sparklane-new"),
        ("head", "/var/lib/sparklane/txn/.x.sparklane-new"),
    ] {
        rig.sh(node, &format!("echo half > {path}"));
    }
    let status = rig.status();
    assert_eq!((status.code, status.text("state")), (1, "transaction open"), "{status:#?}");
    assert_eq!(status.json["nodes"][1]["status"]["open"][0]["torn"], true, "{status:#?}");
    assert!(rig.plain(&["status"]).stdout.contains("torn"), "people are not told");
    // The next deployment ends what was left, then does its work.
    rig.deploy("lab-b").is(0, "committed");
    assert_eq!(rig.one_release("lab-b"), before + 1);
    // Noise at the end of an ended journal changes nothing.
    let file = rig.journal_file("head", &rig.txns("head").pop().unwrap());
    std::fs::OpenOptions::new().append(true).open(file).unwrap().write_all(b"0123456789abcdef {\"state\":").unwrap();
    assert_eq!(rig.one_release("lab-b"), before + 1);
    rig.deploy("lab-a").is(0, "committed");
    rig.sh("worker", "rm -f /etc/systemd/system/.sparklane-engine.service.sparklane-new");
}
