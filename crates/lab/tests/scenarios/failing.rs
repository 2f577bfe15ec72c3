//! Lanes that do not come up.

use std::time::Duration;

use crate::support::Rig;

#[test]
#[ignore = "needs the lab"]
fn gate_that_answers_200_without_a_token_brings_both_nodes_back_morph_97() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let said = rig.deploy("lab-broken");
    said.is(3, "rolled-back").because(&["tokens"]);
    assert_eq!(rig.one_release("lab-a"), before);
}

#[test]
#[ignore = "needs the lab"]
fn unit_that_fails_at_once_ends_in_seconds_under_a_20_minute_budget() {
    let rig = Rig::on_a();
    let before = rig.one_release("lab-a");
    let said = rig.deploy("lab-crash");
    said.is(3, "rolled-back").because(&["sparklane-engine.service"]);
    assert!(said.took < Duration::from_secs(15), "{:?}", said.took);
    assert_eq!(rig.one_release("lab-a"), before);
}

#[test]
#[ignore = "needs the lab"]
fn slow_start_of_35_s_passes_with_its_own_budget_system_manager_529() {
    let rig = Rig::on_a();
    let said = rig.deploy("lab-slow");
    said.is(0, "committed");
    assert!(said.took > Duration::from_secs(35), "{:?}", said.took);
    rig.one_release("lab-slow");
}

#[test]
#[ignore = "needs the lab"]
fn a_head_that_does_not_know_that_its_rank_is_gone_is_not_told_as_serving() {
    let rig = Rig::on_a();
    rig.one_release("lab-a");
    // As after a restart of docker: the worker's unit starts a new rank, which the idle head's launch never sees.
    rig.sh("worker", "docker kill $(docker ps -q)");
    rig.until("the new rank waits", 60, || {
        rig.try_sh("worker", "systemctl is-active sparklane-engine && grep -q WAIT_PEER /run/sparklane/engine.json")
    });
    assert!(rig.try_sh("head", "systemctl is-active sparklane-engine"), "an idle head does not notice");
    let status = rig.status();
    assert_eq!(status.code, 1, "{status:#?}");
    assert!(status.text("state").ends_with("not serving"), "{status:#?}");
    assert!(rig.plain(&["status"]).stdout.contains("waiting for the other ranks"));
    // The same lane again is no no-op then: both start anew.
    rig.deploy("lab-a").is(0, "committed");
    rig.one_release("lab-a");
    let said = rig.plain(&["status"]).stdout;
    assert!(said.contains("serving with the head") && !said.contains("capturing"), "{said}");
}
