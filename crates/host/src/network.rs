//! Makes netplan's files take effect. Whoever renders an interface has to be told: networkd, or NetworkManager, which is
//! what DGX OS sets for all that says nothing else (facts: fabric-real.md section 13).

use std::collections::BTreeSet;

use camino::Utf8Path;

/// Where netplan puts NetworkManager's profiles.
pub const PROFILES: &str = "/run/NetworkManager/system-connections";
/// Where netplan puts networkd's files.
pub const NETWORKD: &str = "/run/systemd/network";
/// NetworkManager's unit.
pub const MANAGER_UNIT: &str = "NetworkManager.service";
/// networkd's unit.
pub const NETWORKD_UNIT: &str = "systemd-networkd.service";

/// What a node's network is made by, after `netplan generate`.
#[derive(Debug, Clone, Default)]
pub struct Rendered {
    /// File names in [`PROFILES`].
    pub profiles: BTreeSet<String>,
    /// File names in [`NETWORKD`].
    pub networkd: BTreeSet<String>,
    /// NetworkManager runs.
    pub manager_runs: bool,
    /// networkd runs.
    pub networkd_runs: bool,
    /// The machine boots: what does not run yet is about to be started, and may wait for us.
    pub booting: bool,
}

/// A program that makes one change take effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The program.
    pub program: &'static str,
    /// Its arguments.
    pub args: Vec<String>,
    /// False where a failure is told and no more: a rail without a cable does not come up, which is for `fabric verify`
    /// and for lanes that ask for the gate of that name.
    pub must: bool,
}

// While a machine boots, a service that is about to run reads its files then.
fn order(program: &'static str, args: &[&str], must: bool) -> Order {
    Order { program, args: args.iter().map(|arg| (*arg).to_owned()).collect(), must }
}

/// What has to be run so that the rails' files count. Each is safe to repeat, as after a crash between two of them.
///
/// A service that does not run is started where a rail is its: netplan's files say that it is to run.
#[must_use]
pub fn orders(rails: &BTreeSet<String>, rendered: &Rendered) -> Vec<Order> {
    let mut all = Vec::new();
    let must = !rendered.booting;
    if rendered.networkd_runs {
        all.push(order("networkctl", &["reload"], must));
    } else if rails.iter().any(|rail| rendered.networkd.contains(&format!("10-netplan-{rail}.network"))) {
        all.push(order("systemctl", &["start", "--no-block", NETWORKD_UNIT], must));
    }
    let of = |rail: &&String| rendered.profiles.contains(&format!("netplan-{rail}.nmconnection"));
    let start = !rendered.manager_runs && !rendered.booting && rails.iter().any(|rail| of(&rail));
    if start {
        all.push(order("systemctl", &["start", MANAGER_UNIT], true));
    }
    if rendered.manager_runs || start {
        // Also for what is gone.
        all.push(order("nmcli", &["connection", "reload"], must));
        let up = |rail| order("nmcli", &["--wait", "20", "connection", "up", "id", &format!("netplan-{rail}")], false);
        all.extend(rails.iter().filter(of).map(up));
    }
    all
}

/// Names of the interfaces in a netplan file of ours.
#[must_use]
pub fn interfaces(text: &str) -> BTreeSet<String> {
    let name = |line: &str| line.strip_prefix("    ")?.strip_suffix(':').map(str::to_owned);
    text.lines().filter_map(name).filter(|name| !name.starts_with(' ')).collect()
}

/// File names in a folder; none when it is not there.
#[must_use]
pub fn names(folder: &Utf8Path) -> BTreeSet<String> {
    let entries = folder.read_dir_utf8().into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn lines(rendered: &Rendered) -> Vec<String> {
        let all = orders(&set(&["r1", "r2"]), rendered);
        all.iter().map(|o| format!("{} {}{}", o.program, o.args.join(" "), if o.must { "" } else { " ?" })).collect()
    }

    #[test]
    fn networkd_alone_is_reloaded_or_started() {
        let mut rendered = Rendered { networkd: set(&["10-netplan-r1.network"]), ..Rendered::default() };
        assert_eq!(lines(&rendered), ["systemctl start --no-block systemd-networkd.service"]);
        rendered.networkd_runs = true;
        assert_eq!(lines(&rendered), ["networkctl reload"]);
    }

    /// A stock DGX OS: networkd is off, the profiles are NetworkManager's, Wi-Fi's among them.
    #[test]
    fn networkmanager_reads_its_profiles_and_brings_only_the_rails_up() {
        let profiles = set(&["netplan-r1.nmconnection", "netplan-r2.nmconnection", "netplan-wlan0-home.nmconnection"]);
        let mut rendered = Rendered { profiles, manager_runs: true, ..Rendered::default() };
        let up = |rail| format!("nmcli --wait 20 connection up id netplan-{rail} ?");
        assert_eq!(lines(&rendered), ["nmcli connection reload".to_owned(), up("r1"), up("r2")]);
        // Taken back, nobody else's file names a rail.
        let profiles = std::mem::replace(&mut rendered.profiles, set(&["netplan-wlan0-home.nmconnection"]));
        assert_eq!(lines(&rendered), ["nmcli connection reload"]);
        rendered.manager_runs = false;
        assert_eq!(lines(&rendered), [""; 0]);
        // Stopped by someone, it is started first; while the machine boots it does not run yet.
        rendered.profiles = profiles;
        assert_eq!(lines(&rendered)[0], "systemctl start NetworkManager.service");
        assert_eq!(lines(&rendered)[1..], ["nmcli connection reload".to_owned(), up("r1"), up("r2")]);
        rendered.booting = true;
        assert_eq!(lines(&rendered), [""; 0]);
        // It may be ending or starting at that moment: nothing that it says then is a failure.
        rendered.manager_runs = true;
        assert!(lines(&rendered).iter().all(|line| line.ends_with(" ?")), "{:?}", lines(&rendered));
    }

    #[test]
    fn the_rails_of_a_file_of_ours_are_known() {
        let text =
            "network:\n  version: 2\n  ethernets:\n    enp1s0f1np1:\n      mtu: 9000\n      link-local: []\n    r2:\n";
        assert_eq!(interfaces(text), set(&["enp1s0f1np1", "r2"]));
        assert_eq!(interfaces(""), set(&[]));
    }
}
