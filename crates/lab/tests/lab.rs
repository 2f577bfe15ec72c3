//! The lab itself, for real. Needs root, the packages, and the base root file system; `cargo xtask test` runs it.
//! One test, since there is one lab per host. It ends with the lab down.

#![allow(clippy::unwrap_used, reason = "a failure shall end the test")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sparklane_lab::{Lab, Paths, UpOptions};

fn up(options: &UpOptions) -> (Lab, Duration) {
    let start = Instant::now();
    let lab = Lab::up(Paths::from_env(), options, &|text| eprintln!("{text}")).unwrap();
    (lab, start.elapsed())
}

/// What this lab could leave on the host.
fn leftovers() -> Vec<String> {
    let dir = Paths::from_env().dir().to_string();
    let mut found: Vec<String> = Vec::new();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    found.extend(mounts.lines().filter(|l| l.contains(&dir)).map(str::to_owned));
    let output = Command::new("ip").args(["-brief", "link"]).output().unwrap();
    found.extend(String::from_utf8_lossy(&output.stdout).lines().filter(|l| l.starts_with("sl-")).map(str::to_owned));
    for name in ["sl-fabric", "sl-control", "sl-head", "sl-worker"] {
        found.extend(Path::new("/run/netns").join(name).exists().then(|| name.to_owned()));
    }
    found.extend(Path::new(&dir).exists().then(|| dir.clone()));
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        found.extend(line.contains(&format!("--directory={dir}/")).then_some(line));
    }
    found
}

#[test]
#[ignore = "needs root and makes the lab's machines"]
fn the_lab_boots_cuts_reboots_and_leaves_nothing() {
    let paths = Paths::from_env();
    Lab::down(&paths).unwrap();
    let small = UpOptions { state_size_mib: Some(24), ..UpOptions::default() };
    // Makes the base where it is missing; the time that counts is the second one.
    up(&small);
    Lab::down(&paths).unwrap();
    assert_eq!(leftovers(), Vec::<String>::new());

    let (lab, time) = up(&small);
    eprintln!("up: {time:?}");
    assert!(time < Duration::from_secs(20), "{time:?}");
    let pids = |_: &Lab| Lab::status(&paths).unwrap().nodes.iter().map(|n| n.pid).collect::<Vec<_>>();
    let before = pids(&lab);
    assert!(up(&small).1 < Duration::from_secs(3));
    assert_eq!(pids(&lab), before, "`up` leaves running machines alone");

    logins(&lab);
    rails(&lab);
    disk_full(&lab);
    machines_of_one_lab_are_apart(&lab);
    power(&lab);

    Lab::down(&paths).unwrap();
    assert_eq!(leftovers(), Vec::<String>::new());
    killed_up_is_cleaned(&paths);
}

fn logins(lab: &Lab) {
    for node in ["head", "worker"] {
        assert_eq!(lab.check("control", &["ssh", node, "sudo", "id", "-u"]).unwrap(), "0\n");
    }
    // Host keys are checked: an unknown name is refused, also for an address that answers.
    let argv = ["ssh", "-o", "HostKeyAlias=stranger", "head", "true"];
    assert_eq!(lab.exec("control", &argv).unwrap().code, Some(255));
    // Nodes know each other's keys on every network; the operator's key is not theirs.
    for address in ["10.77.1.11", "10.77.2.11", "10.77.0.11"] {
        let output = lab.exec("head", &["ssh", "-o", "BatchMode=yes", address, "true"]).unwrap();
        assert!(!output.stderr.contains("Host key verification failed"), "{}", output.stderr);
    }
    let key = lab.check("control", &["stat", "--format=%a", "/etc/sparklane/signing.key"]).unwrap();
    assert_eq!(key, "600\n");
    assert_eq!(lab.exec("head", &["test", "-e", "/etc/sparklane/signing.key"]).unwrap().code, Some(1));
    // What the control machine builds is signed and taken; the operator is not trusted, so unsigned things are not.
    let built = |name: &str, more: &[&str]| {
        let expression = format!(
            "derivation {{ name = \"{name}\"; system = \"x86_64-linux\"; builder = \"/bin/sh\"; \
             args = [ \"-c\" \"echo {name} > $out\" ]; }}"
        );
        let argv = ["nix", "build", "--no-link", "--print-out-paths", "--impure", "--expr", &expression];
        lab.check("control", &[&argv, more].concat()).unwrap().trim().to_owned()
    };
    let copy = |path: &str| lab.exec("control", &["nix", "copy", "--to", "ssh-ng://operator@head", path]).unwrap();
    assert_eq!(copy(&built("signed", &[])).code, Some(0));
    let refused = copy(&built("unsigned", &["--option", "secret-key-files", ""]));
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("signature"), "{}", refused.stderr);
}

fn rails(lab: &Lab) {
    let ping = |size: &str| {
        let argv = ["ping", "-q", "-c1", "-W1", "-M", "do", "-s", size, "10.77.1.11"];
        lab.exec("head", &argv).unwrap().code
    };
    assert_eq!(ping("8972"), Some(0), "a full 9000-byte packet");
    assert_ne!(ping("8973"), Some(0), "one byte more");
    lab.cut("worker:rail1").unwrap();
    assert_ne!(ping("56"), Some(0));
    assert_eq!(Lab::status(lab.paths()).unwrap().cut, ["worker:rail1"]);
    let carrier = lab.check("worker", &["cat", "/sys/class/net/rail1/operstate"]).unwrap();
    assert_ne!(carrier, "up\n", "the machine sees that its cable is out");
    lab.heal("rails").unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while ping("56") != Some(0) {
        assert!(Instant::now() < end, "the rail is not back");
    }
    // This host is on the management network.
    assert!(std::net::TcpStream::connect_timeout(&([10, 77, 0, 11], 22).into(), Duration::from_secs(2)).is_ok());
}

fn disk_full(lab: &Lab) {
    let fill = ["dd", "if=/dev/zero", "of=/var/lib/sparklane/big", "bs=1M", "count=64", "status=none"];
    let output = lab.exec("head", &fill).unwrap();
    assert!(output.stderr.contains("No space left"), "{output:?}");
    lab.check("head", &["rm", "/var/lib/sparklane/big"]).unwrap();
    assert!(lab.bound("head", "/var/lib/sparklane").join("lost+found").exists());
}

fn machines_of_one_lab_are_apart(lab: &Lab) {
    let units = |node: &str| lab.check(node, &["systemctl", "is-active", "ssh.service"]).unwrap();
    lab.check("head", &["systemctl", "stop", "docker.service", "docker.socket"]).unwrap();
    assert_eq!(lab.check("worker", &["systemctl", "is-active", "docker.service"]).unwrap(), "active\n");
    lab.check("head", &["systemctl", "start", "docker.service"]).unwrap();
    assert_eq!((units("head"), units("worker")), ("active\n".to_owned(), "active\n".to_owned()));
}

fn power(lab: &Lab) {
    let boot = |node: &str| lab.check(node, &["cat", "/proc/sys/kernel/random/boot_id"]).unwrap();
    let first = boot("worker");
    lab.check("worker", &["sh", "-c", "echo kept > /var/lib/sparklane/mark; echo kept > /etc/mark; sync"]).unwrap();
    lab.reboot("worker").unwrap();
    assert_ne!(boot("worker"), first, "another boot id");
    assert_eq!(lab.check("worker", &["cat", "/var/lib/sparklane/mark", "/etc/mark"]).unwrap(), "kept\nkept\n");
    lab.kill("worker").unwrap();
    assert!(lab.exec("worker", &["true"]).is_err());
    let status = Lab::status(lab.paths()).unwrap();
    assert!(!status.up && status.nodes.iter().any(|n| n.name == "worker" && n.state == "off"));
    lab.start("worker").unwrap();
    assert_eq!(lab.check("control", &["ssh", "worker", "cat", "/etc/mark"]).unwrap(), "kept\n");
}

/// Kills an `up` at several moments: the next one starts anew and works.
fn killed_up_is_cleaned(paths: &Paths) {
    // This very test program makes the lab when asked to, and is killed on the way.
    for millis in [150, 600, 1200] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "only_up", "--ignored"])
            .env("SPARKLANE_TEST_ONLY_UP", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(millis));
        child.kill().unwrap();
        child.wait().unwrap();
        let (lab, _) = up(&UpOptions::default());
        assert_eq!(lab.check("control", &["ssh", "head", "hostname"]).unwrap(), "head\n", "killed after {millis} ms");
        Lab::down(paths).unwrap();
        assert_eq!(leftovers(), Vec::<String>::new(), "killed after {millis} ms");
    }
}

#[test]
#[ignore = "a part of the test above"]
fn only_up() {
    if std::env::var_os("SPARKLANE_TEST_ONLY_UP").is_some() {
        up(&UpOptions::default());
    }
}
