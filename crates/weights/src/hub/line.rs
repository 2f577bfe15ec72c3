//! An HTTP server as a source of extents. Every question starts at the origin's own address, so a signed address that
//! expired is simply signed anew, and the token never goes anywhere else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_RANGE, RANGE, RETRY_AFTER};
use sparklane_oci::registry::error::RegistryError;
use sparklane_oci::registry::http::{Answer, Http, shown};
use sparklane_oci::registry::retry::{RETRY_AFTER_MAX, retry_after};
use tokio::runtime::Runtime;
use url::Url;

use super::Origin;
use crate::blobs::BlobSet;
use crate::buffer::{Buffer, EXTENT};
use crate::error::WeightsError;
use crate::hash::Sha;
use crate::transfer::sched::Want;
use crate::transfer::{Dial, Line, LineError};

/// Bytes that one request asks for. A connection that stays with its file reads them as one stream.
const SPAN: u64 = 64 * EXTENT as u64;
/// Failures in a row, over all connections, after which the server is given up.
const FAILURES: u32 = 12;

/// A model at an origin.
#[derive(Debug)]
pub struct HttpDial {
    origin: Origin,
    model: String,
    revision: String,
    set: Arc<BlobSet>,
    failures: Arc<AtomicU32>,
}

impl HttpDial {
    /// The files of a set at an origin.
    #[must_use]
    pub fn new(origin: Origin, model: &str, revision: &str, set: Arc<BlobSet>) -> Self {
        let (model, revision) = (model.to_owned(), revision.to_owned());
        Self { origin, model, revision, set, failures: Arc::default() }
    }
}

impl Dial for HttpDial {
    fn ways(&self) -> Vec<String> {
        vec![self.origin.base.host_str().unwrap_or("http").to_owned()]
    }

    fn dial(&self, _way: usize) -> Result<Box<dyn Line>, LineError> {
        Ok(Box::new(HttpLine {
            runtime: super::runtime().map_err(LineError::Fatal)?,
            http: self.origin.http().map_err(LineError::Fatal)?,
            origin: self.origin.clone(),
            model: self.model.clone(),
            revision: self.revision.clone(),
            set: Arc::clone(&self.set),
            failures: Arc::clone(&self.failures),
            asked: VecDeque::new(),
            stream: None,
        }))
    }
}

/// An answer whose bytes are being read.
struct Stream {
    file: u32,
    at: u64,
    end: u64,
    body: Incoming,
    url: Url,
    left: Bytes,
}

struct HttpLine {
    runtime: Runtime,
    http: Http,
    origin: Origin,
    model: String,
    revision: String,
    set: Arc<BlobSet>,
    failures: Arc<AtomicU32>,
    asked: VecDeque<Want>,
    stream: Option<Stream>,
}

impl Line for HttpLine {
    fn ask(&mut self, want: &Want) -> Result<(), LineError> {
        self.asked.push_back(*want);
        Ok(())
    }

    fn take(&mut self, buffer: &mut Buffer, unwanted: &dyn Fn() -> bool) -> Result<Want, LineError> {
        let want = self.asked.pop_front().ok_or_else(|| LineError::lost("nothing was asked"))?;
        let outcome = self.fill(&want, buffer, unwanted);
        match &outcome {
            Ok(()) => self.failures.store(0, Ordering::Relaxed),
            // A server that asks for patience does not fail.
            Err(LineError::Lost { wait: Some(_), .. }) => self.stream = None,
            Err(LineError::Lost { why, .. }) if !unwanted() => {
                self.stream = None;
                if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES {
                    let why = format!("{why} ({FAILURES} failures in a row); what was proved is kept");
                    return Err(LineError::Fatal(WeightsError::Failed(why)));
                }
            }
            Err(_) => self.stream = None,
        }
        outcome.map(|()| want)
    }

    fn hashes(&mut self, _file: u32, _offset: u64, _count: u32) -> Result<Option<Vec<Sha>>, LineError> {
        Ok(None)
    }
}

impl HttpLine {
    fn fill(&mut self, want: &Want, buffer: &mut Buffer, unwanted: &dyn Fn() -> bool) -> Result<(), LineError> {
        let goes_on =
            |s: &Stream| s.file == want.file && s.at == want.offset && s.end >= want.offset + u64::from(want.len);
        let mut stream = match self.stream.take() {
            Some(stream) if goes_on(&stream) => stream,
            _ => self.open(want)?,
        };
        let len = want.len as usize;
        let mut have = 0;
        while have < len {
            if stream.left.is_empty() {
                let next = self.runtime.block_on(self.http.next(&mut stream.body, &stream.url)).map_err(of_registry)?;
                let Some(piece) = next else {
                    let at = stream.at;
                    return Err(LineError::lost(format!("{}: ended at byte {at}", shown(&stream.url))));
                };
                stream.left = piece;
            }
            if unwanted() {
                return Err(LineError::lost("no longer wanted"));
            }
            let piece = stream.left.split_to(stream.left.len().min(len - have));
            if let Some(room) = buffer.whole().get_mut(have..have + piece.len()) {
                room.copy_from_slice(&piece);
            }
            have += piece.len();
            stream.at += piece.len() as u64;
        }
        buffer.set_len(len);
        if stream.at < stream.end {
            self.stream = Some(stream);
        }
        Ok(())
    }

    fn open(&self, want: &Want) -> Result<Stream, LineError> {
        let blob = self.set.get(want.file).ok_or_else(|| LineError::lost("no such file"))?;
        let (start, end) = (want.offset, (want.offset + SPAN).min(blob.size));
        let url = self.origin.file(&self.model, &self.revision, &blob.path).map_err(LineError::Fatal)?;
        let range = format!("bytes={start}-{}", end.saturating_sub(1));
        let ask = super::get(url).map_err(LineError::Fatal)?.with(RANGE, &range).map_err(of_registry)?;
        let answer = self.runtime.block_on(self.http.send(ask, self.origin.token.as_ref())).map_err(of_registry)?;
        let answer = self.judge(answer, start, end, blob.size)?;
        let url = answer.url.clone();
        Ok(Stream { file: want.file, at: start, end, body: answer.response.into_body(), url, left: Bytes::new() })
    }

    /// Takes an answer only when it is exactly the bytes that were asked for.
    fn judge(&self, answer: Answer, start: u64, end: u64, size: u64) -> Result<Answer, LineError> {
        let named = shown(&answer.url);
        let fatal = |why: String| LineError::Fatal(WeightsError::Failed(format!("{named}: {why}")));
        if answer.header(CONTENT_ENCODING).is_some_and(|e| !e.eq_ignore_ascii_case("identity")) {
            return Err(fatal("sends encoded bytes although it was asked not to".into()));
        }
        match answer.status() {
            206 => {
                let told = answer.header(CONTENT_RANGE).and_then(content_range);
                match told {
                    Some((from, to, all)) if from == start && to + 1 == end && all.is_none_or(|a| a == size) => {
                        Ok(answer)
                    }
                    Some((_, _, Some(all))) if all != size => {
                        Err(fatal(format!("has {all} bytes there, the manifest says {size}")))
                    }
                    _ => Err(LineError::lost(format!("{named}: answers another range than was asked"))),
                }
            }
            200 if start == 0 && end == size => {
                let len: Option<u64> = answer.header(hyper::header::CONTENT_LENGTH).and_then(|l| l.parse().ok());
                match len {
                    Some(len) if len != size => Err(fatal(format!("has {len} bytes there, the manifest says {size}"))),
                    _ => Ok(answer),
                }
            }
            200 => Err(fatal("serves no ranges, which a transfer that resumes needs; name another --mirror".into())),
            status => {
                #[expect(clippy::disallowed_methods, reason = "Retry-After may name a date")]
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
                let wait = answer.header(RETRY_AFTER).and_then(|text| retry_after(text, now));
                let redirected = answer.redirected;
                let error = self.runtime.block_on(self.http.refusal(answer));
                Err(refusal(status, redirected, wait, error.to_string()))
            }
        }
    }
}

/// What a refusal means. Behind a redirect, 401, 403 and 404 are what an expired signature looks like.
fn refusal(status: u16, redirected: bool, wait: Option<Duration>, why: String) -> LineError {
    let patient = matches!(status, 408 | 425 | 429) || status >= 500;
    match (status, wait) {
        (_, Some(wait)) if patient && wait > RETRY_AFTER_MAX => LineError::Fatal(WeightsError::Failed(format!(
            "{why}; it asks for a pause of {} s: run it again then, what was proved is kept",
            wait.as_secs()
        ))),
        (429, wait) => LineError::Lost { why, wait: Some(wait.unwrap_or(Duration::from_secs(5))) },
        (_, wait) if patient => LineError::Lost { why, wait },
        (401 | 403 | 404 | 410, _) if redirected => LineError::lost(why),
        (401 | 403, _) => {
            LineError::Fatal(WeightsError::Failed(format!("{why}; a gated or private model needs --token-file FILE")))
        }
        _ => LineError::Fatal(WeightsError::Failed(why)),
    }
}

fn of_registry(error: RegistryError) -> LineError {
    match error {
        RegistryError::Connection { .. } | RegistryError::Stalled { .. } => LineError::lost(error.to_string()),
        other => LineError::Fatal(WeightsError::Failed(other.to_string())),
    }
}

/// `bytes 0-99/1234` as (0, 99, 1234).
#[must_use]
pub fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, all) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (from, to) = range.split_once('-')?;
    let all = if all == "*" { None } else { Some(all.parse().ok()?) };
    let (from, to) = (from.parse().ok()?, to.parse::<u64>().ok()?);
    (from <= to && to < u64::MAX).then_some((from, to, all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_read() {
        assert_eq!(content_range("bytes 0-99/1234"), Some((0, 99, Some(1234))));
        assert_eq!(content_range("bytes 5-5/*"), Some((5, 5, None)));
        for bad in ["", "bytes */12", "bytes 9-5/10", "bits 0-1/2", "bytes 0-18446744073709551615/*"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_expired_signature_is_asked_anew_and_a_missing_file_is_not() {
        assert!(matches!(refusal(403, true, None, "x".into()), LineError::Lost { .. }));
        assert!(matches!(refusal(403, false, None, "x".into()), LineError::Fatal(_)));
        assert!(matches!(refusal(404, false, None, "x".into()), LineError::Fatal(_)));
        let long = Some(Duration::from_secs(9999));
        assert!(matches!(refusal(429, false, long, "x".into()), LineError::Fatal(_)));
        assert!(matches!(refusal(503, false, None, "x".into()), LineError::Lost { wait: None, .. }));
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(text in "\\PC{0,60}") {
            let _read = content_range(&text);
        }
    }
}
