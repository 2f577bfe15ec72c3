//! A node without the memory that a lane takes.

use crate::support::{NODES, Rig};

/// A lane that wants a terabyte beside its share, and waits six seconds for it.
const LANE: &str = "import ./base/lab.nix {\n  name = \"lab-thin\";\n  description = \"for a scenario\";\n  \
    serve.gpuMemoryUtilization = 0.5;\n  memory = { marginBytes = 1099511627776; waitSecs = 6; };\n}\n";

#[test]
#[ignore = "needs the lab"]
fn too_little_memory_is_waited_for_and_then_said_and_the_old_lane_serves_again() {
    let rig = Rig::on_a();
    let file = rig.lab.root("control").join("root/sparklane/nix/lanes/lab-thin.nix");
    std::fs::write(&file, LANE).unwrap();
    let rig = rig.rebuilt();
    let said = rig.deploy("lab-thin");
    std::fs::remove_file(&file).unwrap();
    said.is(3, "rolled-back").because(&["sparklane-engine.service", "72"]);
    rig.one_release("lab-a");
    // One node's failure brings both back, so the other may not have come to its own.
    let log = |node: &str| rig.sh(node, "journalctl -q -o cat -u sparklane-engine -n 300");
    assert!(NODES.iter().any(|node| log(node).contains("not enough memory after 6 s: ")), "{}", rig.story());
}
