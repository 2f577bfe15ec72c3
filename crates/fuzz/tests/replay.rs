//! Every seed goes through its target. `cargo xtask fuzz` looks for new inputs; this keeps the known ones good.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by failing")]

use std::path::Path;

#[test]
fn the_seeds_break_nothing() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    for (name, target) in sparklane_fuzz::TARGETS {
        let folder = seeds.join(name);
        let mut inputs: Vec<_> = folder.read_dir().unwrap_or_else(|e| panic!("{}: {e}", folder.display())).collect();
        assert!(!inputs.is_empty(), "{name} has no seed");
        for input in inputs.drain(..) {
            let path = input.unwrap().path();
            println!("{}", path.display());
            target(&std::fs::read(path).unwrap());
        }
        target(b"");
    }
}
