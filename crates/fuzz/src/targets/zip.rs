//! The zip reader of wheels, on any bytes: names stay below, members lie apart, bytes are those that were promised.

use crate::input::{file, stays_below};
use sparklane_oci::wheel::zip::Archive;

const MOST: u64 = 1 << 20;

/// One input.
pub fn run(data: &[u8]) {
    let Ok(archive) = Archive::open(file(data), "a.whl") else { return };
    let mut taken = 0;
    for member in archive.members() {
        assert!(stays_below(&member.name), "{:?}", member.name);
        assert!(member.offset + member.compressed <= data.len() as u64);
        taken += member.compressed;
        let head = archive.head(member, 64);
        if let Ok(bytes) = archive.read(member, MOST) {
            assert_eq!(bytes.len() as u64, member.size);
            let mut crc = flate2::Crc::new();
            crc.update(&bytes);
            assert_eq!(crc.sum(), member.crc32);
            assert_eq!(head.expect("a whole member has a beginning"), bytes[..bytes.len().min(64)]);
        }
    }
    assert!(taken <= data.len() as u64, "members share bytes");
}
