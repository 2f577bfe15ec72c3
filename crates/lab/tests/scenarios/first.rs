//! The first deployment: there is nothing to return to.

use crate::support::{NODES, Rig};

/// What a deployment could leave on a node that never had one.
const LEFT: &str = "ls -d /etc/systemd/system/sparklane* /etc/systemd/system/*/*sparklane* /etc/tmpfiles.d/*sparklane* \
    /nix/var/nix/profiles/sparklane* /nix/var/nix/gcroots/sparklane/* 2>/dev/null; \
    docker ps -aq; systemctl list-units --all --plain --no-legend 'sparklane*'; true";

#[test]
#[ignore = "needs the lab"]
fn first_deployment_that_fails_leaves_nothing_and_claims_no_return_deploy_rs_241() {
    let rig = Rig::fresh();
    let said = rig.plain(&["deploy", "lab-broken"]);
    assert_eq!(said.code, 3, "{said:#?}");
    let told = format!("{}{}", said.stdout, said.stderr);
    assert!(told.contains("nothing was deployed before"), "{told}");
    for claim in ["rolled back: all", "is on release", "are on release", "again, read back", "back on"] {
        assert!(!told.contains(claim), "{claim:?} in {told}");
    }
    assert_eq!(rig.plain(&["status"]).stdout.lines().next(), Some("lab: nothing deployed"));
    // The process still answers late questions for three seconds.
    std::thread::sleep(std::time::Duration::from_secs(4));
    for node in NODES {
        assert_eq!(rig.sh(node, LEFT), "", "{node}");
    }
    // The same nodes take a good lane afterwards.
    rig.deploy("lab-a").is(0, "committed");
    assert_eq!(rig.one_release("lab-a"), 1);
}
