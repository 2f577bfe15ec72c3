//! A registry as a source of blobs, for code that waits for them on its own thread.

use std::sync::{Arc, Mutex};

use tokio::runtime::Runtime;

use super::error::RegistryError;
use super::pull::{Event, PullOptions, Pulled, pull_blobs};
use super::repo::Repo;
use crate::digest::Digest;
use crate::error::OciError;
use crate::layout::Layout;
use crate::manifest::{Descriptor, Document, check_digest};
use crate::source::{BlobSource, Kind};

/// A repository that is asked on a runtime of its own.
pub struct RepoSource {
    repo: Repo,
    options: PullOptions,
    runtime: Runtime,
}

impl RepoSource {
    /// Asks a repository; `options.progress` is not used, as [`BlobSource::fetch`] has its own.
    ///
    /// # Errors
    /// When the system gives no runtime.
    pub fn new(repo: Repo, options: PullOptions) -> Result<Self, OciError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| RegistryError::Setup(format!("no runtime: {e}")))?;
        Ok(Self { repo, options, runtime })
    }
}

impl BlobSource for RepoSource {
    fn document(&mut self, kind: Kind, digest: &Digest) -> Result<Vec<u8>, OciError> {
        let bytes = self.runtime.block_on(async {
            match kind {
                Kind::Blob => self.repo.blob_of_unknown_size(digest).await,
                Kind::Manifest => Ok(match self.repo.document(digest.as_str()).await? {
                    Document::Manifest(found) => found.bytes().to_vec(),
                    Document::Index(found) => found.bytes().to_vec(),
                }),
            }
        })?;
        check_digest("document", digest, crate::digest::of(&bytes))?;
        Ok(bytes)
    }

    fn fetch(&mut self, layout: &Layout, wanted: &[Descriptor], progress: &dyn Fn(Event)) -> Result<Pulled, OciError> {
        // Events cross from the downloads' tasks to the caller's closure by way of a queue: it need not be `Sync`.
        let queue: Arc<Mutex<Vec<Event>>> = Arc::default();
        let filled = Arc::clone(&queue);
        let push = move |event| {
            if let Ok(mut queue) = filled.lock() {
                queue.push(event);
            }
        };
        let options = PullOptions { progress: Arc::new(push), ..self.options.clone() };
        let drain = || {
            let events = queue.lock().map(|mut q| std::mem::take(&mut *q)).unwrap_or_default();
            events.into_iter().for_each(progress);
        };
        self.runtime.block_on(async {
            let mut work = std::pin::pin!(pull_blobs(&self.repo, layout, wanted, &options));
            let mut tick = tokio::time::interval(std::time::Duration::from_millis(200));
            loop {
                tokio::select! {
                    done = &mut work => {
                        drain();
                        return done;
                    }
                    _ = tick.tick() => drain(),
                }
            }
        })
    }
}
