//! The lane `lab-ray`: an image that was made here, of a Debian base and Ray's wheels, without docker and without pip in it.

use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use sparklane_lab::HOST_ADDRESS;

use crate::images::{PORT, Registry, SLOWLY, deploy, forget, running};
use crate::python::{self, Base};
use crate::ray_faults;
use crate::support::{NODES, Rig, workspace};

const LANES: [&str; 2] = ["lab-ray", "lab-ray-noted"];

/// What each image has beside python and Ray.
fn specs(dir: &Utf8Path, reference: &str, base: &Base) -> Vec<Value> {
    let write = |name: &str, text: &str| {
        std::fs::write(dir.join(name), text).unwrap();
        dir.join(name)
    };
    let passwd = write("passwd", "root:x:0:0:root:/root:/bin/bash\n");
    let note = write("note", "the second image\n");
    let sim = dir.join("sparklane-sim");
    let (image, manifest) = crate::images::layout(&dir.join("sim"));
    let layer = image.own_path(&manifest.layers[0].digest);
    python::run(Command::new("tar").args(["--extract", "--file", layer.as_str(), "--directory", dir.as_str()]));
    let files = [("/sparklane-sim", sim.as_path(), "0755"), ("/etc/passwd", passwd.as_path(), "0644")];
    let first = python::spec(LANES[0], reference, base, &python::X86_64, &files);
    let mut second = first.clone();
    second["name"] = json!(LANES[1]);
    let digest = sparklane_oci::digest::of(&std::fs::read(&note).unwrap());
    let file = json!({ "path": "/etc/note", "source": note, "sha256": digest.hex() });
    second["layers"].as_array_mut().unwrap().push(json!({ "kind": "files", "files": [file] }));
    vec![first, second]
}

/// Pins the base and makes the images on this host, as someone does who writes a lane; gives what `image build` said.
fn make(dir: &Utf8Path, reference: &str, specs: &[Value]) -> Vec<Value> {
    let tool = workspace().join("prebuilt/x86_64-linux/sparklane");
    let sparklane = |args: &[&str]| python::run(Command::new(&tool).args(args));
    let (pins, store, wheels) = (dir.join("images/pins"), dir.join("store"), python::wheels());
    let plain = format!("{HOST_ADDRESS}:{PORT}");
    let pin = ["image", "pin", reference, "--scan", "--platform", "linux/amd64", "--pins", pins.as_str()];
    sparklane(&[&pin[..], &["--layout", store.as_str(), "--plain-http", &plain]].concat());
    let build = |spec: &Value| {
        let name = spec["name"].as_str().unwrap();
        let (file, out) = (dir.join(format!("{name}.json")), dir.join(format!("out-{name}")));
        std::fs::write(&file, spec.to_string()).unwrap();
        let record = dir.join(format!("images/{name}.pin.json"));
        let args = ["image", "build", file.as_str(), "--pins", pins.as_str(), "--wheels", wheels.as_str(), "--json"];
        let built = sparklane(&[&args[..], &["--out", out.as_str(), "--record", record.as_str()]].concat());
        sparklane(&["image", "verify", "--layout", out.as_str(), "--base", store.as_str()]);
        serde_json::from_str(&built).unwrap()
    };
    specs.iter().map(build).collect()
}

/// Puts images and lanes into the control machine's flake, with the sources of their files and the wheels.
fn publish(rig: &Rig, dir: &Utf8Path, reference: &str, specs: &[Value]) {
    let root = rig.lab.root("control");
    let flake = root.join("root/sparklane");
    let copy = |from: &Utf8Path, to: &Utf8Path| {
        python::run(Command::new("cp").args(["-r", "--", from.as_str(), to.as_str()]));
    };
    copy(&dir.join("images/."), &flake.join("images"));
    let sources = flake.join("images/lab-ray-files");
    std::fs::create_dir_all(&sources).unwrap();
    ["sparklane-sim", "passwd", "note"].iter().for_each(|name| copy(&dir.join(name), &sources));
    let wheelhouse = root.join("root/wheelhouse");
    std::fs::create_dir_all(&wheelhouse).unwrap();
    let lock = python::lock(&python::X86_64);
    let wheels = lock["wheels"].as_array().unwrap().iter().map(|w| w["file"].as_str().unwrap());
    wheels.for_each(|file| copy(&python::wheels().join(file), &wheelhouse));
    for spec in specs {
        let name = spec["name"].as_str().unwrap();
        // The sources become paths of the store; all else is what the command line took.
        let compose = format!(
            "let\n  spec = builtins.fromJSON (builtins.readFile ./{name}.json);\n  \
             here = file: file // {{ source = \"${{../lab-ray-files}}/${{baseNameOf file.source}}\"; }};\n  \
             own = layer: if layer ? files then layer // {{ files = map here layer.files; }} else layer;\n\
             in\nspec // {{ layers = map own spec.layers; }}\n"
        );
        let image = format!(
            "import ./lab-sim.nix // {{ name = \"{name}\"; reference = \"{reference}\"; ray = \"/usr/local/bin/ray\"; \
             pinWith = \"sparklane image build\"; }}\n"
        );
        // The first lane's ranks meet through Ray; the second has Ray in its image only.
        let executor = if name == LANES[0] { ray_faults::EXECUTOR } else { "" };
        let lane = format!(
            "import ./base/lab.nix {{\n  name = \"{name}\";\n  description = \"Ray in an image made here\";\n  \
             image = \"{name}\";\n  {executor}\n}}\n"
        );
        std::fs::write(flake.join(format!("images/compose/{name}.json")), spec.to_string()).unwrap();
        std::fs::write(flake.join(format!("images/compose/{name}.nix")), compose).unwrap();
        std::fs::write(flake.join(format!("images/{name}.nix")), image).unwrap();
        std::fs::write(flake.join(format!("nix/lanes/{name}.nix")), lane).unwrap();
    }
}

/// Ray in the image, started beside the lane's and used: a remote task's answer.
fn ray(rig: &Rig, node: &str, image: &str) -> String {
    let program = "import ray; ray.init(num_cpus=1, include_dashboard=False, object_store_memory=80000000, \
                   log_to_driver=False); print(ray.get(ray.remote(lambda x: x + 2).remote(40)), ray.__version__)";
    let run = format!("docker run --rm --network host --shm-size 256m --entrypoint python3 {image} -c '{program}'");
    rig.sh(node, &run).trim().to_owned()
}

#[test]
#[ignore = "needs the lab, Debian's archive and the wheels (cargo xtask test)"]
fn lab_ray_is_deployed_runs_ray_and_is_rolled_back() {
    let temp = tempfile::tempdir().unwrap();
    let dir = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
    std::fs::create_dir_all(dir.join("images")).unwrap();
    let rig = Rig::on_a();
    let registry = Registry::start();
    let base = python::base(&dir.join("base"), &python::X86_64);
    let reference = format!("{HOST_ADDRESS}:{PORT}/lab/python:3.11");
    let push = ["image", "push", &reference, "--layout", base.layout.root().as_str(), "--image", "base"];
    let plain = ["--plain-http", &format!("{HOST_ADDRESS}:{PORT}")];
    let tool = workspace().join("prebuilt/x86_64-linux/sparklane");
    python::run(Command::new(tool).args(push).args(plain));
    let specs = specs(&dir, &reference, &base);
    let built = make(&dir, &reference, &specs);
    assert_eq!(built[0]["layers"].as_array().unwrap()[..], built[1]["layers"].as_array().unwrap()[..2]);
    publish(&rig, &dir, &reference, &specs);
    NODES.iter().for_each(|node| forget(&rig, node));
    // Nix makes the same bytes, or refuses: the digests were recorded above.
    let rig = rig.rebuilt();

    deploy(&rig, LANES[0], &SLOWLY).is(0, "committed");
    rig.one_release(LANES[0]);
    let config = |i: usize| built[i]["config"].as_str().unwrap().to_owned();
    NODES.iter().for_each(|node| assert_eq!(running(&rig, node), config(0), "{node}"));
    ray_faults::all(&rig, &config(0));
    assert_eq!(
        registry.blobs_fetched_by("10.77.0.10"),
        1,
        "the base's layer; ours and the config came with the closure"
    );
    assert_eq!(registry.blobs_fetched_by("10.77.0.11"), 0, "the worker has it from the head");

    // The other image's base and first layers are there: nothing is fetched.
    deploy(&rig, LANES[1], &SLOWLY).is(0, "committed");
    rig.one_release(LANES[1]);
    for node in NODES {
        assert_eq!(running(&rig, node), config(1), "{node}");
        assert_eq!(ray(&rig, node, &config(1)), "42 2.57.0", "{node}");
    }
    assert_eq!(registry.blobs_fetched_by("10.77.0.10"), 1);
    rig.app(&["rollback"]).is(0, "committed");
    rig.one_release(LANES[0]);
    NODES.iter().for_each(|node| assert_eq!(running(&rig, node), config(0), "{node}"));
    rig.deploy("lab-a").is(0, "committed");
}
