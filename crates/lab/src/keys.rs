//! Keys of one lab: host keys, the operator's key, and the key that signs closures. Made new for every lab.

use camino::{Utf8Path, Utf8PathBuf};

use crate::base;
use crate::error::{Result, Try};
use crate::paths::Paths;
use crate::run::run;
use crate::spec::{NodeSpec, OPERATOR, nodes};

/// Name of the signing key, as in `trusted-public-keys`.
const SIGNING_NAME: &str = "lab-1";

/// Where the keys lie, and the texts made of them.
pub struct Keys {
    dir: Utf8PathBuf,
    known_hosts: String,
    signing_public: String,
}

impl Keys {
    /// Makes all keys. `root` is a Debian root file system with Nix, whose program makes the signing key.
    pub fn make(paths: &Paths, root: &Utf8Path) -> Result<Self> {
        let dir = paths.keys();
        std::fs::create_dir_all(&dir).trying(|| format!("make {dir}"))?;
        rustix::fs::chmod(dir.as_str(), rustix::fs::Mode::from_raw_mode(0o700)).trying(|| format!("chmod {dir}"))?;
        let mut known_hosts = String::new();
        for node in nodes() {
            let public = ssh_key(&dir, &format!("host-{}", node.name), node.name)?;
            let mut names = vec![node.name.to_owned()];
            names.extend(node.networks().iter().map(|n| node.address(*n)));
            if node.serves {
                names.extend(["rail1", "rail2"].map(|r| format!("{}-{r}", node.name)));
            }
            known_hosts += &format!("{} {public}\n", names.join(","));
        }
        ssh_key(&dir, OPERATOR, "operator@control")?;
        Ok(Self { signing_public: signing_key(&dir, root)?, dir, known_hosts })
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = self.dir.join(name);
        std::fs::read_to_string(&path).trying(|| format!("read {path}"))
    }

    /// Writes one machine's keys and what follows from them into its root file system.
    pub fn install(&self, node: NodeSpec, root: &Utf8Path) -> Result<()> {
        let host_key = format!("host-{}", node.name);
        base::write(&root.join("etc/ssh/ssh_host_ed25519_key"), 0o600, &self.read(&host_key)?)?;
        base::write(&root.join("etc/ssh/ssh_host_ed25519_key.pub"), 0o644, &self.read(&format!("{host_key}.pub"))?)?;
        base::write(&root.join("etc/ssh/ssh_known_hosts"), 0o644, &self.known_hosts)?;
        let mut nix = format!(
            "experimental-features = nix-command flakes\nsubstituters =\ntrusted-public-keys = {}\nsandbox = false\n\
             build-users-group = nixbld\ntrusted-users = root\nwarn-dirty = false\n",
            self.signing_public
        );
        if node.serves {
            self.install_login(root)?;
        } else {
            nix += "secret-key-files = /etc/sparklane/signing.key\n";
            base::write(&root.join("etc/sparklane/signing.key"), 0o600, &self.read("signing.key")?)?;
            base::write(&root.join("etc/sparklane/signing.pub"), 0o644, &self.signing_public)?;
            self.install_operator(root)?;
        }
        base::write(&root.join("etc/nix/nix.conf"), 0o644, &nix)
    }

    /// Nodes let the operator in from the control machine.
    fn install_login(&self, root: &Utf8Path) -> Result<()> {
        let public = self.read(&format!("{OPERATOR}.pub"))?;
        let dir = root.join("home").join(OPERATOR).join(".ssh");
        base::write(&dir.join("authorized_keys"), 0o600, &public)?;
        own(root, OPERATOR)
    }

    /// On the control machine root and the operator hold the same key.
    fn install_operator(&self, root: &Utf8Path) -> Result<()> {
        let (private, public) = (self.read(OPERATOR)?, self.read(&format!("{OPERATOR}.pub"))?);
        for home in ["root", "home/operator"] {
            let dir = root.join(home).join(".ssh");
            base::write(&dir.join("id_ed25519"), 0o600, &private)?;
            base::write(&dir.join("id_ed25519.pub"), 0o644, &public)?;
            base::write(&dir.join("config"), 0o600, "Host head worker 10.77.*\n  User operator\n")?;
            rustix::fs::chmod(dir.as_str(), rustix::fs::Mode::from_raw_mode(0o700))
                .trying(|| format!("chmod {dir}"))?;
        }
        own(root, OPERATOR)
    }
}

fn own(root: &Utf8Path, user: &str) -> Result<()> {
    let owner = format!("{user}:{user}");
    let home = format!("/home/{user}/.ssh");
    run(&["chroot", root.as_str(), "chown", "--recursive", &owner, &home])?;
    run(&["chroot", root.as_str(), "chmod", "700", &home]).map(drop)
}

/// Makes an ssh key pair and gives back its public half without the comment.
fn ssh_key(dir: &Utf8Path, name: &str, comment: &str) -> Result<String> {
    let path = dir.join(name);
    run(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path.as_str()])?;
    let public = path.with_file_name(format!("{name}.pub"));
    let text = std::fs::read_to_string(&public).trying(|| format!("read {public}"))?;
    Ok(text.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
}

fn signing_key(dir: &Utf8Path, root: &Utf8Path) -> Result<String> {
    // This host may have no Nix; the program needs /proc and only that.
    let proc = format!("--mount-proc={root}/proc");
    let (secret, public) = ("/root/signing.key", "/root/signing.pub");
    let make = ["nix-store", "--generate-binary-cache-key", SIGNING_NAME, secret, public];
    run(&[&["unshare", "--pid", "--fork", &proc, "chroot", root.as_str()], &make[..]].concat())?;
    let take = |name: &str, mode: u32| -> Result<String> {
        let from = root.join("root").join(name);
        let text = std::fs::read_to_string(&from).trying(|| format!("read {from}"))?;
        base::write(&dir.join(name), mode, &text)?;
        base::remove_file(&from)?;
        Ok(text.trim().to_owned())
    };
    take("signing.key", 0o600)?;
    take("signing.pub", 0o644)
}
