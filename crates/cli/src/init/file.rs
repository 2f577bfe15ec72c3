//! The files of this host: the cluster file, and the key that signs closures.

use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_init::apply::LocalFile;
use sparklane_init::{InitError, Wanted, Wishes, difference, key, nix};
use sparklane_lane::{Cluster, ClusterName, LaneName, NodeName, Role, System};

use super::Args;

/// The folder of this repository's clusters.
const FOLDER: &str = "nix/clusters";

/// The cluster file.
pub struct ClusterFile {
    path: Utf8PathBuf,
    existing: Option<Cluster>,
    shown: Option<String>,
}

impl ClusterFile {
    /// Finds the place, and reads what is there.
    ///
    /// # Errors
    /// When a file is there and is no cluster, or cannot be read without Nix.
    pub fn find(args: &Args) -> Result<Self, InitError> {
        let path = args.file.clone().unwrap_or_else(|| usual_place(args.name.as_ref()));
        let existing = path.exists().then(|| read(&path)).transpose()?;
        Ok(Self { path, existing, shown: None })
    }

    /// Where it is.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// What is to be known beside the plan's lines: the new file, or what differs in the old one.
    pub fn shown(&self) -> Option<&str> {
        self.shown.as_deref()
    }

    /// What the operator wants, and the signing key's file when it must be made first.
    ///
    /// # Errors
    /// When a name is taken twice, or the key cannot be read or made.
    pub fn wishes(&self, args: &Args) -> Result<(Wishes, Option<LocalFile>), InitError> {
        let existing = self.existing.as_ref();
        let name = match (&args.name, existing) {
            (Some(name), _) => name.clone(),
            (None, Some(cluster)) => cluster.name.clone(),
            (None, None) => id("home")?,
        };
        if let Some(other) = existing.filter(|cluster| cluster.name != name) {
            let (path, other) = (&self.path, &other.name);
            return Err(InitError::Usage(format!("{path} holds cluster {other}, not {name}; name another --file")));
        }
        let user = args.ssh_user.clone().or_else(|| existing.map(|c| c.ssh.user.clone())).unwrap_or_else(caller);
        let (trusted_key, made) = signing_key(&args.signing_key, &name)?;
        let wishes = Wishes {
            name,
            user,
            ssh_opts: match existing {
                Some(cluster) if args.ssh_opts.is_empty() => cluster.ssh.opts.clone(),
                _ => args.ssh_opts.clone(),
            },
            nodes: nodes(&args.hosts, existing)?,
            lane: args.lane.clone(),
            usual: [id::<LaneName>("ray-0731")?, id::<LaneName>("lab-a")?],
            rails: args.rails.clone().or_else(|| existing.and_then(rails_of)),
            build_system: own_system()?,
            trusted_key: Some(trusted_key),
            existing: self.existing.clone(),
        };
        Ok((wishes, made))
    }

    /// The change of the file, when it is one.
    pub fn task(&mut self, cluster: &Cluster) -> Option<LocalFile> {
        let text = nix::file(cluster);
        let says = match &self.existing {
            Some(old) if old == cluster => return None,
            Some(old) => {
                let lines = difference::lines(&nix::plain(old), &nix::plain(cluster));
                let all: String = lines.iter().map(|line| format!("       {line}\n")).collect();
                self.shown = Some(format!("{}:\n{all}", self.path));
                format!("rewrite {} ({} keys differ; comments in it are lost)", self.path, lines.len())
            }
            None => {
                self.shown = Some(format!("{}:\n{text}", self.path));
                format!("write {}", self.path)
            }
        };
        Some(LocalFile { path: self.path.clone(), text, mode: 0o644, says })
    }

    /// What comes next, for people.
    pub fn next(&self, wishes: &Wishes) -> String {
        format!(
            "next: git add {} (a flake sees only what git knows), then nix run .#plan -- --cluster {}, \
             nix run .#deploy -- --cluster {}\n",
            self.path, wishes.name, wishes.name
        )
    }
}

fn usual_place(name: Option<&ClusterName>) -> Utf8PathBuf {
    let folder = Utf8Path::new(FOLDER);
    if folder.is_dir() {
        return folder.join(format!("{}.nix", name.map_or("home", ClusterName::as_str)));
    }
    "cluster.nix".into()
}

/// Reads a cluster file with Nix, which evaluates nothing but that file.
fn read(path: &Utf8Path) -> Result<Cluster, InitError> {
    let refused = |why: String| InitError::Refused(format!("{path}: {why}"));
    let full = path.canonicalize_utf8().map_err(|e| refused(e.to_string()))?;
    let mut command = Command::new("nix-instantiate");
    command.args(["--eval", "--strict", "--json", full.as_str()]).stdin(Stdio::null());
    let output = command.output().map_err(|e| {
        refused(format!("is there already, and only Nix can read it: nix-instantiate cannot be started ({e}). This host deploys, so it needs Nix: packages nix-bin and nix-setup-systemd"))
    })?;
    if !output.status.success() {
        return Err(refused(format!(
            "is there already, and Nix says: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|e| refused(format!("is there already and is no cluster file ({e}); name another --file")))
}

/// The public half of the key that signs, and its file when it is to be made.
fn signing_key(path: &Utf8Path, cluster: &ClusterName) -> Result<(String, Option<LocalFile>), InitError> {
    let refused = |why: String| InitError::Refused(format!("{path}: {why}"));
    match std::fs::read_to_string(path) {
        Ok(secret) => {
            let public = key::public(&secret).ok_or_else(|| refused("is no secret key of Nix (name:base64)".into()))?;
            Ok((public, None))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let mut seed = [0u8; 32];
            rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
                .map_err(|e| refused(format!("no randomness: {e}")))?;
            let made = key::make(&format!("{cluster}-1"), &seed).ok_or_else(|| refused("cannot be made".into()))?;
            let public = key::public(&made).ok_or_else(|| refused("cannot be made".into()))?;
            let says = format!("make the key that signs closures: {path}");
            Ok((public, Some(LocalFile { path: path.to_owned(), text: made, mode: 0o600, says })))
        }
        Err(error) => Err(refused(format!("{error}. Run as who may read it, or name another: --signing-key FILE"))),
    }
}

/// As the file that is there calls them; else `head`, then `worker`, or `worker1`, `worker2`, … when there are more.
fn nodes(hosts: &[String], existing: Option<&Cluster>) -> Result<Vec<Wanted>, InitError> {
    let called =
        |rank: u32| existing.and_then(|c| c.nodes.iter().find(|(_, node)| node.rank == rank)).map(|n| n.0.clone());
    if let Some(twice) = hosts.iter().enumerate().find(|(n, host)| hosts.iter().take(*n).any(|h| h == *host)) {
        return Err(InitError::Usage(format!("{} is named twice", twice.1)));
    }
    let one = |(rank, host): (u32, &String)| {
        let (role, name) = match (rank, hosts.len()) {
            (0, _) => (Role::Head, "head".to_owned()),
            (_, 2) => (Role::Worker, "worker".to_owned()),
            (n, _) => (Role::Worker, format!("worker{n}")),
        };
        let name = called(rank).map_or_else(|| id::<NodeName>(&name), Ok)?;
        Ok(Wanted { name, role, rank, host: host.clone() })
    };
    (0u32..).zip(hosts).map(one).collect()
}

/// The netdevs that a file names, when they are the same on all nodes: they are not guessed anew.
fn rails_of(cluster: &Cluster) -> Option<[String; 2]> {
    let mut all = cluster.nodes.values().map(|node| [node.rail1.netdev.clone(), node.rail2.netdev.clone()]);
    let first = all.next()?;
    // Where a NIC gives the rails they are looked for: the cable may be in the other cage by now.
    let named = cluster.nodes.values().all(|node| node.rail1.rdma.is_none());
    (named && all.all(|other| other == first)).then_some(first)
}

fn own_system() -> Result<System, InitError> {
    let all = [System::Aarch64Linux, System::X86_64Linux];
    let own = all.into_iter().find(|s| s.uname_machine() == std::env::consts::ARCH);
    own.ok_or_else(|| InitError::Refused("this host's system builds no lanes; use an x86-64 or aarch64 machine".into()))
}

fn caller() -> String {
    std::env::var("SUDO_USER").or_else(|_| std::env::var("USER")).unwrap_or_else(|_| "root".into())
}

fn id<T: std::str::FromStr>(text: &str) -> Result<T, InitError>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e: T::Err| InitError::Usage(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_keep_the_names_of_the_file_that_is_there() {
        let hosts = ["a".to_owned(), "b".to_owned()];
        let names = |existing: Option<&Cluster>| {
            nodes(&hosts, existing).unwrap().into_iter().map(|n| n.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(None), ["head", "worker"]);
        let rail = |address: &str| serde_json::json!({ "netdev": "rail1", "address": address, "prefix": 24 });
        let node = |role: &str, rank: u32| {
            serde_json::json!({ "role": role, "rank": rank, "system": "aarch64-linux", "host": "h",
                "rail1": rail("10.0.1.1"), "rail2": rail("10.0.2.1") })
        };
        let file = serde_json::json!({ "name": "home", "description": "d", "defaultLane": "x", "buildSystem": "x86_64-linux",
            "ssh": { "user": "u" }, "nodes": { "spark-b": node("worker", 1), "spark-a": node("head", 0) } });
        let cluster: Cluster = serde_json::from_value(file).unwrap();
        assert_eq!(names(Some(&cluster)), ["spark-a", "spark-b"]);
    }
}
