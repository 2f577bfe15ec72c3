//! Media types: which document or blob it is, of whose family, how compressed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// OCI image index.
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// OCI image manifest.
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// OCI image config.
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// OCI layer, gzip.
pub const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// OCI layer, zstd.
pub const OCI_LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
/// OCI layer, not compressed.
pub const OCI_LAYER_TAR: &str = "application/vnd.oci.image.layer.v1.tar";
/// Docker manifest list.
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// Docker schema 2 manifest.
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
/// Docker image config.
pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
/// Docker layer, gzip.
pub const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
/// Docker layer, not compressed.
pub const DOCKER_LAYER_TAR: &str = "application/vnd.docker.image.rootfs.diff.tar";
/// Docker layer, zstd, as some tools write it.
pub const DOCKER_LAYER_ZSTD: &str = "application/vnd.docker.image.rootfs.diff.tar.zstd";

/// What a registry is told that we take for a manifest: exactly these four (facts section 10).
pub const MANIFESTS: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST];

/// Whose media types a document uses. A manifest never mixes them (R19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// Docker schema 2.
    Docker,
    /// OCI image specification.
    Oci,
}

impl Family {
    /// Media type of a manifest.
    #[must_use]
    pub fn manifest(self) -> &'static str {
        match self {
            Self::Docker => DOCKER_MANIFEST,
            Self::Oci => OCI_MANIFEST,
        }
    }

    /// Media type of a config.
    #[must_use]
    pub fn config(self) -> &'static str {
        match self {
            Self::Docker => DOCKER_CONFIG,
            Self::Oci => OCI_CONFIG,
        }
    }

    /// Media type of a layer.
    #[must_use]
    pub fn layer(self, compression: Compression) -> &'static str {
        match (self, compression) {
            (Self::Docker, Compression::None) => DOCKER_LAYER_TAR,
            (Self::Docker, Compression::Gzip) => DOCKER_LAYER_GZIP,
            (Self::Docker, Compression::Zstd) => DOCKER_LAYER_ZSTD,
            (Self::Oci, Compression::None) => OCI_LAYER_TAR,
            (Self::Oci, Compression::Gzip) => OCI_LAYER_GZIP,
            (Self::Oci, Compression::Zstd) => OCI_LAYER_ZSTD,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Docker => "Docker",
            Self::Oci => "OCI",
        })
    }
}

/// How a layer is compressed, by its media type. Consumers sniff; so must whoever reads one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// A plain tar.
    None,
    /// gzip, of one member or many.
    Gzip,
    /// zstd.
    Zstd,
}

impl Compression {
    /// By the first bytes of a blob: gzip's and zstd's magic numbers, anything else a plain tar.
    #[must_use]
    pub fn sniff(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A skippable frame, with which zstd:chunked begins.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            _ => Self::None,
        }
    }
}

/// What a media type stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A list of manifests.
    Index(Family),
    /// A manifest.
    Manifest(Family),
    /// An image config.
    Config(Family),
    /// A layer.
    Layer(Family, Compression),
    /// A layer that may not be distributed; we refuse images with one.
    Foreign,
    /// Anything else, e.g. an attestation.
    Other,
}

/// Sorts a media type; parameters (`; charset=…`) do not count.
#[must_use]
pub fn kind(media_type: &str) -> Kind {
    let plain = media_type.split(';').next().unwrap_or_default().trim();
    match plain {
        OCI_INDEX => Kind::Index(Family::Oci),
        DOCKER_LIST => Kind::Index(Family::Docker),
        OCI_MANIFEST => Kind::Manifest(Family::Oci),
        DOCKER_MANIFEST => Kind::Manifest(Family::Docker),
        OCI_CONFIG => Kind::Config(Family::Oci),
        DOCKER_CONFIG => Kind::Config(Family::Docker),
        OCI_LAYER_TAR => Kind::Layer(Family::Oci, Compression::None),
        OCI_LAYER_GZIP => Kind::Layer(Family::Oci, Compression::Gzip),
        OCI_LAYER_ZSTD => Kind::Layer(Family::Oci, Compression::Zstd),
        DOCKER_LAYER_TAR => Kind::Layer(Family::Docker, Compression::None),
        DOCKER_LAYER_GZIP => Kind::Layer(Family::Docker, Compression::Gzip),
        DOCKER_LAYER_ZSTD => Kind::Layer(Family::Docker, Compression::Zstd),
        other if other.contains(".rootfs.foreign.") || other.contains(".layer.nondistributable.") => Kind::Foreign,
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_sorted_as_it_is_made() {
        for family in [Family::Docker, Family::Oci] {
            assert_eq!(kind(family.manifest()), Kind::Manifest(family));
            assert_eq!(kind(family.config()), Kind::Config(family));
            for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
                assert_eq!(kind(family.layer(compression)), Kind::Layer(family, compression));
            }
        }
        assert_eq!(kind("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"), Kind::Foreign);
        assert_eq!(kind("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"), Kind::Foreign);
        assert_eq!(kind("application/vnd.oci.image.manifest.v1+json; charset=utf-8"), Kind::Manifest(Family::Oci));
        assert_eq!(kind(""), Kind::Other);
    }

    #[test]
    fn compression_shows_in_the_first_bytes() {
        assert_eq!(Compression::sniff(&[0x1f, 0x8b, 8]), Compression::Gzip);
        assert_eq!(Compression::sniff(&[0x28, 0xb5, 0x2f, 0xfd]), Compression::Zstd);
        assert_eq!(Compression::sniff(b"usr/"), Compression::None);
        assert_eq!(Compression::sniff(b""), Compression::None);
    }
}
