//! The static binary as Nix builder (design.md sections 3 and 4): no shell, no coreutils, only `sparklane build WHAT`.
//!
//! Nix hands the attributes of the derivation over as JSON (structured attributes). Everything a builder writes is
//! the same bytes for the same attributes, whoever runs it and wherever.

mod apps;
mod attrs;
mod checks;
mod elf;
mod error;
mod fs;
mod generation;
mod image;
mod package;
mod units;

use camino::Utf8Path;

pub use attrs::Attrs;
pub use error::BuildError;

/// What can be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// `bin/sparklane` of one system.
    Package,
    /// A node's closure for a lane.
    Generation,
    /// The apps' entry points.
    Apps,
    /// A document of a base image, from its registry: a fixed output.
    FetchBlob,
    /// Our layers, config and manifest of an image.
    Image,
    /// All lanes and clusters are sound.
    CheckSchema,
    /// Argument vectors and environments are the golden ones.
    CheckGolden,
    /// Built twice, the same bytes.
    CheckDeterminism,
    /// Every executable of a closure is of its node's machine.
    CheckElf,
    /// Unit files keep our rules.
    CheckUnits,
    /// The `deploy` output is what deploy-rs reads.
    CheckDeployRs,
}

impl What {
    /// Every kind with its name on the command line.
    pub const ALL: [(&'static str, Self); 11] = [
        ("package", Self::Package),
        ("generation", Self::Generation),
        ("apps", Self::Apps),
        ("fetch-blob", Self::FetchBlob),
        ("image", Self::Image),
        ("check-schema", Self::CheckSchema),
        ("check-golden", Self::CheckGolden),
        ("check-determinism", Self::CheckDeterminism),
        ("check-elf", Self::CheckElf),
        ("check-units", Self::CheckUnits),
        ("check-deploy-rs", Self::CheckDeployRs),
    ];

    /// The kind of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, what)| *what)
    }
}

/// Builds one derivation: reads its attributes, writes its output.
///
/// # Errors
/// Everything that makes the derivation fail, as it should be shown in Nix's log.
pub fn build(what: What, attrs: &Attrs) -> Result<(), BuildError> {
    let out = attrs.out()?;
    match what {
        What::Package => package::build(attrs, &out),
        What::Generation => generation::build(attrs, &out),
        What::Apps => apps::build(attrs, &out),
        What::FetchBlob => image::fetch(attrs, &out),
        What::Image => image::build(attrs, &out),
        What::CheckSchema => report(checks::schema(attrs)?, &out),
        What::CheckGolden => report(checks::golden(attrs)?, &out),
        What::CheckDeterminism => report(checks::determinism(attrs)?, &out),
        What::CheckElf => report(checks::elf(attrs)?, &out),
        What::CheckUnits => report(checks::units(attrs)?, &out),
        What::CheckDeployRs => report(checks::deploy_rs(attrs)?, &out),
    }
}

/// A check's output lists what was proved.
fn report(proved: Vec<String>, out: &Utf8Path) -> Result<(), BuildError> {
    if proved.is_empty() {
        return Err(BuildError::Failed(vec!["there was nothing to check".to_owned()]));
    }
    fs::write(out, format!("{}\n", proved.join("\n")).as_bytes(), 0o444)
}
