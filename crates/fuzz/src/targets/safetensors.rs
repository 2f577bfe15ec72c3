//! Headers of safetensors files and their index: what is accepted adds up.

use std::collections::BTreeSet;

use sparklane_weights::safetensors::{check_header, header_len, judge, shards};

/// One input.
pub fn run(data: &[u8]) {
    let size = data.len() as u64;
    if let Ok(len) = header_len(data, size) {
        assert!(len + 8 <= size);
        let header = &data[8..8 + usize::try_from(len).expect("it is in memory")];
        // Only sizes of whole files pass: one more byte is a hole.
        if let Ok(names) = check_header(header, size) {
            assert!(check_header(header, size + 1).is_err());
            assert!(!names.contains("__metadata__"));
        }
    }
    let end = data.iter().rposition(|b| *b == b'}').map_or(data.len(), |at| at + 1);
    let _ = check_header(&data[..end], size);
    if let Ok(found) = shards(data) {
        let plain = |s: &&String| s.ends_with(".safetensors") && !s.contains('/');
        let files: BTreeSet<&str> = found.keys().filter(plain).map(String::as_str).collect();
        assert_eq!(judge(&files, Some(data)).len(), found.len() - files.len());
    }
}
