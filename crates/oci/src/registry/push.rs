//! Images to a registry: blobs that it lacks, then the manifest. One POST and one PUT a blob: chunked uploads are where
//! registries differ (dotnet/sdk-container-builds#292).

use std::io::Read as _;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::Method;
use hyper::body::Frame;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use tokio::sync::mpsc;
use url::Url;

use super::error::RegistryError;
use super::http::{Ask, Body, full, is_success, lie};
use super::repo::Repo;
use super::retry::Patience;
use crate::digest::{Digest, PIECE};
use crate::error::OciError;
use crate::layout::Layout;
use crate::manifest::{Descriptor, Manifest};

/// What a push moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Blobs sent.
    pub blobs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blobs mounted from another repository of the registry.
    pub mounted: u64,
    /// Blobs that were there.
    pub present: u64,
}

/// How one blob came to be there.
enum Way {
    Present,
    Mounted,
    Sent,
}

/// Pushes an image of a layout, under its digest and, if given, a tag. `from` is a repository at the same registry that
/// may have the base's blobs.
///
/// # Errors
/// When a blob is missing here, or the registry refuses or misstates the digest.
pub async fn push(
    repo: &Repo,
    layout: &Layout,
    manifest: &Manifest,
    tag: Option<&str>,
    from: Option<&str>,
    progress: &(dyn Fn(&Descriptor, &str) + Send + Sync),
) -> Result<Pushed, OciError> {
    if let Some(missing) = layout.missing(manifest).first() {
        return Err(OciError::BlobMissing { layout: layout.root().to_owned(), digest: missing.digest.clone() });
    }
    let mut sum = Pushed::default();
    for blob in manifest.blobs() {
        let way = blob_with_patience(repo, layout, blob, from).await?;
        let word = match way {
            Way::Present => {
                sum.present += 1;
                "is there"
            }
            Way::Mounted => {
                sum.mounted += 1;
                "mounted"
            }
            Way::Sent => {
                sum.blobs += 1;
                sum.bytes += blob.size;
                "sent"
            }
        };
        progress(blob, word);
    }
    put_manifest(repo, manifest, manifest.digest().as_str()).await?;
    if let Some(tag) = tag {
        put_manifest(repo, manifest, tag).await?;
    }
    Ok(sum)
}

async fn blob_with_patience(
    repo: &Repo,
    layout: &Layout,
    blob: &Descriptor,
    from: Option<&str>,
) -> Result<Way, OciError> {
    let mut patience = Patience::new(repo.http.timeouts.first_wait);
    loop {
        match one_blob(repo, layout, blob, from).await {
            Err(OciError::Registry(error)) if error.is_transient() => {
                let Some(wait) = patience.failed(0, error.retry_after(), 0) else { return Err(error.into()) };
                tokio::time::sleep(wait).await;
            }
            other => return other,
        }
    }
}

async fn one_blob(repo: &Repo, layout: &Layout, blob: &Descriptor, from: Option<&str>) -> Result<Way, OciError> {
    let url = repo.url(&format!("blobs/{}", blob.digest))?;
    let answer = repo.ask(&|| Ok(Ask::new(Method::HEAD, url.clone()))).await?;
    match answer.status() {
        200 => return Ok(Way::Present),
        404 => {}
        _ => return Err(repo.http.refusal(answer).await.into()),
    }
    let mut begin = repo.url("blobs/uploads/")?;
    if let Some(from) = from {
        begin.query_pairs_mut().append_pair("mount", blob.digest.as_str()).append_pair("from", from);
    }
    let make = || Ask::new(Method::POST, begin.clone()).with(CONTENT_LENGTH, "0");
    let answer = repo.ask(&make).await?;
    match answer.status() {
        201 if from.is_some() => return Ok(Way::Mounted),
        202 => {}
        _ => return Err(repo.http.refusal(answer).await.into()),
    }
    let location = answer.header(LOCATION).map(|target| answer.url.join(target));
    let Some(Ok(mut target)) = location else { return Err(lie(&begin, "it gives no address to upload to").into()) };
    target.query_pairs_mut().append_pair("digest", blob.digest.as_str());
    put_blob(repo, layout, blob, &target).await?;
    Ok(Way::Sent)
}

async fn put_blob(repo: &Repo, layout: &Layout, blob: &Descriptor, target: &Url) -> Result<(), OciError> {
    let make = || {
        let ask = Ask::new(Method::PUT, target.clone())
            .with(CONTENT_TYPE, "application/octet-stream")?
            .with(CONTENT_LENGTH, &blob.size.to_string())?;
        let body = file_body(layout, blob).map_err(|e| RegistryError::Setup(e.to_string()))?;
        Ok(Ask { body, ..ask })
    };
    let answer = repo.ask(&make).await?;
    if answer.status() != 201 {
        return Err(repo.http.refusal(answer).await.into());
    }
    check_said(target, answer.header("docker-content-digest"), &blob.digest)
}

/// A blob's file as a body that is read while it is sent. A file that is shorter than promised ends the request.
fn file_body(layout: &Layout, blob: &Descriptor) -> Result<Body, OciError> {
    let (file, size) = layout.open_blob(&blob.digest)?;
    crate::manifest::check_size(&format!("blob {}", blob.digest), blob.size, size)?;
    let (pieces, mut queue) = mpsc::channel::<std::io::Result<Frame<Bytes>>>(4);
    tokio::task::spawn_blocking(move || {
        let mut file = file.take(size);
        loop {
            let mut piece = vec![0; PIECE];
            let read = match file.read(&mut piece) {
                Ok(0) => return,
                Ok(n) => {
                    piece.truncate(n);
                    Ok(Frame::data(Bytes::from(piece)))
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => Err(e),
            };
            if pieces.blocking_send(read).is_err() {
                return;
            }
        }
    });
    let stream = futures_util::stream::poll_fn(move |context| queue.poll_recv(context));
    Ok(BodyExt::boxed(StreamBody::new(stream)))
}

async fn put_manifest(repo: &Repo, manifest: &Manifest, selector: &str) -> Result<(), OciError> {
    let url = repo.url(&format!("manifests/{selector}"))?;
    let make = || {
        let ask = Ask::new(Method::PUT, url.clone()).with(CONTENT_TYPE, manifest.media_type())?;
        Ok(Ask { body: full(manifest.bytes().to_vec()), ..ask })
    };
    let answer = repo.ask(&make).await?;
    if !is_success(answer.status()) {
        return Err(repo.http.refusal(answer).await.into());
    }
    check_said(&url, answer.header("docker-content-digest"), manifest.digest())
}

fn check_said(url: &Url, said: Option<&str>, expected: &Digest) -> Result<(), OciError> {
    match said {
        Some(said) if said != expected.as_str() => {
            Err(lie(url, &format!("it stored {said}, sent was {expected}")).into())
        }
        _ => Ok(()),
    }
}
