//! The one thing we ask of an ELF file: which machine it is for, and whether it stands alone.

/// Machine of an ELF file (`e_machine`); nothing when the bytes are no ELF file.
pub(crate) fn machine(bytes: &[u8]) -> Option<u16> {
    if bytes.get(..4)? != b"\x7fELF" {
        return None;
    }
    // Byte 5 tells the byte order: 1 is little-endian.
    let field = [*bytes.get(18)?, *bytes.get(19)?];
    Some(if *bytes.get(5)? == 1 { u16::from_le_bytes(field) } else { u16::from_be_bytes(field) })
}

/// True when the file asks for a loader (a program header of type `PT_INTERP`), so it is not static.
pub(crate) fn wants_loader(bytes: &[u8]) -> bool {
    const PT_INTERP: u32 = 3;
    let half = |at: usize| bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map(u16::from_le_bytes);
    let word = |at: usize| bytes.get(at..at.checked_add(4)?).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let long = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    // 64-bit header: e_phoff at 32, e_phentsize at 54, e_phnum at 56.
    let (Some(table), Some(size), Some(count)) = (long(32), half(54), half(56)) else {
        return false;
    };
    let Ok(table) = usize::try_from(table) else {
        return false;
    };
    (0..usize::from(count))
        .filter_map(|n| word(table.checked_add(n * usize::from(size))?))
        .any(|kind| kind == PT_INTERP)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn this_very_test_is_of_this_machine() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let expected = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        assert_eq!(machine(&own), Some(expected));
        assert_eq!(wants_loader(&own), !cfg!(target_feature = "crt-static"));
        assert_eq!(machine(b"#!/bin/sh"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), magic: bool) {
            if magic && bytes.len() > 4 {
                bytes[..4].copy_from_slice(b"\x7fELF");
            }
            let _ = (machine(&bytes), wants_loader(&bytes));
        }
    }
}
