//! What is read back after a crash: the journal of weights and the journal of a transaction, damaged or with records of the
//! fuzzer's choice under good checksums.
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};
use sparklane_txn::record::decision;
use sparklane_txn::{Order, Reply};
use sparklane_weights::Sha;
use sparklane_weights::journal::{RECORD, encode, parse};

fn weights(bytes: &[u8], set: &Sha) {
    let claims = parse(bytes, set);
    assert!(claims.len() <= bytes.len() / RECORD);
    let again: Vec<u8> = claims.iter().flat_map(|(file, claim)| encode(*file, claim, set)).collect();
    assert_eq!(parse(&again, set), claims);
    // A torn record is one that never was.
    assert_eq!(parse(&[&again[..], &again[..again.len().min(40)]].concat(), set), claims);
}

fn transaction(bytes: &[u8]) -> usize {
    let contents = sparklane_host::journal::parse(bytes);
    let _ = decision(&contents.records);
    let torn = sparklane_host::journal::parse(bytes.get(..bytes.len().saturating_sub(1)).unwrap_or_default());
    assert!(contents.records.starts_with(&torn.records) && torn.records.len() + 1 >= contents.records.len());
    contents.records.len()
}

/// One input.
pub fn run(data: &[u8]) {
    let set = Sha([7; 32]);
    weights(data, &set);
    let mut summed = Vec::new();
    for body in data.chunks_exact(48) {
        summed.extend_from_slice(body);
        summed.extend_from_slice(&Sha256::digest([&set.0[..], body].concat())[..RECORD - 48]);
    }
    weights(&summed, &set);
    transaction(data);
    let mut lines = Vec::new();
    for json in data.split(|b| *b == b'\n') {
        let mut sum = String::new();
        Sha256::digest(json).iter().take(8).for_each(|b| write!(sum, "{b:02x}").expect("room in memory"));
        lines.extend([sum.as_bytes(), b" ", json, b"\n"].concat());
        let _ = (serde_json::from_slice::<Order>(json), serde_json::from_slice::<Reply>(json));
        let _ = serde_json::from_slice::<sparklane_host::serve::Line>(json);
        let _ = serde_json::from_slice::<sparklane_lane::Release>(json);
    }
    transaction(&lines);
}
