//! An in-process registry that answers as a test tells it to.

#![allow(dead_code)] // each test file uses its part

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use camino::Utf8PathBuf;
use serde_json::json;
use sparklane_oci::registry::{Credentials, Http, PullOptions, Registry, Timeouts};
use sparklane_oci::{Descriptor, Layout, Reference, digest, media};

/// A request as the server saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    headers: HeaderMap,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|v| v.to_str().ok())
    }

    /// The start of `bytes=N-`.
    pub fn range(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// An answer in the making.
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Body,
}

impl Reply {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(n, _)| n != name);
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn body(self, bytes: Vec<u8>) -> Self {
        Self { body: Body::from(bytes), ..self }
    }

    fn into_response(self) -> Response {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status.try_into().unwrap();
        for (name, value) in self.headers {
            let value = HeaderValue::from_str(&value).unwrap();
            response.headers_mut().insert(name.parse::<HeaderName>().unwrap(), value);
        }
        response
    }
}

pub fn reply(status: u16, body: Bytes) -> Reply {
    Reply { status, headers: Vec::new(), body: Body::from(body) }
}

pub fn whole(blob: &Bytes) -> Reply {
    reply(200, blob.clone())
}

/// 206 for the bytes from `from` on, of a claimed total.
pub fn partial(blob: &Bytes, from: usize, total: usize) -> Reply {
    let range = format!("bytes {from}-{}/{total}", blob.len() - 1);
    reply(206, blob.slice(from..)).header("content-range", &range)
}

/// A body whose length nobody tells.
pub fn chunked(bytes: Bytes) -> Reply {
    Reply { status: 200, headers: Vec::new(), body: stream(bytes, End::Well) }
}

/// The head of a whole answer, `len` bytes, and a broken connection.
pub fn broken(blob: impl AsRef<[u8]>, len: usize) -> Reply {
    let blob = Bytes::copy_from_slice(blob.as_ref());
    let body = stream(blob.slice(..len.min(blob.len())), End::Broken);
    Reply { status: 200, headers: Vec::new(), body }.header("content-length", &blob.len().to_string())
}

/// As [`broken`], but for the range from `from` on.
pub fn broken_from(blob: &Bytes, from: usize, len: usize) -> Reply {
    let rest = blob.slice(from..);
    let reply = broken(&rest, len);
    if from == 0 {
        return reply;
    }
    let range = format!("bytes {from}-{}/{}", blob.len() - 1, blob.len());
    Reply { status: 206, ..reply }.header("content-range", &range)
}

/// The head of a whole answer, `len` bytes, and then nothing more.
pub fn stalled(blob: &Bytes, len: usize) -> Reply {
    let body = stream(blob.slice(..len), End::Never);
    Reply { status: 200, headers: Vec::new(), body }.header("content-length", &blob.len().to_string())
}

#[derive(Clone, Copy)]
enum End {
    Well,
    Broken,
    Never,
}

struct Pieces {
    left: Option<Bytes>,
    end: End,
    flushed: bool,
}

impl futures_util::Stream for Pieces {
    type Item = Result<Bytes, std::io::Error>;
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(bytes) = self.left.take() {
            return Poll::Ready(Some(Ok(bytes)));
        }
        match self.end {
            End::Well => Poll::Ready(None),
            End::Never => Poll::Pending,
            End::Broken if !self.flushed => {
                // One turn later, so that the bytes before have left.
                self.flushed = true;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            End::Broken => Poll::Ready(Some(Err(std::io::Error::other("broken on purpose")))),
        }
    }
}

fn stream(bytes: Bytes, end: End) -> Body {
    Body::from_stream(Pieces { left: Some(bytes).filter(|b| !b.is_empty()), end, flushed: false })
}

type Behave = Box<dyn Fn(usize, &Seen, &Bytes) -> Reply + Send + Sync>;
type Lie = Box<dyn Fn(Reply) -> Reply + Send + Sync>;

struct Shared {
    blobs: HashMap<String, Bytes>,
    behave: Behave,
    image: Option<Image>,
    lie: Mutex<Option<Lie>>,
    seen: Mutex<Vec<Seen>>,
    nth: AtomicUsize,
    /// How many requests a token is good for; `None` without tokens.
    token_uses: Option<usize>,
    tokens: AtomicUsize,
    uses: AtomicUsize,
    port: u16,
    uploads: Mutex<HashMap<String, Vec<u8>>>,
}

pub struct Server {
    shared: Arc<Shared>,
}

impl Server {
    pub fn reference(&self, rest: &str) -> Reference {
        format!("127.0.0.1:{}/{rest}", self.shared.port).parse().unwrap()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.shared.port)
    }

    pub fn requests(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub fn blob_requests(&self) -> Vec<Seen> {
        self.requests().into_iter().filter(|r| r.path.contains("/blobs/")).collect()
    }

    pub fn tokens_given(&self) -> usize {
        self.shared.tokens.load(Ordering::SeqCst)
    }

    pub fn lie_about_manifests(&self, lie: impl Fn(Reply) -> Reply + Send + Sync + 'static) {
        *self.shared.lie.lock().unwrap() = Some(Box::new(lie));
    }
}

pub async fn serve(blobs: &[&Bytes], behave: impl Fn(usize, &Seen, &Bytes) -> Reply + Send + Sync + 'static) -> Server {
    start(blobs, None, None, Box::new(behave)).await
}

/// As [`serve`], with a token that is good for `uses` requests.
pub async fn serve_with_tokens(
    blobs: &[&Bytes],
    uses: usize,
    behave: impl Fn(usize, &Seen, &Bytes) -> Reply + Send + Sync + 'static,
) -> Server {
    start(blobs, Some(uses), None, Box::new(behave)).await
}

pub async fn serve_image(image: &Image) -> Server {
    let blobs = [&image.config.clone().into(), &image.layer];
    start(&blobs, None, Some(image.clone()), Box::new(|_, _, blob| whole(blob))).await
}

async fn start(blobs: &[&Bytes], token_uses: Option<usize>, image: Option<Image>, behave: Behave) -> Server {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let shared = Arc::new(Shared {
        blobs: blobs.iter().map(|b| (digest::of(b).to_string(), (*b).clone())).collect(),
        behave,
        image,
        lie: Mutex::default(),
        seen: Mutex::default(),
        nth: AtomicUsize::new(0),
        token_uses,
        tokens: AtomicUsize::new(0),
        uses: AtomicUsize::new(0),
        port: listener.local_addr().unwrap().port(),
        uploads: Mutex::default(),
    });
    let app = axum::Router::new().fallback(answer).with_state(Arc::clone(&shared));
    tokio::spawn(async move { axum::serve(listener, app).await });
    Server { shared }
}

fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
    let path = request.uri().path_and_query().map_or("/", |p| p.as_str()).to_owned();
    let seen = Seen { method: request.method().to_string(), path, headers: request.headers().clone() };
    shared.seen.lock().unwrap().push(seen.clone());
    Box::pin(async move { shared.answer(&seen).into_response() })
}

impl Shared {
    fn answer(&self, seen: &Seen) -> Reply {
        if seen.path.starts_with("/token") {
            let n = self.tokens.fetch_add(1, Ordering::SeqCst) + 1;
            self.uses.store(0, Ordering::SeqCst);
            return reply(200, format!(r#"{{"token":"token-{n}"}}"#).into());
        }
        if let Some(uses) = self.token_uses {
            let current = format!("Bearer token-{}", self.tokens.load(Ordering::SeqCst));
            let good = seen.header("authorization") == Some(current.as_str());
            if !good || self.uses.fetch_add(1, Ordering::SeqCst) >= uses {
                let realm = format!("http://127.0.0.1:{}/token", self.port);
                let challenge = format!(r#"Bearer realm="{realm}",service="registry",scope="repository:a/b:pull""#);
                return reply(401, Bytes::new()).header("www-authenticate", &challenge);
            }
        }
        let last = seen.path.rsplit('/').next().unwrap_or_default();
        let last = last.split('?').next().unwrap_or_default();
        if seen.path.contains("/manifests/") {
            return self.manifest(last);
        }
        match self.blobs.get(last) {
            Some(blob) => (self.behave)(self.nth.fetch_add(1, Ordering::SeqCst), seen, blob),
            None => reply(404, Bytes::new()),
        }
    }

    fn manifest(&self, selector: &str) -> Reply {
        let Some(image) = &self.image else { return reply(404, Bytes::new()) };
        let digest = digest::of(&image.manifest).to_string();
        if selector != "1" && selector != digest {
            return reply(404, Bytes::new());
        }
        let honest = reply(200, image.manifest.clone().into())
            .header("content-type", media::OCI_MANIFEST)
            .header("docker-content-digest", &digest);
        match &*self.lie.lock().unwrap() {
            Some(lie) => lie(honest),
            None => honest,
        }
    }
}

/// A small image.
#[derive(Clone)]
pub struct Image {
    pub manifest: Vec<u8>,
    pub config: Vec<u8>,
    pub layer: Bytes,
}

pub fn image(architecture: &str) -> Image {
    let layer = Bytes::from(vec![0; 1024]);
    let diff = digest::of(&layer);
    let config = json!({
        "architecture": architecture, "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [diff.as_str()] },
    });
    let config = config.to_string().into_bytes();
    let descriptor = |media: &str, bytes: &[u8]| json!({ "mediaType": media, "digest": digest::of(bytes).as_str(), "size": bytes.len() });
    let manifest = json!({
        "schemaVersion": 2, "mediaType": media::OCI_MANIFEST,
        "config": descriptor(media::OCI_CONFIG, &config),
        "layers": [descriptor(media::OCI_LAYER_TAR, &layer)],
    });
    Image { manifest: manifest.to_string().into_bytes(), config, layer }
}

/// A layout in a temporary folder.
pub struct Fixture {
    _dir: tempfile::TempDir,
    pub layout: Layout,
}

pub fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_create(Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap()).unwrap();
    Fixture { _dir: dir, layout }
}

impl Fixture {
    pub fn put_partial(&self, wanted: &Descriptor, bytes: &[u8]) {
        std::fs::write(self.layout.partial_dir().join(wanted.digest.hex()), bytes).unwrap();
    }

    pub fn partial_len(&self, wanted: &Descriptor) -> Option<u64> {
        std::fs::metadata(self.layout.partial_dir().join(wanted.digest.hex())).ok().map(|m| m.len())
    }

    /// Puts a whole image, named.
    pub fn put_image(&self, image: &Image, name: &str) {
        self.layout.write_blob(&image.layer).unwrap();
        self.layout.write_blob(&image.config).unwrap();
        let digest = self.layout.write_blob(&image.manifest).unwrap();
        let entry = json!({
            "mediaType": media::OCI_MANIFEST, "digest": digest.as_str(), "size": image.manifest.len(),
            "annotations": { sparklane_oci::layout::REF_NAME: name },
        });
        self.layout.put_entry(entry.as_object().unwrap()).unwrap();
    }
}

pub fn blob_of(bytes: &Bytes) -> Descriptor {
    Descriptor::of(media::OCI_LAYER_TAR, bytes)
}

pub fn client(plain: &[&str]) -> Registry {
    client_with(plain, r#"{"auths": {}}"#)
}

pub fn client_with(plain: &[&str], credentials: &str) -> Registry {
    let timeouts = Timeouts {
        connect: Duration::from_secs(5),
        head: Duration::from_secs(5),
        stall: Duration::from_millis(400),
        first_wait: Duration::from_millis(1),
    };
    let http = Http::new(timeouts, plain.iter().map(|p| (*p).to_owned()).collect()).unwrap();
    Registry { http, credentials: Credentials::parse(credentials).unwrap() }
}

pub fn quick() -> PullOptions {
    PullOptions::default()
}
