//! Fuzz targets: every parser of bytes from outside, with what must hold whatever the bytes are.
//!
//! The bodies are here, so that an ordinary test runs them on the seeds (`fuzz/seeds/<target>/`); `cargo xtask fuzz` gives
//! them to libFuzzer, whose program is in `/fuzz`, outside of the workspace.

#![allow(clippy::expect_used, clippy::panic, reason = "a target says what is wrong by failing")]

pub mod input;

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        mod targets {
            $(pub mod $name;)*
        }

        /// Name and body of every target, by name.
        pub const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), targets::$name::run)),*];
    };
}

targets! {
    beat, deploy_rs, elf, engine_text, http, journals, lane, manifest, nccl, netlink, registry, safetensors, sysfs, tar,
    weights_json, wheel, wheel_text, wire, zip,
}

/// A sound catalogue of one lane on a cluster of two, into which targets put what they are given.
const CATALOG: &str = include_str!("catalog.json");
