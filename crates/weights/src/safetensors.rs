//! What can be known of safetensors files without a tensor library: does the index name its shards, do sizes add up.
//!
//! Format: eight bytes little-endian length, that many bytes of JSON, then the tensors' bytes without holes
//! (huggingface/safetensors README).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// Largest header that the format's own reader accepts.
pub const MAX_HEADER: u64 = 100_000_000;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Tensor {
    data_offsets: [u64; 2],
}

/// The length of a shard's header, from its first eight bytes.
///
/// # Errors
/// When the file is too short for it.
pub fn header_len(first: &[u8], file_size: u64) -> Result<u64, String> {
    let Some(bytes) = first.get(..8).and_then(|b| <[u8; 8]>::try_from(b).ok()) else {
        return Err("is too short for a safetensors file".into());
    };
    let len = u64::from_le_bytes(bytes);
    if len > MAX_HEADER || len.checked_add(8).is_none_or(|end| end > file_size) {
        return Err(format!("says its header has {len} bytes, the file has {file_size}"));
    }
    Ok(len)
}

/// Checks that a shard's tensors fill it without holes to its last byte, and gives their names.
///
/// # Errors
/// Where they do not.
pub fn check_header(header: &[u8], file_size: u64) -> Result<BTreeSet<String>, String> {
    let mut tensors: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(header).map_err(|e| format!("its header is not JSON: {e}"))?;
    tensors.remove("__metadata__");
    let mut ranges = Vec::with_capacity(tensors.len());
    for (name, value) in &tensors {
        let tensor: Tensor = serde_json::from_value(value.clone()).map_err(|e| format!("tensor {name:?}: {e}"))?;
        ranges.push((tensor.data_offsets, name));
    }
    ranges.sort();
    let mut at = 0;
    for ([start, end], name) in &ranges {
        if *start != at || end < start {
            return Err(format!("tensor {name:?} is at {start}..{end}, expected at {at}"));
        }
        at = *end;
    }
    let wanted = (header.len() as u64).checked_add(8).and_then(|h| h.checked_add(at));
    if wanted != Some(file_size) {
        return Err(format!("its tensors end at byte {at} after the header, the file has {file_size} bytes in all"));
    }
    Ok(tensors.into_keys().collect())
}

/// The shards that an index names.
///
/// # Errors
/// When it is no index.
pub fn shards(index: &[u8]) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let index: Index = serde_json::from_slice(index).map_err(|e| format!("is no safetensors index: {e}"))?;
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, shard) in index.weight_map {
        shards.entry(shard).or_default().insert(tensor);
    }
    Ok(shards)
}

/// Judges a set of files by the index beside them: every shard that it names must be among `files`, and every
/// safetensors file must be named. Without an index there must be exactly one.
#[must_use]
pub fn judge(files: &BTreeSet<&str>, index: Option<&[u8]>) -> Vec<String> {
    let there: BTreeSet<&str> =
        files.iter().copied().filter(|f| f.ends_with(".safetensors") && !f.contains('/')).collect();
    let Some(index) = index else {
        return match there.len() {
            0 | 1 => Vec::new(),
            n => vec![format!("{n} safetensors files and no model.safetensors.index.json")],
        };
    };
    let named = match shards(index) {
        Ok(named) => named,
        Err(why) => return vec![format!("model.safetensors.index.json {why}")],
    };
    let missing =
        named.keys().filter(|s| !there.contains(s.as_str())).map(|s| format!("the index names {s}, which is missing"));
    let extra = there.iter().filter(|s| !named.contains_key(**s)).map(|s| format!("{s} is not named by the index"));
    missing.chain(extra).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_must_add_up() {
        let header = br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
        let size = 8 + header.len() as u64 + 8;
        assert_eq!(check_header(header, size).unwrap().len(), 2);
        assert!(check_header(header, size - 1).is_err());
        let hole = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
        assert!(check_header(hole, 8 + hole.len() as u64 + 8).is_err());
        assert!(header_len(&[255; 8], u64::MAX).is_err());
        assert!(header_len(&[0; 7], 7).is_err());
        assert_eq!(header_len(&[2, 0, 0, 0, 0, 0, 0, 0], 10), Ok(2));
    }

    #[test]
    fn an_index_names_all_shards_and_only_them() {
        let index = br#"{"metadata":{},"weight_map":{"x":"m-1.safetensors","y":"m-2.safetensors"}}"#;
        let both = BTreeSet::from(["m-1.safetensors", "m-2.safetensors", "config.json"]);
        assert!(judge(&both, Some(index)).is_empty());
        assert_eq!(judge(&BTreeSet::from(["m-1.safetensors", "m-3.safetensors"]), Some(index)).len(), 2);
        assert!(judge(&BTreeSet::from(["model.safetensors"]), None).is_empty());
        assert_eq!(judge(&both, None).len(), 1);
        assert_eq!(judge(&both, Some(b"[]")).len(), 1);
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), size: u64) {
            let _len = header_len(&bytes, size);
            let _names = check_header(&bytes, size);
            let _shards = shards(&bytes);
        }

        #[test]
        fn no_offsets_make_it_panic(start: u64, end: u64, size: u64) {
            let header = format!(r#"{{"a":{{"data_offsets":[{start},{end}]}}}}"#);
            let _names = check_header(header.as_bytes(), size);
        }
    }
}
