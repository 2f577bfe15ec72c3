//! The few calls to docker's API that the supervisor needs, with errors in words.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, ContainerState, SystemInfo};
use bollard::query_parameters::{
    CreateContainerOptions, InspectContainerOptions, ListContainersOptions, ListImagesOptions, LogsOptions,
    RemoveContainerOptions, StopContainerOptions, WaitContainerOptions,
};
use futures_util::{Stream, StreamExt as _};
use sparklane_lane::generation::Image;

use crate::error::EngineError;
use crate::spec::{LABEL, ROLE_ENGINE, ROLE_LABEL};

/// Where docker listens.
pub const SOCKET: &str = "/var/run/docker.sock";
/// How long docker may be away (e.g. restarted) before its container counts as lost.
const AWAY: Duration = Duration::from_secs(30);
/// Longest wait for a stale container to end by itself.
const STALE_STOP_SECS: u32 = 30;

/// How a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// Exit code; 128 + signal where it was killed.
    pub code: i64,
    /// True when the kernel killed it for memory.
    pub oom: bool,
    /// docker's own words, e.g. why it could not start it.
    pub error: String,
}

/// A connection to docker.
#[derive(Debug, Clone)]
pub struct Client {
    docker: Docker,
}

fn failed(what: &'static str) -> impl Fn(Error) -> EngineError {
    move |error| match error {
        // What docker calls a bad request stays one at the next try.
        Error::DockerResponseServerError { status_code: 400, message } => EngineError::Refused { what, message },
        other => EngineError::Docker { what, message: other.to_string() },
    }
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { status_code: 404, .. })
}

impl Client {
    /// Connects and agrees on an API version. `patience` bounds every call but the streams, so it must exceed the stop time.
    ///
    /// # Errors
    /// When nobody answers.
    pub async fn connect(socket: &str, patience: Duration) -> Result<Self, EngineError> {
        let away = |error: Error| EngineError::Unreachable { socket: socket.to_owned(), message: error.to_string() };
        let docker =
            Docker::connect_with_unix(socket, patience.as_secs(), bollard::API_DEFAULT_VERSION).map_err(away)?;
        let docker = docker.negotiate_version().await.map_err(away)?;
        Ok(Self { docker })
    }

    /// The id under which docker knows the image, found by identity, never by tag.
    ///
    /// The classic store calls an image by its config digest, the containerd store by its manifest digest; an image that the
    /// classic store pulled by digest also remembers the manifest digest.
    ///
    /// # Errors
    /// When it is not there.
    pub async fn image(&self, image: &Image) -> Result<String, EngineError> {
        let wanted: Vec<&str> = [&image.config, &image.manifest].into_iter().flatten().map(|d| d.as_str()).collect();
        for digest in &wanted {
            match self.docker.inspect_image(digest).await {
                Ok(found) if found.id.as_deref() == Some(*digest) => {
                    return Ok((*digest).to_owned());
                }
                Ok(_) => {}
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(failed("look for the image")(error)),
            }
        }
        if let Some(manifest) = &image.manifest {
            let options = ListImagesOptions { all: true, digests: true, ..ListImagesOptions::default() };
            let all = self.docker.list_images(Some(options)).await.map_err(failed("list images"))?;
            let suffix = format!("@{manifest}");
            if let Some(found) = all.iter().find(|i| i.repo_digests.iter().any(|d| d.ends_with(&suffix))) {
                return Ok(found.id.clone());
            }
        }
        Err(EngineError::ImageMissing { digest: wanted.join(" / "), reference: image.reference.clone() })
    }

    /// Stops and removes every engine container of ours, whatever its name; refuses when `name` is someone else's.
    ///
    /// # Errors
    /// [`EngineError::ForeignContainer`], or docker's.
    pub async fn remove_ours(&self, name: &str, stop_secs: u32) -> Result<(), EngineError> {
        match self.docker.inspect_container(name, None::<InspectContainerOptions>).await {
            Ok(found) => {
                let labels = found.config.and_then(|c| c.labels).unwrap_or_default();
                if !labels.contains_key(LABEL) {
                    return Err(EngineError::ForeignContainer { name: name.to_owned(), label: LABEL });
                }
            }
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(failed("look for a stale container")(error)),
        }
        let filters = HashMap::from([("label".to_owned(), vec![format!("{ROLE_LABEL}={ROLE_ENGINE}")])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let stale = self.docker.list_containers(Some(options)).await.map_err(failed("list containers"))?;
        for id in stale.into_iter().filter_map(|c| c.id) {
            tracing::info!(container = %id, "removing a stale engine container");
            self.stop(&id, stop_secs.min(STALE_STOP_SECS)).await?;
            self.remove(&id).await?;
        }
        Ok(())
    }

    /// docker's version.
    ///
    /// # Errors
    /// docker's.
    pub async fn version(&self) -> Result<String, EngineError> {
        let version = self.docker.version().await.map_err(failed("ask for its version"))?;
        Ok(version.version.unwrap_or_default())
    }

    /// Id and first process of the engine's container, when it runs.
    ///
    /// # Errors
    /// docker's.
    pub async fn running_engine(&self) -> Result<Option<(String, u32)>, EngineError> {
        let filters = HashMap::from([("label".to_owned(), vec![format!("{ROLE_LABEL}={ROLE_ENGINE}")])]);
        let options = ListContainersOptions { filters: Some(filters), ..ListContainersOptions::default() };
        let all = self.docker.list_containers(Some(options)).await.map_err(failed("list containers"))?;
        let Some(id) = all.into_iter().find_map(|c| c.id) else { return Ok(None) };
        let pid = self.state(&id).await?.and_then(|s| s.pid).and_then(|pid| u32::try_from(pid).ok());
        Ok(pid.filter(|pid| *pid > 0).map(|pid| (id, pid)))
    }

    /// What docker says of itself.
    ///
    /// # Errors
    /// docker's.
    pub async fn info(&self) -> Result<SystemInfo, EngineError> {
        self.docker.info().await.map_err(failed("ask docker about itself"))
    }

    /// Creates the container and gives its id.
    ///
    /// # Errors
    /// docker's.
    pub async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<String, EngineError> {
        let options = CreateContainerOptions { name: Some(name.to_owned()), ..CreateContainerOptions::default() };
        let made = self.docker.create_container(Some(options), body).await;
        let made = made.map_err(failed("create the container"))?;
        for warning in &made.warnings {
            tracing::warn!(%warning, "docker warns about the container");
        }
        Ok(made.id)
    }

    /// Starts the container.
    ///
    /// # Errors
    /// docker's.
    pub async fn start(&self, id: &str) -> Result<(), EngineError> {
        let none = None::<bollard::query_parameters::StartContainerOptions>;
        self.docker.start_container(id, none).await.map_err(failed("start the container"))
    }

    /// The container's output: all of it, or from now on when `again`.
    pub fn logs(&self, id: &str, again: bool) -> impl Stream<Item = Result<LogOutput, Error>> + Unpin + use<> {
        let options = LogsOptions {
            follow: true,
            stdout: true,
            stderr: true,
            tail: if again { "0" } else { "all" }.to_owned(),
            ..LogsOptions::default()
        };
        Box::pin(self.docker.logs(id, Some(options)))
    }

    /// Waits for the container's end, through a restart of docker.
    ///
    /// # Errors
    /// When docker stays away for half a minute.
    pub async fn wait(&self, id: &str) -> Result<Exit, EngineError> {
        let mut away = Duration::ZERO;
        loop {
            let options = WaitContainerOptions { condition: "not-running".to_owned() };
            let ended = self.docker.wait_container(id, Some(options)).next().await;
            let code = match ended {
                Some(Ok(answer)) => Some(answer.status_code),
                Some(Err(Error::DockerContainerWaitError { code, .. })) => Some(code),
                _ => None,
            };
            match (self.state(id).await, code) {
                (Ok(state), Some(code)) => return Ok(exit(state, code)),
                (Ok(state), None) if state.as_ref().is_none_or(|s| s.running != Some(true)) => {
                    let code = state.as_ref().and_then(|s| s.exit_code).unwrap_or(1);
                    return Ok(exit(state, code));
                }
                (Ok(_), None) => away = Duration::ZERO,
                (Err(_), Some(code)) => return Ok(exit(None, code)),
                (Err(error), None) if away >= AWAY => return Err(error),
                (Err(_), None) => {}
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            away += Duration::from_secs(1);
        }
    }

    /// The container's state; `None` when there is no such container.
    ///
    /// # Errors
    /// docker's.
    pub async fn state(&self, id: &str) -> Result<Option<ContainerState>, EngineError> {
        match self.docker.inspect_container(id, None::<InspectContainerOptions>).await {
            Ok(found) => Ok(found.state),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(failed("look at the container")(error)),
        }
    }

    /// All that docker says of the container, for evidence; `None` when it cannot be had.
    pub async fn inspect_text(&self, id: &str) -> Option<String> {
        let found = self.docker.inspect_container(id, None::<InspectContainerOptions>).await.ok()?;
        serde_json::to_string_pretty(&found).ok()
    }

    /// SIGTERM, and SIGKILL after `secs`. A container that is gone or ended is fine.
    ///
    /// # Errors
    /// docker's.
    pub async fn stop(&self, id: &str, secs: u32) -> Result<(), EngineError> {
        let t = Some(i32::try_from(secs).unwrap_or(i32::MAX));
        match self.docker.stop_container(id, Some(StopContainerOptions { t, signal: None })).await {
            Err(error) if is_missing(&error) => Ok(()),
            Err(Error::DockerResponseServerError { status_code: 304, .. }) => Ok(()),
            other => other.map_err(failed("stop the container")),
        }
    }

    /// Removes the container, running or not. One that is gone is fine.
    ///
    /// # Errors
    /// docker's.
    pub async fn remove(&self, id: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptions { force: true, v: true, ..RemoveContainerOptions::default() };
        match self.docker.remove_container(id, Some(options)).await {
            Err(error) if is_missing(&error) => Ok(()),
            // 409: someone else's removal of it is under way.
            Err(Error::DockerResponseServerError { status_code: 409, .. }) => Ok(()),
            other => other.map_err(failed("remove the container")),
        }
    }
}

fn exit(state: Option<ContainerState>, code: i64) -> Exit {
    let state = state.unwrap_or_default();
    Exit { code, oom: state.oom_killed.unwrap_or(false), error: state.error.unwrap_or_default() }
}
