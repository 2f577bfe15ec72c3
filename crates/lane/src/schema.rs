//! JSON schemas of the files people and nodes read, from the types that read them.

use schemars::{Schema, schema_for};

use crate::cluster::Cluster;
use crate::generation::Generation;
use crate::image::ImageSpec;
use crate::lane::Lane;
use crate::release::Release;

/// `nix/lanes/*.nix`.
#[must_use]
pub fn lane() -> Schema {
    schema_for!(Lane)
}

/// `nix/clusters/*.nix`.
#[must_use]
pub fn cluster() -> Schema {
    schema_for!(Cluster)
}

/// `images/*.json`.
#[must_use]
pub fn image() -> Schema {
    schema_for!(ImageSpec)
}

/// `generation.json` of a closure.
#[must_use]
pub fn generation() -> Schema {
    schema_for!(Generation)
}

/// A release record.
#[must_use]
pub fn release() -> Schema {
    schema_for!(Release)
}
