//! What all scenarios share: one lab, the apps on its control machine, and the one question that counts.

use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;
use sparklane_lab::{Lab, Paths, UpOptions};

pub const TOOL: &str = "/nix/var/nix/gcroots/sparklane/tool/bin/sparklane";
pub const PROFILE: &str = "/nix/var/nix/profiles/sparklane";
pub const NODES: [&str; 2] = ["head", "worker"];
const SLOW: &str = "/etc/systemd/system/sparklane-txn@.service.d";
const FEATURES: [&str; 3] = ["nix", "--extra-experimental-features", "nix-command flakes"];

/// Lanes that only these scenarios need; written beside the lab's own on the control machine.
const LANES: &[(&str, &str)] = &[
    // Dies at once, under a budget of 20 minutes.
    ("lab-crash", r#"extraArgs = [ "--sim-fail" "crash-at-start" ]; startSecs = 1200; nodeSecs = 1200;"#),
    ("lab-argv", r#"extraArgs = [ "--no-such-flag" ];"#),
    // 35 s of load: longer than what systemd's callers usually wait.
    ("lab-slow", r#"extraArgs = [ "--sim-load-secs" "35" ];"#),
    // As many seats as the recipes' lanes have.
    ("lab-seats", "maxNumSeqs = 12;"),
    // Long enough in its gates for things to happen meanwhile.
    ("lab-hold", r#"extraArgs = [ "--sim-load-secs" "20" ];"#),
];

/// One lab, one test at a time.
static TURN: Mutex<Option<String>> = Mutex::new(None);

/// The lab in a test's hands.
pub struct Rig {
    pub lab: Lab,
    /// Folder of the apps in the control machine's store.
    pub bin: String,
    _turn: MutexGuard<'static, Option<String>>,
}

/// What an app said.
pub struct Said {
    pub code: i32,
    /// The object on stdout; null without `--json`.
    pub json: Value,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl std::fmt::Debug for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let start: String = self.stdout.chars().take(2000).collect();
        write!(f, "exit {} after {:?}\n{start}\n{}", self.code, self.took, self.stderr)
    }
}

impl Said {
    pub fn text(&self, key: &str) -> &str {
        self.json[key].as_str().unwrap_or_default()
    }

    pub fn why(&self) -> &str {
        self.text("why")
    }

    /// Exit code and kind of verdict.
    #[track_caller]
    pub fn is(&self, code: i32, verdict: &str) -> &Self {
        assert_eq!((self.code, self.text("verdict")), (code, verdict), "{self:#?}");
        assert_eq!(self.json["exitCode"], code, "{self:#?}");
        self
    }

    #[track_caller]
    pub fn because(&self, words: &[&str]) -> &Self {
        for word in words {
            assert!(self.why().contains(word), "{word:?} is not in {:?}", self.why());
        }
        self
    }
}

/// An app that runs.
pub struct Client {
    child: Child,
    /// Its number on the control machine.
    pub pid: String,
    begin: Instant,
}

pub fn workspace() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap()
}

fn lane_text(name: &str, more: &str) -> String {
    let take = |key: &str, usual: &str| {
        let found = more.split_once(&format!("{key} = ")).and_then(|(_, rest)| rest.split_once(';'));
        found.map_or_else(|| usual.to_owned(), |(value, _)| value.to_owned())
    };
    format!(
        "import ./base/lab.nix {{\n  name = \"{name}\";\n  description = \"for a scenario\";\n  serve.extraArgs = {};\n  \
         serve.maxNumSeqs = {};\n  \
         gates = import ./base/gates.nix {{ nodeSecs = {}; apiSecs = 20; tokenSecs = 20; }};\n  \
         budgets.startSecs = {};\n}}\n",
        take("extraArgs", "[ ]"),
        take("maxNumSeqs", "4"),
        take("nodeSecs", "60"),
        take("startSecs", "60"),
    )
}

impl Rig {
    fn up(state_size_mib: Option<u64>, anew: bool) -> Self {
        let mut turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let root = workspace();
        let options = UpOptions { prebuilt: Some(root.join("prebuilt")), flake: Some(root), state_size_mib };
        if anew {
            *turn = None;
            Lab::down(&Paths::from_env()).unwrap();
        }
        let (lab, bin) = match &*turn {
            Some(bin) => (Lab::attach().unwrap(), bin.clone()),
            None => {
                let lab = Lab::up(Paths::from_env(), &options, &|text| eprintln!("{text}")).unwrap();
                for (name, more) in LANES {
                    let file = lab.root("control").join(format!("root/sparklane/nix/lanes/{name}.nix"));
                    std::fs::write(file, lane_text(name, more)).unwrap();
                }
                let bin = apps(&lab);
                (lab, bin)
            }
        };
        *turn = Some(bin.clone());
        Self { lab, bin, _turn: turn }
    }

    /// A new lab on which nothing was ever deployed.
    pub fn fresh() -> Self {
        Self::up(None, true)
    }

    /// As [`Rig::fresh`], with little room for the nodes' state.
    pub fn fresh_small(state_size_mib: u64) -> Self {
        let rig = Self::up(Some(state_size_mib), true);
        rig.deploy("lab-a").is(0, "committed");
        rig
    }

    /// The lab on lab-a, with nothing of a former scenario left.
    pub fn on_a() -> Self {
        let rig = Self::up(None, false);
        rig.mend();
        let said = rig.deploy("lab-a");
        if said.code == 0 {
            return rig;
        }
        // What a failed scenario left must not fail the next ones.
        eprintln!("a new lab, as the old one is not to be had on lab-a: {}", said.why());
        drop(rig);
        let rig = Self::fresh();
        rig.deploy("lab-a").is(0, "committed");
        rig
    }

    fn mend(&self) {
        for node in NODES {
            self.lab.start(node).unwrap();
        }
        for link in ["mgmt", "rails"] {
            self.lab.heal(link).unwrap();
        }
        for node in NODES {
            let script = format!(
                "nft flush ruleset; rm -rf /run/sparklane/crash-at {SLOW}; systemctl daemon-reload; systemctl reset-failed; true"
            );
            self.sh(node, &script);
        }
        // A scenario that failed may have left a transaction without a process; both nodes at once, as each needs the other.
        std::thread::scope(|scope| {
            for node in NODES {
                scope.spawn(move || self.try_sh(node, &format!("! test -e {TOOL} || {TOOL} txn resolve")));
            }
        });
        // Docker's own rules are gone with the scenario's; the engine uses the host's network and needs none.
        self.quiet(60);
    }

    /// Waits until no node has an open transaction.
    #[track_caller]
    pub fn quiet(&self, secs: u64) {
        self.until("all transactions end", secs, || {
            NODES
                .iter()
                .all(|n| self.state(n).is_none_or(|s| ["committed", "rolled-back", "stuck"].contains(&s.as_str())))
        });
    }

    /// Runs an app on the control machine, with `--json`, to its end.
    pub fn app(&self, argv: &[&str]) -> Said {
        self.client(argv).wait()
    }

    pub fn deploy(&self, lane: &str) -> Said {
        self.app(&["deploy", lane])
    }

    fn argv(&self, argv: &[&str]) -> Vec<String> {
        let app = format!("{}/{}", self.bin, argv[0]);
        let mut line = vec![app];
        line.extend(argv[1..].iter().map(|a| (*a).to_owned()));
        line.extend(["--cluster", "lab"].map(str::to_owned));
        line
    }

    /// The app's words for people.
    pub fn plain(&self, argv: &[&str]) -> Said {
        self.run(&self.argv(argv), "").wait()
    }

    /// Starts an app with `--json`.
    pub fn client(&self, argv: &[&str]) -> Client {
        let mut line = self.argv(argv);
        line.push("--json".into());
        self.run(&line, "")
    }

    /// Starts a command line on the control machine after `before`, and knows its number there.
    pub fn run(&self, argv: &[String], before: &str) -> Client {
        let script = format!("{before}\necho $$ > /run/client; exec \"$@\"");
        let mut line = vec!["sh", "-c", script.as_str(), "sh"];
        line.extend(argv.iter().map(String::as_str));
        self.sh("control", "rm -f /run/client");
        let begin = Instant::now();
        let child = self.lab.spawn("control", &line).unwrap();
        let mut pid = String::new();
        self.until("the client starts", 10, || {
            pid = self.sh("control", "cat /run/client 2>/dev/null; true").trim().to_owned();
            !pid.is_empty()
        });
        Client { child, pid, begin }
    }

    pub fn signal(&self, client: &Client, signal: &str) {
        self.sh("control", &format!("kill -{signal} {}", client.pid));
        if signal == "CONT" {
            // nsenter stops itself with its child.
            let nsenter = client.child.id().to_string();
            assert!(std::process::Command::new("kill").args(["-CONT", &nsenter]).status().unwrap().success());
        }
    }

    /// Kills the client and every ssh of the control machine.
    pub fn kill_client_and_ssh(&self, client: &Client) {
        self.signal(client, "KILL");
        self.sh("control", "for p in $(pgrep -x ssh); do kill -KILL $p; done; true");
    }

    #[track_caller]
    pub fn sh(&self, node: &str, script: &str) -> String {
        self.lab.check(node, &["sh", "-c", script]).unwrap()
    }

    pub fn try_sh(&self, node: &str, script: &str) -> bool {
        self.lab.exec(node, &["sh", "-c", script]).unwrap().code == Some(0)
    }

    /// Ids of a node's transactions, oldest first; read without asking the node.
    pub fn txns(&self, node: &str) -> Vec<String> {
        let dir = self.lab.bound(node, "/var/lib/sparklane").join("txn");
        let mut ids: Vec<String> = dir
            .read_dir_utf8()
            .map_or_else(|_| Vec::new(), |entries| entries.flatten().map(|e| e.file_name().to_owned()).collect());
        ids.sort();
        ids
    }

    pub fn journal_file(&self, node: &str, txn: &str) -> Utf8PathBuf {
        self.lab.bound(node, "/var/lib/sparklane").join("txn").join(txn).join("journal")
    }

    /// The newest transaction's records.
    pub fn records(&self, node: &str) -> Vec<Value> {
        let Some(txn) = self.txns(node).pop() else { return Vec::new() };
        let text = std::fs::read_to_string(self.journal_file(node, &txn)).unwrap_or_default();
        text.lines().filter_map(|l| serde_json::from_str(l.split_once(' ')?.1).ok()).collect()
    }

    /// Names of the newest transaction's records.
    pub fn states(&self, node: &str) -> Vec<String> {
        self.records(node).iter().filter_map(|r| r["state"].as_str().map(str::to_owned)).collect()
    }

    pub fn state(&self, node: &str) -> Option<String> {
        self.states(node).pop()
    }

    /// Waits for a state of a transaction that is newer than `than`.
    #[track_caller]
    pub fn reaches(&self, node: &str, than: usize, state: &str, secs: u64) {
        let what = format!("{node} reaches {state}");
        self.until(&what, secs, || self.txns(node).len() > than && self.states(node).iter().any(|s| s == state));
    }

    #[track_caller]
    pub fn until(&self, what: &str, secs: u64, mut is: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(secs);
        while !is() {
            assert!(Instant::now() < end, "not within {secs} s: {what}\n{}", self.story());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What the nodes logged, for a failing test.
    pub fn story(&self) -> String {
        let script = "journalctl --no-pager -n 60 -o cat -u 'sparklane-*' | grep -v pid=1 | grep -v ^INFO | tail -25";
        let of = |node: &str| self.lab.exec(node, &["sh", "-c", script]).map_or_else(|e| e.to_string(), |o| o.stdout);
        let states = NODES.map(|n| format!("{n}: {:?}", self.states(n)));
        format!("{}\n--- head\n{}\n--- worker\n{}", states.join("\n"), of("head"), of("worker"))
    }

    /// Plans a kill of a node's transaction process: `<state> <nth> <point>`.
    pub fn crash_at(&self, node: &str, at: &str) {
        self.sh(node, &format!("mkdir -p /run/sparklane && echo '{at}' > /run/sparklane/crash-at"));
    }

    /// A killed transaction process of the node comes back after four seconds only: time for something to happen.
    pub fn slow_restart(&self, node: &str) {
        self.sh(
            node,
            &format!(
                "mkdir -p {SLOW} && printf '[Service]\\nRestartSec=4\\n' > {SLOW}/slow.conf && systemctl daemon-reload"
            ),
        );
    }

    /// True when the planned kill has happened.
    pub fn crashed(&self, node: &str) -> bool {
        !self.try_sh(node, "test -e /run/sparklane/crash-at")
    }

    pub fn status(&self) -> Said {
        self.app(&["status"])
    }

    /// Lane of a node's profile.
    pub fn lane(&self, node: &str) -> String {
        let file = format!("{PROFILE}/generation.json");
        let output = self.lab.exec(node, &["cat", &file]).unwrap();
        let text: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        text["lane"].as_str().unwrap_or("none").to_owned()
    }

    /// A real answer of the engine.
    pub fn tokens(&self) -> u64 {
        let body = r#"{"model":"lab","messages":[{"role":"user","content":"hi"}],"max_tokens":8}"#;
        let argv = ["curl", "-s", "-m", "20", "-H", "content-type: application/json", "-d", body];
        let output =
            self.lab.exec("head", &[&argv[..], &["http://127.0.0.1:8000/v1/chat/completions"]].concat()).unwrap();
        let answer: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        answer["usage"]["completion_tokens"].as_u64().unwrap_or(0)
    }

    /// The property that every scenario ends with: both nodes on one release of `lane`, which serves.
    #[track_caller]
    pub fn one_release(&self, lane: &str) -> u64 {
        let said = self.status();
        assert_eq!(said.code, 0, "{said:#?}\n{}", self.story());
        let release = said.json["release"].as_u64().unwrap_or_else(|| panic!("{said:#?}"));
        for row in said.json["nodes"].as_array().unwrap() {
            let (node, status) = (row["node"].as_str().unwrap(), &row["status"]);
            assert_eq!(status["open"].as_array().map(Vec::len), Some(0), "{node}: {status:#}");
            assert_eq!(status["drift"].as_array().map(Vec::len), Some(0), "{node}: {status:#}");
            assert_eq!(status["generation"]["lane"], lane, "{node}");
            assert_eq!(status["engine"]["active"], "active", "{node}: {:#}\n{}", status["engine"], self.story());
            let of_release = |r: &&Value| r["number"] == release;
            let record =
                status["releases"].as_array().unwrap().iter().find(of_release).unwrap_or_else(|| panic!("{node}"));
            let part = record["nodes"].as_array().unwrap().iter().find(|p| p["node"] == node).unwrap();
            assert_eq!(self.sh(node, &format!("readlink -f {PROFILE}")).trim(), part["path"], "{node}");
            let compare = format!(
                "cd {PROFILE}/etc && find -L . -type f | while read f; do cmp \"$f\" \"/etc/$f\" || exit 1; done"
            );
            assert!(self.try_sh(node, &compare), "{node}: a managed file is not the closure's");
        }
        assert!(self.tokens() > 0, "no tokens\n{}", self.story());
        release
    }

    /// Bytes that a node has sent and received over each rail.
    pub fn rails_carried(&self, node: &str) -> [(u64, u64); 2] {
        ["rail1", "rail2"].map(|rail| {
            let counted = |what: &str| {
                let text = self.sh(node, &format!("cat /sys/class/net/{rail}/statistics/{what}"));
                text.trim().parse::<u64>().unwrap()
            };
            (counted("tx_bytes"), counted("rx_bytes"))
        })
    }

    /// As [`Rig::one_release`], after the nodes had time to end by themselves.
    #[track_caller]
    pub fn comes_to_one_release(&self, lane: &str, secs: u64) -> u64 {
        self.until(&format!("both nodes serve {lane}"), secs, || {
            std::thread::sleep(Duration::from_millis(200));
            NODES.iter().all(|n| self.lane(n) == lane)
                && NODES.iter().all(|n| self.state(n).is_some_and(|s| s == "committed" || s == "rolled-back"))
                && NODES.iter().all(|n| self.try_sh(n, "systemctl is-active sparklane-engine"))
                && self.tokens() > 0
        });
        self.one_release(lane)
    }
}

/// Builds the apps of the control machine's flake.
pub fn apps(lab: &Lab) -> String {
    let mut flake = vec!["--offline", "--no-write-lock-file", "--override-input", "prebuilt", "path:/root/prebuilt"];
    if lab.root("control").join("root/wheelhouse").exists() {
        flake.extend(["--override-input", "wheelhouse", "path:/root/wheelhouse"]);
    }
    let with = |words: &[&'static str], more: &[&'static str]| [&FEATURES[..], words, &flake, more].concat();
    lab.check("control", &with(&["run"], &["path:/root/sparklane#status", "--", "--help"])).unwrap();
    let program = "path:/root/sparklane#apps.x86_64-linux.deploy.program";
    let path = lab.check("control", &with(&["eval", "--raw"], &[program])).unwrap();
    Utf8Path::new(path.trim()).parent().unwrap().to_string()
}

impl Rig {
    /// Takes the apps of a flake that a scenario has changed on the control machine.
    pub fn rebuilt(mut self) -> Self {
        self.bin = apps(&self.lab);
        self
    }
}

impl Client {
    pub fn wait(self) -> Said {
        let output = self.child.wait_with_output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        Said {
            code: output.status.code().unwrap_or(-1),
            json: serde_json::from_str(stdout.trim()).unwrap_or_default(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            stdout,
            took: self.begin.elapsed(),
        }
    }
}
