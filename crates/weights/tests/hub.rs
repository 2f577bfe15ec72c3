//! Locking and fetching against a server that speaks like the hub, and lies on demand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::Response;
use serde_json::json;
use sparklane_lane::WeightsManifest;
use sparklane_oci::registry::http::Timeouts;
use sparklane_weights::hub::Origin;
use sparklane_weights::hub::line::HttpDial;
use sparklane_weights::hub::lock::{Choice, lock};
use sparklane_weights::proof::How;
use sparklane_weights::transfer::{Progress, Pull, PullOptions, Receipt};
use sparklane_weights::{BlobSet, Sha, Store, WeightsError};
use support::*;

const COMMIT: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// What the server does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    None,
    /// Every answer ends after so many bytes.
    Truncates,
    /// The signed address works once in a while only.
    Expires,
    /// 429 with Retry-After now and then.
    Busy,
    /// 200 with the whole file, whatever was asked.
    NoRanges,
    /// Says that it is gzip.
    Encodes,
    /// Another range than was asked.
    OtherRange,
    /// Says that the file is longer.
    OtherSize,
    /// A wrong byte in every file, once.
    FlipsOnce,
    /// A wrong byte always.
    FlipsAlways,
    /// Sends nothing after the head, now and then.
    Stalls,
    /// 404 for one file.
    Missing,
}

struct Hub {
    files: BTreeMap<String, Vec<u8>>,
    lie: Lie,
    requests: AtomicU64,
    flipped: Mutex<BTreeMap<String, bool>>,
    /// The token that came to the address behind the redirect, if ever.
    leaked: AtomicBool,
    tokens: AtomicU64,
    /// Where the signed addresses are.
    store: Mutex<String>,
}

fn answer(status: u16) -> axum::http::response::Builder {
    Response::builder().status(status)
}

async fn ask(State(hub): State<Arc<Hub>>, request: Request) -> Response {
    let n = hub.requests.fetch_add(1, Ordering::Relaxed);
    let path = request.uri().path().to_owned();
    let bearer = request.headers().get(header::AUTHORIZATION).is_some_and(|h| h == "Bearer hf_secret");
    if path.starts_with("/api/models/org/tiny/revision/") {
        let siblings: Vec<_> = hub
            .files
            .iter()
            .map(|(name, bytes)| {
                let lfs = name
                    .ends_with(".safetensors")
                    .then(|| json!({"sha256": Sha::of(bytes).to_string(), "size": bytes.len(), "pointerSize": 130}));
                json!({"rfilename": name.replace("%C3%BC%20%23%3F", "ü #?"), "size": bytes.len(), "blobId": "x", "lfs": lfs})
            })
            .collect();
        return answer(200)
            .body(Body::from(
                json!({"id": "org/tiny", "sha": COMMIT, "siblings": siblings, "private": false, "tags": []})
                    .to_string(),
            ))
            .unwrap();
    }
    if path.starts_with("/api/models/org/tiny/tree/") {
        let entry = |(name, bytes): (&String, &Vec<u8>)| {
            let oid = Sha::of(bytes).to_string();
            let lfs =
                name.ends_with(".safetensors").then(|| json!({"oid": oid, "size": bytes.len(), "pointerSize": 130}));
            json!({"type": "file", "path": name.replace("%C3%BC%20%23%3F", "ü #?"), "size": bytes.len(), "oid": &oid[..40], "lfs": lfs})
        };
        let tree: Vec<_> = hub.files.iter().map(entry).collect();
        return answer(200).body(Body::from(json!(tree).to_string())).unwrap();
    }
    if let Some(name) = path.strip_prefix("/org/tiny/resolve/").and_then(|p| p.strip_prefix(&format!("{COMMIT}/"))) {
        if bearer {
            hub.tokens.fetch_add(1, Ordering::Relaxed);
        }
        if hub.lie == Lie::Missing && name == "config.json" {
            return answer(404).body(Body::from("no such file")).unwrap();
        }
        if hub.lie == Lie::Busy && n % 5 == 1 {
            return answer(429).header(header::RETRY_AFTER, "1").body(Body::empty()).unwrap();
        }
        let target = format!("{}/signed/{name}?signature={n}", hub.store.lock().unwrap());
        let etag = hub.files.get(name).map(|b| format!("\"{}\"", Sha::of(b))).unwrap_or_default();
        let size = hub.files.get(name).map_or(0, Vec::len);
        // What the hub's own client looks for.
        let head =
            answer(302).header("x-repo-commit", COMMIT).header("x-linked-etag", etag).header("x-linked-size", size);
        return head.header(header::LOCATION, target).body(Body::empty()).unwrap();
    }
    let Some(name) = path.strip_prefix("/signed/") else { return answer(404).body(Body::empty()).unwrap() };
    if request.headers().contains_key(header::AUTHORIZATION) {
        hub.leaked.store(true, Ordering::Relaxed);
    }
    if hub.lie == Lie::Expires && n.is_multiple_of(3) {
        return answer(403).body(Body::from("Request has expired")).unwrap();
    }
    serve(&hub, name, request.headers().get(header::RANGE).and_then(|r| r.to_str().ok()), n)
}

/// Bytes that a server which cuts sends of a body.
const CUT: usize = 1_500_000;

fn serve(hub: &Hub, name: &str, range: Option<&str>, n: u64) -> Response {
    let mut bytes = hub.files[name].clone();
    let size = bytes.len();
    let once = || hub.flipped.lock().unwrap().insert(name.to_owned(), true).is_none();
    if size > 100 && (hub.lie == Lie::FlipsAlways || hub.lie == Lie::FlipsOnce && once()) {
        bytes[size / 2] ^= 1;
    }
    let Some((from, to)) = range.and_then(|r| r.strip_prefix("bytes=")?.split_once('-')) else {
        return answer(200).body(Body::from(bytes)).unwrap();
    };
    let (from, to) = (from.parse::<usize>().unwrap(), to.parse::<usize>().unwrap().min(size.saturating_sub(1)));
    // Cut once, so that every client has to go on in the middle; 200 to a request for the whole file would be no lie.
    let cut = hub.lie == Lie::Truncates || hub.lie == Lie::NoRanges && size > CUT && once();
    if hub.lie == Lie::NoRanges && !cut {
        return answer(200).header(header::CONTENT_LENGTH, size).body(Body::from(bytes)).unwrap();
    }
    let told_size = if hub.lie == Lie::OtherSize { size + 1 } else { size };
    // Of every range, the first too: which ones a client asks for is its own business.
    let told_from = if hub.lie == Lie::OtherRange { from + 1 } else { from };
    let part = bytes[from..=to].to_vec();
    let head = answer(206).header(header::CONTENT_RANGE, format!("bytes {told_from}-{to}/{told_size}"));
    let len = part.len();
    match hub.lie {
        Lie::Encodes => head.header(header::CONTENT_ENCODING, "gzip").body(Body::from(part)).unwrap(),
        _ if cut && len > CUT => {
            let short = axum::body::Bytes::from(part[..CUT].to_vec());
            let pieces = [Ok(short), Err(std::io::Error::other("cut"))];
            head.header(header::CONTENT_LENGTH, len)
                .body(Body::from_stream(futures_util::stream::iter(pieces)))
                .unwrap()
        }
        Lie::Stalls if n.is_multiple_of(3) => head
            .header(header::CONTENT_LENGTH, len)
            .body(Body::from_stream(futures_util::stream::pending::<Result<axum::body::Bytes, std::io::Error>>()))
            .unwrap(),
        _ => head.body(Body::from(part)).unwrap(),
    }
}

fn shard(seed: u64, name: &str, len: usize) -> Vec<u8> {
    let header =
        json!({"__metadata__": {"format": "pt"}, name: {"dtype": "U8", "shape": [len], "data_offsets": [0, len]}});
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &noise(seed, len)].concat()
}

struct Rig {
    hub: Arc<Hub>,
    origin: Origin,
    _runtime: tokio::runtime::Runtime,
}

fn files() -> BTreeMap<String, Vec<u8>> {
    let index = json!({"metadata": {}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}});
    BTreeMap::from([
        ("m-1.safetensors".into(), shard(1, "a", 5 * MIB + 3)),
        ("m-2.safetensors".into(), shard(2, "b", 3 * MIB)),
        ("model.safetensors.index.json".into(), index.to_string().into_bytes()),
        ("config.json".into(), b"{}".to_vec()),
        ("d/ü #?.txt".into(), b"odd".to_vec()),
        ("empty".into(), Vec::new()),
        (".gitattributes".into(), b"x".to_vec()),
    ])
}

fn start(lie: Lie) -> Rig {
    start_with(lie, files())
}

fn start_with(lie: Lie, files: BTreeMap<String, Vec<u8>>) -> Rig {
    // Names as they come over the wire.
    let files = files.into_iter().map(|(name, bytes)| (name.replace("ü #?", "%C3%BC%20%23%3F"), bytes)).collect();
    let hub = Arc::new(Hub {
        files,
        lie,
        requests: AtomicU64::new(0),
        flipped: Mutex::default(),
        leaked: AtomicBool::new(false),
        tokens: AtomicU64::new(0),
        store: Mutex::default(),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listen = |hub: &Arc<Hub>| {
        let app = Router::new().fallback(ask).with_state(Arc::clone(hub));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let addr = listener.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(listener, app).await.unwrap() });
        format!("http://{addr}")
    };
    let (base, store) = (listen(&hub), listen(&hub));
    *hub.store.lock().unwrap() = store;
    let ms = Duration::from_millis;
    let timeouts = Timeouts { connect: ms(2000), head: ms(3000), stall: ms(500), first_wait: ms(10) };
    Rig { hub, origin: Origin::hub(&base).unwrap().with_timeouts(timeouts), _runtime: runtime }
}

fn manifest_of(files: &BTreeMap<String, Vec<u8>>) -> WeightsManifest {
    let file = |(path, bytes): (&String, &Vec<u8>)| sparklane_lane::weights::WeightsFile {
        path: path.clone(),
        size: bytes.len() as u64,
        sha256: Sha::of(bytes).to_string(),
    };
    let files = files.iter().filter(|(name, _)| *name != ".gitattributes").map(file).collect();
    WeightsManifest { model: "org/tiny".into(), revision: COMMIT.into(), files }
}

fn fetch(rig: &Rig, origin: Origin, store: &Store, manifest: &WeightsManifest) -> Result<Receipt, WeightsError> {
    let set = Arc::new(BlobSet::of_manifest(manifest).unwrap());
    let staging = store.staging(manifest, &|_| true)?.with_checkpoint(MIB as u64);
    let dial = HttpDial::new(origin, &manifest.model, &manifest.revision, set);
    let options = PullOptions { connections: 3, rate: None, give_up: Duration::from_secs(30) };
    let (progress, stop) = (Progress::default(), AtomicBool::new(false));
    let receipt = Pull::new(&staging, &dial, options, &progress, &stop).run()?;
    store.publish(manifest, staging, How::Stream)?;
    assert!(!rig.hub.leaked.load(Ordering::Relaxed), "the token went to another host");
    Ok(receipt)
}

#[test]
fn what_the_hub_lists_is_locked_and_fetched_and_the_token_stays_at_home() {
    let rig = start(Lie::None);
    let (to, secret) = (folder(), folder());
    let token = secret.path.join("token");
    std::fs::write(&token, "hf_secret\n").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let origin = rig.origin.clone().with_token_file(&token).unwrap();
    let choice = Choice { include: vec![], exclude: vec![".gitattributes".into(), "d/*".into()] };
    let locked = lock(&origin, "org/tiny", COMMIT, &choice, &|_| {}).unwrap();
    let mut wanted = manifest_of(&files());
    wanted.files.retain(|f| !f.path.starts_with("d/"));
    assert_eq!(locked.id(), wanted.id());
    let all = manifest_of(&files());
    let store = Store::at(&to.path);
    fetch(&rig, origin, &store, &all).unwrap();
    assert_exact(&store.folder(&all), &all);
    assert!(rig.hub.tokens.load(Ordering::Relaxed) > 5);
}

#[test]
fn a_server_that_fails_in_ways_that_pass_is_asked_again() {
    for lie in [Lie::Truncates, Lie::Expires, Lie::Busy, Lie::FlipsOnce, Lie::Stalls] {
        let rig = start(lie);
        let to = folder();
        let (store, manifest) = (Store::at(&to.path), manifest_of(&files()));
        let receipt = fetch(&rig, rig.origin.clone(), &store, &manifest).unwrap_or_else(|e| panic!("{lie:?}: {e}"));
        assert_exact(&store.folder(&manifest), &manifest);
        assert_eq!(!receipt.repaired.is_empty(), lie == Lie::FlipsOnce, "{lie:?}");
    }
}

#[test]
fn a_server_that_lies_is_named_and_nothing_of_it_is_shown() {
    let cases = [
        (Lie::NoRanges, "ranges"),
        (Lie::Encodes, "encoded"),
        (Lie::OtherRange, "another range"),
        (Lie::OtherSize, "the manifest says"),
        (Lie::FlipsAlways, "wrong on arrival"),
        (Lie::Missing, "config.json"),
    ];
    for (lie, word) in cases {
        let rig = start(lie);
        let to = folder();
        let (store, manifest) = (Store::at(&to.path), manifest_of(&files()));
        let error = match fetch(&rig, rig.origin.clone(), &store, &manifest) {
            Ok(receipt) => panic!("{lie:?} was believed: {receipt:?}"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(word), "{lie:?}: {error}");
        assert!(!store.folder(&manifest).exists(), "{lie:?}");
    }
}

#[test]
fn a_moving_name_and_shards_that_contradict_are_not_locked() {
    let rig = start(Lie::None);
    let refused =
        |rig: &Rig, rev: &str| lock(&rig.origin, "org/tiny", rev, &Choice::default(), &|_| {}).unwrap_err().to_string();
    let why = refused(&rig, "main");
    assert!(why.contains("moves") && why.contains(COMMIT), "{why}");
    let mut bad = files();
    bad.remove("m-2.safetensors");
    assert!(refused(&start_with(Lie::None, bad), COMMIT).contains("m-2.safetensors, which is missing"));
    let mut bad = files();
    bad.get_mut("m-1.safetensors").unwrap().pop();
    assert!(refused(&start_with(Lie::None, bad), COMMIT).contains("m-1.safetensors"));
    let mut bad = files();
    bad.insert("m-1.safetensors".into(), shard(1, "other", 10));
    assert!(refused(&start_with(Lie::None, bad), COMMIT).contains("other tensors"));
    let mut bad = files();
    bad.insert("../x".into(), vec![1]);
    assert!(refused(&start_with(Lie::None, bad), COMMIT).contains("leaves"));
}

/// Python with `huggingface_hub`, named by the caller.
fn python(script: &str, envs: &[(&str, &str)]) -> String {
    let python =
        std::env::var("SPARKLANE_HF_PYTHON").expect("SPARKLANE_HF_PYTHON names a Python that has huggingface_hub");
    let out = std::process::Command::new(python)
        .args(["-c", script])
        .envs(envs.iter().copied())
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
#[ignore = "needs huggingface_hub, which cargo xtask test brings (xtask/src/hf_client.rs)"]
fn the_hubs_own_client_reads_our_view_offline_and_its_cache_is_adopted() {
    let rig = start(Lie::None);
    let (cache, to) = (folder(), folder());
    let manifest = manifest_of(&files());
    // A cache of its own making.
    let base = rig.origin.file("", "", "").unwrap();
    let endpoint = format!("http://{}:{}", base.host_str().unwrap(), base.port().unwrap());
    let download = "from huggingface_hub import snapshot_download as d\nprint(d('org/tiny'))";
    python(download, &[("HF_ENDPOINT", &endpoint), ("HF_HUB_CACHE", cache.path.as_str()), ("HF_HUB_DISABLE_XET", "1")]);
    let store = Store::at(&to.path.join("weights"));
    let staging = store.staging(&manifest, &|_| true).unwrap();
    let adopted = sparklane_weights::adopt::adopt(&cache.path, &manifest, &staging, false, &|_| true).unwrap();
    assert_eq!(adopted.missing, Vec::<String>::new());
    store.publish(&manifest, staging, How::Stream).unwrap();
    assert_exact(&store.folder(&manifest), &manifest);
    // Our view, offline, from another place.
    sparklane_weights::hfview::make(&store, &manifest).unwrap();
    let moved = to.path.join("moved");
    std::fs::rename(store.root(), &moved).unwrap();
    let hub = moved.join("hub");
    let offline = "import hashlib\nfrom huggingface_hub import snapshot_download as d, hf_hub_download as f\n\
        p = d('org/tiny')\nprint(hashlib.sha256(open(p + '/m-1.safetensors', 'rb').read()).hexdigest())\n\
        print(open(f('org/tiny', 'config.json')).read())";
    let said = python(offline, &[("HF_HUB_OFFLINE", "1"), ("HF_HUB_CACHE", hub.as_str())]);
    let wanted = &manifest.files.iter().find(|f| f.path == "m-1.safetensors").unwrap().sha256;
    assert_eq!(said, format!("{wanted}\n{{}}\n"));
}
