//! A small model as on a hub: its files on the control machine, its manifest and a lane that names it in the flake there.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;

use camino::Utf8PathBuf;
use sparklane_lane::WeightsManifest;
use sparklane_lane::weights::WeightsFile;

use crate::noise::noise;
use crate::support::{NODES, Rig, TOOL};

pub const LANE: &str = "lab-weights";
/// The manifest's place on the control machine and, for the store's own commands, on the nodes.
pub const FILE: &str = "/root/lab-weights.json";
pub const MIB: usize = 1 << 20;
/// The first is larger than the 64 MiB between two records of a journal, so that it resumes in its middle.
pub const FILES: [(&str, usize); 5] = [
    ("model-1.safetensors", 80 * MIB),
    ("model-2.safetensors", 9 * MIB + 5),
    ("config.json", 700),
    ("encoding/rules.py", 3000),
    ("empty", 0),
];

/// Weights as on a hub, and the lane that names them.
pub struct Model {
    pub manifest: WeightsManifest,
    /// The name of their folder in a store.
    pub name: String,
}

impl Model {
    /// Lays the files out on the control machine, and puts manifest and lane into its flake. No node has any of it.
    pub fn publish(rig: &Rig) -> Self {
        let control = rig.lab.root("control").join("root");
        let mut files = Vec::new();
        for (seed, (path, len)) in FILES.iter().enumerate() {
            let (bytes, place) = (noise(seed as u64 + 1, *len), control.join("hub").join(path));
            fs::create_dir_all(place.parent().unwrap()).unwrap();
            fs::write(&place, &bytes).unwrap();
            files.push(WeightsFile {
                path: (*path).into(),
                size: *len as u64,
                sha256: sparklane_lane::sha256_hex(&bytes),
            });
        }
        let manifest = WeightsManifest { model: "lab/tiny".into(), revision: "5".repeat(40), files };
        let lane = format!(
            "import ./base/lab.nix {{\n  name = \"{LANE}\";\n  description = \"for a scenario\";\n  model = {{ path = \
             \"/models/tiny\"; weights = \"{LANE}\"; }};\n}}\n"
        );
        let flake = control.join("sparklane");
        fs::write(flake.join(format!("nix/weights/{LANE}.json")), manifest.to_text()).unwrap();
        fs::write(flake.join(format!("nix/lanes/{LANE}.nix")), lane).unwrap();
        for machine in ["control", "head", "worker"] {
            fs::write(rig.lab.root(machine).join(FILE.trim_start_matches('/')), manifest.to_text()).unwrap();
        }
        let model = Self { name: manifest.store_name(), manifest };
        model.forget(rig);
        model
    }

    pub fn forget(&self, rig: &Rig) {
        let script = format!(
            "cd /var/lib/sparklane/weights 2>/dev/null || exit 0; rm -rf '{0}' '.partial/{0}' .records/'{0}'*",
            self.name
        );
        NODES.iter().for_each(|node| drop(rig.sh(node, &script)));
    }

    pub fn store(rig: &Rig, node: &str) -> Utf8PathBuf {
        rig.lab.bound(node, "/var/lib/sparklane").join("weights")
    }

    /// The published folder on a node, as this host sees it.
    pub fn folder(&self, rig: &Rig, node: &str) -> Utf8PathBuf {
        Self::store(rig, node).join(&self.name)
    }

    /// Bytes that the receiver's journal calls durable, those of finished files too.
    pub fn durable(&self, rig: &Rig, node: &str) -> u64 {
        let journal = Self::store(rig, node).join(".partial").join(&self.name).join("journal");
        let mut claims = BTreeMap::new();
        for record in fs::read(journal).unwrap_or_default().chunks_exact(64) {
            let number = |at: usize, len: usize| record[at..at + len].iter().fold(0, |n, b| n << 8 | u64::from(*b));
            if record.starts_with(b"SLp1") || record.starts_with(b"SLd1") {
                claims.insert(number(4, 4), number(8, 8));
            }
        }
        claims.values().sum()
    }

    /// The head takes the files from a folder of its own.
    pub fn adopt_on_head(&self, rig: &Rig) {
        let from = rig.lab.root("control").join("root/hub");
        let to = rig.lab.bound("head", "/var/lib/sparklane").join("hub");
        let _old = fs::remove_dir_all(&to);
        for (path, _) in FILES {
            fs::create_dir_all(to.join(path).parent().unwrap()).unwrap();
            fs::copy(from.join(path), to.join(path)).unwrap();
        }
        rig.sh("head", &format!("{TOOL} weights adopt /var/lib/sparklane/hub --manifest {FILE}"));
        // Linked, not copied: a node has no room for these twice.
        let links = rig.sh("head", &format!("stat -c %h /var/lib/sparklane/weights/'{}'/{}", self.name, FILES[0].0));
        assert_eq!(links.trim(), "2");
        fs::remove_dir_all(&to).unwrap();
    }

    #[track_caller]
    pub fn exact(&self, rig: &Rig, node: &str) {
        for (seed, (path, len)) in FILES.iter().enumerate() {
            let found = fs::read(self.folder(rig, node).join(path)).unwrap();
            assert!(found == noise(seed as u64 + 1, *len), "{node}: {path} has other bytes");
        }
        assert!(!Self::store(rig, node).join(".partial").join(&self.name).exists(), "{node}");
    }

    /// Changes one byte of a file on a node's disk, as a bad disk or a careless hand does.
    pub fn damage(&self, rig: &Rig, node: &str, path: &str, at: u64) {
        let file = fs::File::options().read(true).write(true).open(self.folder(rig, node).join(path)).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0] ^= 0x10;
        file.write_all_at(&byte, at).unwrap();
        // The machine's own pages of it are the host's: one kernel.
        file.sync_all().unwrap();
    }
}

/// A mirror of the files on the control machine. Python's own server knows no ranges, without which nothing resumes.
const MIRROR: &str = r#"
import http.server, os, re
class Mirror(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        with open("/root/hub" + self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, end = (int(asked[1]), min(int(asked[2]), size - 1)) if asked else (0, size - 1)
            file.seek(start)
            body = file.read(end + 1 - start)
        self.send_response(206 if asked else 200)
        if asked: self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("10.77.0.1", 8099), Mirror).serve_forever()
"#;

/// The mirror's process.
pub struct Mirror<'a>(&'a Rig, std::process::Child);

impl<'a> Mirror<'a> {
    pub fn start(rig: &'a Rig) -> Self {
        fs::write(rig.lab.root("control").join("root/mirror.py"), MIRROR).unwrap();
        let serve = "echo $$ > /run/mirror; exec python3 /root/mirror.py";
        let child = rig.lab.spawn("control", &["sh", "-c", serve]).unwrap();
        rig.until("the mirror listens", 10, || rig.try_sh("control", "ss -tln | grep -q 10.77.0.1:8099"));
        Self(rig, child)
    }
}

impl Drop for Mirror<'_> {
    fn drop(&mut self) {
        self.0.try_sh("control", "kill $(cat /run/mirror)");
        let _ended = self.1.wait();
    }
}
