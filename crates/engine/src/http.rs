//! A small HTTP/1.1 client for gates and health checks: one request, one connection, a deadline and a size limit.
//!
//! Gates name addresses, not host names: the static binary cannot load the system's resolver modules. Plain threads and
//! blocking sockets, so that a transaction needs no runtime to wait for a gate.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::redact::Redacted;

/// Most bytes of a head or a body that are read.
pub const MAX_BYTES: usize = 1024 * 1024;
const MAX_HEADERS: usize = 96;

/// Why no answer was had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The URL is not one this client takes.
    #[error("{0:?} is not http://ADDRESS:PORT/PATH")]
    Url(String),
    /// Nobody listens, or the connection broke.
    #[error("{0}")]
    Io(String),
    /// The deadline passed.
    #[error("no complete answer within {0:?}")]
    Timeout(Duration),
    /// The answer is not HTTP.
    #[error("the answer is not HTTP ({0})")]
    Malformed(&'static str),
    /// The answer is longer than [`MAX_BYTES`].
    #[error("the answer is longer than 1 MiB")]
    TooLong,
}

/// An address and a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Where to connect.
    pub address: SocketAddr,
    /// Path with query, starts with `/`.
    pub path: String,
}

impl Url {
    /// Parses `http://ADDRESS[:PORT][/PATH]`. `localhost` is 127.0.0.1; the unspecified address means this host.
    ///
    /// # Errors
    /// [`HttpError::Url`] for anything else.
    pub fn parse(text: &str) -> Result<Self, HttpError> {
        let bad = || HttpError::Url(text.to_owned());
        let rest = text.strip_prefix("http://").ok_or_else(bad)?;
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        // The path goes into the request line: nothing that could end it.
        if !path.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(bad());
        }
        let address = socket(authority).ok_or_else(bad)?;
        Ok(Self { address, path: path.to_owned() })
    }

    /// The same address with another path.
    #[must_use]
    pub fn with_path(&self, path: &str) -> Self {
        Self { address: self.address, path: path.to_owned() }
    }
}

fn socket(authority: &str) -> Option<SocketAddr> {
    if let Ok(address) = authority.parse::<SocketAddr>() {
        return Some(SocketAddr::new(reachable(address.ip()), address.port()));
    }
    if let Some(port) = authority.strip_prefix("localhost:") {
        return Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port.parse().ok()?));
    }
    let host = if authority == "localhost" { Some(Ipv4Addr::LOCALHOST.into()) } else { authority.parse().ok() };
    host.map(|ip| SocketAddr::new(reachable(ip), 80))
}

/// An address to connect to for one that a server listens on.
#[must_use]
pub fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        other => other,
    }
}

/// A complete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// Body, decoded from chunks where it was sent so.
    pub body: Vec<u8>,
}

/// Sends one request: GET without a body, POST of JSON with one.
///
/// # Errors
/// See [`HttpError`]. The whole exchange ends within `timeout`.
pub fn send(
    url: &Url,
    json: Option<&[u8]>,
    bearer: Option<&Redacted<String>>,
    timeout: Duration,
) -> Result<Response, HttpError> {
    let deadline = Instant::now() + timeout;
    let timed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock => HttpError::Timeout(timeout),
        _ => HttpError::Io(e.to_string()),
    };
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(HttpError::Timeout(timeout)) } else { Ok(left) }
    };
    let mut stream = TcpStream::connect_timeout(&url.address, left()?).map_err(timed)?;
    stream.set_write_timeout(Some(left()?)).map_err(timed)?;
    stream.write_all(&request(url, json, bearer)).map_err(timed)?;
    let mut bytes = Vec::new();
    let mut buffer = [0_u8; 16 * 1024];
    loop {
        stream.set_read_timeout(Some(left()?)).map_err(timed)?;
        let got = match stream.read(&mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            other => other.map_err(timed)?,
        };
        bytes.extend_from_slice(&buffer[..got]);
        if let Some(response) = parse(&bytes, got == 0)? {
            return Ok(response);
        }
        // Chunk framing comes on top of the body; beyond this it is abuse.
        if bytes.len() > 3 * MAX_BYTES {
            return Err(HttpError::TooLong);
        }
    }
}

fn request(url: &Url, json: Option<&[u8]>, bearer: Option<&Redacted<String>>) -> Vec<u8> {
    let method = if json.is_some() { "POST" } else { "GET" };
    let mut head = format!("{method} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", url.path, url.address);
    if let Some(key) = bearer {
        head.push_str(&format!("Authorization: Bearer {}\r\n", key.expose()));
    }
    if let Some(body) = json {
        head.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(json.unwrap_or_default());
    bytes
}

/// Reads an answer from the bytes so far; `None` while more are needed. `ended` says that no more will come.
///
/// # Errors
/// When the bytes cannot become an answer.
pub fn parse(bytes: &[u8], ended: bool) -> Result<Option<Response>, HttpError> {
    parse_after(bytes, ended, 4)
}

fn parse_after(bytes: &[u8], ended: bool, interim: u8) -> Result<Option<Response>, HttpError> {
    let more = |ended: bool| {
        if ended { Err(HttpError::Malformed("it was cut short")) } else { Ok(None) }
    };
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let start = match head.parse(bytes).map_err(|_| HttpError::Malformed("its head"))? {
        httparse::Status::Complete(start) => start,
        httparse::Status::Partial if bytes.len() > MAX_BYTES => return Err(HttpError::TooLong),
        httparse::Status::Partial => return more(ended),
    };
    let status = head.code.ok_or(HttpError::Malformed("no status"))?;
    let rest = bytes.get(start..).unwrap_or_default();
    if (100..200).contains(&status) {
        // An interim answer; the real one follows. Few are allowed, so no server can make this go deep.
        return if interim == 0 {
            Err(HttpError::Malformed("too many interim answers"))
        } else {
            parse_after(rest, ended, interim - 1)
        };
    }
    let header = |name: &str| head.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value);
    if matches!(status, 204 | 304) {
        return Ok(Some(Response { status, body: vec![] }));
    }
    if header("transfer-encoding").is_some_and(|v| v.to_ascii_lowercase().ends_with(b"chunked")) {
        return match chunked(rest)? {
            Some(body) => Ok(Some(Response { status, body })),
            None => more(ended),
        };
    }
    if let Some(value) = header("content-length") {
        let length = std::str::from_utf8(value).ok().and_then(|v| v.trim().parse::<usize>().ok());
        let length = length.ok_or(HttpError::Malformed("its length"))?;
        if length > MAX_BYTES {
            return Err(HttpError::TooLong);
        }
        return match rest.get(..length) {
            Some(body) => Ok(Some(Response { status, body: body.to_vec() })),
            None => more(ended),
        };
    }
    if rest.len() > MAX_BYTES {
        return Err(HttpError::TooLong);
    }
    Ok(ended.then(|| Response { status, body: rest.to_vec() }))
}

fn chunked(mut rest: &[u8]) -> Result<Option<Vec<u8>>, HttpError> {
    let mut body = Vec::new();
    loop {
        let (start, size) = match httparse::parse_chunk_size(rest) {
            Ok(httparse::Status::Complete(found)) => found,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(_) => return Err(HttpError::Malformed("its chunks")),
        };
        if size == 0 {
            return Ok(Some(body));
        }
        let size = usize::try_from(size).ok().filter(|s| body.len().saturating_add(*s) <= MAX_BYTES);
        let size = size.ok_or(HttpError::TooLong)?;
        let Some(chunk) = rest.get(start..start + size) else {
            return Ok(None);
        };
        body.extend_from_slice(chunk);
        match rest.get(start + size..start + size + 2) {
            Some(b"\r\n") => rest = &rest[start + size + 2..],
            Some(_) => return Err(HttpError::Malformed("its chunks")),
            None => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let url = Url::parse("http://127.0.0.1:8000/health").unwrap();
        assert_eq!((url.address.to_string().as_str(), url.path.as_str()), ("127.0.0.1:8000", "/health"));
        assert_eq!(Url::parse("http://0.0.0.0:8000").unwrap().address.to_string(), "127.0.0.1:8000");
        assert_eq!(Url::parse("http://[::1]:1/x").unwrap().address.to_string(), "[::1]:1");
        assert_eq!(Url::parse("http://localhost:9").unwrap().address.port(), 9);
        for bad in ["https://127.0.0.1", "http://spark-1:8000/", "http://127.0.0.1:8000/a b", "http://", "127.0.0.1"] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bodies_by_length_by_chunk_and_by_end() {
        let ok = |bytes: &[u8], ended| parse(bytes, ended).unwrap().map(|r| (r.status, r.body));
        assert_eq!(ok(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", false), Some((200, b"hi".to_vec())));
        assert_eq!(ok(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi", false), None);
        assert!(parse(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi", true).is_err());
        let chunks = b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n";
        assert_eq!(ok(chunks, false), Some((503, b"hi!".to_vec())));
        assert_eq!(ok(b"HTTP/1.0 200 OK\r\n\r\nhi", true), Some((200, b"hi".to_vec())));
        assert_eq!(ok(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", false), Some((204, vec![])));
        assert!(parse("HTTP/1.1 100 C\r\n\r\n".repeat(50_000).as_bytes(), true).is_err());
        let long = b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n";
        assert_eq!(parse(long, false), Err(HttpError::TooLong));
        let huge = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFF0\r\n";
        assert_eq!(parse(huge, false), Err(HttpError::TooLong));
    }

    #[test]
    fn a_silent_server_costs_only_the_timeout() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = Url { address: listener.local_addr().unwrap(), path: "/".into() };
        let begin = Instant::now();
        let error = send(&url, None, None, Duration::from_millis(200)).unwrap_err();
        assert!(matches!(error, HttpError::Timeout(_)), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(2));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_break_the_parser(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400), ended: bool) {
            let _ = parse(&bytes, ended);
        }

        #[test]
        fn no_body_breaks_the_parser(
            head in "(HTTP/1.1 [0-9]{1,4} OK\r\n)((Transfer-Encoding: chunked|Content-Length: [0-9]{1,24})\r\n){0,2}\r\n",
            body in proptest::collection::vec(proptest::num::u8::ANY, 0..100),
            chunk in "[0-9a-fA-F]{0,18}\r\n",
        ) {
            let mut bytes = head.into_bytes();
            bytes.extend_from_slice(chunk.as_bytes());
            bytes.extend_from_slice(&body);
            let _ = parse(&bytes, true);
        }

        #[test]
        fn any_split_gives_the_same_answer(cut in 0_usize..90) {
            let bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
            let cut = cut.min(bytes.len());
            let early = parse(&bytes[..cut], false).unwrap();
            if let Some(response) = early {
                proptest::prop_assert_eq!(response.body, b"hello");
            }
        }
    }
}
