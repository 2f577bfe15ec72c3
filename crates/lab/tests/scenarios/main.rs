//! The promises of a deployment, each as a named scenario on the lab's machines (issue 2, "What it must survive").
//!
//! `cargo test -p sparklane-lab --test scenarios -- --ignored --test-threads=1` runs them. They need root, ./prebuilt and
//! the base root file system. A number in a name is the issue in which users of another tool met the failure.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used, reason = "a test says what is wrong by failing")]

mod support;

mod crash;
mod disk;
mod fabric;
mod failing;
mod files;
mod first;
mod heal;
mod host;
mod host_units;
mod images;
mod init;
mod memory;
mod model;
mod network;
#[path = "../../../weights/tests/support/noise.rs"]
mod noise;
mod operators;
mod preflight;
#[path = "../support/python.rs"]
mod python;
mod ray;
mod ray_faults;
mod switch;
mod trouble;
mod weights;
