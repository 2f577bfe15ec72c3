//! What the hub says of a revision: `GET /api/models/<model>/revision/<rev>?blobs=true`.

use serde::Deserialize;

use super::Origin;
use crate::error::WeightsError;
use sparklane_oci::registry::http::{Http, is_success, shown};

/// Largest answer; 10^5 files are some 30 MB.
pub const MAX_ANSWER: usize = 128 * 1024 * 1024;

/// A revision of a model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Revision {
    /// The commit.
    pub sha: String,
    /// Its files.
    pub siblings: Vec<Sibling>,
}

/// A file of a revision.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sibling {
    /// Path.
    pub rfilename: String,
    /// Bytes.
    pub size: Option<u64>,
    /// Present for files in large file storage.
    pub lfs: Option<Lfs>,
}

/// What large file storage knows of a file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Lfs {
    /// sha256, hex.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// Reads the hub's answer.
///
/// # Errors
/// When it is none.
pub fn parse(bytes: &[u8]) -> Result<Revision, String> {
    serde_json::from_slice(bytes).map_err(|e| format!("not the hub's answer about a revision: {e}"))
}

impl Origin {
    /// Asks the hub about a revision.
    ///
    /// # Errors
    /// When it does not answer, refuses, or answers something else.
    pub(super) async fn revision(&self, http: &Http, model: &str, revision: &str) -> Result<Revision, WeightsError> {
        let mut url = self.base.clone();
        {
            let mut parts =
                url.path_segments_mut().map_err(|()| WeightsError::Refused("the endpoint has no paths".into()))?;
            parts.pop_if_empty().extend(["api", "models"]).extend(model.split('/')).push("revision").push(revision);
        }
        url.set_query(Some("blobs=true"));
        let named = shown(&url);
        let refused = |why: String| WeightsError::Refused(format!("{named}: {why}"));
        let answer =
            http.send(super::get(url)?, self.token.as_ref()).await.map_err(|e| WeightsError::Refused(e.to_string()))?;
        if !is_success(answer.status()) {
            let hint = if matches!(answer.status(), 401 | 403) { "; a gated model needs --token-file" } else { "" };
            let error = http.refusal(answer).await;
            return Err(WeightsError::Refused(format!("{error}{hint}")));
        }
        let bytes = http.read(answer, MAX_ANSWER).await.map_err(|e| refused(e.to_string()))?;
        parse(&bytes).map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,100}") {
            let _read = parse(&bytes);
            let _read = parse(text.as_bytes());
        }

        #[test]
        fn mangled_answers_are_read_or_refused(at in 0usize..200, to: u8) {
            let mut bytes = br#"{"sha":"a","siblings":[{"rfilename":"x","size":3,"lfs":{"sha256":"b","size":3,"pointerSize":1}}],"private":false}"#.to_vec();
            prop_assert!(parse(&bytes).is_ok());
            let at = at % bytes.len();
            bytes[at] = to;
            let _read = parse(&bytes);
        }
    }
}
