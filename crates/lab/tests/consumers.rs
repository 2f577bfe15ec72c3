//! Other people's programs take an image that was made here: podman with runc runs Ray in it, skopeo copies it without a
//! change, umoci unpacks it. `cargo xtask test --consumers` installs them and runs this; CI has docker, skopeo and the registry.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says what went wrong by panicking")]

#[path = "support/python.rs"]
mod python;

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use camino::Utf8Path;
use sparklane_oci::base::{scan, tree};
use sparklane_oci::compose::{Built, Inputs, Place, Spec, build};
use sparklane_oci::serve::Server;
use sparklane_oci::{Config, Layout, Manifest};

/// Ray on Debian's python, and the layout that has all of it.
fn image(dir: &Utf8Path) -> (Built, Layout) {
    let base = python::base(&dir.join("base"), &python::X86_64);
    let manifest: Manifest = base.layout.manifest(&base.manifest).unwrap();
    let config: Config = base.layout.config(&manifest).unwrap();
    let keep = scan::Keep::new();
    let scans = scan::layers(&base.layout, &manifest, &keep, None).unwrap();
    let index = tree::merge(manifest.layers.iter().map(|d| d.digest.clone()).collect(), scans, &keep).unwrap();
    let passwd = dir.join("passwd");
    std::fs::write(&passwd, "root:x:0:0:root:/root:/bin/bash\n").unwrap();
    let files = [("/etc/passwd", passwd.as_path(), "0644")];
    let spec = python::spec("ray", "127.0.0.1:1/test/python:base", &base, &python::X86_64, &files);
    let spec = Spec::parse("spec", spec.to_string().as_bytes()).unwrap();
    let wheels = python::wheels();
    let inputs = Inputs {
        spec: &spec,
        manifest: &manifest,
        config: &config,
        index: Some(&index),
        wheels: &wheels,
        sources: dir,
    };
    let out = dir.join("out");
    let built = build(&inputs, &out, Place::Renamed).unwrap();
    assert_eq!(built.unproved, Vec::<String>::new());
    (built, Layout::open(&out).unwrap().with_shared(base.layout.root()))
}

#[test]
#[ignore = "needs root, podman, runc, skopeo and umoci: cargo xtask test --consumers"]
fn podman_skopeo_and_umoci_take_our_image() {
    let temp = tempfile::tempdir().unwrap();
    let dir = Utf8Path::from_path(temp.path()).unwrap();
    let (built, layout) = image(dir);
    let server = Server::start(layout, 0).unwrap();
    let reference = format!("127.0.0.1:{}/test/ray@{}", server.address().port(), built.manifest);

    let program = "import ray, importlib.metadata as m; ray.init(num_cpus=1, include_dashboard=False, \
                   object_store_memory=80000000, log_to_driver=False); \
                   print(ray.get(ray.remote(lambda x: x + 2).remote(40)), len(list(m.distributions(path=[\"/usr/local/lib/python3.11/dist-packages\"]))))";
    let mut podman = Command::new("podman");
    podman.args(["--root", dir.join("podman").as_str(), "--runroot", dir.join("podman-run").as_str()]);
    podman.args(["--storage-driver", "vfs", "--runtime", "runc", "--cgroup-manager", "cgroupfs"]);
    podman.args(["run", "--rm", "--quiet", "--tls-verify=false", "--network", "host", "--shm-size", "256m"]);
    podman.args(["--ulimit", "nofile=1024:20000", "--ulimit", "nproc=4096:8192"]);
    podman.args([&reference, "python3", "-c", program]);
    assert_eq!(python::run(&mut podman).trim(), "42 57");

    let (copied, bundle) = (dir.join("copied"), dir.join("bundle"));
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["copy", "--quiet", "--preserve-digests", "--src-tls-verify=false"]);
    python::run(skopeo.args([format!("docker://{reference}"), format!("oci:{copied}:ray")]));
    let layout = Layout::open(&copied).unwrap();
    assert_eq!(layout.list().unwrap()[0].1.digest, built.manifest, "not a byte of the manifest changed");

    let mut umoci = Command::new("umoci");
    python::run(umoci.args(["unpack", "--image", &format!("{copied}:ray"), bundle.as_str()]));
    let script = bundle.join("rootfs/usr/local/bin/ray");
    assert_eq!(std::fs::metadata(&script).unwrap().permissions().mode() & 0o7777, 0o755);
    assert!(std::fs::read_to_string(&script).unwrap().starts_with("#!/usr/bin/python3\n"));
}
