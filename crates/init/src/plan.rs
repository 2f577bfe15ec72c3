//! What each node lacks to pass a deployment's checks, as steps in order. Pure.
//!
//! A deployment needs of a node: an ssh login with a known host key; sudo without a password; `nix`, `nix-daemon`,
//! `nix-env` and `nix-store` where sshd's and sudo's PATH lead; the daemon's socket, and the right to talk to it; trust in
//! the key that signs closures. Nodes need nothing of one another beforehand: the worker's one question to the head has a
//! key of its own, which the deployment itself brings and restricts to `sparklane txn decision`.

use std::time::Duration;

use serde::Serialize;
use sparklane_lane::NodeName;

use crate::machine::{Machine, Nix};
use crate::propose::{Finding, Level, Wanted};

/// Longest time for packages to be fetched and installed.
const INSTALL: Duration = Duration::from_secs(900);
/// Longest time for anything else.
const QUICK: Duration = Duration::from_secs(60);
/// Where ssh and sudo look.
const LINKS: &str = "/usr/local/bin";
/// The group that may talk to the daemon of Debian's and Ubuntu's package.
const DEBIAN_GROUP: &str = "nix-users";

/// One command for a node, as root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Its standard input.
    pub input: String,
    /// Longest time it may take.
    #[serde(skip)]
    pub limit: Duration,
}

fn order(argv: &[&str]) -> Order {
    Order { argv: argv.iter().map(|word| (*word).to_owned()).collect(), input: String::new(), limit: QUICK }
}

/// A change of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Ends what an earlier run of dpkg did not.
    RepairPackages,
    /// Installs Nix from the distribution's own packages.
    InstallNix,
    /// Links programs to where ssh and sudo look: name and target.
    LinkNix(Vec<(String, String)>),
    /// Starts the daemon's socket, now and at every boot.
    StartDaemon,
    /// Lets the user talk to the daemon.
    JoinGroup {
        /// Who.
        user: String,
        /// The group.
        group: String,
    },
    /// Trusts closures that this key has signed.
    TrustKey {
        /// `name:base64`.
        key: String,
    },
}

/// Puts a line below nix.conf and makes the daemon read it, or changes nothing: the new file takes the old one's place at
/// once, and a node that stops before the daemon's restart starts it with the new file.
const TRUST: &str = r#"set -eu
file=$(readlink -f /etc/nix/nix.conf || echo /etc/nix/nix.conf)
mkdir -p "$(dirname "$file")"
new="$file.sparklane"
if [ -e "$file" ]; then cp -p "$file" "$new"; else : > "$new"; chmod 644 "$new"; fi
if [ -s "$new" ] && [ -n "$(tail -c 1 "$new")" ]; then echo >> "$new"; fi
printf 'extra-trusted-public-keys = %s\n' "$1" >> "$new"
mv "$new" "$file"
systemctl try-restart nix-daemon.service"#;

impl Action {
    /// For people: what will be different.
    #[must_use]
    pub fn says(&self) -> String {
        match self {
            Self::RepairPackages => "end what an earlier run of dpkg left: dpkg --configure -a".to_owned(),
            Self::InstallNix => "install Nix from the distribution's packages: nix-bin, nix-setup-systemd".to_owned(),
            Self::LinkNix(links) => {
                let names: Vec<&str> = links.iter().map(|(name, _)| name.as_str()).collect();
                format!("link {} in {LINKS}, where ssh and sudo look", names.join(", "))
            }
            Self::StartDaemon => "start Nix's daemon: systemctl enable --now nix-daemon.socket".to_owned(),
            Self::JoinGroup { user, group } => format!("let {user} talk to Nix's daemon: group {group}"),
            Self::TrustKey { key } => format!("trust closures signed by {key}: /etc/nix/nix.conf"),
        }
    }

    /// The commands, each of which may be repeated.
    #[must_use]
    pub fn orders(&self) -> Vec<Order> {
        let apt = |words: &[&str]| {
            let all =
                ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet=2", "-o", "DPkg::Lock::Timeout=120"];
            Order { limit: INSTALL, ..order(&[&all[..], words].concat()) }
        };
        match self {
            Self::RepairPackages => {
                let argv = ["env", "DEBIAN_FRONTEND=noninteractive", "dpkg", "--configure", "-a"];
                vec![Order { limit: INSTALL, ..order(&argv) }]
            }
            Self::InstallNix => vec![
                apt(&["update"]),
                apt(&["install", "--yes", "--no-install-recommends", "nix-bin", "nix-setup-systemd"]),
            ],
            Self::LinkNix(links) => {
                let link = |(name, target): &(String, String)| {
                    order(&["ln", "--symbolic", "--force", "--no-dereference", target, &format!("{LINKS}/{name}")])
                };
                links.iter().map(link).collect()
            }
            Self::StartDaemon => vec![order(&["systemctl", "enable", "--now", "nix-daemon.socket"])],
            Self::JoinGroup { user, group } => vec![order(&["usermod", "--append", "--groups", group, user])],
            Self::TrustKey { key } => vec![order(&["sh", "-c", TRUST, "sh", key])],
        }
    }
}

/// A change of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The node.
    pub node: NodeName,
    /// The change.
    pub action: Action,
}

/// Changes of nodes, in order, and what no step of ours can mend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Changes.
    pub steps: Vec<Step>,
    /// What stops them.
    pub findings: Vec<Finding>,
}

/// Plans for every node; `key` is the public half of what signs closures, when there is one.
#[must_use]
pub fn plan(nodes: &[(&Wanted, &Machine)], user: &str, key: Option<&str>) -> Plan {
    let mut plan = Plan::default();
    for (wanted, machine) in nodes {
        match actions(machine, user, key) {
            Ok(actions) => {
                let step = |action| Step { node: wanted.name.clone(), action };
                plan.steps.extend(actions.into_iter().map(step));
            }
            Err((what, remedy)) => {
                let node = Some(wanted.name.clone());
                plan.findings.push(Finding { level: Level::Stops, node, what, remedy });
            }
        }
    }
    plan
}

fn actions(machine: &Machine, user: &str, key: Option<&str>) -> Result<Vec<Action>, (String, String)> {
    let nix = &machine.nix;
    let mut actions = Vec::new();
    let installs = needs_packages(nix);
    if installs {
        installable(machine)?;
        if machine.dpkg_interrupted || nix.half {
            actions.push(Action::RepairPackages);
        }
        actions.push(Action::InstallNix);
    } else {
        let link = |(name, place): (&String, &Option<String>)| Some((name.clone(), place.clone()?));
        let links: Vec<(String, String)> = nix.hidden.iter().filter_map(link).collect();
        if !links.is_empty() {
            actions.push(Action::LinkNix(links));
        }
    }
    if installs || !nix.socket {
        actions.push(Action::StartDaemon);
    }
    let group = if installs { Some(DEBIAN_GROUP) } else { nix.group.as_deref() };
    if let Some(group) = group.filter(|group| user != "root" && !machine.groups.iter().any(|own| own == group)) {
        actions.push(Action::JoinGroup { user: user.to_owned(), group: group.to_owned() });
    }
    if let Some(key) = key.filter(|key| !nix.trusted_keys.iter().any(|own| own == key)) {
        actions.push(Action::TrustKey { key: key.to_owned() });
    }
    Ok(actions)
}

/// True when programs are missing that no link can bring, or the daemon, or an installation was cut off.
fn needs_packages(nix: &Nix) -> bool {
    nix.half || nix.hidden.values().any(Option::is_none) || !(nix.unit || nix.socket)
}

fn installable(machine: &Machine) -> Result<(), (String, String)> {
    let debian = machine.distribution.iter().any(|d| d == "debian" || d == "ubuntu");
    if !(debian && machine.apt) {
        let what = format!(
            "lacks Nix or its daemon, and its distribution ({}) is none that init installs it on",
            machine.distribution.join(", ")
        );
        return Err((what, "install Nix there for several users (with its daemon), then run init again".to_owned()));
    }
    let half = machine.nix.hidden.values().flatten().next();
    if let Some(found) = half {
        let missing: Vec<&str> =
            machine.nix.hidden.iter().filter(|(_, place)| place.is_none()).map(|(name, _)| name.as_str()).collect();
        let missing = if missing.is_empty() { "its daemon".to_owned() } else { missing.join(", ") };
        let what = format!("has part of a Nix ({found}) and lacks {missing}");
        return Err((what, "mend or remove that Nix; a package beside it would share its store".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::PROGRAMS;
    use proptest::prelude::*;

    const KEY: &str = "lab-1:abc";

    fn machine() -> impl Strategy<Value = Machine> {
        let place = prop_oneof![Just(None), Just(Some(None)), Just(Some(Some("/opt/nix".to_owned())))];
        let hidden = proptest::collection::vec(place, PROGRAMS.len());
        let group = proptest::option::of(prop_oneof![Just("nix-users".to_owned()), Just("wheel".to_owned())]);
        let groups = proptest::collection::vec(prop_oneof![Just("nix-users".to_owned()), Just("x".to_owned())], 0..2);
        let keys = proptest::collection::vec(prop_oneof![Just(KEY.to_owned()), Just("a:1".to_owned())], 0..2);
        (hidden, any::<[bool; 5]>(), group, groups, keys).prop_map(
            |(hidden, [socket, apt, cut, unit, half], group, groups, keys)| {
                let hidden = PROGRAMS.iter().zip(hidden).filter_map(|(name, place)| Some(((*name).to_owned(), place?)));
                Machine {
                    distribution: vec!["ubuntu".into(), "debian".into()],
                    apt,
                    dpkg_interrupted: cut,
                    groups,
                    nix: Nix { hidden: hidden.collect(), socket, unit, half, group, trusted_keys: keys },
                    ..Machine::default()
                }
            },
        )
    }

    /// What a step makes of a machine.
    fn done(machine: &mut Machine, action: &Action) {
        match action {
            Action::RepairPackages => {
                machine.dpkg_interrupted = false;
                if std::mem::take(&mut machine.nix.half) {
                    machine.nix.group = Some(DEBIAN_GROUP.into());
                }
            }
            Action::InstallNix => {
                (machine.nix.unit, machine.nix.half) = (true, false);
                machine.nix.hidden.clear();
                machine.nix.group = Some(DEBIAN_GROUP.into());
                machine.nix.socket = false;
            }
            Action::LinkNix(links) => machine.nix.hidden.retain(|name, _| !links.iter().any(|(n, _)| n == name)),
            Action::StartDaemon => machine.nix.socket = true,
            Action::JoinGroup { group, .. } => machine.groups.push(group.clone()),
            Action::TrustKey { key } => machine.nix.trusted_keys.push(key.clone()),
        }
    }

    fn steps(machine: &Machine) -> Result<Vec<Action>, (String, String)> {
        actions(machine, "operator", Some(KEY))
    }

    proptest! {
        /// After all steps nothing is left to do; after some of them the rest is, wherever a run was cut off.
        #[test]
        fn a_plan_ends_and_goes_on_where_it_was_cut_off(machine in machine(), cut in 0usize..6) {
            let Ok(all) = steps(&machine) else { return Ok(()) };
            let mut after = machine.clone();
            for action in all.iter().take(cut) {
                done(&mut after, action);
            }
            let rest = steps(&after).unwrap();
            // Mending an installation may have done what the next step would.
            let mut expected = all.get(cut..).unwrap_or_default().iter();
            prop_assert!(rest.iter().all(|action| expected.any(|e| e == action)), "{rest:?} of {all:?}");
            rest.iter().for_each(|action| done(&mut after, action));
            prop_assert_eq!(steps(&after), Ok(vec![]));
        }
    }

    #[test]
    fn the_words_of_a_key_stay_one_argument() {
        let orders = Action::TrustKey { key: "a:b'; reboot".into() }.orders();
        assert_eq!(orders[0].argv.last().map(String::as_str), Some("a:b'; reboot"));
    }

    #[test]
    fn a_key_is_put_below_a_file_that_lacks_its_last_newline() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nix.conf");
        // The same script with the file's name in place of the system's, and no systemd.
        let script = TRUST
            .replace("/etc/nix/nix.conf", file.to_str().unwrap())
            .replace("systemctl try-restart nix-daemon.service", "true");
        let run = || std::process::Command::new("sh").args(["-c", &script, "sh", "k:1"]).status().unwrap();
        assert!(run().success());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "extra-trusted-public-keys = k:1\n");
        std::fs::write(&file, "sandbox = true").unwrap();
        assert!(run().success());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "sandbox = true\nextra-trusted-public-keys = k:1\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
