//! Files and profiles that are not ours, and ours that someone edited.

use crate::support::{NODES, PROFILE, Rig};

const SYSCTL: &str = "/etc/sysctl.d/60-sparklane.conf";
const UNIT: &str = "/etc/systemd/system/sparklane-engine.service";
const DROP_IN: &str = "/etc/systemd/system/multi-user.target.d/50-sparklane.conf";
const TMPFILES: &str = "/etc/tmpfiles.d/60-sparklane.conf";

#[test]
#[ignore = "needs the lab"]
fn files_in_the_way_are_all_listed_and_nothing_is_changed_system_manager_267() {
    let rig = Rig::fresh();
    rig.sh(
        "head",
        &format!(
            "echo theirs > {UNIT}; mkdir -p {TMPFILES}/x; mkdir -p $(dirname {DROP_IN}); ln -s /nowhere {DROP_IN}"
        ),
    );
    rig.sh("worker", &format!("ln -s /etc/hostname {UNIT}; echo theirs > {TMPFILES}"));
    let immutable = rig.try_sh("worker", &format!("chattr +i {TMPFILES}"));
    let look = "find /etc/systemd /etc/tmpfiles.d -newer /etc/machine-id -not -type d -printf '%p %y %l\\n' | sort; cat /etc/systemd/system/sparklane-engine.service";
    let before = NODES.map(|n| rig.sh(n, look));
    let said = rig.deploy("lab-a");
    said.is(1, "refused").because(&[UNIT, TMPFILES, DROP_IN, "head", "--takeover", "by hand"]);
    let said = rig.plain(&["status"]);
    assert_eq!(said.stdout.lines().next(), Some("lab: nothing deployed"));
    assert_eq!(NODES.map(|n| rig.sh(n, look)), before);
    // A folder and an immutable file cannot be put back: not even --takeover moves them.
    rig.app(&["deploy", "lab-a", "--takeover"]).is(1, "refused").because(&[TMPFILES]);
    rig.sh("head", &format!("rm -r {TMPFILES}"));
    if immutable {
        rig.app(&["deploy", "lab-a", "--takeover"]).is(1, "refused").because(&["worker", "immutable"]);
        rig.sh("worker", &format!("chattr -i {TMPFILES}"));
    }
    // A first deployment that fails puts all of them back.
    rig.app(&["deploy", "lab-broken", "--takeover"]).is(3, "rolled-back");
    assert_eq!(rig.sh("head", &format!("cat {UNIT}; readlink {DROP_IN}")), "theirs\n/nowhere\n");
    assert_eq!(rig.sh("worker", &format!("readlink {UNIT}; cat {TMPFILES}")), "/etc/hostname\ntheirs\n");
    rig.app(&["deploy", "lab-a", "--takeover"]).is(0, "committed");
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn file_taken_over_comes_back_when_a_rollback_leaves_it() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    rig.sh(
        "head",
        &format!("printf 'net.core.somaxconn = 4096' > {SYSCTL}; chmod 640 {SYSCTL}; chown operator {SYSCTL}"),
    );
    let stat = format!("stat -c '%a %U %s' {SYSCTL}; sha256sum {SYSCTL}");
    let was = rig.sh("head", &stat);
    // The cluster manages one more file from now on.
    let cluster = rig.lab.root("control").join("root/sparklane/nix/clusters/lab.nix");
    let text = std::fs::read_to_string(&cluster).unwrap();
    let more = text.replace("defaultLane", "host.sysctl.\"net.core.somaxconn\" = \"2048\";\n  defaultLane");
    std::fs::write(&cluster, more).unwrap();
    let rig = rig.rebuilt();
    rig.deploy("lab-a").is(1, "refused").because(&["head", SYSCTL, "--takeover"]);
    assert_eq!(rig.sh("head", &stat), was);
    rig.app(&["deploy", "lab-a", "--takeover"]).is(0, "committed");
    assert!(rig.sh("head", &format!("cat {SYSCTL}")).contains("2048"));
    rig.app(&["rollback", "--to", &before.to_string()]).is(0, "committed");
    assert_eq!(rig.sh("head", &stat), was, "bytes, mode and owner");
    assert!(!rig.try_sh("worker", &format!("test -e {SYSCTL}")));
    rig.sh("head", &format!("rm {SYSCTL}"));
    std::fs::write(&cluster, text).unwrap();
    rig.one_release("lab-a");
}

#[test]
#[ignore = "needs the lab"]
fn hand_edited_file_is_refused_shown_and_kept() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    rig.sh("head", &format!("echo '# mine' >> {TMPFILES}"));
    let edited = rig.sh("head", &format!("sha256sum {TMPFILES}"));
    let status = rig.status();
    assert_eq!(status.json["nodes"][0]["status"]["drift"][0], TMPFILES, "{status:#?}");
    assert!(rig.plain(&["status"]).stdout.contains("edited by hand"));
    rig.deploy("lab-b").is(1, "refused").because(&["head", TMPFILES, "--replace-edited"]);
    assert_eq!(rig.sh("head", &format!("sha256sum {TMPFILES}")), edited);
    // A failing lane puts the edit back.
    rig.app(&["deploy", "lab-broken", "--replace-edited"]).is(3, "rolled-back");
    assert_eq!(rig.sh("head", &format!("sha256sum {TMPFILES}")), edited);
    rig.app(&["deploy", "lab-b", "--replace-edited"]).is(0, "committed");
    let kept = rig.sh("head", &format!("cat /var/lib/sparklane/kept/{}{TMPFILES}", rig.txns("head").pop().unwrap()));
    assert!(kept.contains("# mine"), "{kept}");
    assert_eq!(rig.one_release("lab-b"), before + 1);
}

#[test]
#[ignore = "needs the lab"]
fn profile_that_is_not_ours_is_refused_deploy_rs_86() {
    let rig = Rig::fresh();
    let theirs = rig.sh("worker", "d=$(mktemp -d) && echo theirs > $d/x && nix-store --add $d").trim().to_owned();
    rig.sh("worker", &format!("nix-env -p {PROFILE} --set {theirs}"));
    let said = rig.deploy("lab-a");
    said.is(1, "refused").because(&["worker", &theirs, "not a sparklane generation"]);
    assert_eq!(rig.sh("worker", &format!("readlink -f {PROFILE}")).trim(), theirs);
    rig.sh("worker", &format!("rm {PROFILE} {PROFILE}-*-link"));
    rig.deploy("lab-a").is(0, "committed");
    rig.one_release("lab-a");
}
