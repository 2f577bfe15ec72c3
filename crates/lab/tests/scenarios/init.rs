//! `sparklane init` on machines without Nix: the distribution's real package manager, real sudo, real host keys.
//!
//! The machines of a lab have no way to a mirror. So each packs the Nix packages that it has (the very files and
//! maintainer scripts of Debian's packages) into a repository of its own before they are purged: what is installed then
//! is installed by apt-get from there.

use std::time::Duration;

use serde_json::Value;

use crate::support::{NODES, Rig, Said};

/// Packs Debian's packages anew, makes them the only ones that apt knows, and takes Nix away with all that it left.
const BARE: &str = r#"set -e
for p in nix-bin nix-setup-systemd; do
  d=/var/tmp/pack/$p; mkdir -p $d/DEBIAN
  dpkg -L $p | while read -r f; do
    if [ -d "$f" ] && [ ! -L "$f" ]; then mkdir -p "$d$f"
    elif [ -e "$f" ] || [ -L "$f" ]; then mkdir -p "$d$(dirname "$f")"; cp -a "$f" "$d$f"; fi
  done
  for s in preinst postinst prerm postrm conffiles triggers; do
    if [ -e /var/lib/dpkg/info/$p.$s ]; then cp /var/lib/dpkg/info/$p.$s $d/DEBIAN/$s; fi
  done
  dpkg-query -s $p | grep -v '^Status:' | sed '/^Conffiles:/d;/^ \/etc/d' > $d/DEBIAN/control
done
# Not what the lab wrote into it.
printf 'build-users-group = nixbld\nsandbox = false\n' > /var/tmp/pack/nix-setup-systemd/etc/nix/nix.conf
mkdir -p /srv/repo; cd /srv/repo
for p in nix-bin nix-setup-systemd; do dpkg-deb --root-owner-group -Znone --build /var/tmp/pack/$p $p.deb; done
for f in *.deb; do
  dpkg-deb --field $f; echo "Filename: ./$f"; echo "Size: $(stat -c %s $f)"
  echo "SHA256: $(sha256sum $f | cut -d' ' -f1)"; echo
done > Packages
rm -rf /etc/apt/sources.list.d/* /var/lib/apt/lists/* /var/tmp/pack
echo 'deb [trusted=yes] file:/srv/repo ./' > /etc/apt/sources.list
systemctl stop nix-daemon.socket nix-daemon.service
dpkg --purge nix-setup-systemd nix-bin
gpasswd --delete operator nix-users || true
groupdel nix-users || true
rm -rf /nix/* /etc/nix
! command -v nix nix-store nix-daemon"#;

/// What init could leave or change on a node; the same words before and after mean that it did not.
const STATE: &str = "dpkg-query -W | sha256sum; id operator; ls -A /nix /etc/nix /usr/local/bin 2>&1; \
    ls -A /var/tmp | grep init; \
    cat /etc/nix/nix.conf 2>&1; systemctl is-enabled nix-daemon.socket 2>&1; true";

const FILE: &str = "/root/sparklane/nix/clusters/made.nix";

fn init(rig: &Rig, more: &[&str]) -> Said {
    let program = format!("{}/sparklane", rig.bin);
    let line = ["init", "10.77.0.10", "10.77.0.11", "--name", "made", "--rails", "rail1,rail2", "--json"];
    let line = [&[program.as_str()], &line[..], &["--file", FILE, "--ssh-user", "operator"], more].concat();
    rig.run(&line.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>(), "").wait()
}

fn states(rig: &Rig) -> [String; 2] {
    NODES.map(|node| rig.sh(node, STATE))
}

fn steps(said: &Said) -> Vec<String> {
    let rows = said.json["steps"].as_array().unwrap_or_else(|| panic!("{said:#?}"));
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or("here").to_owned();
    rows.iter().map(|row| format!("{} {}", text(row, "node"), text(row, "what"))).collect()
}

/// A cluster file of the control machine as data, as the flake sees it.
fn evaluated(rig: &Rig, name: &str) -> Value {
    let path = format!("/root/sparklane/nix/clusters/{name}.nix");
    serde_json::from_str(&rig.sh("control", &format!("nix-instantiate --eval --strict --json {path}"))).unwrap()
}

/// Undoes what a scenario did to the control machine, also when it fails.
struct Mended<'a>(&'a Rig, &'a str, &'a str);

impl Drop for Mended<'_> {
    fn drop(&mut self) {
        self.0.try_sh(self.1, self.2);
    }
}

#[test]
#[ignore = "needs the lab"]
fn two_machines_without_nix_become_a_cluster_that_serves() {
    let mut rig = Rig::fresh();
    let old = rig.bin.clone();
    for node in NODES {
        rig.sh(node, BARE);
    }
    let before = states(&rig);

    // Nobody to ask: nothing happens.
    init(&rig, &[]).is(1, "refused").because(&["no terminal to ask at", "--yes"]);
    let planned = init(&rig, &["--dry-run"]);
    planned.is(0, "planned");
    let expected = |node: &str| {
        ["install Nix", "start Nix's daemon", "let operator talk", "trust closures signed by lab-1:"]
            .map(|s| format!("{node} {s}"))
    };
    let all: Vec<String> = NODES.iter().flat_map(|node| expected(node)).chain([format!("here write {FILE}")]).collect();
    let found = steps(&planned);
    assert!(found.len() == all.len() && found.iter().zip(&all).all(|(f, a)| f.starts_with(a.as_str())), "{found:#?}");
    assert_eq!(states(&rig), before);
    assert!(!rig.try_sh("control", &format!("test -e {FILE}")));

    // Cut off while the head has Nix and the worker does not.
    let program = format!("{old}/sparklane");
    let line =
        [program.as_str(), "init", "10.77.0.10", "10.77.0.11", "--name", "made", "--rails", "rail1,rail2", "--yes"];
    let line = [&line[..], &["--json", "--file", FILE, "--ssh-user", "operator"]].concat();
    let client = rig.run(&line.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>(), "");
    rig.until("the head has Nix", 120, || rig.try_sh("head", "test -x /usr/bin/nix-store"));
    rig.kill_client_and_ssh(&client);
    rig.until("no package manager runs", 120, || {
        NODES.iter().all(|node| rig.try_sh(node, "! pgrep -x 'apt-get|dpkg'"))
    });
    assert!(!rig.try_sh("control", &format!("test -e {FILE}")));

    // The same command goes on from there, and once more there is nothing to do.
    let said = init(&rig, &["--yes"]);
    said.is(0, "done");
    eprintln!("init of two bare machines, the rest of it: {:?}", said.took);
    let after = states(&rig);
    let again = init(&rig, &[]);
    again.is(0, "unchanged");
    assert_eq!(steps(&again), Vec::<String>::new());
    assert_eq!(states(&rig), after);
    eprintln!("init of two machines with nothing to do: {:?}", again.took);
    for node in NODES {
        // Nothing of the program that asked is left, and ssh and sudo find Nix.
        assert_eq!(rig.sh(node, "find /var/tmp /run -maxdepth 1 -name 'sparklane-init*'"), "", "{node}");
        let ask = format!("ssh -o BatchMode=yes operator@{node} 'nix --version && sudo -n nix-store --version'");
        assert!(rig.try_sh("control", &ask), "{node}");
    }

    // The file is the lab's own, but for its names and what only init records.
    let (mut made, lab) = (evaluated(&rig, "made"), evaluated(&rig, "lab"));
    assert_eq!(made["trustedKey"], rig.sh("control", "cat /etc/sparklane/signing.pub").trim());
    for node in NODES {
        let key = rig.sh(node, "cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub");
        assert_eq!(made["nodes"][node]["hostKeys"], serde_json::json!([key.trim()]), "{node}");
        made["nodes"][node].as_object_mut().unwrap().remove("hostKeys");
    }
    for (key, value) in [("name", &lab["name"]), ("description", &lab["description"]), ("trustedKey", &Value::Null)] {
        made[key] = value.clone();
    }
    made.as_object_mut().unwrap().retain(|_, v| !v.is_null());
    assert_eq!(made, lab);

    // A deployment passes every check with it, and no other host key than the recorded ones is believed.
    rig = rig.rebuilt();
    let app = |name: &str, words: &[&str]| {
        let program = format!("{}/{name}", rig.bin);
        let line = [&[program.as_str()], words, &["--cluster", "made", "--json"]].concat();
        rig.run(&line.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>(), "").wait()
    };
    {
        let hide = "mv /etc/ssh/ssh_known_hosts /etc/ssh/hidden";
        let _shown = Mended(&rig, "control", "mv /etc/ssh/hidden /etc/ssh/ssh_known_hosts");
        rig.sh("control", hide);
        app("deploy", &["lab-a"]).is(0, "committed");
        assert!(rig.tokens() > 0);
    }
    app("sparklane", &["fabric", "verify"]);
    assert_eq!(app("status", &[]).code, 0);
    rig.sh("control", &format!("rm {FILE}"));
}

#[test]
#[ignore = "needs the lab"]
fn what_keeps_init_from_a_node_is_told_within_seconds_and_changes_nothing() {
    let rig = Rig::on_a();
    let before = states(&rig);
    let quick = |said: &Said| assert!(said.took < Duration::from_secs(30), "{said:#?}");

    // No sudo without a password: the line to add.
    {
        let _mended = Mended(&rig, "worker", "mv /root/operator.sudoers /etc/sudoers.d/operator");
        rig.sh("worker", "mv /etc/sudoers.d/operator /root/operator.sudoers");
        let said = init(&rig, &["--yes"]);
        said.is(1, "refused").because(&["worker: ", "operator ALL=(ALL:ALL) NOPASSWD: ALL", "/etc/sudoers.d/"]);
        quick(&said);
    }

    // Another host key than the known one is never believed, an unknown one only when it is said.
    let key = rig.sh("worker", "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub | cut -d' ' -f2");
    let key = key.trim();
    {
        let file = "/etc/ssh/ssh_known_hosts";
        let _mended = Mended(&rig, "control", "mv /root/known_hosts /etc/ssh/ssh_known_hosts");
        rig.sh("control", &format!("cp {file} /root/known_hosts"));
        let swap = format!(
            "sed -i \"s|^worker,.*|$(grep ^worker, {file} | cut -d' ' -f1) $(grep ^head, {file} | cut -d' ' -f2-)|\" {file}"
        );
        rig.sh("control", &swap);
        let said = init(&rig, &["--yes", "--accept-host-keys"]);
        said.is(1, "refused").because(&["worker: ", "another host key", "ssh-keygen -R 10.77.0.11"]);
        quick(&said);
        rig.sh("control", &format!("sed -i '/^worker,/d' {file}"));
        init(&rig, &["--yes"]).is(1, "refused").because(&["worker: ", "is not known here", key, "--host-key"]);
        let wrong = format!("10.77.0.11=SHA256:{}", "x".repeat(43));
        init(&rig, &["--yes", "--host-key", &wrong]).is(1, "refused").because(&["worker: ", "not SHA256:xxx"]);
        let right = format!("10.77.0.11={key}");
        init(&rig, &["--dry-run", "--host-key", &right]).is(0, "planned");
        init(&rig, &["--dry-run", "--accept-host-keys"]).is(0, "planned");
    }

    // Off.
    {
        let _on = Mended(&rig, "worker", "true");
        rig.lab.cut("worker:mgmt").unwrap();
        let said = init(&rig, &["--yes"]);
        rig.lab.heal("worker:mgmt").unwrap();
        said.is(1, "refused").because(&["worker: ", "Is it on"]);
        quick(&said);
    }

    // No such netdev, one machine twice.
    let program = format!("{}/sparklane", rig.bin);
    let direct = |words: &[&str]| {
        let line = [&[program.as_str(), "init", "--json", "--ssh-user", "operator", "--file", FILE], words].concat();
        rig.run(&line.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>(), "").wait()
    };
    direct(&["10.77.0.10", "10.77.0.11"]).is(1, "refused").because(&["no rails to find", "--rails"]);
    direct(&["10.77.0.10", "10.77.0.11", "--rails", "rail1,rail9"])
        .is(1, "refused")
        .because(&["no netdev rail9", "rail2"]);
    direct(&["10.77.0.10", "10.77.0.10", "--rails", "rail1,rail2"]).is(2, "usage");
    assert_eq!(states(&rig), before);
    assert!(!rig.try_sh("control", &format!("test -e {FILE}")));
}
