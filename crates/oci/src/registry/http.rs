//! One HTTP request and its answer's head, with deadlines; redirects are followed by hand, so that what is sent to whom is
//! plain to see.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use url::Url;

use super::credentials::Secret;
use super::error::RegistryError;
use super::names::Names;
use super::retry::retry_after;

/// What a request carries.
pub type Body = BoxBody<Bytes, std::io::Error>;
/// Most redirects that are followed.
const REDIRECTS: usize = 5;
/// Longest error body that is read for its words.
const WORDS_MAX: usize = 4096;

/// How long is waited for what.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// For a connection.
    pub connect: Duration,
    /// For the head of an answer.
    pub head: Duration,
    /// For the next bytes of a body.
    pub stall: Duration,
    /// After the first failure; it doubles.
    pub first_wait: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self { connect: secs(10), head: secs(30), stall: secs(30), first_wait: Duration::from_millis(500) }
    }
}

/// A request.
pub struct Ask {
    /// Method.
    pub method: Method,
    /// Address.
    pub url: Url,
    /// Header lines besides authorization.
    pub headers: HeaderMap,
    /// Content; made anew for every try.
    pub body: Body,
}

impl Ask {
    /// A request without content.
    #[must_use]
    pub fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: empty() }
    }

    /// With a header line.
    ///
    /// # Errors
    /// When the value has bytes that no header may have.
    pub fn with(mut self, name: hyper::header::HeaderName, value: &str) -> Result<Self, RegistryError> {
        let value = HeaderValue::from_str(value)
            .map_err(|_| RegistryError::Setup(format!("{value:?} cannot be sent as {name}")))?;
        self.headers.insert(name, value);
        Ok(self)
    }
}

/// No content.
#[must_use]
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// Content from memory.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// An answer's head with its body to come, and where it came from after redirects.
#[derive(Debug)]
pub struct Answer {
    /// The answer.
    pub response: Response<Incoming>,
    /// The address that answered.
    pub url: Url,
    /// True when that is not where the question went.
    pub redirected: bool,
}

impl Answer {
    /// HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// A header's value, when it is text.
    #[must_use]
    pub fn header(&self, name: impl hyper::header::AsHeaderName) -> Option<&str> {
        self.response.headers().get(name).and_then(|value| value.to_str().ok())
    }
}

/// The HTTP client.
#[derive(Clone)]
pub struct Http {
    client: Client<HttpsConnector<HttpConnector<Names>>, Body>,
    /// How long is waited.
    pub timeouts: Timeouts,
    plain: Vec<String>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").field("timeouts", &self.timeouts).field("plain", &self.plain).finish_non_exhaustive()
    }
}

impl Http {
    /// A client that speaks plain http to this machine and to the hosts (`name[:port]`) in `plain` only.
    ///
    /// # Errors
    /// When this machine has no certificates to trust.
    pub fn new(timeouts: Timeouts, plain: Vec<String>) -> Result<Self, RegistryError> {
        let mut tcp = HttpConnector::new_with_resolver(Names::default());
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(timeouts.connect));
        tcp.set_nodelay(true);
        let builder = hyper_rustls::HttpsConnectorBuilder::new();
        let builder = match builder.with_native_roots() {
            Ok(builder) => builder,
            // Without certificates plain http to this machine still works; https then fails at the handshake.
            Err(error) => {
                tracing::debug!(%error, "no certificates; https will fail (install ca-certificates)");
                hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(no_roots()?)
            }
        };
        let connector = builder.https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(8).build(connector);
        Ok(Self { client, timeouts, plain })
    }

    /// The address of a registry: plain http for this machine and for hosts the user named, https for all others.
    ///
    /// # Errors
    /// When the host makes no address.
    pub fn base(&self, host: &crate::reference::Host) -> Result<Url, RegistryError> {
        let plain = host.is_loopback() || self.plain.iter().any(|p| *p == host.to_string());
        let scheme = if plain { "http" } else { "https" };
        Url::parse(&format!("{scheme}://{host}/"))
            .map_err(|e| RegistryError::Setup(format!("{host} is no address: {e}")))
    }

    fn check_scheme(&self, url: &Url) -> Result<(), RegistryError> {
        let named = named(url);
        let loopback = match url.host() {
            Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
            Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
            Some(url::Host::Domain(name)) => name == "localhost",
            None => false,
        };
        match url.scheme() {
            "https" => Ok(()),
            "http" if loopback || self.plain.contains(&named) => Ok(()),
            _ => Err(RegistryError::Plain { url: shown(url), host: named }),
        }
    }

    /// Sends a request and follows redirects of GET and HEAD. `authorization` goes to the asked server alone.
    ///
    /// # Errors
    /// No connection, no head in time, a redirect that leads nowhere or away from https.
    pub async fn send(&self, ask: Ask, authorization: Option<&Secret>) -> Result<Answer, RegistryError> {
        let origin = ask.url.origin();
        let follow = matches!(ask.method, Method::GET | Method::HEAD);
        let (method, headers) = (ask.method.clone(), ask.headers.clone());
        let mut url = ask.url.clone();
        let mut body = Some(ask.body);
        for hop in 0..=REDIRECTS {
            let own = url.origin() == origin;
            let auth = authorization.filter(|_| own);
            let request = build(&method, &url, &headers, auth, body.take().unwrap_or_else(empty))?;
            let response = self.one(request, &url).await?;
            let moved = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let target = response.headers().get(LOCATION).and_then(|l| l.to_str().ok());
            match target {
                Some(target) if moved && follow => {
                    let next = url.join(target).map_err(|_| lie(&url, "it redirects to what is no address"))?;
                    if url.scheme() == "https" && next.scheme() != "https" {
                        return Err(lie(&url, "it redirects away from https"));
                    }
                    self.check_scheme(&next)?;
                    url = next;
                }
                _ => return Ok(Answer { response, url, redirected: hop > 0 }),
            }
        }
        Err(lie(&url, "it redirects without end"))
    }

    async fn one(&self, request: Request<Body>, url: &Url) -> Result<Response<Incoming>, RegistryError> {
        self.check_scheme(url)?;
        let limit = self.timeouts.connect + self.timeouts.head;
        match tokio::time::timeout(limit, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) if causes(&error).contains("InvalidContentType") => {
                Err(RegistryError::NoTls { url: shown(url), host: named(url) })
            }
            Ok(Err(error)) => Err(RegistryError::Connection { url: shown(url), why: causes(&error) }),
            Err(_) => Err(RegistryError::Stalled { url: shown(url), after: limit }),
        }
    }

    /// The next bytes of a body; `None` at its end.
    ///
    /// # Errors
    /// When it breaks or stalls.
    pub async fn next(&self, body: &mut Incoming, url: &Url) -> Result<Option<Bytes>, RegistryError> {
        loop {
            let stall = self.timeouts.stall;
            match tokio::time::timeout(stall, body.frame()).await {
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Ok(Some(data)),
                    Err(_trailers) => {}
                },
                Ok(Some(Err(error))) => {
                    return Err(RegistryError::Connection { url: shown(url), why: causes(&error) });
                }
                Err(_) => return Err(RegistryError::Stalled { url: shown(url), after: stall }),
            }
        }
    }

    /// Reads a whole body of at most `max` bytes.
    ///
    /// # Errors
    /// As [`Http::next`], and when it is longer.
    pub async fn read(&self, answer: Answer, max: usize) -> Result<Vec<u8>, RegistryError> {
        let Answer { response, url, .. } = answer;
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(piece) = self.next(&mut body, &url).await? {
            if bytes.len() + piece.len() > max {
                return Err(lie(&url, &format!("the answer is longer than {max} bytes")));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// The error that an answer stands for, in the registry's own words.
    pub async fn refusal(&self, answer: Answer) -> RegistryError {
        let (status, url) = (answer.status(), shown(&answer.url));
        #[expect(clippy::disallowed_methods, reason = "Retry-After may name a date")]
        let now = jiff::Timestamp::now().as_second();
        let retry_after = answer.header(hyper::header::RETRY_AFTER).and_then(|text| retry_after(text, now));
        let words = self.read(answer, WORDS_MAX).await.unwrap_or_default();
        let why = words_of(&words);
        match status {
            404 => RegistryError::NotFound { url, why },
            _ => RegistryError::Status { url, status, why, retry_after },
        }
    }
}

/// A TLS configuration that trusts nobody.
fn no_roots() -> Result<rustls::ClientConfig, RegistryError> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| RegistryError::Setup(format!("TLS: {e}")))?;
    Ok(builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}

fn build(
    method: &Method,
    url: &Url,
    headers: &HeaderMap,
    authorization: Option<&Secret>,
    body: Body,
) -> Result<Request<Body>, RegistryError> {
    let odd = |what: &str| RegistryError::Setup(format!("{}: {what}", shown(url)));
    let uri: Uri = url.as_str().parse().map_err(|_| odd("it is no address"))?;
    let mut request = Request::new(body);
    *request.method_mut() = method.clone();
    *request.uri_mut() = uri;
    let all = request.headers_mut();
    all.extend(headers.clone());
    all.insert(USER_AGENT, HeaderValue::from_static(concat!("sparklane/", env!("CARGO_PKG_VERSION"))));
    if let Some(secret) = authorization {
        let mut value = HeaderValue::from_str(secret.reveal()).map_err(|_| odd("its login cannot be sent"))?;
        value.set_sensitive(true);
        all.insert(AUTHORIZATION, value);
    }
    Ok(request)
}

/// An address as it may be shown: without its query and user, which may be secret.
#[must_use]
pub fn shown(url: &Url) -> String {
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

/// `HOST[:PORT]`, as references have it.
fn named(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// A contradiction of a server.
#[must_use]
pub fn lie(url: &Url, why: &str) -> RegistryError {
    RegistryError::Lie { url: shown(url), why: why.to_owned() }
}

/// True for 200 to 299.
#[must_use]
pub fn is_success(status: u16) -> bool {
    StatusCode::from_u16(status).is_ok_and(|s| s.is_success())
}

/// An error with its causes: the outermost alone says "client error".
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let own = error.to_string();
        if !text.ends_with(&own) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&own);
        }
        next = error.source();
    }
    text
}

/// `{"errors":[{"code":…,"message":…}]}` in a line; anything else as a short text.
fn words_of(body: &[u8]) -> String {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let first = json.as_ref().and_then(|j| j.pointer("/errors/0"));
    let text = |key: &str| first.and_then(|e| e.get(key)).and_then(serde_json::Value::as_str).unwrap_or_default();
    let words = match (text("code"), text("message")) {
        ("", "") if json.is_some() => String::new(),
        ("", "") => String::from_utf8_lossy(body).into_owned(),
        (code, "") => code.to_owned(),
        ("", message) => message.to_owned(),
        (code, message) => format!("{code}: {message}"),
    };
    let clean: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    clean.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_has_no_query() {
        let url = Url::parse("https://u:p@h.example:444/a/b?sig=secret#f").unwrap();
        assert_eq!(shown(&url), "https://h.example:444/a/b");
    }

    #[test]
    fn a_registry_speaks_in_one_clean_line() {
        let words = words_of(br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no\u001b[31m such"}]}"#);
        assert_eq!(words, "MANIFEST_UNKNOWN: no [31m such");
        assert_eq!(words_of(b"<html>\n"), "<html>");
        assert_eq!(words_of(b"{}"), "");
    }
}
