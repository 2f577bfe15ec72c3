//! What can go wrong around the engine's container, and the exit code each case ends the unit with.

use crate::memory::EXIT_MEMORY;

/// `EX_CONFIG`: `sparklane-engine.service` has `RestartPreventExitStatus=78 79`, so systemd does not try again.
pub const EXIT_CONFIG: u8 = 78;
/// Failed too often: a human is needed. Not restarted either.
pub const EXIT_GIVE_UP: u8 = 79;

/// A failure of the engine's supervisor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// `generation.json` cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// `generation.json` is not one.
    #[error("{path} is not a generation: {source}")]
    Parse {
        /// The file.
        path: String,
        /// Why.
        source: serde_json::Error,
    },
    /// `generation.json` says what this node or tool cannot do.
    #[error("{path}: {why}")]
    Generation {
        /// The file.
        path: String,
        /// What does not fit.
        why: String,
    },
    /// The lane's image was never pinned.
    #[error("the image {reference} has no known digest; pin it first: {pin_with}")]
    Unpinned {
        /// Image name.
        reference: String,
        /// Command that pins it.
        pin_with: String,
    },
    /// The image is not in docker's store.
    #[error(
        "docker on this node has no image {digest} ({reference}); deploy the lane again, which brings it, or load it by hand (docker pull by digest, docker load)"
    )]
    ImageMissing {
        /// The identities looked for.
        digest: String,
        /// Image name.
        reference: String,
    },
    /// A key's file is unfit: the API's, or those of the heartbeats.
    #[error("key file {path}: {why}")]
    KeyFile {
        /// The file.
        path: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// A container of that name that we did not make.
    #[error(
        "a container named {name} exists that sparklane did not make (no label {label}); remove or rename it: docker rm {name}"
    )]
    ForeignContainer {
        /// Container name.
        name: String,
        /// Our label.
        label: &'static str,
    },
    /// docker refused the container's description.
    #[error("docker refuses to {what}: {message}")]
    Refused {
        /// The step.
        what: &'static str,
        /// docker's words.
        message: String,
    },
    /// A device of the lane is absent.
    #[error("device {path} is missing on this node (is the cable plugged and the driver loaded?)")]
    Device {
        /// The device.
        path: String,
    },
    /// A folder to mount is absent or cannot be made.
    #[error("folder {path}: {source}")]
    Folder {
        /// The folder.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Something else listens where the engine's API should.
    #[error("something already listens on {address}; the engine's API could not start there")]
    PortTaken {
        /// Address and port.
        address: String,
    },
    /// The memory that the lane takes was not free in time.
    #[error(
        "not enough memory after {secs} s: {shortage}. See what holds it (ps aux --sort -rss; docker ps), or lower serve.gpuMemoryUtilization"
    )]
    MemoryShort {
        /// Seconds waited.
        secs: u32,
        /// What there is and what is needed.
        shortage: String,
    },
    /// docker cannot be reached.
    #[error("cannot reach docker at {socket}: {message}; look: systemctl status docker")]
    Unreachable {
        /// Socket path.
        socket: String,
        /// Why.
        message: String,
    },
    /// docker failed at a step.
    #[error("docker failed to {what}: {message}")]
    Docker {
        /// The step.
        what: &'static str,
        /// docker's words.
        message: String,
    },
    /// An effect of the tool itself failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The step.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

impl EngineError {
    /// The unit's exit code: 78 for what a restart cannot mend, 72 for missing memory, 1 for what else it may.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Read { .. }
            | Self::Parse { .. }
            | Self::Generation { .. }
            | Self::Unpinned { .. }
            | Self::ImageMissing { .. }
            | Self::KeyFile { .. }
            | Self::ForeignContainer { .. }
            | Self::Refused { .. } => EXIT_CONFIG,
            Self::MemoryShort { .. } => EXIT_MEMORY,
            Self::Device { .. }
            | Self::Folder { .. }
            | Self::PortTaken { .. }
            | Self::Unreachable { .. }
            | Self::Docker { .. }
            | Self::Io { .. } => 1,
        }
    }
}
