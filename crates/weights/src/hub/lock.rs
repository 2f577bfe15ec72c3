//! `weights lock MODEL@REV`: a manifest from the hub's own words, checked by what safetensors files say of themselves.

use std::collections::BTreeSet;

use hyper::header::RANGE;
use sparklane_lane::WeightsManifest;
use sparklane_lane::weights::WeightsFile;
use sparklane_oci::registry::http::{Http, is_success, shown};
use url::Url;

use super::Origin;
use super::api::{Revision, Sibling};
use crate::error::WeightsError;
use crate::hash::Sha;
use crate::safetensors;

/// Largest file that is downloaded to be hashed: what git itself keeps is small.
const MAX_SMALL: usize = 64 * 1024 * 1024;
/// The index of a sharded model.
const INDEX: &str = "model.safetensors.index.json";

/// A model and a commit of it.
///
/// # Errors
/// When it is not `org/name@<40 hex digits>`.
pub fn named(text: &str) -> Result<(String, String), WeightsError> {
    let Some((model, revision)) = text.split_once('@') else {
        return Err(WeightsError::Refused(format!("{text:?} names no revision: org/name@COMMIT")));
    };
    Ok((model.to_owned(), revision.to_owned()))
}

/// True when a path matches one of the patterns, in which `*` stands for any text.
#[must_use]
pub fn matches(patterns: &[String], path: &str) -> bool {
    fn one(pattern: &[u8], text: &[u8]) -> bool {
        let (mut p, mut t, mut star) = (0, 0, None);
        while t < text.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, t));
                    p += 1;
                }
                Some(byte) if Some(byte) == text.get(t) => {
                    p += 1;
                    t += 1;
                }
                _ => {
                    let Some((at, taken)) = star else { return false };
                    star = Some((at, taken + 1));
                    p = at + 1;
                    t = taken + 1;
                }
            }
        }
        pattern.iter().skip(p).all(|b| *b == b'*')
    }
    patterns.iter().any(|pattern| one(pattern.as_bytes(), path.as_bytes()))
}

/// Which files of a revision are wanted.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// Only these patterns; empty for all.
    pub include: Vec<String>,
    /// Not these.
    pub exclude: Vec<String>,
}

impl Choice {
    fn takes(&self, path: &str) -> bool {
        (self.include.is_empty() || matches(&self.include, path)) && !matches(&self.exclude, path)
    }
}

/// Makes a manifest of a revision. `say` hears what is read.
///
/// # Errors
/// When the revision is no commit, the hub refuses, or the files contradict each other.
pub fn lock(
    origin: &Origin,
    model: &str,
    revision: &str,
    choice: &Choice,
    say: &dyn Fn(&str),
) -> Result<WeightsManifest, WeightsError> {
    super::runtime()?.block_on(async {
        let http = origin.http()?;
        let told = origin.revision(&http, model, revision).await?;
        if told.sha != revision {
            return Err(WeightsError::Refused(format!(
                "{revision:?} is not a commit but moves; it is {} now: sparklane weights lock {model}@{}",
                told.sha, told.sha
            )));
        }
        let ask = Asker { origin, http, model, revision };
        let manifest = ask.manifest(&told, choice, say).await?;
        ask.check(&manifest, say).await?;
        Ok(manifest)
    })
}

struct Asker<'a> {
    origin: &'a Origin,
    http: Http,
    model: &'a str,
    revision: &'a str,
}

impl Asker<'_> {
    async fn manifest(
        &self,
        told: &Revision,
        choice: &Choice,
        say: &dyn Fn(&str),
    ) -> Result<WeightsManifest, WeightsError> {
        let mut files = Vec::new();
        for sibling in told.siblings.iter().filter(|s| choice.takes(&s.rfilename)) {
            files.push(self.file(sibling, say).await?);
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let manifest = WeightsManifest { model: self.model.to_owned(), revision: self.revision.to_owned(), files };
        let problems = manifest.problems();
        if problems.is_empty() {
            return Ok(manifest);
        }
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Err(WeightsError::Refused(format!("the hub's list of {} cannot be used: {}", self.model, lines.join("; "))))
    }

    async fn file(&self, sibling: &Sibling, say: &dyn Fn(&str)) -> Result<WeightsFile, WeightsError> {
        let path = sibling.rfilename.clone();
        if let Some(lfs) = &sibling.lfs {
            return Ok(WeightsFile { path, size: lfs.size, sha256: lfs.sha256.clone() });
        }
        if let Some(why) = sparklane_lane::weights::bad_path(&path) {
            return Err(WeightsError::Refused(format!("the hub lists {path:?}, which {why}")));
        }
        say(&format!("hash {path}"));
        let bytes = self.get(&path, None, MAX_SMALL).await?;
        if sibling.size.is_some_and(|s| s != bytes.len() as u64) {
            return Err(WeightsError::Refused(format!(
                "{path}: {} bytes came, the hub's list says otherwise",
                bytes.len()
            )));
        }
        Ok(WeightsFile { path, size: bytes.len() as u64, sha256: Sha::of(&bytes).to_string() })
    }

    async fn get(&self, path: &str, range: Option<(u64, u64)>, most: usize) -> Result<Vec<u8>, WeightsError> {
        let url: Url = self.origin.file(self.model, self.revision, path)?;
        let named = shown(&url);
        let failed = |why: String| WeightsError::Refused(format!("{named}: {why}"));
        let mut ask = super::get(url)?;
        if let Some((from, to)) = range {
            ask = ask.with(RANGE, &format!("bytes={from}-{to}")).map_err(|e| failed(e.to_string()))?;
        }
        let answer = self.http.send(ask, self.origin.token.as_ref()).await.map_err(|e| failed(e.to_string()))?;
        let status = answer.status();
        if !is_success(status) || (range.is_some() && status != 206) {
            let why = self.http.refusal(answer).await;
            return Err(failed(why.to_string()));
        }
        self.http.read(answer, most).await.map_err(|e| failed(e.to_string()))
    }

    /// What index and shards say of themselves must fit the list.
    async fn check(&self, manifest: &WeightsManifest, say: &dyn Fn(&str)) -> Result<(), WeightsError> {
        let paths: BTreeSet<&str> = manifest.files.iter().map(|f| f.path.as_str()).collect();
        let index = if paths.contains(INDEX) {
            say(&format!("read {INDEX}"));
            let bytes = self.get(INDEX, None, MAX_SMALL).await?;
            let listed = manifest.files.iter().find(|f| f.path == INDEX).map(|f| f.sha256.clone());
            if listed != Some(Sha::of(&bytes).to_string()) {
                return Err(WeightsError::Refused(format!("{INDEX}: its bytes are not those of the hub's list")));
            }
            Some(bytes)
        } else {
            None
        };
        let mut wrong = safetensors::judge(&paths, index.as_deref());
        let named = index.as_deref().map(safetensors::shards).transpose().unwrap_or_default().unwrap_or_default();
        for file in manifest.files.iter().filter(|f| f.path.ends_with(".safetensors") && !f.path.contains('/')) {
            say(&format!("read the header of {}", file.path));
            match self.header(file).await? {
                Ok(tensors) if named.get(&file.path).is_some_and(|wanted| *wanted != tensors) => {
                    wrong.push(format!("{}: holds other tensors than the index says", file.path));
                }
                Ok(_) => {}
                Err(why) => wrong.push(format!("{}: {why}", file.path)),
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(WeightsError::Refused(wrong.join("; "))) }
    }

    async fn header(&self, file: &WeightsFile) -> Result<Result<BTreeSet<String>, String>, WeightsError> {
        let first = self.get(&file.path, Some((0, 7)), 8).await?;
        let len = match safetensors::header_len(&first, file.size) {
            Ok(len) => len,
            Err(why) => return Ok(Err(why)),
        };
        if len == 0 {
            return Ok(Err("has no header".into()));
        }
        let most = usize::try_from(len).unwrap_or(usize::MAX);
        let header = self.get(&file.path, Some((8, 7 + len)), most).await?;
        if header.len() != most {
            return Ok(Err("its header came short".into()));
        }
        Ok(safetensors::check_header(&header, file.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_people_mean_them() {
        let all = |p: &[&str]| p.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert!(matches(&all(&["*.safetensors"]), "model-1.safetensors"));
        assert!(matches(&all(&["encoding/*"]), "encoding/a/b.py"));
        assert!(matches(&all(&["*a*b*"]), "xxaxxbxx"));
        assert!(!matches(&all(&["*.json"]), "a.jsonl"));
        assert!(!matches(&all(&["a"]), "ab"));
        assert!(matches(&all(&["**"]), ""));
        assert!(!matches(&[], "a"));
    }

    #[test]
    fn a_revision_must_be_named() {
        assert!(named("org/name").is_err());
        assert_eq!(named("org/name@abc").unwrap().1, "abc");
    }
}
