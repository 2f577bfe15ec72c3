//! One target of `crates/fuzz`, named by `SPARKLANE_FUZZ_TARGET`, as libFuzzer runs it. Made and called by `cargo xtask fuzz`.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("SPARKLANE_FUZZ_TARGET").unwrap_or_default();
    let known = sparklane_fuzz::TARGETS.iter().find(|(known, _)| *known == name);
    known.unwrap_or_else(|| panic!("SPARKLANE_FUZZ_TARGET is {name:?}, which is no target")).1
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
