//! Documents of registries and of docker: manifests, indexes, configs, tree indexes, specs. The first byte chooses.

use sparklane_oci::base::TreeIndex;
use sparklane_oci::compose::Spec;
use sparklane_oci::compose::raw::RawObject;
use sparklane_oci::{Config, Document, Manifest, digest};

/// One input.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind {
        b'm' => match Document::parse(None, bytes.to_vec()) {
            Ok(Document::Manifest(manifest)) => {
                assert_eq!((manifest.bytes(), manifest.digest()), (bytes, &digest::of(bytes)));
                let _ = (manifest.check_image(), manifest.family());
                assert!(Manifest::parse(Some("application/vnd.oci.image.index.v1+json"), bytes.to_vec()).is_err());
            }
            Ok(Document::Index(index)) => {
                assert_eq!((index.bytes(), index.digest()), (bytes, &digest::of(bytes)));
                assert!(Manifest::parse(None, bytes.to_vec()).is_err());
            }
            Err(_) => {}
        },
        b'c' => {
            if let Ok(config) = Config::parse(bytes.to_vec()) {
                assert_eq!(config.digest(), &digest::of(bytes));
                let _ = (verify(&config), config.platform);
            }
        }
        b't' => {
            if let Ok(index) = TreeIndex::parse("index", bytes) {
                let again = index.to_bytes().expect("what was read can be written");
                assert_eq!(TreeIndex::parse("index", &again).expect("and read"), index);
            }
        }
        b's' => {
            if let Ok(spec) = Spec::parse("spec", bytes) {
                spec.layers.iter().for_each(|layer| drop(layer.title()));
            }
        }
        b'd' => {
            if let Ok(found) = serde_json::from_slice::<bollard::models::ImageInspect>(bytes) {
                let _ = sparklane_oci::docker::Stored::try_from(found);
            }
        }
        _ => {
            if let Ok(object) = RawObject::parse(bytes) {
                let once = object.to_bytes().expect("what was read can be written");
                let twice = RawObject::parse(&once).and_then(|o| o.to_bytes()).expect("and read");
                assert_eq!(once, twice);
            }
        }
    }
}

fn verify(config: &Config) -> usize {
    sparklane_oci::verify::history(config).map_or(0, |rows| rows.len()) + sparklane_oci::verify::our_layers(config)
}
