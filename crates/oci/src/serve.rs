//! A read-only registry on loopback, straight from a layout's files, for `docker pull NAME@sha256:…`.
//!
//! One thread a connection, heads parsed by httparse, blobs sent by the kernel (sendfile): no byte of a layer passes through
//! this program. It answers GET and HEAD of `/v2/`, manifests and blobs; everything else is an error a client understands.

use std::fs::File;
use std::io::{BufWriter, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::digest::Digest;
use crate::error::OciError;
use crate::layout::{Layout, REF_NAME};
use crate::manifest::Document;
use crate::pace::Pace;
use crate::registry::range::first_range;

/// Longest head of a request.
const HEAD_MAX: usize = 16 << 10;
/// Most header lines of a request.
const HEADERS_MAX: usize = 64;
/// Connections at once; docker opens a handful.
const CONNECTIONS_MAX: usize = 64;
/// A client that is silent for so long is gone.
const IDLE: Duration = Duration::from_secs(120);

/// A running server. It ends when dropped; connections that are open then end with their request.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Serves a layout on 127.0.0.1; port 0 chooses a free one.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn start(layout: Layout, port: u16) -> Result<Self, OciError> {
        Self::start_paced(layout, port, None)
    }

    /// As [`Server::start`], with a limit of bytes per second over all connections.
    ///
    /// # Errors
    /// When the port is taken.
    pub fn start_paced(layout: Layout, port: u16, rate: Option<u64>) -> Result<Self, OciError> {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        let listening = || OciError::io("listen at", address.to_string());
        let listener = TcpListener::bind(address).map_err(listening())?;
        let address = listener.local_addr().map_err(listening())?;
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let thread = std::thread::spawn(move || accept(&listener, &layout, &Arc::new(Pace::new(rate)), &ended));
        Ok(Self { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the process ends.
    pub fn wait(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _woken = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, layout: &Layout, pace: &Arc<Pace>, stop: &AtomicBool) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        if open.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::SeqCst);
            continue; // Closed: the client tries again.
        }
        let (layout, pace, open) = (layout.clone(), Arc::clone(pace), Arc::clone(&open));
        std::thread::spawn(move || {
            // The other side went away; nothing is to be done about it.
            let _done = converse(&stream, &layout, &pace);
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// A request, as far as it matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Asked {
    method: String,
    path: String,
    range: Option<String>,
    close: bool,
    has_body: bool,
}

fn converse(stream: &TcpStream, layout: &Layout, pace: &Pace) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let mut buffer = Vec::new();
    loop {
        let Some(asked) = read_head(stream, &mut buffer)? else { return Ok(()) };
        let answer = answer(layout, &asked);
        // A body that we did not read would be taken for the next request.
        let close = asked.close || asked.has_body;
        send(stream, &asked, answer, (close, pace))?;
        if close {
            return Ok(());
        }
    }
}

/// Reads up to the end of a head; `None` when the client has nothing more to ask, or asks no HTTP.
fn read_head(mut stream: &TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<Asked>> {
    loop {
        match parse(buffer) {
            Parsed::Done(asked, used) => {
                buffer.drain(..used);
                return Ok(Some(asked));
            }
            Parsed::Bad => {
                let asked = Asked { close: true, ..Asked::default() };
                send(
                    stream,
                    &asked,
                    Answer::error(400, "UNSUPPORTED", "this is no HTTP request"),
                    (true, &Pace::new(None)),
                )?;
                return Ok(None);
            }
            Parsed::More if buffer.len() > HEAD_MAX => return Ok(None),
            Parsed::More => {
                let mut piece = [0; 4096];
                match stream.read(&mut piece)? {
                    0 => return Ok(None),
                    n => buffer.extend_from_slice(&piece[..n]),
                }
            }
        }
    }
}

enum Parsed {
    Done(Asked, usize),
    More,
    Bad,
}

fn parse(bytes: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let used = match request.parse(bytes) {
        Ok(httparse::Status::Complete(used)) => used,
        Ok(httparse::Status::Partial) => return Parsed::More,
        Err(_) => return Parsed::Bad,
    };
    let (Some(method), Some(path)) = (request.method, request.path) else { return Parsed::Bad };
    let mut asked = Asked { method: method.to_owned(), path: path.to_owned(), ..Asked::default() };
    asked.close = request.version == Some(0);
    for header in request.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        match header.name.to_ascii_lowercase().as_str() {
            "range" => asked.range = Some(value.to_owned()),
            "connection" if value.eq_ignore_ascii_case("close") => asked.close = true,
            "content-length" => asked.has_body = value != "0",
            "transfer-encoding" => asked.has_body = true,
            _ => {}
        }
    }
    Parsed::Done(asked, used)
}

enum Content {
    Bytes(Vec<u8>),
    File { file: File, from: u64, len: u64 },
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    content: Content,
}

impl Answer {
    fn error(status: u16, code: &str, message: &str) -> Self {
        let body = serde_json::json!({ "errors": [{ "code": code, "message": message }] });
        let headers = vec![("Content-Type", "application/json".to_owned())];
        Self { status, headers, content: Content::Bytes(body.to_string().into_bytes()) }
    }
}

fn answer(layout: &Layout, asked: &Asked) -> Answer {
    if asked.method != "GET" && asked.method != "HEAD" {
        return Answer::error(405, "UNSUPPORTED", "this registry is read-only");
    }
    let path = asked.path.split('?').next().unwrap_or_default();
    let Some(rest) = path.strip_prefix("/v2/") else {
        return Answer::error(404, "UNSUPPORTED", "only /v2/ is served");
    };
    if rest.is_empty() {
        let headers = vec![("Content-Type", "application/json".to_owned())];
        return Answer { status: 200, headers, content: Content::Bytes(b"{}".to_vec()) };
    }
    // The repository's name does not matter: there is one layout, and blobs are named by what they are.
    if let Some((_, selector)) = rest.rsplit_once("/manifests/") {
        return manifest(layout, selector);
    }
    match rest.rsplit_once("/blobs/").map(|(_, digest)| digest.parse::<Digest>()) {
        Some(Ok(digest)) => blob(layout, &digest, asked.range.as_deref()),
        Some(Err(_)) => Answer::error(400, "DIGEST_INVALID", "that is no sha256 digest"),
        None => Answer::error(404, "UNSUPPORTED", "only manifests and blobs are served"),
    }
}

fn manifest(layout: &Layout, selector: &str) -> Answer {
    let unknown = |why: String| Answer::error(404, "MANIFEST_UNKNOWN", &why);
    let digest = match selector.parse::<Digest>() {
        Ok(digest) => digest,
        Err(_) => match named(layout, selector) {
            Ok(Some(digest)) => digest,
            Ok(None) => return unknown(format!("no manifest is called {selector}")),
            Err(error) => return Answer::error(500, "UNKNOWN", &error.to_string()),
        },
    };
    // Read and proved each time: docker must never get a damaged manifest with a good name.
    let document = layout.read_document(&digest).and_then(|bytes| Document::parse(None, bytes));
    let (media_type, bytes) = match &document {
        Ok(Document::Manifest(found)) => (found.media_type(), found.bytes()),
        Ok(Document::Index(found)) => (found.media_type(), found.bytes()),
        Err(error) => return unknown(error.to_string()),
    };
    let headers = vec![
        ("Content-Type", media_type.to_owned()),
        ("Docker-Content-Digest", digest.to_string()),
        ("ETag", format!("\"{digest}\"")),
    ];
    Answer { status: 200, headers, content: Content::Bytes(bytes.to_vec()) }
}

/// The manifest with a reference name, `NAME` or the tag of `…:NAME`.
fn named(layout: &Layout, name: &str) -> Result<Option<Digest>, OciError> {
    let suffix = format!(":{name}");
    let called = |annotation: &String| annotation == name || annotation.ends_with(&suffix);
    let found = layout.index()?.manifests.into_iter().find(|d| d.annotations.get(REF_NAME).is_some_and(called));
    Ok(found.map(|d| d.digest))
}

fn blob(layout: &Layout, digest: &Digest, range: Option<&str>) -> Answer {
    let Ok((file, size)) = layout.open_blob(digest) else {
        return Answer::error(404, "BLOB_UNKNOWN", "there is no such blob");
    };
    let mut headers = vec![
        ("Content-Type", "application/octet-stream".to_owned()),
        ("Docker-Content-Digest", digest.to_string()),
        ("Accept-Ranges", "bytes".to_owned()),
        ("ETag", format!("\"{digest}\"")),
    ];
    match range.map(|text| first_range(text, size)) {
        None | Some(None) => Answer { status: 200, headers, content: Content::File { file, from: 0, len: size } },
        Some(Some(Ok((first, last)))) => {
            headers.push(("Content-Range", format!("bytes {first}-{last}/{size}")));
            let content = Content::File { file, from: first, len: last - first + 1 };
            Answer { status: 206, headers, content }
        }
        Some(Some(Err(()))) => {
            let mut refused = Answer::error(416, "RANGE_INVALID", "that range lies outside of the blob");
            refused.headers.push(("Content-Range", format!("bytes */{size}")));
            refused
        }
    }
}

fn send(stream: &TcpStream, asked: &Asked, answer: Answer, (close, pace): (bool, &Pace)) -> std::io::Result<()> {
    let length = match &answer.content {
        Content::Bytes(bytes) => bytes.len() as u64,
        Content::File { len, .. } => *len,
    };
    let reason = match answer.status {
        200 => "OK",
        206 => "Partial Content",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        416 => "Range Not Satisfiable",
        _ => "Internal Server Error",
    };
    let mut out = BufWriter::new(stream);
    write!(out, "HTTP/1.1 {} {reason}\r\nContent-Length: {length}\r\n", answer.status)?;
    write!(out, "Docker-Distribution-Api-Version: registry/2.0\r\n")?;
    for (name, value) in &answer.headers {
        write!(out, "{name}: {value}\r\n")?;
    }
    write!(out, "{}\r\n", if close { "Connection: close\r\n" } else { "" })?;
    if asked.method == "HEAD" {
        return out.flush();
    }
    match answer.content {
        Content::Bytes(bytes) => {
            out.write_all(&bytes)?;
            out.flush()
        }
        Content::File { file, from, len } => {
            out.flush()?;
            send_file(stream, &file, (from, len), pace)
        }
    }
}

/// Sends a part of a file. A file that is shorter than it was breaks the connection, as the length was promised.
fn send_file(mut stream: &TcpStream, file: &File, (from, len): (u64, u64), pace: &Pace) -> std::io::Result<()> {
    let (mut offset, end) = (from, from + len);
    while offset < end {
        let most = pace.piece(1 << 30);
        let want = usize::try_from(end - offset).unwrap_or(most).min(most);
        match rustix::fs::sendfile(stream, file, Some(&mut offset), want) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => pace.take(n),
            Err(rustix::io::Errno::INTR) => {}
            // A file system that cannot: the slow way.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                let mut piece = vec![0; want.min(1 << 20)];
                let n = file.read_at(&mut piece, offset)?;
                if n == 0 {
                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                }
                stream.write_all(&piece[..n])?;
                pace.take(n);
                offset += n as u64;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn heads_are_read() {
        let text = b"GET /v2/a/blobs/x HTTP/1.1\r\nHost: x\r\nRange: bytes=3-\r\nConnection: Close\r\n\r\nrest";
        let Parsed::Done(asked, used) = parse(text) else { panic!("a request") };
        assert_eq!(&text[used..], b"rest");
        assert_eq!(
            (asked.path.as_str(), asked.range.as_deref(), asked.close),
            ("/v2/a/blobs/x", Some("bytes=3-"), true)
        );
        assert!(matches!(parse(&text[..20]), Parsed::More));
        assert!(matches!(parse(b"\x16\x03\x01"), Parsed::Bad));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn any_head_is_answered(bytes in prop::collection::vec(any::<u8>(), 0..128), text in "(GET|HEAD|PUT) /v2/\\PC{0,40} HTTP/1.1\r\n(Range: \\PC{0,20}\r\n)?\r\n") {
            let _ = parse(&bytes);
            let dir = tempfile::tempdir().unwrap();
            let layout = Layout::open_or_create(camino::Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap()).unwrap();
            if let Parsed::Done(asked, _) = parse(text.as_bytes()) {
                prop_assert!(answer(&layout, &asked).status >= 200);
            }
        }
    }
}
