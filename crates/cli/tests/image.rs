//! `sparklane image` as a program: pin, pull, serve, push, and what kill -9 leaves.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Value, json};
use sparklane_oci::serve::Server;
use sparklane_oci::{Config, Digest, Layout, Manifest, digest, fetch, media};

struct Image {
    _dir: tempfile::TempDir,
    dir: Utf8PathBuf,
    layout: Layout,
    manifest: Digest,
    config: Digest,
    layers: Vec<Digest>,
}

/// A layout with one image of layers of these sizes.
fn image(sizes: &[usize]) -> Image {
    let temp = tempfile::tempdir().unwrap();
    let dir = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
    let layout = Layout::open_or_create(dir.join("from")).unwrap();
    let content =
        |len: usize| -> Vec<u8> { (0..len).map(|i| u8::try_from((i * 7 + i / 509) % 251).unwrap()).collect() };
    let layers: Vec<Vec<u8>> = sizes.iter().map(|len| content(*len)).collect();
    let ids: Vec<Digest> = layers.iter().map(|l| layout.write_blob(l).unwrap()).collect();
    let diff_ids: Vec<&str> = ids.iter().map(Digest::as_str).collect();
    let rootfs = json!({ "type": "layers", "diff_ids": diff_ids });
    let config = json!({ "architecture": "arm64", "os": "linux", "config": {}, "rootfs": rootfs });
    let config = config.to_string().into_bytes();
    layout.write_blob(&config).unwrap();
    let descriptor = |media: &str, bytes: &[u8]| json!({ "mediaType": media, "digest": digest::of(bytes).as_str(), "size": bytes.len() });
    let rows: Vec<Value> = layers.iter().map(|l| descriptor(media::OCI_LAYER_TAR, l)).collect();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": media::OCI_MANIFEST,
        "config": descriptor(media::OCI_CONFIG, &config), "layers": rows,
    });
    let manifest = Manifest::parse(None, manifest.to_string().into_bytes()).unwrap();
    let config = Config::parse(config).unwrap();
    fetch::list(&layout, &manifest, &config, "1").unwrap();
    let (manifest, config) = (manifest.digest().clone(), config.digest().clone());
    Image { _dir: temp, dir, layout, manifest, config, layers: ids }
}

fn sparklane(args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("sparklane"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> (i32, Value, String) {
    let Output { status, stdout, stderr } = sparklane(args).output().unwrap();
    let value = serde_json::from_slice(&stdout).unwrap_or(Value::Null);
    (status.code().unwrap(), value, String::from_utf8_lossy(&stderr).into_owned())
}

fn entries(dir: &Utf8Path) -> Vec<String> {
    let mut names: Vec<String> = dir.read_dir_utf8().unwrap().map(|e| e.unwrap().file_name().to_owned()).collect();
    names.sort();
    names
}

#[test]
fn an_image_is_pinned_with_its_documents_as_served() {
    let image = image(&[1000, 2000]);
    let server = Server::start(image.layout.clone(), 0).unwrap();
    let (reference, pins) = (format!("{}/x:1", server.address()), image.dir.join("pins"));
    let (code, pin, stderr) = run(&["image", "pin", &reference, "--pins", pins.as_str(), "--json"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(pin["manifest"], image.manifest.as_str());
    assert_eq!(pin["config"], image.config.as_str());
    assert_eq!(pin["layers"][1]["size"], 2000);
    let dir = pins.join(image.manifest.hex());
    assert_eq!(entries(&dir), ["config.json", "manifest.json", "pin.json"]);
    assert_eq!(std::fs::read(dir.join("manifest.json")).unwrap(), image.layout.read_document(&image.manifest).unwrap());
    let first = std::fs::read(dir.join("pin.json")).unwrap();
    run(&["image", "pin", &reference, "--pins", pins.as_str()]);
    assert_eq!(std::fs::read(dir.join("pin.json")).unwrap(), first, "the same answer is the same pin");
    let (code, failure, _) = run(&["image", "pin", &reference, "--platform", "linux/amd64", "--json"]);
    assert_eq!((code, failure["verdict"].as_str()), (1, Some("refused")));
    assert_eq!(run(&["image", "pin", "no-host:1"]).0, 2);
    assert_eq!(run(&["image", "pin", &format!("{}/x:none", server.address())]).0, 1);
}

#[test]
fn an_image_is_pulled_once_and_only_what_is_missing() {
    let image = image(&[1000, 2000]);
    let server = Server::start(image.layout.clone(), 0).unwrap();
    let (reference, to) = (format!("{}/x:1", server.address()), image.dir.join("to"));
    let pull = || run(&["image", "pull", &reference, "--layout", to.as_str(), "--json"]);
    let numbers = |v: &Value| ["blobs", "bytes", "present"].map(|key| v[key].as_u64().unwrap());
    let (code, done, stderr) = pull();
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(done["manifest"], image.manifest.as_str());
    assert_eq!(numbers(&done), [2, 3000, 1], "the config came when the reference was looked up");
    assert_eq!(numbers(&pull().1), [0, 0, 3]);
    let layout = Layout::open(&to).unwrap();
    std::fs::remove_file(layout.own_path(&image.layers[1])).unwrap();
    assert_eq!(numbers(&pull().1), [1, 2000, 2]);
    // Damage of the same size is found when it is asked for.
    std::fs::write(layout.own_path(&image.layers[1]), vec![b'x'; 2000]).unwrap();
    let (code, done, stderr) = run(&["image", "pull", &reference, "--layout", to.as_str(), "--check", "--json"]);
    assert_eq!((code, numbers(&done)), (0, [1, 2000, 2]), "{stderr}");
    assert!(stderr.contains("fetched anew"), "{stderr}");
    assert_eq!(layout.list().unwrap()[0].0.as_deref(), Some(reference.as_str()));
}

/// kill -9 at many points: the next run goes on, and no wrong or half blob ever has a good name.
#[test]
fn a_killed_pull_goes_on_and_never_leaves_a_wrong_blob() {
    let sizes = [3_000_000, 1_500_000, 40_000];
    let image = image(&sizes);
    let server = Server::start(image.layout.clone(), 0).unwrap();
    let (reference, to) = (format!("{}/x:1", server.address()), image.dir.join("to"));
    let total = sizes.iter().sum::<usize>() as u64;
    let layout = Layout::open_or_create(&to).unwrap();
    let here = || -> u64 {
        let partial = layout.partial_dir().read_dir_utf8().unwrap().flatten();
        let partial: u64 = partial.filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum();
        partial + layout.blobs().unwrap().iter().map(|(_, size)| size).sum::<u64>()
    };
    let mut killed = 0;
    for point in 1..10 {
        let args = ["image", "pull", &reference, "--layout", to.as_str(), "--limit-rate", "4M", "--json"];
        let mut child = sparklane(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while here() < total * point / 10 && child.try_wait().unwrap().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        killed += u32::from(child.wait().unwrap().signal() == Some(9));
        for (name, _) in layout.blobs().unwrap() {
            let (file, _) = layout.open_blob(&name).unwrap();
            assert_eq!(digest::of_reader(file).unwrap().0, name, "a blob that has a name is whole");
        }
        assert!(layout.list().unwrap().is_empty(), "no half image is listed");
    }
    assert!(killed >= 5, "the pulls were too quick to be killed");
    let (code, done, stderr) = run(&["image", "pull", &reference, "--layout", to.as_str(), "--json"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(done["bytes"].as_u64().unwrap() < total / 2, "it went on where it was: {done}");
    let manifest = layout.manifest(&image.manifest).unwrap();
    manifest.blobs().into_iter().for_each(|d| layout.prove_blob(d).unwrap());
    assert_eq!(layout.list().unwrap().len(), 1);
}

#[test]
fn a_served_layout_tells_its_address() {
    use std::io::BufRead as _;
    let image = image(&[1000]);
    let mut child = sparklane(&["image", "serve", "--layout", image.layout.root().as_str(), "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = serde_json::from_str::<Value>(&line).unwrap()["address"].as_str().unwrap().to_owned();
    let reference = format!("{address}/x@{}", image.manifest);
    let (code, _, stderr) = run(&["image", "pull", &reference, "--layout", image.dir.join("to").as_str()]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(code, 0, "{stderr}");
}

/// With the layers read, the tree index lies beside the pin, and the pin names it by its digest.
#[test]
fn a_scanned_pin_has_the_tree_of_its_image() {
    let temp = tempfile::tempdir().unwrap();
    let dir = Utf8PathBuf::from_path_buf(temp.path().to_owned()).unwrap();
    let layout = Layout::open_or_create(dir.join("from")).unwrap();
    // A tar of one file, by hand: name, mode, ids, size, time, sum, kind (POSIX ustar).
    let mut tar = vec![0u8; 2048];
    let put = |tar: &mut Vec<u8>, at: usize, text: &str| tar[at..at + text.len()].copy_from_slice(text.as_bytes());
    for (at, text) in [(0, "etc/hello"), (100, "0000644"), (108, "0000000"), (116, "0000000"), (124, "00000000003")] {
        put(&mut tar, at, text);
    }
    for (at, text) in [(136, "00000000000"), (148, "        "), (156, "0"), (257, "ustar"), (263, "00"), (512, "hi\n")]
    {
        put(&mut tar, at, text);
    }
    let sum: u32 = tar[..512].iter().map(|b| u32::from(*b)).sum();
    put(&mut tar, 148, &format!("{sum:06o}\0 "));
    let layer = layout.write_blob(&tar).unwrap();
    let rootfs = json!({ "type": "layers", "diff_ids": [layer.as_str()] });
    let config = json!({ "architecture": "arm64", "os": "linux", "rootfs": rootfs }).to_string().into_bytes();
    let id = layout.write_blob(&config).unwrap();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": media::OCI_MANIFEST,
        "config": { "mediaType": media::OCI_CONFIG, "digest": id.as_str(), "size": config.len() },
        "layers": [{ "mediaType": media::OCI_LAYER_TAR, "digest": layer.as_str(), "size": tar.len() }],
    });
    let manifest = Manifest::parse(None, manifest.to_string().into_bytes()).unwrap();
    fetch::list(&layout, &manifest, &Config::parse(config).unwrap(), "1").unwrap();
    let server = Server::start(layout, 0).unwrap();
    let (reference, pins, store) = (format!("{}/x:1", server.address()), dir.join("pins"), dir.join("to"));
    let scan = ["image", "pin", &reference, "--pins", pins.as_str(), "--scan", "--layout", store.as_str(), "--json"];
    let (code, pin, stderr) = run(&scan);
    assert_eq!(code, 0, "{stderr}");
    let tree = std::fs::read(pins.join(manifest.digest().hex()).join("tree.json")).unwrap();
    assert_eq!(pin["tree"], digest::of(&tree).as_str());
    assert!(String::from_utf8(tree).unwrap().contains("hello"));
    // Looked up again without its layers, the pin keeps the index of these very layers.
    let again = run(&["image", "pin", &reference, "--pins", pins.as_str(), "--json"]).1;
    assert_eq!(again, pin);
}

#[test]
fn an_image_is_looked_at_proved_and_compared() {
    // A tar of no bytes is an empty layer; other bytes are no tar.
    let (good, bad) = (image(&[0]), image(&[0, 700]));
    let layout = |image: &Image| image.dir.join("from").to_string();
    let (code, seen, stderr) = run(&["image", "inspect", "--layout", &layout(&good), "--json"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!((&seen["manifest"], &seen["config"]), (&json!(good.manifest.as_str()), &json!(good.config.as_str())));
    assert_eq!(seen["platform"], "linux/arm64");
    assert_eq!(seen["layers"][0]["here"], true);

    let (code, proved, stderr) = run(&["image", "verify", "1", "--layout", &layout(&good), "--json"]);
    assert_eq!((code, proved["read"].as_u64()), (0, Some(1)), "{stderr}");
    let (code, refused, _) = run(&["image", "verify", "--layout", &layout(&bad), "--json"]);
    assert_eq!(code, 1, "{refused}");
    assert!(refused["findings"][0]["at"].as_str().unwrap().starts_with("layer 1"), "{refused}");

    std::fs::remove_file(bad.layout.own_path(&bad.layers[1])).unwrap();
    let (from, to) = (layout(&good), layout(&bad));
    let (code, found, stderr) = run(&["image", "diff", "1", "1", "--layout", &from, "--other", &to, "--json"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!((&found["common"], found["layers"].as_array().unwrap().len()), (&json!(1), 1));
    assert!(found["layers"][0]["files"][0].as_str().unwrap().contains("is not in"), "{found}");

    let (code, _, stderr) = run(&["image", "inspect", "nosuch", "--layout", &layout(&good)]);
    assert_eq!(code, 1);
    assert!(stderr.contains("name one of: 1"), "{stderr}");
}

/// What a registry serves is fetched aside, judged, and gone afterwards: these layers are no tars.
#[test]
fn an_image_of_a_registry_is_judged_as_served() {
    let image = image(&[700, 20_000]);
    let server = Server::start(image.layout.clone(), 0).unwrap();
    let reference = format!("{}/any/name@{}", server.address(), image.manifest);
    let temp = tempfile::tempdir().unwrap();
    let mut command = sparklane(&["image", "verify", "--registry", &reference, "--json"]);
    let done = command.env("TMPDIR", temp.path()).output().unwrap();
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["manifest"], image.manifest.as_str());
    assert_eq!(report["findings"][0]["weight"], "problem", "{report:#}");
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "nothing stays");
}
