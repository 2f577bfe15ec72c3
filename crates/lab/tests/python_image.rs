//! An image for Arm nodes made here, from a Debian base and Ray's wheels, runs: under qemu-user, with nothing installed in it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what went wrong by panicking")]

#[path = "support/python.rs"]
mod python;

use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::Value;
use sparklane_oci::{Layout, serve::Server};

/// Of the Debian package golang-github-opencontainers-image-spec-dev.
const SCHEMAS: &str = "/usr/share/gocode/src/github.com/opencontainers/image-spec/schema";
const TOOL: &str = "prebuilt/x86_64-linux/sparklane";

fn workspace() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap()
}

fn sparklane(args: &[&str]) -> String {
    python::run(Command::new(workspace().join(TOOL)).args(args))
}

/// Unpacks the layers over each other, as a runtime would; our layers have no whiteouts here.
fn unpack(layouts: &[&Layout], manifest: &str, root: &Utf8Path) {
    let find = |digest: &str| layouts.iter().find(|l| l.has(&digest.parse().unwrap())).unwrap();
    let layout = find(manifest);
    let manifest = layout.manifest(&manifest.parse().unwrap()).unwrap();
    std::fs::create_dir_all(root).unwrap();
    for layer in &manifest.layers {
        let blob = find(layer.digest.as_str()).own_path(&layer.digest);
        python::run(Command::new("tar").args(["--extract", "--file", blob.as_str(), "--directory", root.as_str()]));
    }
}

#[test]
#[ignore = "needs root, Debian's archive and the wheels (cargo xtask test)"]
fn ray_runs_in_an_arm_image_that_was_made_on_another_processor() {
    let temp = tempfile::tempdir().unwrap();
    let dir = Utf8Path::from_path(temp.path()).unwrap();
    let base = python::base(&dir.join("registry"), &python::AARCH64);
    let server = Server::start(base.layout.clone(), 0).unwrap();
    let reference = format!("127.0.0.1:{}/test/python:base", server.address().port());
    let (pins, store) = (dir.join("pins"), dir.join("store"));
    let (pins, store) = (pins.as_str(), store.as_str());
    sparklane(&["image", "pin", &reference, "--scan", "--pins", pins, "--layout", store]);
    sparklane(&["image", "verify", "--registry", &reference]);

    let spec = dir.join("image.json");
    let passwd = dir.join("passwd");
    std::fs::write(&passwd, "root:x:0:0:root:/root:/bin/bash\n").unwrap();
    let files = [("/etc/passwd", passwd.as_path(), "0644")];
    let text = python::spec("ray", &reference, &base, &python::AARCH64, &files).to_string();
    std::fs::write(&spec, text).unwrap();
    let (out, wheels) = (dir.join("out"), python::wheels());
    let args = ["image", "build", spec.as_str(), "--pins", pins, "--wheels", wheels.as_str(), "--out", out.as_str()];
    let built: Value = serde_json::from_str(&sparklane(&[&args[..], &["--json"]].concat())).unwrap();
    assert_eq!(built["unproved"].as_array().unwrap().len(), 0, "{built:#}");
    assert_eq!(built["platform"], "linux/arm64");
    sparklane(&["image", "verify", "--layout", out.as_str(), "--base", store]);

    let root = dir.join("root");
    unpack(&[&base.layout, &Layout::open(&out).unwrap()], built["manifest"].as_str().unwrap(), &root);
    std::fs::copy("/usr/bin/qemu-aarch64-static", root.join("qemu")).unwrap();
    std::fs::create_dir_all(root.join("dev")).unwrap();
    for (device, minor) in [("null", "3"), ("urandom", "9")] {
        python::run(Command::new("mknod").args([root.join("dev").join(device).as_str(), "c", "1", minor]));
    }
    let program = "import ray, grpc, pydantic_core, aiohttp, cryptography, platform, importlib.metadata as m; \
                   print(platform.machine(), ray.__version__, len(list(m.distributions(path=[\"/usr/local/lib/python3.11/dist-packages\"]))))";
    let said = |program: &str| {
        let mut chroot = Command::new("/usr/sbin/chroot");
        chroot.args([root.as_str(), "/qemu", "/usr/bin/python3", "-c", program]);
        python::run(chroot.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin")).trim().to_owned()
    };
    assert_eq!(said(program), "aarch64 2.57.0 57");
    // The script that we wrote names the image's python, not this machine's.
    let script = std::fs::read_to_string(root.join("usr/local/bin/ray")).unwrap();
    assert!(script.starts_with("#!/usr/bin/python3\n"), "{script}");

    // Its documents keep the specification's schemas; the wheels have a validator.
    python::run(Command::new("cp").args(["-r", SCHEMAS, root.join("schema").as_str()]));
    std::fs::create_dir(root.join("image")).unwrap();
    let blob = |digest: &Value| out.join("blobs/sha256").join(&digest.as_str().unwrap()["sha256:".len()..]);
    let documents = [
        ("manifest", blob(&built["manifest"])),
        ("config", blob(&built["config"])),
        ("index", out.join("index.json")),
        ("layout", out.join("oci-layout")),
    ];
    for (name, file) in documents {
        std::fs::copy(file, root.join(format!("image/{name}.json"))).unwrap();
    }
    assert_eq!(said(include_str!("support/schema.py")), "valid: manifest config index layout");
}
