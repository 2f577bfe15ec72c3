//! What a deployment needs of a machine before it has anything of ours: Nix, its daemon's door, its trusted keys, the
//! user's groups. Read from files alone, so that a recorded tree is read as the machine itself.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use serde::{Deserialize, Serialize};
use sparklane_fabric::facts::{NodeFacts, Root};
use sparklane_lane::System;

/// A node's answer to `sparklane node survey`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Survey {
    /// Netdevs, RDMA devices, addresses, software, docker.
    pub facts: NodeFacts,
    /// What a deployment needs.
    pub machine: Machine,
}

/// What a deployment needs of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Machine {
    /// Its name.
    pub hostname: String,
    /// Its system; `None` for one that lanes cannot run on.
    pub system: Option<System>,
    /// `ID` and `ID_LIKE` of its distribution.
    pub distribution: Vec<String>,
    /// True when `apt-get` is there.
    pub apt: bool,
    /// True when an earlier run of dpkg was cut off.
    pub dpkg_interrupted: bool,
    /// Groups of the user that deploys.
    pub groups: Vec<String>,
    /// Nix.
    pub nix: Nix,
    /// Public host keys, `type base64`.
    pub host_keys: Vec<String>,
    /// Free bytes below a folder.
    pub free: BTreeMap<String, u64>,
    /// True when processes may raise their limits (CAP_SYS_RESOURCE).
    pub sys_resource: bool,
}

/// Nix as deployments meet it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Nix {
    /// Programs that neither ssh nor sudo would find, and where they are, when they are.
    pub hidden: BTreeMap<String, Option<String>>,
    /// True when the daemon's socket is there.
    pub socket: bool,
    /// True when systemd has a unit for that socket.
    pub unit: bool,
    /// True when Debian's packages of it are unpacked and not configured: their installation was cut off.
    pub half: bool,
    /// The group that alone may talk to the daemon; `None` when everybody may.
    pub group: Option<String>,
    /// Keys that the daemon trusts.
    pub trusted_keys: Vec<String>,
}

/// Programs that a deployment runs on a node: `nix copy` starts `nix-daemon`, the node's own tool the others.
pub const PROGRAMS: [&str; 4] = ["nix", "nix-daemon", "nix-env", "nix-store"];
/// Folders in which both sshd's PATH and sudo's `secure_path` look, on Debian and Ubuntu as they come.
const SEEN: [&str; 3] = ["usr/local/bin", "usr/bin", "bin"];
/// Where installers of Nix put programs that no PATH of ours leads to.
const ELSEWHERE: [&str; 3] = ["nix/var/nix/profiles/default/bin", "root/.nix-profile/bin", "run/current-system/sw/bin"];
/// The daemon's door.
const DOOR: &str = "nix/var/nix/daemon-socket";
/// The unit of that door.
const UNIT: &str = "nix-daemon.socket";
/// Where units lie.
const UNITS: [&str; 4] =
    ["etc/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];
/// CAP_SYS_RESOURCE (linux/capability.h).
const SYS_RESOURCE: u32 = 24;
/// Files that one configuration may include one below the other.
const DEEPEST: u8 = 4;

impl Nix {
    /// True when no program of Nix is anywhere.
    #[must_use]
    pub fn absent(&self) -> bool {
        self.hidden.len() == PROGRAMS.len() && self.hidden.values().all(Option::is_none)
    }
}

/// Reads a machine; `user` is who deploys.
#[must_use]
pub fn read(root: &Root, user: &str) -> Machine {
    let release = root.text("etc/os-release").unwrap_or_default();
    let free = |path: &'static str| Some((path.to_owned(), free_below(root, path)?));
    Machine {
        hostname: root.text("proc/sys/kernel/hostname").unwrap_or_default(),
        system: system(),
        distribution: ["ID=", "ID_LIKE="].iter().flat_map(|key| words(&release, key)).collect(),
        apt: root.path("usr/bin/apt-get").exists(),
        dpkg_interrupted: !root.list("var/lib/dpkg/updates").is_empty(),
        groups: groups(root, user),
        nix: nix(root),
        host_keys: host_keys(root),
        free: ["/", "/var/lib", "/nix"].into_iter().filter_map(free).collect(),
        sys_resource: sys_resource(&root.text("proc/self/status").unwrap_or_default()),
    }
}

/// The system that this program was built for, which is the one it runs on.
fn system() -> Option<System> {
    [System::Aarch64Linux, System::X86_64Linux].into_iter().find(|s| s.uname_machine() == std::env::consts::ARCH)
}

/// Words of a line `KEY="a b"` of os-release.
fn words(release: &str, key: &str) -> Vec<String> {
    let line = release.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_default();
    line.trim_matches(['"', '\'']).split_whitespace().map(str::to_owned).collect()
}

/// Free bytes of the nearest folder above that exists.
fn free_below(root: &Root, path: &str) -> Option<u64> {
    let at = root.path(path);
    let there = at.ancestors().find(|dir| dir.is_dir())?;
    let stat = rustix::fs::statvfs(there.as_str()).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// The user's groups, from the files: a static binary has no NSS (design.md section 10).
fn groups(root: &Root, user: &str) -> Vec<String> {
    let passwd = root.text("etc/passwd").unwrap_or_default();
    let own = passwd.lines().map(|l| l.split(':').collect::<Vec<_>>()).find(|f| f.first() == Some(&user));
    let primary = own.and_then(|f| f.get(3).map(|gid| (*gid).to_owned()));
    let text = root.text("etc/group").unwrap_or_default();
    let fields = text.lines().map(|l| l.split(':').collect::<Vec<_>>()).filter(|f| f.len() >= 4);
    let in_it = |f: &Vec<&str>| primary.as_deref() == Some(f[2]) || f[3].split(',').any(|member| member == user);
    fields.filter(in_it).map(|f| f[0].to_owned()).collect()
}

fn nix(root: &Root) -> Nix {
    let is = |path: &str| root.path(path).is_file();
    let hidden = PROGRAMS.into_iter().filter(|name| !SEEN.iter().any(|dir| is(&format!("{dir}/{name}"))));
    let place = |name: &str| ELSEWHERE.iter().map(|dir| format!("{dir}/{name}")).find(|path| is(path));
    let door = std::fs::metadata(root.path(DOOR)).ok();
    Nix {
        hidden: hidden.map(|name| (name.to_owned(), place(name).map(|path| format!("/{path}")))).collect(),
        socket: root.path(DOOR).join("socket").exists(),
        unit: UNITS.iter().any(|dir| root.path(dir).join(UNIT).exists()),
        half: half_installed(&root.text("var/lib/dpkg/status").unwrap_or_default()),
        group: door.filter(|d| d.mode() & 0o001 == 0).and_then(|d| group_name(root, d.gid())),
        trusted_keys: trusted_keys(root),
    }
}

/// True when dpkg has begun with one of Nix's packages and not ended (dpkg(1), package states).
fn half_installed(status: &str) -> bool {
    let ours = |stanza: &&str| ["nix-bin", "nix-setup-systemd"].iter().any(|p| field(stanza, "Package") == Some(p));
    let begun = |stanza: &str| {
        let state = field(stanza, "Status").and_then(|words| words.split_whitespace().last());
        state.is_some_and(|state| ["half-installed", "unpacked", "half-configured"].contains(&state))
    };
    status.split("\n\n").filter(ours).any(begun)
}

fn field<'a>(stanza: &'a str, name: &str) -> Option<&'a str> {
    let value = stanza.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim())
}

fn group_name(root: &Root, gid: u32) -> Option<String> {
    let text = root.text("etc/group")?;
    let gid = gid.to_string();
    let mut fields = text.lines().map(|l| l.split(':').collect::<Vec<_>>());
    fields.find(|f| f.get(2) == Some(&gid.as_str())).and_then(|f| f.first().map(|name| (*name).to_owned()))
}

fn trusted_keys(root: &Root) -> Vec<String> {
    let (mut keys, mut extra) = (Vec::new(), Vec::new());
    settings(root, "etc/nix/nix.conf", 0, &mut |key, value| {
        let value = || value.split_whitespace().map(str::to_owned);
        match key {
            "trusted-public-keys" | "binary-cache-public-keys" => keys = value().collect(),
            "extra-trusted-public-keys" => extra.extend(value()),
            _ => {}
        }
    });
    keys.extend(extra);
    keys
}

/// Every setting of a file and of those that it includes, in order; the last one of a name counts.
fn settings(root: &Root, path: &str, depth: u8, take: &mut impl FnMut(&str, &str)) {
    for line in root.text(path).unwrap_or_default().lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let included = line.strip_prefix("include ").or_else(|| line.strip_prefix("!include "));
        if let Some(file) = included.map(str::trim).filter(|_| depth < DEEPEST) {
            let below = if file.starts_with('/') { file.to_owned() } else { format!("etc/nix/{file}") };
            settings(root, &below, depth + 1, take);
        } else if let Some((key, value)) = line.split_once('=') {
            take(key.trim(), value.trim());
        }
    }
}

fn host_keys(root: &Root) -> Vec<String> {
    let names = root.list("etc/ssh").into_iter();
    let names = names.filter(|n| n.starts_with("ssh_host_") && n.ends_with("_key.pub"));
    let key = |name: String| {
        let text = root.text(&format!("etc/ssh/{name}"))?;
        let words: Vec<&str> = text.split_whitespace().take(2).collect();
        (words.len() == 2).then(|| words.join(" "))
    };
    names.filter_map(key).collect()
}

fn sys_resource(status: &str) -> bool {
    let caps = status.lines().find_map(|l| l.strip_prefix("CapEff:")).map(str::trim);
    caps.and_then(|hex| u64::from_str_radix(hex, 16).ok()).is_some_and(|bits| bits >> SYS_RESOURCE & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use camino::Utf8Path;
    use proptest::prelude::*;

    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let base = Utf8Path::from_path(dir.path()).unwrap().to_owned();
        for (path, text) in files {
            std::fs::create_dir_all(base.join(path).parent().unwrap()).unwrap();
            std::fs::write(base.join(path), text).unwrap();
        }
        (dir, Root::new(base))
    }

    #[test]
    fn a_machine_without_nix_says_so() {
        let (_dir, root) = tree(&[
            ("etc/os-release", "ID=ubuntu\nID_LIKE=\"debian\"\n"),
            ("usr/bin/apt-get", ""),
            ("etc/passwd", "op:x:1000:37::/home/op:/bin/sh\n"),
            ("etc/group", "operator:x:37:\ndocker:x:99:a,op\nsudo:x:27:open\n"),
            ("etc/ssh/ssh_host_ed25519_key.pub", "ssh-ed25519 AAAA root@x\n"),
            ("etc/ssh/ssh_host_ed25519_key", "secret"),
        ]);
        let machine = read(&root, "op");
        assert!(machine.nix.absent() && machine.apt && !machine.dpkg_interrupted && !machine.nix.socket);
        assert_eq!(machine.distribution, ["ubuntu", "debian"]);
        assert_eq!(machine.groups, ["operator", "docker"]);
        assert_eq!(machine.host_keys, ["ssh-ed25519 AAAA"]);
    }

    #[test]
    fn an_installers_nix_is_found_where_ssh_does_not_look() {
        let (_dir, root) = tree(&[
            ("nix/var/nix/profiles/default/bin/nix", ""),
            ("nix/var/nix/profiles/default/bin/nix-store", ""),
            ("usr/local/bin/nix-store", ""),
            ("nix/var/nix/daemon-socket/socket", ""),
            ("var/lib/dpkg/updates/0001", ""),
            ("usr/lib/systemd/system/nix-daemon.socket", ""),
        ]);
        let machine = read(&root, "op");
        let nix = "/nix/var/nix/profiles/default/bin/nix".to_owned();
        assert_eq!(machine.nix.hidden.get("nix"), Some(&Some(nix)));
        assert_eq!(machine.nix.hidden.keys().collect::<Vec<_>>(), ["nix", "nix-daemon", "nix-env"]);
        assert!(machine.nix.socket && machine.nix.unit && !machine.nix.absent() && machine.dpkg_interrupted);
        assert_eq!(machine.nix.group, None);
    }

    #[test]
    fn an_installation_that_was_cut_off_is_seen() {
        let status = |state: &str| {
            format!(
                "Package: apt\nStatus: install ok installed\n\nPackage: nix-bin\nStatus: install ok {state}\nVersion: 1\n"
            )
        };
        assert!(half_installed(&status("unpacked")) && half_installed(&status("half-configured")));
        assert!(!half_installed(&status("installed")) && !half_installed("Package: x\nStatus: install ok unpacked"));
    }

    #[test]
    fn the_last_setting_counts_and_extra_ones_are_added() {
        let (_dir, root) = tree(&[
            (
                "etc/nix/nix.conf",
                "trusted-public-keys = a:1\n# trusted-public-keys = no:1\ntrusted-public-keys = b:2 c:3 # d:4\n\
                 !include nix.custom.conf\ninclude nix.conf\n",
            ),
            ("etc/nix/nix.custom.conf", "extra-trusted-public-keys = e:5"),
        ]);
        let keys = read(&root, "op").nix.trusted_keys;
        assert_eq!(keys[..3], ["b:2", "c:3", "e:5"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn odd_files_never_panic(text in "\\PC{0,80}(\n\\PC{0,40}){0,4}") {
            let (_dir, root) = tree(&[
                ("etc/os-release", &text), ("etc/passwd", &text), ("etc/group", &text), ("etc/nix/nix.conf", &text),
                ("etc/ssh/ssh_host_x_key.pub", &text), ("proc/self/status", &text),
                ("var/lib/dpkg/status", &text),
            ]);
            let _machine = read(&root, &text);
        }
    }
}
