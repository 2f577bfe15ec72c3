//! The ELF reader: bytes and file say the same, whatever they are.

use sparklane_oci::elf;

/// One input.
pub fn run(data: &[u8]) {
    let read = elf::read(data);
    let of_file = elf::read_file(&crate::input::file(data));
    assert_eq!(format!("{:?}", read.as_ref().ok()), format!("{:?}", of_file.as_ref().ok()));
}
