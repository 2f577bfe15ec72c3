//! What must be refused within seconds, and options that must have an effect.

use std::time::Duration;

use crate::support::{NODES, PROFILE, Rig};

#[test]
#[ignore = "needs the lab"]
fn sudo_that_wants_a_password_is_refused_within_seconds_colmena_120() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let file = rig.sh("head", "grep -ls operator /etc/sudoers.d/*").trim().to_owned();
    rig.sh("head", &format!("cp -a {file} /root/sudoers && printf 'operator ALL=(ALL) ALL\\n' > {file}"));
    let said = rig.deploy("lab-b");
    rig.sh("head", &format!("cp -a /root/sudoers {file}"));
    said.is(1, "refused").because(&["head", "sudo", "NOPASSWD"]);
    assert!(said.took < Duration::from_secs(5), "{:?}", said.took);
    assert_eq!(rig.one_release("lab-a"), before);
}

#[test]
#[ignore = "needs the lab"]
fn unknown_host_key_is_refused() {
    let rig = Rig::on_a();
    let said = rig.app(&["deploy", "lab-b", "--ssh-opts=-oHostKeyAlias=stranger"]);
    said.is(1, "refused").because(&["ssh", "head", "worker"]);
    assert!(said.took < Duration::from_secs(10), "{:?}", said.took);
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn unsigned_closure_is_refused_and_the_key_named_nix_2127() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    // What this machine builds is signed by its nix.conf; a lane that was never built, and no key anywhere.
    rig.sh(
        "control",
        "cp /etc/nix/nix.conf /root/nix.conf; sed -i /secret-key-files/d /etc/nix/nix.conf; \
        systemctl restart nix-daemon; mv /etc/sparklane/signing.key /root/signing.key",
    );
    let lane = rig.lab.root("control").join("root/sparklane/nix/lanes");
    let text = std::fs::read_to_string(lane.join("lab-hold.nix")).unwrap();
    // Different at every run, so that no store has it yet.
    let secs = std::process::id() % 1000;
    let text = text.replace("lab-hold", "lab-new").replace("\"20\"", &format!("\"0.{secs:03}\""));
    std::fs::write(lane.join("lab-new.nix"), text).unwrap();
    let rig = rig.rebuilt();
    let said = rig.deploy("lab-new");
    let signed = rig.app(&["deploy", "lab-new", "--signing-key", "/root/signing.key"]);
    rig.sh("control", "cp /root/nix.conf /etc/nix/nix.conf; systemctl restart nix-daemon; mv /root/signing.key /etc/sparklane/signing.key");
    said.is(1, "refused").because(&["signature", "trusted-public-keys", "never make the user a trusted-user"]);
    signed.is(0, "committed");
    assert_eq!(rig.one_release("lab-new"), before + 1);
}

#[test]
#[ignore = "needs the lab"]
fn nix_need_not_be_on_the_nodes_path_deploy_rs_290() {
    let rig = Rig::on_a();
    // An ssh session of the operator finds no nix at all, and sudo has a bare path.
    rig.sh("head", "echo 'SetEnv PATH=/usr/local/bin:/bin' > /etc/ssh/sshd_config.d/path.conf; \
        echo 'Defaults secure_path=\"/usr/bin:/bin\"' > /etc/sudoers.d/zz-path; chmod 440 /etc/sudoers.d/zz-path; systemctl reload ssh");
    let said = rig.deploy("lab-b");
    rig.sh("head", "rm /etc/ssh/sshd_config.d/path.conf /etc/sudoers.d/zz-path; systemctl reload ssh");
    said.is(0, "committed");
    rig.one_release("lab-b");
}

#[test]
#[ignore = "needs the lab"]
fn unrelated_failed_unit_blocks_nothing_nixops_1535() {
    let rig = Rig::on_a();
    rig.sh("head", "systemd-run --unit=unrelated-failure false; sleep 0.3; systemctl is-failed unrelated-failure");
    rig.deploy("lab-b").is(0, "committed");
    rig.one_release("lab-b");
}

#[test]
#[ignore = "needs the lab"]
fn test_boot_dry_and_targets_do_what_they_say() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let seen = NODES.map(|n| rig.txns(n).len());
    let pids = || NODES.map(|n| rig.sh(n, "systemctl show -p MainPID --value sparklane-engine"));
    let serving = pids();
    // --dry-activate: nothing at all.
    rig.app(&["deploy", "lab-b", "--dry-activate"]).is(0, "checked");
    assert_eq!(NODES.map(|n| rig.txns(n).len()), seen);
    assert_eq!(pids(), serving);
    // --targets: refused when the other node would stay behind, and harmless when it would not.
    rig.app(&["deploy", "lab-b", "--targets", "head"]).is(1, "refused").because(&["worker", "--targets"]);
    let told = rig.plain(&["deploy", "lab-b", "--targets", "head"]);
    assert!(told.code == 1 && !told.stderr.contains("copy /nix/store"), "copied before it refused: {told:#?}");
    rig.app(&["deploy", "lab-a", "--targets", "head"]).is(0, "unchanged");
    assert_eq!(pids(), serving);
    // --test: the lane serves, passes and goes.
    rig.app(&["deploy", "lab-b", "--test"]).is(0, "tested");
    assert_eq!(rig.one_release("lab-a"), before);
    rig.app(&["deploy", "lab-broken", "--test"]).is(3, "rolled-back");
    assert_eq!(rig.one_release("lab-a"), before);
    // --boot: the next boot serves it.
    let serving = pids();
    rig.app(&["deploy", "lab-b", "--boot"]).is(0, "committed");
    assert_eq!(pids(), serving, "what serves is not touched");
    assert_eq!(NODES.map(|n| rig.lane(n)), ["lab-b", "lab-b"]);
    assert!(rig.sh("head", "docker inspect --format '{{.Args}}' $(docker ps -q)").contains("--max-num-seqs 4"));
    let status = rig.app(&["status"]);
    assert_eq!((status.code, status.text("state")), (1, &*format!("release {}, engine still of lab-a", before + 1)));
    for node in NODES {
        rig.lab.reboot(node).unwrap();
    }
    assert_eq!(rig.comes_to_one_release("lab-b", 60), before + 1);
    // Or the next deployment of it: what the profile says is not what serves.
    rig.app(&["deploy", "lab-a", "--boot"]).is(0, "committed");
    rig.deploy("lab-a").is(0, "committed");
    assert!(rig.sh("head", "docker inspect --format '{{.Args}}' $(docker ps -q)").contains("--max-num-seqs 4"));
    rig.deploy("lab-a").is(0, "unchanged");
}

#[test]
#[ignore = "needs the lab"]
fn plan_shows_exactly_the_one_changed_flag_deploy_rs_356() {
    let rig = Rig::on_a();
    let said = rig.plain(&["plan", "lab-b"]);
    assert_eq!(said.code, 0, "{said:#?}");
    let changed = said.stdout.lines().map(str::trim).filter(|l| l.starts_with(['+', '-', '~']));
    // A lane's caches are its own and named after it; all else is the one flag, on both nodes.
    let (caches, others): (Vec<&str>, Vec<&str>) = changed.partition(|l| l.starts_with("~ mounts./cache/"));
    assert_eq!(others, ["~ --max-num-seqs 4 -> 8"; 2], "{}", said.stdout);
    assert!(caches.iter().all(|l| l.contains("lab-a") && l.contains("lab-b")), "{}", said.stdout);
    for node in NODES {
        assert!(said.stdout.contains(node), "{}", said.stdout);
    }
    assert!(said.stdout.contains("restarts on all nodes"), "{}", said.stdout);
    let plan = rig.app(&["plan", "lab-b"]);
    assert_eq!((plan.code, plan.json["unchanged"].as_bool()), (0, Some(false)), "{plan:#?}");
    let same = rig.app(&["plan", "lab-a"]);
    assert_eq!(same.json["unchanged"], true, "{same:#?}");
    assert!(rig.sh("head", &format!("readlink -f {PROFILE}")).contains("lab-a"), "a plan changes nothing");
}

#[test]
#[ignore = "needs the lab"]
fn closure_without_the_clusters_own_key_is_refused_by_the_node_itself() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let file = rig.lab.root("control").join("root/sparklane/nix/clusters/lab.nix");
    let cluster = std::fs::read_to_string(&file).unwrap();
    let with = |key: &str| {
        let (start, rest) = cluster.split_once('{').unwrap();
        std::fs::write(&file, format!("{start}{{\n  trustedKey = \"{key}\";{rest}")).unwrap();
    };
    let ours = rig.sh(
        "control",
        "nix --extra-experimental-features nix-command key convert-secret-to-public < /etc/sparklane/signing.key",
    );
    with(ours.trim());
    let rig = rig.rebuilt();
    let good = rig.deploy("lab-b");
    let (name, _) = ours.split_once(':').unwrap();
    // The same name with another key: only a check of the signature itself finds that.
    with(&format!("{name}:{}=", "A".repeat(43)));
    let rig = rig.rebuilt();
    let bad = rig.deploy("lab-hold");
    std::fs::write(&file, &cluster).unwrap();
    let rig = rig.rebuilt();
    good.is(0, "committed");
    bad.is(1, "refused").because(&["worker", "head", "signature"]);
    assert_eq!(rig.one_release("lab-b"), before + 1);
}

#[test]
#[ignore = "needs the lab"]
fn dead_docker_and_missing_image_are_refused_before_the_old_lane_stops() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let image = rig.sh("worker", "docker inspect --format '{{.Image}}' $(docker ps -q)").trim().to_owned();
    // The running container keeps its image in use; only the name to find it by goes.
    let serving = rig.sh("head", "systemctl show -p MainPID --value sparklane-engine");
    let socket = "/run/docker.sock";
    rig.sh("worker", &format!("mv {socket} /run/docker.gone"));
    let said = rig.deploy("lab-b");
    rig.sh("worker", &format!("mv /run/docker.gone {socket}"));
    said.is(1, "refused").because(&["worker", "image", "docker"]);
    assert_eq!(rig.sh("head", "systemctl show -p MainPID --value sparklane-engine"), serving);
    assert!(image.starts_with("sha256:"), "{image}");
    assert_eq!(rig.one_release("lab-a"), before);
}
