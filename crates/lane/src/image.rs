//! The image catalogue: what the tool must know about an image to render and check a lane on it (`images/*.nix`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Digest, System};
use crate::lane::DraftSample;

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageSpec {
    /// Name; the file's name without `.nix`.
    pub name: String,
    /// One line for people.
    pub description: String,
    /// Reference for people and for docker's tag.
    pub reference: String,
    /// Systems it runs on.
    pub systems: Vec<System>,
    /// Version that its vLLM reports.
    pub vllm: String,
    /// Program and first arguments that serve a model.
    pub serve: Vec<String>,
    /// Its python.
    pub python: Option<String>,
    /// Its `ray`, for Ray lanes.
    pub ray: Option<String>,
    /// Manifest digest of the base it is composed on.
    pub base: Option<Digest>,
    /// Manifest digest, once pinned.
    pub manifest: Option<Digest>,
    /// Config digest, once pinned.
    pub config: Option<Digest>,
    /// True when it was built by hand and is taken from a node's docker store.
    #[serde(default)]
    pub adopted: bool,
    /// The command that makes `manifest` known, when it is not `sparklane image pin|adopt`.
    pub pin_with: Option<String>,
    /// Environment that its layout needs, e.g. where its compiler is.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Which environment names mean something to it.
    #[serde(default)]
    pub env: EnvNames,
    /// Speculative decoding it can do.
    #[serde(default)]
    pub speculation: Vec<SpeculationRange>,
    /// Bytes of one KV block of the model it is made for.
    pub kv_block_bytes: Option<u64>,
}

/// Which environment names mean something to an image. A trailing `*` stands for any rest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvNames {
    /// Read by something in the image.
    #[serde(default)]
    pub registered: Vec<String>,
    /// Read by nothing in it, although recipes set them.
    #[serde(default)]
    pub ignored: Vec<String>,
    /// `NAME=value` settings known to break the machine.
    #[serde(default)]
    pub forbidden: Vec<String>,
}

/// What an environment name is to an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvMeaning {
    /// Read.
    Registered,
    /// Known to be read by nothing.
    Ignored,
    /// In neither list.
    Unknown,
}

/// A speculative method and how deep it may go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpeculationRange {
    /// Method.
    pub method: String,
    /// Fewest draft tokens.
    pub min: u32,
    /// Most draft tokens.
    pub max: u32,
    /// Sampling of drafts that is known to work.
    pub sampling: Vec<DraftSample>,
}

impl ImageSpec {
    /// Major and minor number of its vLLM.
    #[must_use]
    pub fn vllm_series(&self) -> Option<(u32, u32)> {
        let mut parts = self.vllm.trim_start_matches('v').split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    /// What a name means to this image; the list of ignored names wins, as it has no wild cards by habit.
    #[must_use]
    pub fn env_meaning(&self, name: &str) -> EnvMeaning {
        let listed = |names: &[String]| {
            names.iter().any(|n| n.strip_suffix('*').map_or(n == name, |stem| name.starts_with(stem)))
        };
        if listed(&self.env.ignored) {
            EnvMeaning::Ignored
        } else if listed(&self.env.registered) {
            EnvMeaning::Registered
        } else {
            EnvMeaning::Unknown
        }
    }

    /// The command that makes the manifest digest known.
    #[must_use]
    pub fn pin_command(&self) -> String {
        let verb = if self.adopted { "adopt" } else { "pin" };
        self.pin_with.clone().unwrap_or_else(|| format!("sparklane image {verb} {}", self.reference))
    }
}
