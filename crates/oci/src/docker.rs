//! A node's docker store: what it calls an image, and how an image gets into it.
//!
//! The classic store names an image by its config's digest, the containerd store by its manifest's (facts section 3; docker/cli
//! #6996, #6670). `.Id` alone is never compared: which number is right depends on the store.

use std::time::Duration;

use bollard::Docker as Api;
use bollard::errors::Error;
use bollard::models::ImageInspect;
use bollard::query_parameters::{
    CreateImageOptions, InspectContainerOptions, ListImagesOptions, RemoveImageOptions, TagImageOptions,
};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::OciError;

/// Where docker listens.
pub const SOCKET: &str = "/var/run/docker.sock";
/// Longest silence of a pull; unpacking one layer of some GB says nothing for minutes.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Which of docker's two image stores a daemon uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// Graph drivers; docker's only store until 29.
    Classic,
    /// containerd's snapshotters; the default of new installations from 29 on.
    Containerd,
}

impl StoreKind {
    /// What this store calls an image.
    #[must_use]
    pub fn id_of<'a>(self, manifest: &'a Digest, config: &'a Digest) -> &'a Digest {
        match self {
            Self::Classic => config,
            Self::Containerd => manifest,
        }
    }
}

impl std::fmt::Display for StoreKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Classic => "classic",
            Self::Containerd => "containerd",
        })
    }
}

/// An image as a store has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stored {
    /// What the store calls it.
    pub id: Digest,
    /// `name@digest` under which it was pulled.
    pub repo_digests: Vec<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Digests of its uncompressed layers, lowest first.
    pub diff_ids: Vec<Digest>,
    /// Bytes that docker says it takes, unpacked.
    pub size: u64,
}

/// A connection to docker.
#[derive(Debug, Clone)]
pub struct Docker {
    api: Api,
    socket: String,
    /// The store it uses.
    pub kind: StoreKind,
    /// Where it keeps its data.
    pub root: camino::Utf8PathBuf,
}

impl Docker {
    /// Connects and asks which store there is.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn connect(socket: &str) -> Result<Self, OciError> {
        let away = |error: Error| failed(socket, "connect")(error);
        let api = Api::connect_with_unix(socket, PATIENCE.as_secs(), bollard::API_DEFAULT_VERSION).map_err(away)?;
        let api = api.negotiate_version().await.map_err(away)?;
        let info = api.info().await.map_err(away)?;
        let rows = info.driver_status.unwrap_or_default();
        let containerd = rows.iter().flatten().any(|cell| cell.starts_with("io.containerd.snapshotter"));
        let kind = if containerd { StoreKind::Containerd } else { StoreKind::Classic };
        let root = info.docker_root_dir.unwrap_or_else(|| "/var/lib/docker".into()).into();
        Ok(Self { api, socket: socket.to_owned(), kind, root })
    }

    fn failed(&self, what: &'static str) -> impl Fn(Error) -> OciError + use<> {
        failed(&self.socket, what)
    }

    /// The image with these digests, if the store has it under the right number.
    ///
    /// # Errors
    /// docker's.
    pub async fn find(&self, manifest: &Digest, config: &Digest) -> Result<Option<Stored>, OciError> {
        let wanted = self.kind.id_of(manifest, config);
        Ok(self.inspect(wanted.as_str()).await?.filter(|found| found.id == *wanted))
    }

    /// An image by any name that docker knows; `None` where there is none.
    ///
    /// # Errors
    /// docker's.
    pub async fn inspect(&self, name: &str) -> Result<Option<Stored>, OciError> {
        match self.api.inspect_image(name).await {
            Ok(found) => Stored::try_from(found)
                .map(Some)
                .map_err(|why| OciError::document(format!("image {name} in docker"), why)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(self.failed("look at an image")(error)),
        }
    }

    /// All images, for what layers are there already.
    ///
    /// # Errors
    /// docker's.
    pub async fn all(&self) -> Result<Vec<Stored>, OciError> {
        let list = self.api.list_images(Some(ListImagesOptions::default())).await;
        let mut found = Vec::new();
        for summary in list.map_err(self.failed("list images"))? {
            // One that was removed in between, or is of a kind that has no layers, is none of ours.
            if let Ok(Some(stored)) = self.inspect(&summary.id).await {
                found.push(stored);
            }
        }
        Ok(found)
    }

    /// Pulls `name@manifest` from a registry that docker may reach, and tells what it says.
    ///
    /// # Errors
    /// docker's, or the registry's as docker words it.
    pub async fn pull(&self, name: &str, manifest: &Digest, say: &dyn Fn(&str)) -> Result<(), OciError> {
        let options =
            CreateImageOptions { from_image: Some(format!("{name}@{manifest}")), ..CreateImageOptions::default() };
        let mut lines = Box::pin(self.api.create_image(Some(options), None, None));
        while let Some(line) = lines.next().await {
            let line = line.map_err(self.failed("pull an image"))?;
            if let Some(error) = line.error_detail {
                let why = error.message.unwrap_or_else(|| "it gives no reason".into());
                return Err(OciError::Docker { socket: self.socket.clone(), what: "pull an image", why });
            }
            // Lines with a layer's id come by the thousand.
            if let (Some(status), None) = (line.status, line.id) {
                say(&status);
            }
        }
        Ok(())
    }

    /// Gives an image a tag, so that no cleaner takes it for nobody's.
    ///
    /// # Errors
    /// docker's.
    pub async fn tag(&self, id: &Digest, repo: &str, tag: &str) -> Result<(), OciError> {
        let options = TagImageOptions { repo: Some(repo.to_owned()), tag: Some(tag.to_owned()) };
        self.api.tag_image(id.as_str(), Some(options)).await.map_err(self.failed("tag an image"))
    }

    /// Removes a tag or an image; one that is gone is fine, one that a container uses stays. True when it went.
    ///
    /// # Errors
    /// docker's.
    pub async fn remove(&self, name: &str) -> Result<bool, OciError> {
        match self.api.remove_image(name, None::<RemoveImageOptions>, None).await {
            Ok(_) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(Error::DockerResponseServerError { status_code: 409, .. }) => Ok(false),
            Err(error) => Err(self.failed("remove an image")(error)),
        }
    }

    /// The image that a container runs, as the store calls it; `None` where there is no such container, or it does not run.
    ///
    /// # Errors
    /// docker's.
    pub async fn running(&self, container: &str) -> Result<Option<Digest>, OciError> {
        match self.api.inspect_container(container, None::<InspectContainerOptions>).await {
            Ok(found) if found.state.as_ref().and_then(|s| s.running) == Some(true) => {
                Ok(found.image.and_then(|id| id.parse().ok()))
            }
            Ok(_) => Ok(None),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(self.failed("look at a container")(error)),
        }
    }

    /// `docker save` of an image, piece by piece.
    ///
    /// # Errors
    /// docker's, or what `take` makes of a piece.
    pub async fn save(
        &self,
        name: &str,
        mut take: impl FnMut(bytes::Bytes) -> Result<(), OciError>,
    ) -> Result<(), OciError> {
        let mut pieces = Box::pin(self.api.export_image(name));
        while let Some(piece) = pieces.next().await {
            take(piece.map_err(self.failed("save an image"))?)?;
        }
        Ok(())
    }
}

fn failed(socket: &str, what: &'static str) -> impl Fn(Error) -> OciError + use<> {
    let socket = socket.to_owned();
    move |error| OciError::Docker { socket: socket.clone(), what, why: error.to_string() }
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}

impl TryFrom<ImageInspect> for Stored {
    type Error = String;

    fn try_from(found: ImageInspect) -> Result<Self, String> {
        let digest = |text: &str| text.parse::<Digest>().map_err(|e| e.to_string());
        let layers = found.root_fs.and_then(|r| r.layers).unwrap_or_default();
        Ok(Self {
            id: digest(&found.id.unwrap_or_default())?,
            repo_digests: found.repo_digests.unwrap_or_default(),
            tags: found.repo_tags.unwrap_or_default(),
            diff_ids: layers.iter().map(|l| digest(l)).collect::<Result<_, _>>()?,
            size: found.size.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
        })
    }
}

/// How many of an image's lowest layers some image of the store has in the same order: those are not unpacked again.
#[must_use]
pub fn shared_layers(wanted: &[Digest], stored: &[Stored]) -> usize {
    let common = |s: &Stored| wanted.iter().zip(&s.diff_ids).take_while(|(a, b)| a == b).count();
    stored.iter().map(common).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::of;

    #[test]
    fn each_store_has_its_own_number() {
        let (manifest, config) = (of(b"m"), of(b"c"));
        assert_eq!(StoreKind::Classic.id_of(&manifest, &config), &config);
        assert_eq!(StoreKind::Containerd.id_of(&manifest, &config), &manifest);
    }

    #[test]
    fn layers_are_shared_from_the_lowest_up() {
        let ids: Vec<Digest> = (0u8..4).map(|i| of(&[i])).collect();
        let stored = |diff_ids: &[Digest]| Stored {
            id: of(b"x"),
            repo_digests: Vec::new(),
            tags: Vec::new(),
            diff_ids: diff_ids.to_vec(),
            size: 0,
        };
        assert_eq!(shared_layers(&ids, &[]), 0);
        assert_eq!(shared_layers(&ids, &[stored(&ids[..2]), stored(&ids[1..])]), 2);
        assert_eq!(shared_layers(&ids[..1], &[stored(&ids)]), 1);
    }
}
