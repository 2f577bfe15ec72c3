//! Images: documents of bases as fixed outputs, and compositions.

use camino::Utf8Path;
use sparklane_oci::base::TreeIndex;
use sparklane_oci::compose::{Inputs, Place, Spec, build as compose};
use sparklane_oci::registry::{Credentials, Http, Registry, Timeouts};
use sparklane_oci::{Config, Digest, Document, Manifest, OciError, Reference};

use crate::attrs::Attrs;
use crate::error::BuildError;
use crate::fs;

fn failed(error: &OciError) -> BuildError {
    BuildError::Failed(vec![error.to_string()])
}

/// Fetches a manifest or a config by digest. Nix lets it reach the network because the digest of the output is fixed, and
/// compares it once more.
pub(crate) fn fetch(attrs: &Attrs, out: &Utf8Path) -> Result<(), BuildError> {
    let digest: Digest = attrs.read("digest")?;
    let bytes = download(attrs.text("reference")?, attrs.text("kind")?, &digest).map_err(|e| failed(&e))?;
    fs::write(out, &bytes, 0o444)
}

fn download(reference: &str, kind: &str, digest: &Digest) -> Result<Vec<u8>, OciError> {
    let reference: Reference = reference.parse()?;
    let http = Http::new(Timeouts::default(), Vec::new())?;
    let repo = Registry { http, credentials: Credentials::default() }.repo(&reference)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(OciError::io("make", "a runtime"))?;
    match kind {
        "manifest" => runtime.block_on(repo.document(digest.as_str())).map(|document| match document {
            Document::Manifest(manifest) => manifest.bytes().to_vec(),
            Document::Index(index) => index.bytes().to_vec(),
        }),
        _ => runtime.block_on(repo.blob_of_unknown_size(digest)),
    }
}

/// Composes an image; the output is a layout with what is ours, and `image.json`.
pub(crate) fn build(attrs: &Attrs, out: &Utf8Path) -> Result<(), BuildError> {
    let spec =
        serde_json::to_vec(attrs.value("spec")?).map_err(|source| BuildError::Json { path: "spec".into(), source })?;
    let spec = Spec::parse("spec", &spec).map_err(|e| failed(&e))?;
    let Some(config) = attrs.read::<Option<camino::Utf8PathBuf>>("config")? else {
        let why = format!(
            "image {}: the config digest of its base is not known; run `sparklane image pin {}` where the registry is reached \
             and commit the pin",
            spec.name, spec.base.reference
        );
        return Err(BuildError::Failed(vec![why]));
    };
    let manifest = Manifest::parse(None, fs::read(attrs.path("manifest")?)?).map_err(|e| failed(&e))?;
    let config = Config::parse(fs::read(&config)?).map_err(|e| failed(&e))?;
    let index = attrs.read::<Option<camino::Utf8PathBuf>>("index")?;
    let index = index.map(|path| TreeIndex::parse(path.as_str(), &fs::read(&path)?).map_err(|e| failed(&e)));
    let index = index.transpose()?;
    let inputs = Inputs {
        spec: &spec,
        manifest: &manifest,
        config: &config,
        index: index.as_ref(),
        wheels: attrs.path("wheels")?,
        sources: attrs.path("sources")?,
    };
    let built = compose(&inputs, out, Place::Direct).map_err(|e| failed(&e))?;
    for line in built.warnings.iter().chain(&built.unproved) {
        eprintln!("image {}: {line}", built.name);
    }
    Ok(())
}
