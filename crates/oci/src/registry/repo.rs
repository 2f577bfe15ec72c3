//! A repository at a registry: the token flow around every request, and manifests by tag or digest.

use std::future::Future;
use std::sync::Arc;

use hyper::Method;
use hyper::header::{ACCEPT, CONTENT_TYPE, WWW_AUTHENTICATE};
use serde::Deserialize;
use tokio::sync::Mutex;
use url::Url;

use super::challenge::{self, Challenge};
use super::credentials::{Credentials, Login, Secret};
use super::error::RegistryError;
use super::http::{Answer, Ask, Http, is_success, lie, shown};
use super::retry::{FAILURES, Patience};
use crate::digest;
use crate::error::OciError;
use crate::manifest::{Config, DOCUMENT_MAX, Descriptor, Document, Index, Manifest, Platform, check_digest};
use crate::media;
use crate::reference::Reference;

/// Largest token answer.
const TOKEN_MAX: usize = 256 << 10;
/// How deep indexes may lie in indexes.
const DEPTH: usize = 4;

/// What all repositories share.
#[derive(Debug, Clone)]
pub struct Registry {
    /// The HTTP client.
    pub http: Http,
    /// Logins.
    pub credentials: Credentials,
}

/// One repository, with the token that opens it.
#[derive(Debug, Clone)]
pub struct Repo {
    pub(super) http: Http,
    base: Url,
    name: String,
    registry: String,
    login: Option<Login>,
    scopes: Vec<String>,
    authorization: Arc<Mutex<Option<Secret>>>,
}

/// An image as a reference led to it.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The index that offered it, if there was one.
    pub index: Option<Index>,
    /// The manifest.
    pub manifest: Manifest,
    /// The config.
    pub config: Config,
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Registry {
    /// Opens a repository for reading.
    ///
    /// # Errors
    /// When its host makes no address.
    pub fn repo(&self, reference: &Reference) -> Result<Repo, RegistryError> {
        self.open(reference, &[format!("repository:{}:pull", reference.name())])
    }

    /// Opens a repository for writing; `from` is one at the same registry that blobs may be mounted from.
    ///
    /// # Errors
    /// When its host makes no address.
    pub fn repo_to_push(&self, reference: &Reference, from: Option<&str>) -> Result<Repo, RegistryError> {
        let own = format!("repository:{}:pull,push", reference.name());
        let other = from.map(|name| format!("repository:{name}:pull"));
        self.open(reference, &std::iter::once(own).chain(other).collect::<Vec<_>>())
    }

    fn open(&self, reference: &Reference, scopes: &[String]) -> Result<Repo, RegistryError> {
        Ok(Repo {
            http: self.http.clone(),
            base: self.http.base(reference.host())?,
            name: reference.name().to_owned(),
            registry: reference.host().to_string(),
            login: self.credentials.of(reference.host()).cloned(),
            scopes: scopes.to_vec(),
            authorization: Arc::default(),
        })
    }
}

impl Repo {
    /// The address of `/v2/<name>/<rest>`.
    ///
    /// # Errors
    /// When it makes no address.
    pub fn url(&self, rest: &str) -> Result<Url, RegistryError> {
        let path = format!("v2/{}/{rest}", self.name);
        self.base.join(&path).map_err(|e| RegistryError::Setup(format!("{path}: {e}")))
    }

    /// Sends a request that `make` makes, with a login when the registry asks for one. A token that has ended is renewed
    /// once.
    ///
    /// # Errors
    /// As [`Http::send`], and [`RegistryError::Unauthorized`].
    pub async fn ask(&self, make: &(dyn Fn() -> Result<Ask, RegistryError> + Sync)) -> Result<Answer, RegistryError> {
        let used = self.authorization.lock().await.clone();
        let answer = self.http.send(make()?, used.as_ref()).await?;
        // A 401 of the server behind a redirect is not about our token.
        if answer.status() != 401 || answer.redirected {
            return Ok(answer);
        }
        let challenges = challenges(&answer);
        drop(answer);
        let fresh = self.authorize(&challenges, used.as_ref()).await?;
        let answer = self.http.send(make()?, Some(&fresh)).await?;
        if answer.status() == 401 && !answer.redirected {
            let why = match self.http.refusal(answer).await {
                RegistryError::Status { why, .. } => why,
                other => other.to_string(),
            };
            return Err(self.unauthorized(&why));
        }
        Ok(answer)
    }

    /// A new authorization; the one that another task has just had is as good.
    async fn authorize(&self, asked: &[Challenge], used: Option<&Secret>) -> Result<Secret, RegistryError> {
        let mut kept = self.authorization.lock().await;
        if let Some(other) = kept.as_ref().filter(|k| Some(*k) != used) {
            return Ok(other.clone());
        }
        let bearer = asked.iter().find(|c| c.scheme == "bearer");
        let basic = asked.iter().any(|c| c.scheme == "basic");
        let fresh = match (bearer, &self.login) {
            (Some(challenge), _) => self.token(challenge).await?,
            (None, Some(login)) if basic => login.basic(),
            (None, None) if basic => return Err(self.unauthorized("it asks for user and password")),
            _ => return Err(self.unauthorized("it asks for a kind of login that is not known here")),
        };
        Ok(kept.insert(fresh).clone())
    }

    /// Gets a token where the challenge says. It is opaque: nothing is read from it.
    async fn token(&self, challenge: &Challenge) -> Result<Secret, RegistryError> {
        let realm = challenge.param("realm").unwrap_or_default();
        let mut url = Url::parse(realm).map_err(|_| lie(&self.base, "its token address is none"))?;
        {
            let mut query = url.query_pairs_mut();
            if let Some(service) = challenge.param("service") {
                query.append_pair("service", service);
            }
            for scope in &self.scopes {
                query.append_pair("scope", scope);
            }
        }
        let login = self.login.as_ref().map(Login::basic);
        let answer = self.http.send(Ask::new(Method::GET, url.clone()), login.as_ref()).await?;
        match answer.status() {
            200 => {}
            401 | 403 => return Err(self.unauthorized(&self.http.refusal(answer).await.to_string())),
            _ => return Err(self.http.refusal(answer).await),
        }
        let bytes = self.http.read(answer, TOKEN_MAX).await?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|_| lie(&url, "its token answer is none"))?;
        let token = token.token.or(token.access_token).filter(|t| !t.is_empty());
        let token = token.ok_or_else(|| lie(&url, "its token answer holds no token"))?;
        Ok(Secret::new(format!("Bearer {token}")))
    }

    fn unauthorized(&self, why: &str) -> RegistryError {
        let logged_in = self.login.is_some();
        RegistryError::Unauthorized { registry: self.registry.clone(), logged_in, why: why.to_owned() }
    }

    /// Fetches a manifest or an index by tag or digest.
    ///
    /// # Errors
    /// When it does not exist, is not what was asked for, or contradicts itself.
    pub async fn document(&self, selector: &str) -> Result<Document, OciError> {
        self.patiently(|| self.document_once(selector)).await
    }

    /// Tries again what may go better later; documents are small, so every failure counts.
    async fn patiently<T, F>(&self, mut act: impl FnMut() -> F) -> Result<T, OciError>
    where
        F: Future<Output = Result<T, OciError>>,
    {
        let mut patience = Patience::new(self.http.timeouts.first_wait);
        loop {
            match act().await {
                Err(OciError::Registry(error)) if error.is_transient() => {
                    let Some(wait) = patience.failed(0, error.retry_after(), 0) else {
                        return Err(RegistryError::GaveUp { failures: FAILURES, last: Box::new(error) }.into());
                    };
                    tracing::info!("{error}; again in {} ms", wait.as_millis());
                    tokio::time::sleep(wait).await;
                }
                other => return other,
            }
        }
    }

    async fn document_once(&self, selector: &str) -> Result<Document, OciError> {
        let url = self.url(&format!("manifests/{selector}"))?;
        let accept = media::MANIFESTS.join(", ");
        let make = || Ask::new(Method::GET, url.clone()).with(ACCEPT, &accept);
        let answer = self.ask(&make).await?;
        if answer.status() != 200 {
            return Err(self.http.refusal(answer).await.into());
        }
        let content_type = answer.header(CONTENT_TYPE).map(str::to_owned);
        let said = answer.header("docker-content-digest").map(str::to_owned);
        let bytes = self.http.read(answer, usize::try_from(DOCUMENT_MAX).unwrap_or(usize::MAX)).await?;
        let found = digest::of(&bytes);
        if let Ok(asked) = selector.parse() {
            check_digest(&shown(&url), &asked, found)?;
        } else if said.is_some_and(|said| said != found.as_str()) {
            return Err(lie(&url, &format!("its Docker-Content-Digest is not that of the bytes, {found}")).into());
        }
        Document::parse(content_type.as_deref(), bytes)
    }

    /// Fetches a small blob into memory and proves it.
    ///
    /// # Errors
    /// As [`Repo::document`].
    pub async fn small_blob(&self, wanted: &Descriptor) -> Result<Vec<u8>, OciError> {
        if let Some(data) = &wanted.data {
            return Ok(data.clone());
        }
        if wanted.size > DOCUMENT_MAX {
            let why = format!("{} bytes are too many for a config", wanted.size);
            return Err(OciError::document(wanted.digest.to_string(), why));
        }
        let bytes = self.blob_of_unknown_size(&wanted.digest).await?;
        wanted.check(wanted.digest.as_str(), &bytes)?;
        Ok(bytes)
    }

    /// Fetches a small blob of which only the digest is known, and proves it.
    ///
    /// # Errors
    /// As [`Repo::document`].
    pub async fn blob_of_unknown_size(&self, digest: &digest::Digest) -> Result<Vec<u8>, OciError> {
        self.patiently(|| self.blob_once(digest)).await
    }

    async fn blob_once(&self, digest: &digest::Digest) -> Result<Vec<u8>, OciError> {
        let url = self.url(&format!("blobs/{digest}"))?;
        let answer = self.ask(&|| Ok(Ask::new(Method::GET, url.clone()))).await?;
        if !is_success(answer.status()) {
            return Err(self.http.refusal(answer).await.into());
        }
        let bytes = self.http.read(answer, usize::try_from(DOCUMENT_MAX).unwrap_or(usize::MAX)).await?;
        check_digest(&shown(&url), digest, digest::of(&bytes))?;
        Ok(bytes)
    }

    /// Follows a reference to the one image for a platform, with its config.
    ///
    /// # Errors
    /// As [`Repo::document`]; an index with no or several such images; a config of another platform.
    pub async fn resolve(&self, selector: &str, platform: &Platform) -> Result<Resolved, OciError> {
        let mut index = None;
        let mut next = selector.to_owned();
        for _ in 0..DEPTH {
            match self.document(&next).await? {
                Document::Index(found) => {
                    next = found.choose(platform)?.digest.to_string();
                    index.get_or_insert(found);
                }
                Document::Manifest(manifest) => {
                    manifest.check_image()?;
                    let config = Config::parse(self.small_blob(&manifest.config).await?)?;
                    config.check_against(&manifest)?;
                    if !config.platform.fits(platform) {
                        let why = format!("it is for {}, wanted is {platform}", config.platform);
                        return Err(OciError::Platform { what: format!("image {}", manifest.digest()), why });
                    }
                    return Ok(Resolved { index, manifest, config });
                }
            }
        }
        Err(OciError::document(selector, format!("more than {DEPTH} indexes lie in each other")))
    }
}

fn challenges(answer: &Answer) -> Vec<Challenge> {
    let values = answer.response.headers().get_all(WWW_AUTHENTICATE);
    values.iter().filter_map(|v| v.to_str().ok()).flat_map(challenge::parse).collect()
}
