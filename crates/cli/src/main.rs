//! The sparklane command.
fn main() {}
