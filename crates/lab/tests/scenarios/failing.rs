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
