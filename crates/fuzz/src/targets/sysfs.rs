//! Facts of a machine: files of sysfs and proc with text of the fuzzer's choice, the kernel's log, and the record of the rest.

use sparklane_fabric::checks::{Asked, Input, judge};
use sparklane_fabric::facts::{NodeFacts, RECORD, Root, kmsg, login, recorded};
use sparklane_fabric::table;
use sparklane_lane::catalog::{Catalog, RawCatalog};

use crate::input::{folder, parts, tree};

/// One input.
pub fn run(data: &[u8]) {
    for line in String::from_utf8_lossy(data).lines() {
        if let Some(notice) = kmsg::notice(line) {
            assert!(notice.text.chars().count() <= 300);
        }
    }
    let files = parts(data);
    // Most inputs that a mutation makes have no record any more; those cost no files.
    if files.len() > 64 || !files.iter().any(|(name, _)| name == RECORD) {
        return;
    }
    let folder = folder();
    tree(&folder, &files);
    let root = Root::new(&folder);
    let _ = (login::of(&root, 9), login::memlock(&root, 9));
    let Ok(facts) = recorded("0.1.0", &root) else { return };
    let json = serde_json::to_vec(&facts).expect("it can be written");
    assert_eq!(serde_json::from_slice::<NodeFacts>(&json).expect("and read"), facts);
    let raw: RawCatalog = serde_json::from_str(crate::CATALOG).expect("a catalogue");
    let (catalog, _) = Catalog::read(&raw);
    let cluster = catalog.clusters.values().next().expect("a cluster");
    let of = |node: &str| Asked { node: node.parse().expect("a name"), facts: Ok(facts.clone()), between: None };
    let nodes = [of("head"), of("worker")];
    let rows = judge(Input { cluster, nodes: &nodes });
    assert!(!rows.is_empty() && !table::text(&rows).is_empty());
}
