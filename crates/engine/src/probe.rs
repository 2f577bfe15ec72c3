//! How a gate reaches the engine's API.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use crate::http::{HttpError, Response, Url, send};
use crate::judge::Verdict;
use crate::key;
use crate::redact::Redacted;

/// One question to the API, or to the machine.
pub trait Prober {
    /// What this machine is, against its cluster file. Whoever cannot look at machines says so.
    fn fabric(&self, _cluster: &serde_json::Value) -> Verdict {
        Verdict::Bad("this caller cannot look at the machine".to_owned())
    }

    /// GET.
    ///
    /// # Errors
    /// When no answer was had.
    fn get(&self, url: &str, timeout: Duration) -> Result<Response, HttpError>;
    /// POST of a JSON body.
    ///
    /// # Errors
    /// When no answer was had.
    fn post(&self, url: &str, json: &[u8], timeout: Duration) -> Result<Response, HttpError>;
}

/// The real one.
#[derive(Debug, Clone, Default)]
pub struct HttpProber {
    /// File with the API key, when the lane has one; read at each question, so a new key counts at once.
    pub key_file: Option<PathBuf>,
}

impl HttpProber {
    fn key(&self) -> Result<Option<Redacted<String>>, HttpError> {
        self.key_file.as_deref().map(key::read).transpose().map_err(|e| HttpError::Io(e.to_string()))
    }
}

impl Prober for HttpProber {
    fn get(&self, url: &str, timeout: Duration) -> Result<Response, HttpError> {
        send(&Url::parse(url)?, None, self.key()?.as_ref(), timeout)
    }

    fn post(&self, url: &str, json: &[u8], timeout: Duration) -> Result<Response, HttpError> {
        send(&Url::parse(url)?, Some(json), self.key()?.as_ref(), timeout)
    }
}

/// The body of the chat completion that a `tokens` gate asks for.
#[must_use]
pub fn chat_body(model: &str, prompt: &str, max_tokens: u32) -> Vec<u8> {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": false,
    })
    .to_string()
    .into_bytes()
}
