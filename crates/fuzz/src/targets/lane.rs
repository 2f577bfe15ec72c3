//! The reader of lanes, clusters, images and generations. The first byte chooses whose place the input takes in the shipped
//! catalogue.
use std::sync::LazyLock;

use serde_json::Value;
use sparklane_lane::catalog::{Catalog, RawCatalog, any_refused};
use sparklane_lane::render::render_all;
use sparklane_lane::{Generation, diff, ladder};

static SHIPPED: LazyLock<RawCatalog> =
    LazyLock::new(|| serde_json::from_str(crate::CATALOG).expect("a catalogue"));

fn generation(bytes: &[u8]) {
    let Ok(generation) = serde_json::from_slice::<Generation>(bytes) else { return };
    let canonical = generation.canonical().expect("it can be written");
    let again: Generation = serde_json::from_slice(&canonical).expect("and read");
    assert_eq!(again.canonical().expect("it can be written"), canonical);
    assert!(diff::diff(&generation, &again).is_empty());
    let _ = (generation.launch(), generation.own(), generation.head(), generation.activation_secs());
}

/// One input.
pub fn run(data: &[u8]) {
    let Some((kind, bytes)) = data.split_first() else { return };
    if *kind == b'g' {
        return generation(bytes);
    }
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    let mut raw = SHIPPED.clone();
    let place = match kind {
        b'l' => raw.lanes.values_mut().next(),
        b'c' => raw.clusters.values_mut().next(),
        b'i' => raw.images.values_mut().next(),
        _ => None,
    };
    let Some(place) = place else { return };
    *place = value;
    let (catalog, problems) = Catalog::read(&raw);
    if any_refused(&problems) {
        return;
    }
    for cluster in catalog.clusters.values() {
        for input in catalog.lanes_of(cluster) {
            let _ = ladder::next(input.lane, input.image);
            for rendered in render_all(input).unwrap_or_default() {
                generation(&rendered.generation.canonical().expect("it can be written"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that misses a key of today would end every input at its first check.
    #[test]
    fn the_catalogue_is_sound_and_renders() {
        let (catalog, problems) = Catalog::read(&SHIPPED);
        assert!(!any_refused(&problems), "{problems:?}");
        let rendered = catalog
            .clusters
            .values()
            .flat_map(|cluster| catalog.lanes_of(cluster))
            .map(|input| render_all(input).map_or(0, |all| all.len()));
        assert_eq!(rendered.sum::<usize>(), 2, "one lane on two nodes");
    }
}
