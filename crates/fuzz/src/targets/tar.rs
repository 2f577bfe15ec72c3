//! Layers of others, plain or gzip: no path leaves the root, both readers agree on the identity, the index comes back.

use crate::input::stays_below;
use sparklane_oci::base::scan::{self, Act, Keep};
use sparklane_oci::base::{TreeIndex, tree};
use sparklane_oci::{digest, verify};

/// One input, as it is and with good checksums.
pub fn run(data: &[u8]) {
    check(data);
    check(&summed(data));
}

/// Every block as a header with the right checksum; few mutations get past that by themselves.
fn summed(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    for block in data.chunks_exact_mut(512).filter(|block| block.iter().any(|b| *b != 0)) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    data
}

fn check(data: &[u8]) {
    let keep = Keep::from(["kept".to_owned()]);
    let scanned = scan::layer(data, &keep);
    if let (Ok(scan), Ok(walked)) = (&scanned, verify::walk("layer", data)) {
        assert_eq!(scan.diff_id, walked.diff_id);
        assert_eq!((walked.digest, walked.size), (digest::of(data), data.len() as u64));
    }
    let Ok(scan) = scanned else { return };
    for row in &scan.rows {
        assert!(stays_below(&row.path) || row.act == Act::Opaque && row.path.is_empty(), "{row:?}");
        if let Act::Hardlink(target) = &row.act {
            assert!(stays_below(target), "{row:?}");
        }
    }
    let layers = vec![digest::of(data); 2];
    let Ok(index) = tree::merge(layers, vec![scan.clone(), scan], &keep) else { return };
    assert!(index.nodes.keys().all(|path| stays_below(path)));
    let bytes = index.to_bytes().expect("a scan's index can be written");
    assert_eq!(TreeIndex::parse("index", &bytes).expect("and read"), index);
}
