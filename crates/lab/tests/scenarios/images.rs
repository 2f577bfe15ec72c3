//! Images that the nodes do not have: from a registry to the head, from the head to the worker, into either docker store.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use sparklane_lab::HOST_ADDRESS;
use sparklane_oci::{Config, Digest, Layout, Manifest, fetch, media};

use crate::support::{NODES, Rig, Said, TOOL, workspace};

pub const PORT: u16 = 5055;
const LANES: [&str; 2] = ["lab-img-a", "lab-img-b"];

/// Debian's docker-registry on this host, with what it says of its visitors.
pub struct Registry {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    _dir: tempfile::TempDir,
}

impl Registry {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (file, root) = (dir.path().join("reg.yml"), dir.path().join("data"));
        let text = format!(
            "version: 0.1\nlog: {{level: error, accesslog: {{disabled: false}}}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: {HOST_ADDRESS}:{PORT}}}\n",
            root.display()
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&file).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("docker-registry, see the apt line of .ci/run");
        let log = Arc::<Mutex<Vec<String>>>::default();
        let (lines, seen) = (BufReader::new(child.stdout.take().unwrap()).lines(), Arc::clone(&log));
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| seen.lock().unwrap().push(line)));
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while std::net::TcpStream::connect((HOST_ADDRESS, PORT)).is_err() {
            assert!(std::time::Instant::now() < until, "docker-registry does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Self { child, log, _dir: dir }
    }

    /// How many blobs an address has fetched.
    pub fn blobs_fetched_by(&self, address: &str) -> usize {
        let fetched =
            |line: &&String| line.starts_with(address) && line.contains("GET /v2/") && line.contains("/blobs/");
        self.log.lock().unwrap().iter().filter(fetched).count()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An image made of the simulator's.
struct Made {
    manifest: Digest,
    config: Digest,
    diff_ids: Vec<String>,
}

/// The simulator's image with a further layer that holds one file.
fn make(layout: &Layout, base: &Manifest, name: &str) -> Made {
    let mut tar = tar::Builder::new(Vec::new());
    let text = format!("{name}\n");
    let mut header = tar::Header::new_ustar();
    header.set_size(text.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, format!("{name}.txt"), text.as_bytes()).unwrap();
    let layer = tar.into_inner().unwrap();
    let digest = layout.write_blob(&layer).unwrap();
    let mut config = Value::Object(layout.config(base).unwrap().tree().clone());
    config["rootfs"]["diff_ids"].as_array_mut().unwrap().push(json!(digest.as_str()));
    config["history"].as_array_mut().unwrap().push(json!({ "created_by": name }));
    let diff_ids = config["rootfs"]["diff_ids"].as_array().unwrap().iter().map(|d| d.as_str().unwrap().to_owned());
    let diff_ids = diff_ids.collect();
    let config = config.to_string().into_bytes();
    let id = layout.write_blob(&config).unwrap();
    let mut manifest = Value::Object(base.tree().clone());
    manifest["config"]["digest"] = json!(id.as_str());
    manifest["config"]["size"] = json!(config.len());
    let row = json!({ "mediaType": media::OCI_LAYER_TAR, "digest": digest.as_str(), "size": layer.len() });
    manifest["layers"].as_array_mut().unwrap().push(row);
    let manifest = Manifest::parse(None, manifest.to_string().into_bytes()).unwrap();
    fetch::list(layout, &manifest, &Config::parse(config).unwrap(), name).unwrap();
    Made { manifest: manifest.digest().clone(), config: id, diff_ids }
}

pub fn layout(dir: &Utf8Path) -> (Layout, Manifest) {
    let tar = std::fs::File::open(workspace().join("prebuilt/x86_64-linux/sim-image.tar")).unwrap();
    tar::Archive::new(tar).unpack(dir).unwrap();
    let layout = Layout::open_or_create(dir).unwrap();
    let base = layout.manifest(&layout.list().unwrap()[0].1.digest).unwrap();
    (layout, base)
}

/// Makes the images, pushes them with our own tool, and puts lanes that run them into the control machine's flake.
fn publish(rig: &Rig) -> Vec<Made> {
    let dir = tempfile::tempdir().unwrap();
    let (layout, base) = layout(&Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap());
    let made: Vec<Made> = LANES.iter().map(|name| make(&layout, &base, name)).collect();
    let tool = workspace().join("prebuilt/x86_64-linux/sparklane");
    for (name, image) in LANES.iter().zip(&made) {
        let reference = format!("{HOST_ADDRESS}:{PORT}/lab/sim:{name}");
        let mut push = Command::new(&tool);
        push.args(["image", "push", &reference, "--layout", layout.root().as_str(), "--image", name]);
        push.args(["--plain-http", &format!("{HOST_ADDRESS}:{PORT}")]);
        assert!(push.status().unwrap().success());
        let pin = json!({ "manifest": image.manifest.as_str(), "config": image.config.as_str() });
        put_lane(rig, name, &reference, &pin);
    }
    made
}

pub fn deploy(rig: &Rig, lane: &str, more: &[&str]) -> Said {
    let plain = format!("{HOST_ADDRESS}:{PORT}");
    rig.app(&[&["deploy", lane, "--plain-http", &plain][..], more].concat())
}

pub const SLOWLY: [&str; 2] = ["--while-serving", "200M"];

/// What docker says that the engine's container runs.
pub fn running(rig: &Rig, node: &str) -> String {
    rig.sh(node, "docker inspect --format '{{.Image}}' $(docker ps -q)").trim().to_owned()
}

fn diff_ids(rig: &Rig, node: &str, image: &str) -> Vec<String> {
    let text = rig.sh(node, &format!("docker image inspect --format '{{{{json .RootFS.Layers}}}}' {image}"));
    serde_json::from_str(&text).unwrap()
}

/// No image of these lanes is left on a node of an earlier run.
pub fn forget(rig: &Rig, node: &str) {
    let script = "docker image ls -q 127.0.0.1:5177/sparklane/image | xargs -r docker image rm -f; \
                  rm -rf /var/lib/sparklane/images";
    rig.sh(node, script);
}

/// An image and a lane of that name in the control machine's flake.
fn put_lane(rig: &Rig, name: &str, reference: &str, pin: &Value) {
    let flake = rig.lab.root("control").join("root/sparklane");
    let image =
        format!("import ./lab-sim.nix // {{ name = \"{name}\"; reference = \"{reference}\"; pinWith = \"-\"; }}\n");
    let lane = format!(
        "import ./base/lab.nix {{\n  name = \"{name}\";\n  description = \"for a scenario\";\n  image = \"{name}\";\n}}\n"
    );
    std::fs::write(flake.join(format!("images/{name}.nix")), image).unwrap();
    std::fs::write(flake.join(format!("images/{name}.pin.json")), pin.to_string()).unwrap();
    std::fs::write(flake.join(format!("nix/lanes/{name}.nix")), lane).unwrap();
}

/// Changes the store of a node's docker. containerd's own folder must not lie on the node's overlay root.
fn use_store(rig: &Rig, node: &str, containerd: bool) {
    let (file, kept) = ("/etc/docker/daemon.json", "/root/daemon.json.kept");
    let script = if containerd {
        format!(
            "cp {file} {kept} && python3 -c 'import json; d=json.load(open(\"{kept}\")); \
             d[\"features\"]={{\"containerd-snapshotter\": True}}; d[\"storage-driver\"]=\"overlayfs\"; \
             json.dump(d, open(\"{file}\", \"w\"))' && systemctl stop docker docker.socket containerd && \
             mkdir -p /var/lib/docker/ctrd && mount --bind /var/lib/docker/ctrd /var/lib/containerd && \
             systemctl start containerd docker.socket docker"
        )
    } else {
        format!(
            "cp {kept} {file} && systemctl stop docker docker.socket containerd && \
             umount /var/lib/containerd && systemctl start containerd docker.socket docker"
        )
    };
    rig.sh(node, &script);
}

#[test]
#[ignore = "needs the lab"]
fn a_lane_whose_image_no_node_has_is_staged_with_serving_untouched() {
    let rig = Rig::on_a();
    let registry = Registry::start();
    let made = publish(&rig);
    NODES.iter().for_each(|node| forget(&rig, node));
    let rig = rig.rebuilt();
    let before = rig.one_release("lab-a");
    let serving = rig.sh("head", "systemctl show -p MainPID --value sparklane-engine");

    // Nothing heavy beside a serving engine without a word for it.
    let refused = deploy(&rig, LANES[0], &[]);
    refused.is(1, "refused").because(&["--while-serving", "head", LANES[0]]);
    assert_eq!(registry.blobs_fetched_by("10.77.0.1"), 0);
    // Nor plain http.
    rig.app(&["deploy", LANES[0], SLOWLY[0], SLOWLY[1]]).is(1, "refused").because(&["head", "--plain-http"]);
    assert_eq!(rig.sh("head", "systemctl show -p MainPID --value sparklane-engine"), serving);
    assert_eq!(rig.one_release("lab-a"), before);

    let before_rails = rig.rails_carried("worker");
    let said = deploy(&rig, LANES[0], &SLOWLY);
    said.is(0, "committed");
    rig.one_release(LANES[0]);
    for node in NODES {
        assert_eq!(running(&rig, node), made[0].config.as_str(), "{node}: the classic store goes by the config");
        assert_eq!(diff_ids(&rig, node, made[0].config.as_str()), made[0].diff_ids, "{node}");
    }
    assert_eq!(registry.blobs_fetched_by("10.77.0.10"), 3, "config and two layers");
    assert_eq!(registry.blobs_fetched_by("10.77.0.11"), 0, "the worker's come from the head");
    // Over the rails, and past the control machine.
    let carried = rig.rails_carried("worker");
    let received = |rails: [(u64, u64); 2]| rails[0].1 + rails[1].1;
    assert!(received(carried) - received(before_rails) > 2_000_000, "{before_rails:?} {carried:?}");

    // An image whose base is there: only its own layer moves.
    deploy(&rig, LANES[1], &SLOWLY).is(0, "committed");
    rig.one_release(LANES[1]);
    assert_eq!(registry.blobs_fetched_by("10.77.0.10"), 5, "config and one layer more");

    // Back, with the registry gone.
    drop(registry);
    rig.app(&["rollback"]).is(0, "committed");
    rig.one_release(LANES[0]);
    NODES.iter().for_each(|node| assert_eq!(running(&rig, node), made[0].config.as_str(), "{node}"));
    rig.deploy("lab-a").is(0, "committed");
}

#[test]
#[ignore = "needs the lab"]
fn nodes_with_different_docker_stores_run_one_image() {
    let rig = Rig::on_a();
    let _registry = Registry::start();
    let made = publish(&rig);
    let rig = rig.rebuilt();
    rig.sh("worker", "systemctl stop sparklane-engine");
    use_store(&rig, "worker", true);
    let said = deploy(&rig, LANES[1], &SLOWLY);
    if said.code != 0 {
        use_store(&rig, "worker", false);
        panic!("{said:#?}\n{}", rig.story());
    }
    let numbers = NODES.map(|node| running(&rig, node));
    let layers = (diff_ids(&rig, "head", &numbers[0]), diff_ids(&rig, "worker", &numbers[1]));
    // What the containerd store gives back is the image that came, to the byte.
    let adopt =
        format!("cd /root && {TOOL} image adopt {} --layout /root/adopted --pins /root/pins --json", numbers[1]);
    let adopted: Value = serde_json::from_str(&rig.sh("worker", &adopt)).unwrap();
    let status = rig.app(&["sparklane", "image", "status"]);
    let release = (said.code == 0).then(|| rig.one_release(LANES[1]));
    use_store(&rig, "worker", false);
    rig.deploy("lab-a");
    said.is(0, "committed");
    assert!(release.is_some());
    assert_eq!(numbers, [made[1].config.to_string(), made[1].manifest.to_string()], "each store by its own number");
    assert_eq!(adopted["manifest"], made[1].manifest.as_str());
    assert_eq!(status.code, 0, "{status:#?}");
    let stores = status.json["nodes"].as_array().unwrap().iter().map(|n| n["report"]["store"].as_str().unwrap());
    assert_eq!(stores.collect::<Vec<_>>(), ["classic", "containerd"]);
    assert_eq!(layers, (made[1].diff_ids.clone(), made[1].diff_ids.clone()));
}

/// As people do it: a container changed by hand and `docker commit`, known to one node's docker only.
#[test]
#[ignore = "needs the lab"]
fn an_image_built_by_hand_is_adopted_deployed_and_rolled_back_to() {
    let rig = Rig::on_a();
    let commit = "echo by hand > /root/fixed.txt && c=$(docker create sparklane-sim:lab) && \
                  docker cp -q /root/fixed.txt $c:/fixed.txt && \
                  docker commit -m 'fixed by hand' --change 'ENV FIXED=1' --change 'LABEL by=hand' $c my-vllm:fixed && \
                  docker rm $c >/dev/null";
    let id = rig.sh("head", commit).trim().to_owned();
    let adopt = format!(
        "mkdir -p /root/images && cd /root && {TOOL} image adopt my-vllm:fixed --pins images/pins --as lab-adopted --json"
    );
    let pin: Value = serde_json::from_str(&rig.sh("head", &adopt)).unwrap();
    assert_eq!(pin["config"], id.as_str(), "the classic store's number stays");
    assert_eq!(pin["adopted"]["store"], "classic");
    assert_eq!(pin["adopted"]["node"], "head");
    let again: Value = serde_json::from_str(&rig.sh("head", &adopt)).unwrap();
    assert_eq!(again, pin, "adopted twice it is the same");
    let text = std::fs::read(rig.lab.root("head").join("root/images/lab-adopted.pin.json")).unwrap();
    put_lane(&rig, "lab-adopted", "my-vllm:fixed", &serde_json::from_slice(&text).unwrap());
    let rig = rig.rebuilt();

    rig.app(&[&["deploy", "lab-adopted"][..], &SLOWLY].concat()).is(0, "committed");
    rig.one_release("lab-adopted");
    NODES.iter().for_each(|node| assert_eq!(running(&rig, node), id, "{node}"));
    rig.deploy("lab-a").is(0, "committed");
    rig.app(&["rollback", "--to", "lane:lab-adopted"]).is(0, "committed");
    rig.one_release("lab-adopted");
    NODES.iter().for_each(|node| assert_eq!(running(&rig, node), id, "{node}"));

    // It is what docker has, to the byte, and other layers can stand on it.
    let holds: Value =
        serde_json::from_str(&rig.sh("head", &format!("{TOOL} image verify --docker my-vllm:fixed --json"))).unwrap();
    assert_eq!((&holds["config"], &holds["findings"]), (&pin["config"], &json!([])), "{holds:#}");
    let rig = layered_upon_the_adopted(rig, &pin);

    // Collection keeps what releases name and what was adopted.
    let gc = |more: &str| -> Value {
        serde_json::from_str(&rig.sh("head", &format!("{TOOL} image gc --json {more}"))).unwrap()
    };
    gc("--yes");
    let report: Value = serde_json::from_str(&rig.sh("head", &format!("{TOOL} node image-report"))).unwrap();
    let listed = report["layout"].as_array().unwrap();
    assert!(listed.iter().any(|l| l["manifest"] == pin["manifest"] && l["complete"] == true), "{report:#}");
    assert!(gc("--dry-run")["images"].as_array().unwrap().is_empty());
    rig.deploy("lab-a").is(0, "committed");
}

/// A file put into an adopted image, and one taken out, by `image build` on the node that has it; then deployed.
fn layered_upon_the_adopted(rig: Rig, pin: &Value) -> Rig {
    let header = "RadixGroupResetStateLastCTA\n".repeat(4);
    let spec = json!({
        "name": "lab-layered",
        "base": { "reference": "my-vllm:fixed", "manifest": pin["manifest"], "config": pin["config"] },
        "layers": [{ "kind": "files", "removes": ["/fixed.txt"], "files": [{
            "path": "/opt/env/header.cuh", "source": "header.cuh",
            "sha256": sparklane_oci::digest::of(header.as_bytes()).hex(),
            "asserts": [{ "text": "RadixGroupResetStateLastCTA", "count": 4 }],
        }] }],
    });
    let root = rig.lab.root("head").join("root");
    std::fs::write(root.join("header.cuh"), &header).unwrap();
    std::fs::write(root.join("lab-layered.json"), spec.to_string()).unwrap();
    let build = format!(
        "cd /root && rm -rf layered && {TOOL} image adopt my-vllm:fixed --pins images/pins --scan --json >/dev/null && \
         {TOOL} image build lab-layered.json --pins images/pins --out layered --record images/lab-layered.pin.json --json"
    );
    let built: Value = serde_json::from_str(&rig.sh("head", &build)).unwrap();
    assert_eq!(built["unproved"], json!([]), "{built:#}");
    let flake = rig.lab.root("control").join("root/sparklane");
    let compose = format!(
        "builtins.fromJSON ''{spec}'' // {{ layers = map (l: l // {{ files = map (f: f // {{ source = \"${{./header.cuh}}\"; }}) l.files; }}) (builtins.fromJSON ''{spec}'').layers; }}\n"
    );
    std::fs::write(flake.join("images/compose/lab-layered.nix"), compose).unwrap();
    std::fs::write(flake.join("images/compose/header.cuh"), header).unwrap();
    let copy = ["-r", root.join("images/pins").as_str(), flake.join("images").as_str()].map(str::to_owned);
    assert!(Command::new("cp").args(copy).status().unwrap().success());
    let recorded = std::fs::read(root.join("images/lab-layered.pin.json")).unwrap();
    put_lane(&rig, "lab-layered", "my-vllm:fixed", &serde_json::from_slice(&recorded).unwrap());
    let rig = rig.rebuilt();
    rig.app(&[&["deploy", "lab-layered"][..], &SLOWLY].concat()).is(0, "committed");
    rig.one_release("lab-layered");
    for node in NODES {
        assert_eq!(running(&rig, node), built["config"].as_str().unwrap(), "{node}");
        let copy = "docker cp -q $(docker ps -q):/opt/env/header.cuh /root/out.cuh && wc -l < /root/out.cuh";
        assert_eq!(rig.sh(node, copy).trim(), "4", "{node}");
        assert!(!rig.try_sh(node, "docker cp -q $(docker ps -q):/fixed.txt /root/"), "{node}: it was taken out");
    }
    rig.app(&["rollback", "--to", "lane:lab-adopted"]).is(0, "committed");
    rig.one_release("lab-adopted");
    rig
}
