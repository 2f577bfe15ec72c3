//! The OCI image of the engine simulator: one layer, the same bytes on every host.

use std::io::Write;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Name under which docker knows the image.
pub const REFERENCE: &str = "sparklane-sim:lab";

/// Where the simulator lies in the image.
const PROGRAM: &str = "sparklane-sim";

/// What identifies the image; `sim-image.json` beside it, from which the lab's lanes take their digests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFacts {
    /// Digest of the manifest.
    pub manifest: String,
    /// Digest of the configuration: docker's image id.
    pub config: String,
    /// Name and tag.
    pub reference: String,
}

/// An image as one tar, both an OCI layout and what `docker load` reads.
#[derive(Debug)]
pub struct Image {
    /// The tar's bytes.
    pub tar: Vec<u8>,
    /// Its identity.
    pub facts: ImageFacts,
}

/// Makes the image of `program`, a static executable for the OCI architecture `architecture` (`amd64`, `arm64`).
pub fn build(program: &[u8], architecture: &str) -> std::io::Result<Image> {
    let layer = layer(program)?;
    let layer_digest = digest(&layer);
    let config = bytes(&json!({
        "architecture": architecture,
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Env": ["PATH=/usr/local/bin"],
            "Cmd": ["sparklane-sim", "--help"],
            "WorkingDir": "/",
            "Labels": { "org.opencontainers.image.title": "sparklane engine simulator" }
        },
        "rootfs": { "type": "layers", "diff_ids": [layer_digest] },
        "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "cargo xtask prebuilt" }]
    }))?;
    let manifest = bytes(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)]
    }))?;
    let facts = ImageFacts { manifest: digest(&manifest), config: digest(&config), reference: REFERENCE.to_owned() };
    let tar = outer(&[&layer, &config, &manifest], &facts, &layer_digest)?;
    Ok(Image { tar, facts })
}

/// The tar around the blobs.
fn outer(blobs: &[&[u8]; 3], facts: &ImageFacts, layer_digest: &str) -> std::io::Result<Vec<u8>> {
    let [_, _, manifest] = blobs;
    let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", manifest);
    entry["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/{REFERENCE}"),
        "org.opencontainers.image.ref.name": "lab"
    });
    let index = bytes(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [entry]
    }))?;
    // For `docker load` of a docker without the containerd store.
    let docker = bytes(&json!([{
        "Config": blob_path(&facts.config),
        "RepoTags": [REFERENCE],
        "Layers": [blob_path(layer_digest)]
    }]))?;
    let mut files: Vec<(String, &[u8])> = blobs.iter().map(|b| (blob_path(&digest(b)), *b)).collect();
    files.push(("index.json".to_owned(), &index));
    files.push(("manifest.json".to_owned(), &docker));
    files.push(("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#));
    files.sort();
    let mut tar = tar::Builder::new(Vec::new());
    add_dir(&mut tar, "blobs/", 0o755)?;
    add_dir(&mut tar, "blobs/sha256/", 0o755)?;
    for (path, content) in files {
        add_file(&mut tar, &path, 0o644, content)?;
    }
    tar.into_inner()
}

/// The one layer: the simulator at `/sparklane-sim`, on PATH also as `vllm`.
fn layer(program: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    add_dir(&mut tar, "sim/", 0o755)?;
    add_file(&mut tar, PROGRAM, 0o755, program)?;
    add_dir(&mut tar, "tmp/", 0o1777)?;
    for dir in ["usr/", "usr/local/", "usr/local/bin/"] {
        add_dir(&mut tar, dir, 0o755)?;
    }
    for name in ["sparklane-sim", "vllm"] {
        let path = format!("usr/local/bin/{name}");
        tar.append_link(&mut header(tar::EntryType::Symlink, 0o777, 0), path, "/sparklane-sim")?;
    }
    tar.into_inner()
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn add_dir(tar: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32) -> std::io::Result<()> {
    tar.append_data(&mut header(tar::EntryType::Directory, mode, 0), path, std::io::empty())
}

fn add_file(tar: &mut tar::Builder<Vec<u8>>, path: &str, mode: u32, content: &[u8]) -> std::io::Result<()> {
    tar.append_data(&mut header(tar::EntryType::Regular, mode, content.len() as u64), path, content)
}

fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(content), "size": content.len() })
}

fn digest(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect();
    format!("sha256:{hex}")
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

fn bytes(value: &Value) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    serde_json::to_writer(&mut out, value)?;
    out.flush()?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use super::*;

    fn files(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(tar);
        archive
            .entries()
            .unwrap()
            .map(|e| {
                let mut e = e.unwrap();
                let mut content = Vec::new();
                e.read_to_end(&mut content).unwrap();
                assert_eq!(e.header().mtime().unwrap(), 0);
                (e.path().unwrap().display().to_string(), content)
            })
            .collect()
    }

    #[test]
    fn same_program_same_bytes_and_every_digest_holds() {
        let image = build(b"program", "amd64").unwrap();
        assert_eq!(image.tar, build(b"program", "amd64").unwrap().tar);
        assert_ne!(image.facts.manifest, build(b"other", "amd64").unwrap().facts.manifest);
        let all = files(&image.tar);
        let index: Value = serde_json::from_slice(&all["index.json"]).unwrap();
        assert_eq!(index["manifests"][0]["digest"], image.facts.manifest);
        let manifest: Value = serde_json::from_slice(&all[&blob_path(&image.facts.manifest)]).unwrap();
        assert_eq!(manifest["config"]["digest"], image.facts.config);
        let layer = &all[&blob_path(manifest["layers"][0]["digest"].as_str().unwrap())];
        assert_eq!(files(layer)[PROGRAM], b"program");
        for (path, content) in all.iter().filter(|(p, c)| p.starts_with("blobs/") && !c.is_empty()) {
            assert_eq!(*path, blob_path(&digest(content)));
        }
    }
}
