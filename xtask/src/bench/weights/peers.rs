//! The other ways to move the same files.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use miette::{IntoDiagnostic, bail, miette};

use super::rails::{Pair, Space, address, run};

/// Files of ssh and rsync.
#[derive(Debug)]
pub struct Peers {
    dir: Utf8PathBuf,
}

/// How a peer writes: over files that are there, or as it does by itself, and synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// Over what is there.
    InPlace,
    /// New files, durable at the end.
    Fresh,
}

struct Daemon(Child);

impl Daemon {
    fn start(space: &Space, argv: &[&str]) -> miette::Result<Self> {
        let mut command = space.command(argv);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn().into_diagnostic()?))
    }

    /// Ends it, so that its CPU time is ours to count.
    fn end(mut self) {
        let _asked = run(&["kill", "-TERM", &self.0.id().to_string()]);
        let _reaped = self.0.wait();
    }
}

fn finish(mut child: Child, what: &str) -> miette::Result<()> {
    drop(child.stdin.take());
    let status = child.wait().into_diagnostic()?;
    if status.success() { Ok(()) } else { bail!("{what}: {status}") }
}

impl Peers {
    /// Keys and configuration.
    pub fn new(dir: Utf8PathBuf) -> miette::Result<Self> {
        std::fs::create_dir_all(&dir).into_diagnostic()?;
        std::fs::create_dir_all("/run/sshd").into_diagnostic()?;
        for key in ["host", "user"] {
            run(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", dir.join(key).as_str()])?;
        }
        std::fs::copy(dir.join("user.pub"), dir.join("authorized")).into_diagnostic()?;
        let sshd = format!(
            "HostKey {dir}/host\nAuthorizedKeysFile {dir}/authorized\nStrictModes no\nUsePAM no\nPidFile none\n\
             PermitRootLogin yes\nListenAddress {}\nListenAddress {}\n",
            address(1, 11),
            address(2, 11)
        );
        std::fs::write(dir.join("sshd.conf"), sshd).into_diagnostic()?;
        Ok(Self { dir })
    }

    fn ssh(&self, cipher: &str) -> String {
        let dir = &self.dir;
        format!(
            "ssh -F none -q -i {dir}/user -o UserKnownHostsFile={dir}/known -o StrictHostKeyChecking=no -o BatchMode=yes{cipher}"
        )
    }

    /// rsync over ssh, with these processes at once, each with its share of the files.
    pub fn rsync_ssh(
        &self,
        pair: &Pair,
        (from, to): (&Utf8Path, &Utf8Path),
        cipher: &str,
        processes: usize,
        writes: Writes,
    ) -> miette::Result<f64> {
        let config = self.dir.join("sshd.conf");
        let sshd = Daemon::start(&pair.worker, &["/usr/sbin/sshd", "-D", "-f", config.as_str()])?;
        let ssh = self.ssh(cipher);
        let words: Vec<&str> = ssh.split(' ').collect();
        let target = format!("root@{}", address(1, 11));
        let mut tries = 0;
        while !pair.head.command(&[&words[..], &[&target, "true"]].concat()).status().into_diagnostic()?.success() {
            tries += 1;
            if tries > 50 {
                bail!("sshd does not answer");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let begin = Instant::now();
        let files = files(from)?;
        let mut running = Vec::new();
        for n in 0..processes {
            let share: Vec<&str> = files.iter().skip(n).step_by(processes).map(|f| f.as_str()).collect();
            let to = format!("root@{}:{to}/", address(1 + (n % 2) as u8, 11));
            let mut argv = vec!["rsync", "-aWI", "-e", &ssh];
            if writes == Writes::InPlace {
                argv.push("--inplace");
            }
            argv.extend(share);
            argv.push(&to);
            running.push(pair.head.spawn(&argv)?);
        }
        running.into_iter().try_for_each(|child| finish(child, "rsync over ssh"))?;
        settle(to, writes)?;
        let seconds = begin.elapsed().as_secs_f64();
        sshd.end();
        Ok(seconds)
    }

    /// rsync to a daemon, without any cipher.
    pub fn rsync_daemon(&self, pair: &Pair, (from, to): (&Utf8Path, &Utf8Path), writes: Writes) -> miette::Result<f64> {
        let config = self.dir.join("rsyncd.conf");
        let text = format!("uid = root\ngid = root\nuse chroot = no\n[to]\npath = {to}\nread only = no\n");
        std::fs::write(&config, text).into_diagnostic()?;
        let (addr, conf) = (address(1, 11), format!("--config={config}"));
        let argv = ["rsync", "--daemon", "--no-detach", &conf, "--address", &addr, "--port", "8730"];
        let daemon = Daemon::start(&pair.worker, &argv)?;
        std::thread::sleep(Duration::from_millis(300));
        let begin = Instant::now();
        let files = files(from)?;
        let target = format!("rsync://{addr}:8730/to/");
        let mut argv = vec!["rsync", "-aWI"];
        if writes == Writes::InPlace {
            argv.push("--inplace");
        }
        argv.extend(files.iter().map(|f| f.as_str()));
        argv.push(&target);
        finish(pair.head.spawn(&argv)?, "rsync to a daemon")?;
        settle(to, writes)?;
        let seconds = begin.elapsed().as_secs_f64();
        daemon.end();
        Ok(seconds)
    }

    /// A copy on one machine, without any network or proof.
    pub fn copy(&self, (from, to): (&Utf8Path, &Utf8Path), writes: Writes) -> miette::Result<f64> {
        let begin = Instant::now();
        for file in files(from)? {
            let name = file.file_name().unwrap_or_default();
            let (input, output) = (format!("if={file}"), format!("of={to}/{name}"));
            run(&["dd", "bs=1M", "conv=notrunc", "status=none", &input, &output])?;
        }
        settle(to, writes)?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// The bare pump over both rails.
    pub fn pump(&self, pair: &Pair, (from, to): (&Utf8Path, &Utf8Path)) -> miette::Result<f64> {
        let own = std::env::current_exe().into_diagnostic()?.display().to_string();
        let rails = [format!("{}:8740", address(1, 10)), format!("{}:8740", address(2, 10))];
        let argv = |side: &'static str, dir: &Utf8Path| {
            let words = [own.clone(), "bench".into(), "weights-pump".into(), side.into(), dir.to_string()];
            words.into_iter().chain(rails.clone()).collect::<Vec<String>>()
        };
        let send = argv("send", from);
        let mut sender = pair.head.spawn(&send.iter().map(String::as_str).collect::<Vec<_>>())?;
        let mut ready = [0; 6];
        let stdout = sender.stdout.as_mut().ok_or_else(|| miette!("no stdout"))?;
        std::io::Read::read_exact(stdout, &mut ready).into_diagnostic()?;
        let begin = Instant::now();
        let receive = argv("receive", to);
        finish(pair.worker.spawn(&receive.iter().map(String::as_str).collect::<Vec<_>>())?, "pump")?;
        let seconds = begin.elapsed().as_secs_f64();
        let _killed = sender.kill();
        let _reaped = sender.wait();
        Ok(seconds)
    }
}

fn settle(to: &Utf8Path, writes: Writes) -> miette::Result<()> {
    if writes == Writes::Fresh { run(&["sync", "-f", to.as_str()]).map(drop) } else { Ok(()) }
}

/// The files of a folder, by name.
pub fn files(dir: &Utf8Path) -> miette::Result<Vec<Utf8PathBuf>> {
    let mut files: Vec<Utf8PathBuf> =
        dir.read_dir_utf8().into_diagnostic()?.flatten().map(|e| e.into_path()).filter(|p| p.is_file()).collect();
    files.sort();
    Ok(files)
}
