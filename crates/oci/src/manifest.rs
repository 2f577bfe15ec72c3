//! Manifests, indexes and configs: the bytes as they came, with a checked view to read from.
//!
//! The view never becomes bytes again. Whoever changes a document edits [`Manifest::tree`] or [`Config::tree`], in which
//! every unknown field is kept in its place, and serialises that (R18).

use std::collections::BTreeMap;

use base64::Engine as _;
use serde_json::{Map, Value};

use crate::digest::{self, Digest};
use crate::error::OciError;
use crate::media::{self, Family, Kind};

/// Longest document that is read: registries refuse manifests over 4 MiB, configs of many layers are about 100 KiB.
pub const DOCUMENT_MAX: u64 = 8 << 20;
/// More layers than any store takes (the classic store of docker ends at 125).
const LAYERS_MAX: usize = 1000;

/// An operating system and architecture, as images name them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    /// e.g. `linux`.
    pub os: String,
    /// e.g. `arm64`.
    pub architecture: String,
    /// e.g. `v8`.
    pub variant: Option<String>,
}

impl Platform {
    /// Linux on an architecture by its Go name.
    #[must_use]
    pub fn linux(architecture: &str) -> Self {
        Self { os: "linux".into(), architecture: architecture.into(), variant: None }
    }

    /// The platform of a Nix system.
    #[must_use]
    pub fn of_system(system: sparklane_lane::System) -> Self {
        Self::linux(match system {
            sparklane_lane::System::Aarch64Linux => "arm64",
            sparklane_lane::System::X86_64Linux => "amd64",
        })
    }

    /// True when an image of the platform `self` runs where `wanted` is. All arm64 machines are v8 at least.
    #[must_use]
    pub fn fits(&self, wanted: &Self) -> bool {
        let level = |p: &Self| match (p.architecture.as_str(), p.variant.as_deref()) {
            ("arm64", Some("v8" | "") | None) | (_, Some("") | None) => None,
            (_, Some(variant)) => Some(variant.to_owned()),
        };
        self.os == wanted.os && self.architecture == wanted.architecture && level(self) == level(wanted)
    }

    fn read(at: &str, value: &Value) -> Result<Self, String> {
        let map = value.as_object().ok_or_else(|| format!("{at} is no object"))?;
        let text = |key: &str| optional_text(at, map, key);
        Ok(Self {
            os: text("os")?.unwrap_or_default(),
            architecture: text("architecture")?.unwrap_or_default(),
            variant: text("variant")?,
        })
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// What a document says of a blob or of another document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Media type, as written.
    pub media_type: String,
    /// Digest of the blob.
    pub digest: Digest,
    /// Bytes of the blob.
    pub size: u64,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Platform, in an index.
    pub platform: Option<Platform>,
    /// The blob itself, when it is embedded; it agrees with size and digest.
    pub data: Option<Vec<u8>>,
}

impl Descriptor {
    /// Of bytes in memory, with nothing else said.
    #[must_use]
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self::new(media_type, digest::of(bytes), bytes.len() as u64)
    }

    /// With nothing else said.
    #[must_use]
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let (annotations, platform, data) = (BTreeMap::new(), None, None);
        Self { media_type: media_type.to_owned(), digest, size, annotations, platform, data }
    }

    /// What the media type stands for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        media::kind(&self.media_type)
    }

    /// Checks bytes against size and digest.
    ///
    /// # Errors
    /// When they are not the blob; `what` names it.
    pub fn check(&self, what: &str, bytes: &[u8]) -> Result<(), OciError> {
        check_size(what, self.size, bytes.len() as u64)?;
        check_digest(what, &self.digest, digest::of(bytes))
    }

    /// Reads one from JSON; `at` names the place for the error.
    ///
    /// # Errors
    /// When a required field is missing or has another shape, or `data` is not the blob.
    pub fn read(at: &str, value: &Value) -> Result<Self, String> {
        let map = value.as_object().ok_or_else(|| format!("{at} is no object"))?;
        let digest = text(at, map, "digest")?;
        let digest: Digest = digest.parse().map_err(|e: sparklane_lane::BadId| format!("{at}.digest: {e}"))?;
        let size = map.get("size").and_then(Value::as_u64).ok_or_else(|| format!("{at}.size is no size"))?;
        let platform = map.get("platform").filter(|p| !p.is_null());
        let mut found = Self::new(&text(at, map, "mediaType")?, digest, size);
        found.annotations = annotations(at, map)?;
        found.platform = platform.map(|p| Platform::read(&format!("{at}.platform"), p)).transpose()?;
        if let Some(data) = optional_text(at, map, "data")? {
            let bytes = base64::engine::general_purpose::STANDARD.decode(&data);
            let bytes = bytes.map_err(|e| format!("{at}.data is no base64: {e}"))?;
            found.check(&format!("{at}.data"), &bytes).map_err(|e| e.to_string())?;
            found.data = Some(bytes);
        }
        Ok(found)
    }
}

/// [`OciError::SizeMismatch`] when two sizes differ.
///
/// # Errors
/// That.
pub fn check_size(what: &str, expected: u64, found: u64) -> Result<(), OciError> {
    if expected == found { Ok(()) } else { Err(OciError::SizeMismatch { what: what.to_owned(), expected, found }) }
}

/// [`OciError::DigestMismatch`] when two digests differ.
///
/// # Errors
/// That.
pub fn check_digest(what: &str, expected: &Digest, found: Digest) -> Result<(), OciError> {
    if *expected == found {
        return Ok(());
    }
    Err(OciError::DigestMismatch { what: what.to_owned(), expected: expected.clone(), found })
}

/// An image manifest.
#[derive(Debug, Clone)]
pub struct Manifest {
    bytes: Vec<u8>,
    digest: Digest,
    family: Family,
    tree: Map<String, Value>,
    /// The config.
    pub config: Descriptor,
    /// The layers, lowest first.
    pub layers: Vec<Descriptor>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// An index: a list of manifests or of further indexes.
#[derive(Debug, Clone)]
pub struct Index {
    bytes: Vec<u8>,
    digest: Digest,
    family: Family,
    tree: Map<String, Value>,
    /// What it lists, in its order.
    pub manifests: Vec<Descriptor>,
}

/// What a registry answers for a reference.
#[derive(Debug, Clone)]
pub enum Document {
    /// An image of one platform.
    Manifest(Manifest),
    /// A choice.
    Index(Index),
}

macro_rules! kept_bytes {
    ($type:ty) => {
        impl $type {
            /// The bytes as they came.
            #[must_use]
            pub fn bytes(&self) -> &[u8] {
                &self.bytes
            }

            /// Digest of the bytes.
            #[must_use]
            pub fn digest(&self) -> &Digest {
                &self.digest
            }

            /// The whole document, unknown fields in their places.
            #[must_use]
            pub fn tree(&self) -> &Map<String, Value> {
                &self.tree
            }
        }
    };
}
kept_bytes!(Manifest);
kept_bytes!(Index);
kept_bytes!(Config);

impl Document {
    /// Reads a manifest or an index. `content_type` is what the registry or the descriptor called it; it must agree with
    /// the document's own `mediaType` where there is one.
    ///
    /// # Errors
    /// [`OciError::Document`]: no JSON, another kind of document, a field missing or of another shape.
    pub fn parse(content_type: Option<&str>, bytes: Vec<u8>) -> Result<Self, OciError> {
        let digest = digest::of(&bytes);
        let bad = |why: String| OciError::document(format!("manifest {digest}"), why);
        let tree = object(&bytes).map_err(bad)?;
        let own = optional_text("manifest", &tree, "mediaType").map_err(bad)?;
        let said = content_type.map(|t| t.split(';').next().unwrap_or_default().trim().to_owned());
        if let (Some(own), Some(said)) = (&own, &said)
            && own != said
        {
            return Err(bad(format!("it is served as {said}, but calls itself {own}")));
        }
        if tree.get("schemaVersion").and_then(Value::as_u64) != Some(2) {
            return Err(bad("schemaVersion is not 2".into()));
        }
        // A document with both lists could be read as either; nobody means that (CVE-2021-41190).
        if tree.contains_key("manifests") && (tree.contains_key("layers") || tree.contains_key("config")) {
            return Err(bad("it has both `manifests` and `layers` or `config`".into()));
        }
        match own.or(said).as_deref().map(media::kind) {
            Some(Kind::Manifest(family)) => Manifest::read(bytes, digest.clone(), family, tree).map(Self::Manifest),
            Some(Kind::Index(family)) => Index::read(bytes, digest.clone(), family, tree).map(Self::Index),
            Some(_) => Err("its media type is neither a manifest's nor an index's".to_owned()),
            None if tree.contains_key("manifests") => {
                Index::read(bytes, digest.clone(), Family::Oci, tree).map(Self::Index)
            }
            None => Manifest::read(bytes, digest.clone(), Family::Oci, tree).map(Self::Manifest),
        }
        .map_err(bad)
    }

    /// Digest of the bytes.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        match self {
            Self::Manifest(m) => m.digest(),
            Self::Index(i) => i.digest(),
        }
    }
}

impl Manifest {
    /// Reads a manifest; an index is refused.
    ///
    /// # Errors
    /// As [`Document::parse`].
    pub fn parse(content_type: Option<&str>, bytes: Vec<u8>) -> Result<Self, OciError> {
        match Document::parse(content_type, bytes)? {
            Document::Manifest(manifest) => Ok(manifest),
            Document::Index(index) => Err(OciError::document(
                format!("manifest {}", index.digest()),
                "it is an index of several platforms; name the manifest of one",
            )),
        }
    }

    fn read(bytes: Vec<u8>, digest: Digest, family: Family, tree: Map<String, Value>) -> Result<Self, String> {
        let config = Descriptor::read("config", tree.get("config").ok_or("config is missing")?)?;
        let layers = list("layers", &tree)?;
        let layers: Result<Vec<_>, _> =
            layers.iter().enumerate().map(|(i, l)| Descriptor::read(&format!("layers[{i}]"), l)).collect();
        let annotations = annotations("manifest", &tree)?;
        Ok(Self { bytes, digest, family, config, layers: layers?, annotations, tree })
    }

    /// Docker's or OCI's.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// Its media type.
    #[must_use]
    pub fn media_type(&self) -> &'static str {
        self.family.manifest()
    }

    /// A descriptor of this manifest.
    #[must_use]
    pub fn descriptor(&self) -> Descriptor {
        Descriptor::new(self.media_type(), self.digest.clone(), self.bytes.len() as u64)
    }

    /// Config and layers, each digest once, in order.
    #[must_use]
    pub fn blobs(&self) -> Vec<&Descriptor> {
        let mut seen = std::collections::HashSet::new();
        std::iter::once(&self.config).chain(&self.layers).filter(|d| seen.insert(&d.digest)).collect()
    }

    /// Refuses an image that cannot be distributed and run as layers: a config that is none, layers of other kinds.
    ///
    /// # Errors
    /// [`OciError::Document`].
    pub fn check_image(&self) -> Result<(), OciError> {
        let bad = |why: String| Err(OciError::document(format!("manifest {}", self.digest), why));
        if !matches!(self.config.kind(), Kind::Config(_)) {
            return bad(format!("its config is of type {}, not an image's", self.config.media_type));
        }
        for (i, layer) in self.layers.iter().enumerate() {
            match layer.kind() {
                Kind::Layer(..) => {}
                Kind::Foreign => return bad(format!("layers[{i}] may not be distributed ({})", layer.media_type)),
                _ => return bad(format!("layers[{i}] is of unknown type {}", layer.media_type)),
            }
        }
        Ok(())
    }
}

impl Index {
    /// Its media type.
    #[must_use]
    pub fn media_type(&self) -> &'static str {
        match self.family {
            Family::Docker => media::DOCKER_LIST,
            Family::Oci => media::OCI_INDEX,
        }
    }

    fn read(bytes: Vec<u8>, digest: Digest, family: Family, tree: Map<String, Value>) -> Result<Self, String> {
        let manifests = list("manifests", &tree)?;
        let manifests: Result<Vec<_>, _> =
            manifests.iter().enumerate().map(|(i, m)| Descriptor::read(&format!("manifests[{i}]"), m)).collect();
        Ok(Self { bytes, digest, family, manifests: manifests?, tree })
    }

    /// Docker's or OCI's.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The one entry for a platform (R22). Attestations and entries of no known platform are never picked; an entry that
    /// names no platform only where it is the only one.
    ///
    /// # Errors
    /// [`OciError::Platform`] when none fits, or more than one.
    pub fn choose(&self, wanted: &Platform) -> Result<&Descriptor, OciError> {
        let usable: Vec<&Descriptor> = self.manifests.iter().filter(|d| is_image(d)).collect();
        let fits = |d: &&&Descriptor| d.platform.as_ref().is_some_and(|p| p.fits(wanted));
        let mut fitting: Vec<&&Descriptor> = usable.iter().filter(fits).collect();
        fitting.dedup_by(|a, b| a.digest == b.digest);
        match (fitting.as_slice(), usable.as_slice()) {
            ([one], _) => Ok(one),
            ([], [only]) if only.platform.is_none() => Ok(only),
            (found, _) => {
                let has = |d: &&Descriptor| d.platform.as_ref().map_or("no platform".into(), ToString::to_string);
                let offered: Vec<String> = usable.iter().map(has).collect();
                let offered = if offered.is_empty() { "nothing".into() } else { offered.join(", ") };
                let count = if found.is_empty() { "no image".into() } else { format!("{} images", found.len()) };
                let why = format!("{count} for {wanted}; it offers {offered}; name one by digest");
                Err(OciError::Platform { what: format!("index {}", self.digest), why })
            }
        }
    }
}

/// False for attestations and other things that are no image.
fn is_image(descriptor: &Descriptor) -> bool {
    let unknown = |p: &Platform| p.os == "unknown" || p.architecture == "unknown";
    matches!(descriptor.kind(), Kind::Manifest(_) | Kind::Index(_))
        && !descriptor.annotations.contains_key("vnd.docker.reference.type")
        && !descriptor.platform.as_ref().is_some_and(unknown)
}

/// An image config.
#[derive(Debug, Clone)]
pub struct Config {
    bytes: Vec<u8>,
    digest: Digest,
    tree: Map<String, Value>,
    /// Where the image runs.
    pub platform: Platform,
    /// Digests of the uncompressed layers, lowest first.
    pub diff_ids: Vec<Digest>,
}

impl Config {
    /// Reads a config.
    ///
    /// # Errors
    /// [`OciError::Document`].
    pub fn parse(bytes: Vec<u8>) -> Result<Self, OciError> {
        let digest = digest::of(&bytes);
        Self::read(bytes, digest.clone()).map_err(|why| OciError::document(format!("config {digest}"), why))
    }

    fn read(bytes: Vec<u8>, digest: Digest) -> Result<Self, String> {
        let tree = object(&bytes)?;
        let platform = Platform {
            os: text("config", &tree, "os")?,
            architecture: text("config", &tree, "architecture")?,
            variant: optional_text("config", &tree, "variant")?,
        };
        let rootfs = tree.get("rootfs").and_then(Value::as_object).ok_or("rootfs is missing")?;
        let diff_ids: Result<Vec<Digest>, String> = list("diff_ids", rootfs)?
            .iter()
            .enumerate()
            .map(|(i, id)| {
                let id = id.as_str().ok_or_else(|| format!("rootfs.diff_ids[{i}] is no text"))?;
                id.parse().map_err(|e: sparklane_lane::BadId| format!("rootfs.diff_ids[{i}]: {e}"))
            })
            .collect();
        Ok(Self { bytes, digest, platform, diff_ids: diff_ids?, tree })
    }

    /// Checks that this is the config of a manifest: as many diff_ids as layers.
    ///
    /// # Errors
    /// [`OciError::Document`].
    pub fn check_against(&self, manifest: &Manifest) -> Result<(), OciError> {
        check_digest("config", &manifest.config.digest, self.digest.clone())?;
        if self.diff_ids.len() == manifest.layers.len() {
            return Ok(());
        }
        let (ids, layers) = (self.diff_ids.len(), manifest.layers.len());
        Err(OciError::document(format!("config {}", self.digest), format!("{ids} diff_ids for {layers} layers")))
    }
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err("it is no JSON object".into()),
        Err(e) => Err(format!("it is no JSON: {e}")),
    }
}

fn text(at: &str, map: &Map<String, Value>, key: &str) -> Result<String, String> {
    optional_text(at, map, key)?.ok_or_else(|| format!("{at}.{key} is missing"))
}

fn optional_text(at: &str, map: &Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("{at}.{key} is no text")),
    }
}

fn list<'a>(key: &str, map: &'a Map<String, Value>) -> Result<&'a [Value], String> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(list)) if list.len() <= LAYERS_MAX => Ok(list),
        Some(Value::Array(list)) => Err(format!("{key} has {} entries, more than {LAYERS_MAX}", list.len())),
        Some(_) => Err(format!("{key} is no list")),
    }
}

fn annotations(at: &str, map: &Map<String, Value>) -> Result<BTreeMap<String, String>, String> {
    match map.get("annotations") {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::Object(map)) => map
            .iter()
            .map(|(key, value)| {
                let value = value.as_str().ok_or_else(|| format!("{at}.annotations.{key} is no text"))?;
                Ok((key.clone(), value.to_owned()))
            })
            .collect(),
        Some(_) => Err(format!("{at}.annotations is no object")),
    }
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
