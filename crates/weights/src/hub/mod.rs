//! Weights over HTTP: from the hub, from a server that speaks like it (`HF_ENDPOINT`), or from any mirror that serves
//! ranges. Files that the hub keeps in Xet storage come over the same plain path.

pub mod api;
pub mod line;
pub mod lock;

use camino::Utf8Path;
use sparklane_oci::registry::credentials::Secret;
use sparklane_oci::registry::http::{Ask, Http, Timeouts, shown};
use std::os::unix::fs::MetadataExt as _;
use url::Url;

use crate::error::WeightsError;

/// The hub, when neither `--endpoint` nor `HF_ENDPOINT` names another.
pub const HUB: &str = "https://huggingface.co";
/// Largest token file.
const MAX_TOKEN: u64 = 4096;

/// Where files come from.
#[derive(Debug, Clone)]
pub struct Origin {
    /// Base address, with a slash at its end.
    base: Url,
    kind: Kind,
    token: Option<Secret>,
    plain: Vec<String>,
    timeouts: Timeouts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `<base>/<model>/resolve/<commit>/<path>`.
    Hub,
    /// `<base>/<path>`.
    Mirror,
}

impl Origin {
    /// The hub at an address.
    ///
    /// # Errors
    /// When it is no address.
    pub fn hub(endpoint: &str) -> Result<Self, WeightsError> {
        Self::new(endpoint, Kind::Hub)
    }

    /// A folder of files at an address.
    ///
    /// # Errors
    /// When it is no address.
    pub fn mirror(base: &str) -> Result<Self, WeightsError> {
        Self::new(base, Kind::Mirror)
    }

    fn new(base: &str, kind: Kind) -> Result<Self, WeightsError> {
        let refused = |why: String| WeightsError::Refused(format!("{base:?} is no address: {why}"));
        let url = Url::parse(&format!("{}/", base.trim_end_matches('/'))).map_err(|e| refused(e.to_string()))?;
        if url.cannot_be_a_base() || !matches!(url.scheme(), "http" | "https") {
            return Err(refused("neither http nor https".into()));
        }
        Ok(Self { base: url, kind, token: None, plain: Vec::new(), timeouts: Timeouts::default() })
    }

    /// With a token from a file that only its owner can read. It goes to this origin and to no other host.
    ///
    /// # Errors
    /// When the file is missing, readable by others, or holds no token.
    pub fn with_token_file(mut self, file: &Utf8Path) -> Result<Self, WeightsError> {
        let refused = |why: String| WeightsError::Refused(format!("{file}: {why}"));
        let meta = std::fs::metadata(file).map_err(|e| refused(e.to_string()))?;
        if meta.mode() & 0o077 != 0 {
            return Err(refused(format!("others can read it (mode {:o}); chmod 600", meta.mode() & 0o777)));
        }
        if meta.len() > MAX_TOKEN {
            return Err(refused("is too long for a token".into()));
        }
        let text = std::fs::read_to_string(file).map_err(|e| refused(e.to_string()))?;
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(refused("holds no token".into()));
        }
        self.token = Some(Secret::new(format!("Bearer {token}")));
        Ok(self)
    }

    /// Hosts (`name[:port]`) that may be spoken to without TLS.
    #[must_use]
    pub fn with_plain(mut self, hosts: &[String]) -> Self {
        self.plain = hosts.to_vec();
        self
    }

    /// With other waits; for tests.
    #[must_use]
    pub fn with_timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Where a file is asked for.
    ///
    /// # Errors
    /// When the parts make no address.
    pub fn file(&self, model: &str, revision: &str, path: &str) -> Result<Url, WeightsError> {
        let mut url = self.base.clone();
        {
            let mut parts =
                url.path_segments_mut().map_err(|()| WeightsError::Refused(format!("{} has no paths", self.base)))?;
            parts.pop_if_empty();
            if self.kind == Kind::Hub {
                parts.extend(model.split('/')).push("resolve").push(revision);
            }
            parts.extend(path.split('/'));
        }
        Ok(url)
    }

    fn http(&self) -> Result<Http, WeightsError> {
        Http::new(self.timeouts, self.plain.clone()).map_err(|e| WeightsError::Refused(e.to_string()))
    }
}

/// An event loop for one thread that waits for one thing at a time.
///
/// # Errors
/// When the system gives none.
fn runtime() -> Result<tokio::runtime::Runtime, WeightsError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|e| WeightsError::Failed(format!("the event loop cannot be started: {e}")))
}

/// A GET of identity-coded bytes.
fn get(url: Url) -> Result<Ask, WeightsError> {
    let named = shown(&url);
    Ask::new(hyper::Method::GET, url)
        .with(hyper::header::ACCEPT_ENCODING, "identity")
        .map_err(|e| WeightsError::Refused(format!("{named}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_keep_every_path_in_its_place() {
        let hub = Origin::hub("https://hub.example/sub/").unwrap();
        let url = hub.file("org/name", "abc", "a b/ü?#%.json").unwrap();
        assert_eq!(url.as_str(), "https://hub.example/sub/org/name/resolve/abc/a%20b/%C3%BC%3F%23%25.json");
        let mirror = Origin::mirror("http://127.0.0.1:9/x").unwrap();
        assert_eq!(mirror.file("org/name", "abc", "d/f").unwrap().as_str(), "http://127.0.0.1:9/x/d/f");
        assert!(Origin::hub("file:///etc").is_err());
        assert!(Origin::hub("nothing").is_err());
    }

    #[test]
    fn a_token_that_others_can_read_is_refused_and_none_is_shown() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let file = Utf8Path::from_path(dir.path()).unwrap().join("token");
        std::fs::write(&file, "hf_secret\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Origin::hub(HUB).unwrap().with_token_file(&file).is_err());
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let origin = Origin::hub(HUB).unwrap().with_token_file(&file).unwrap();
        assert!(!format!("{origin:?}").contains("secret"));
        std::fs::write(&file, "two words").unwrap();
        assert!(Origin::hub(HUB).unwrap().with_token_file(&file).is_err());
    }
}
