//! Names of images and what registries say in heads: references, challenges, ranges, credentials.

use sparklane_oci::Reference;
use sparklane_oci::registry::range::{ContentRange, first_range};
use sparklane_oci::registry::{Credentials, challenge};

/// One input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(reference) = text.parse::<Reference>() {
        // A port of leading zeroes loses them.
        assert_eq!(reference.to_string().parse::<Reference>().expect("a reference"), reference);
        assert!(crate::input::stays_below(reference.name()), "{reference}");
        let digest = sparklane_oci::digest::of(b"");
        let at = reference.at(&digest);
        assert_eq!(at.to_string().parse::<Reference>().expect("a reference"), at);
    }
    for found in challenge::parse(text) {
        assert!(!found.scheme.is_empty() && found.scheme == found.scheme.to_ascii_lowercase());
        assert!(found.params.iter().all(|(name, _)| !name.is_empty()));
    }
    if let Some(ContentRange::Bytes { first, last, total }) = ContentRange::parse(text) {
        assert!(first <= last && last < total);
    }
    for size in [0, 1, 1000, u64::MAX] {
        if let Some(Ok((first, last))) = first_range(text, size) {
            assert!(first <= last && last < size, "{first}-{last} of {size}");
        }
    }
    let _ = Credentials::parse(text);
}
