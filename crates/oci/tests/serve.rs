//! The loopback registry against our own client, skopeo and Debian's docker-registry.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sparklane_oci::registry::{pull_blobs, push};
use sparklane_oci::serve::Server;
use sparklane_oci::{Layout, Platform, digest};
use support::*;

fn ask(server: &Server, text: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|e| panic!("{program} (see the apt line of .ci/run): {e}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn it_answers_as_a_registry_does() {
    let f = fixture();
    let image = image("arm64");
    f.put_image(&image, "t");
    let server = Server::start(f.layout.clone(), 0).unwrap();
    assert!(server.address().ip().is_loopback());
    let get = |path: &str, more: &str| ask(&server, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n"));
    let digest = digest::of(&image.manifest);
    assert!(get("/v2/", "").starts_with("HTTP/1.1 200 "));
    for selector in ["t", digest.as_str()] {
        let found = get(&format!("/v2/any/name/manifests/{selector}"), "");
        assert!(found.contains(&format!("Docker-Content-Digest: {digest}\r\n")), "{found}");
        assert!(found.contains("Content-Type: application/vnd.oci.image.manifest.v1+json\r\n"));
        assert!(found.as_bytes().ends_with(&image.manifest));
    }
    let blob = format!("/v2/x/blobs/{}", digest::of(&image.layer));
    let part = get(&blob, "Range: bytes=1000-\r\n");
    assert!(part.starts_with("HTTP/1.1 206 ") && part.contains("Content-Range: bytes 1000-1023/1024\r\n"), "{part}");
    assert!(get(&blob, "Range: bytes=1024-\r\n").contains("416 Range Not Satisfiable\r\n"));
    let head = ask(&server, &format!("HEAD {blob} HTTP/1.1\r\n\r\n"));
    assert!(head.contains("Content-Length: 1024\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    for (path, status, code) in [
        ("/v2/x/manifests/none", 404, "MANIFEST_UNKNOWN"),
        ("/v2/x/blobs/sha256:00", 400, "DIGEST_INVALID"),
        (&format!("/v2/x/blobs/sha256:{:064}", 0), 404, "BLOB_UNKNOWN"),
        ("/../../etc/passwd", 404, "UNSUPPORTED"),
        ("/v2/_catalog", 404, "UNSUPPORTED"),
    ] {
        let found = get(path, "");
        assert!(found.starts_with(&format!("HTTP/1.1 {status} ")) && found.contains(code), "{path}: {found}");
    }
    assert!(ask(&server, "PUT /v2/x/manifests/t HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}").contains(" 405 "));
    assert!(ask(&server, "nonsense\r\n\r\n").contains(" 400 "));
    // Two questions over one connection.
    let twice = ask(&server, "GET /v2/ HTTP/1.1\r\n\r\nGET /v2/ HTTP/1.1\r\n\r\n");
    assert_eq!(twice.matches("HTTP/1.1 200 OK").count(), 2);
}

#[test]
fn a_damaged_manifest_is_not_served() {
    let f = fixture();
    let image = image("arm64");
    f.put_image(&image, "t");
    let digest = digest::of(&image.manifest);
    std::fs::write(f.layout.own_path(&digest), b"{}").unwrap();
    let server = Server::start(f.layout.clone(), 0).unwrap();
    let found = ask(&server, &format!("GET /v2/x/manifests/{digest} HTTP/1.1\r\nConnection: close\r\n\r\n"));
    assert!(found.starts_with("HTTP/1.1 404 "), "{found}");
}

#[tokio::test]
async fn our_client_pulls_from_it() {
    let (from, to) = (fixture(), fixture());
    let image = image("arm64");
    from.put_image(&image, "t");
    let server = Server::start(from.layout.clone(), 0).unwrap();
    let reference = format!("{}/x:t", server.address()).parse().unwrap();
    let repo = client(&[]).repo(&reference).unwrap();
    let found = repo.resolve("t", &Platform::linux("arm64")).await.unwrap();
    let wanted: Vec<_> = found.manifest.blobs().into_iter().cloned().collect();
    pull_blobs(&repo, &to.layout, &wanted, &quick()).await.unwrap();
    wanted.iter().for_each(|d| to.layout.prove_blob(d).unwrap());
}

/// Row 16 (skopeo#1451, #1097, #2146, #2627): our digest survives skopeo in both directions.
#[test]
fn row_16_skopeo_keeps_our_digest() {
    let f = fixture();
    let image = image("amd64");
    f.put_image(&image, "t");
    let server = Server::start(f.layout.clone(), 0).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let from = format!("docker://{}/x:t", server.address());
    let copy = ["copy", "--preserve-digests", "--src-tls-verify=false", "--insecure-policy"];
    run("skopeo", &[&copy[..], &[&from, &format!("oci:{}:t", out.display())]].concat());
    let copied = Layout::open(camino::Utf8PathBuf::from_path_buf(out).unwrap()).unwrap();
    assert_eq!(copied.list().unwrap()[0].1.digest, digest::of(&image.manifest));
    let inspected = run("skopeo", &["inspect", "--tls-verify=false", "--raw", &from]);
    assert_eq!(inspected.as_bytes(), image.manifest);
    let straight = run("skopeo", &["inspect", "--raw", &format!("oci:{}:t", f.layout.root())]);
    assert_eq!(straight.as_bytes(), image.manifest);
}

/// Debian's docker-registry on a free port, ended with the test.
struct Distribution {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Drop for Distribution {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn distribution() -> Distribution {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = dir.path().join("reg.yml");
    let root = dir.path().join("data");
    let text = format!(
        "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: 127.0.0.1:{port}}}\n",
        root.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new("docker-registry");
    command.arg("serve").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap_or_else(|e| panic!("docker-registry (see the apt line of .ci/run): {e}"));
    let server = Distribution { child, port, _dir: dir };
    let until = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "docker-registry does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

/// Push, tag and pull with a real registry: what we send is what it stores, and what comes back is ours.
#[tokio::test]
async fn a_real_registry_takes_and_gives_our_image() {
    let registry = distribution();
    let (from, to) = (fixture(), fixture());
    let image = image("arm64");
    from.put_image(&image, "t");
    let client = client(&[]);
    let manifest = from.layout.manifest(&digest::of(&image.manifest)).unwrap();
    let reference = format!("127.0.0.1:{}/team/x:1", registry.port).parse().unwrap();
    let repo = client.repo_to_push(&reference, None).unwrap();
    let first = push::push(&repo, &from.layout, &manifest, Some("1"), None, &|_, _| ()).await.unwrap();
    assert_eq!((first.blobs, first.present), (2, 0));
    let again = push::push(&repo, &from.layout, &manifest, Some("1"), None, &|_, _| ()).await.unwrap();
    assert_eq!((again.blobs, again.present), (0, 2), "nothing is sent twice");
    let other = format!("127.0.0.1:{}/team/y:1", registry.port).parse().unwrap();
    let mounting = client.repo_to_push(&other, Some("team/x")).unwrap();
    let mounted = push::push(&mounting, &from.layout, &manifest, Some("1"), Some("team/x"), &|_, _| ()).await.unwrap();
    assert_eq!((mounted.blobs, mounted.mounted), (0, 2), "blobs are mounted from the repository that has them");

    let found = client.repo(&other).unwrap().resolve("1", &Platform::linux("arm64")).await.unwrap();
    assert_eq!(found.manifest.bytes(), image.manifest);
    let wanted: Vec<_> = found.manifest.blobs().into_iter().cloned().collect();
    to.put_partial(&wanted[1], &image.layer[..100]);
    let pulled = pull_blobs(&client.repo(&other).unwrap(), &to.layout, &wanted, &quick()).await.unwrap();
    let total: u64 = wanted.iter().map(|d| d.size).sum();
    assert_eq!(pulled.bytes, total - 100, "a real registry goes on from where we were");
}
