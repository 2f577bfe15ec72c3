//! Images with a real python: a base of Debian's packages as a registry would offer it, and the specification of Ray on it.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests, where a failure shall end the test")]

use std::fs::File;
use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use sparklane_lab::Paths;
use sparklane_oci::{Config, Digest, Layout, Manifest, fetch, media};

/// Debian's name, and the images' name, of a processor.
pub struct Arch {
    pub debian: &'static str,
    pub wheels: &'static str,
}

pub const X86_64: Arch = Arch { debian: "amd64", wheels: "x86_64" };
pub const AARCH64: Arch = Arch { debian: "arm64", wheels: "aarch64" };

/// Enough for `import ray`, which needs libstdc++ and does not say so.
const PACKAGES: &str = "python3,libpython3-stdlib,bash,coreutils,dash,zlib1g,libgcc-s1,libstdc++6";

fn workspace() -> Utf8PathBuf {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap()
}

/// The wheels of our locks, filled by `cargo xtask wheelhouse` (`cargo xtask test` does).
pub fn wheels() -> Utf8PathBuf {
    let folder = std::env::var("SPARKLANE_WHEELS").map(Utf8PathBuf::from);
    folder.unwrap_or_else(|_| Paths::from_env().cache().parent().unwrap().join("wheels"))
}

/// The lock of Ray for Debian 12's python.
pub fn lock(arch: &Arch) -> Value {
    let file = workspace().join(format!("images/ray-2.57.0-cp311-{}.lock.json", arch.wheels));
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// Debian 12 with python 3.11, unpacked by nobody: nothing of the other processor runs. Made once.
fn debian(arch: &Arch) -> Utf8PathBuf {
    let cache = Paths::from_env().cache().to_owned();
    let (done, making) = (format!("python-{}.tar", arch.debian), format!("python-{}.making.tar", arch.debian));
    let (done, making) = (cache.join(done), cache.join(making));
    if !done.exists() {
        std::fs::create_dir_all(&cache).unwrap();
        let mut command = Command::new("mmdebstrap");
        command.args(["--quiet", "--variant=extract", "--skip=output/dev", "--mode=root"]);
        command.args([format!("--architectures={}", arch.debian), format!("--include={PACKAGES}")]);
        assert!(command.args(["bookworm", making.as_str()]).status().unwrap().success());
        std::fs::rename(&making, &done).unwrap();
    }
    done
}

/// An image of one layer; its name is `base`.
pub struct Base {
    pub layout: Layout,
    pub manifest: Digest,
    pub config: Digest,
}

/// Makes the base in `dir`.
pub fn base(dir: &Utf8Path, arch: &Arch) -> Base {
    let layout = Layout::open_or_create(dir).unwrap();
    let mut blob = layout.blob_writer().unwrap();
    std::io::copy(&mut File::open(debian(arch)).unwrap(), &mut blob).unwrap();
    let (layer, size) = blob.finish().unwrap();
    let config = json!({ "os": "linux", "architecture": arch.debian,
        "config": { "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [layer.as_str()] }, "history": [{ "created_by": "mmdebstrap" }] });
    let config = config.to_string().into_bytes();
    let id = layout.write_blob(&config).unwrap();
    let manifest = json!({ "schemaVersion": 2, "mediaType": media::OCI_MANIFEST,
        "config": { "mediaType": media::OCI_CONFIG, "digest": id.as_str(), "size": config.len() },
        "layers": [{ "mediaType": media::OCI_LAYER_TAR, "digest": layer.as_str(), "size": size }] });
    let manifest = Manifest::parse(None, manifest.to_string().into_bytes()).unwrap();
    layout.write_blob(manifest.bytes()).unwrap();
    fetch::list(&layout, &manifest, &Config::parse(config).unwrap(), "base").unwrap();
    Base { manifest: manifest.digest().clone(), config: id, layout }
}

/// The specification of an image: Ray's wheels and some files on a base.
pub fn spec(name: &str, reference: &str, base: &Base, arch: &Arch, files: &[(&str, &Utf8Path, &str)]) -> Value {
    let file = |(path, source, mode): &(&str, &Utf8Path, &str)| {
        let digest = sparklane_oci::digest::of_reader(File::open(source).unwrap()).unwrap().0;
        json!({ "path": path, "source": source, "sha256": digest.hex(), "mode": mode })
    };
    json!({
        "name": name,
        "base": { "reference": reference, "manifest": base.manifest.as_str(), "config": base.config.as_str() },
        "layers": [
            { "kind": "wheels", "lock": lock(arch), "interpreter": "/usr/bin/python3",
              "site": "/usr/local/lib/python3.11/dist-packages", "scripts": "/usr/local/bin" },
            { "kind": "files", "files": files.iter().map(file).collect::<Vec<_>>() },
        ],
    })
}

/// Runs a command and gives what it printed.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (printed, said) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {}\n{printed}\n{said}", out.status);
    printed
}
