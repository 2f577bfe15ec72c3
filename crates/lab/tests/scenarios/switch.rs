//! The main job: lanes, releases, rollback by number and by lane.

use serde_json::Value;

use crate::support::Rig;

#[test]
#[ignore = "needs the lab"]
fn main_job_deploys_two_lanes_and_rolls_back_by_number() {
    let rig = Rig::fresh();
    assert_eq!(rig.deploy("lab-a").is(0, "committed").json["release"], 1);
    assert_eq!(rig.one_release("lab-a"), 1);
    assert_eq!(rig.deploy("lab-b").is(0, "committed").json["release"], 2);
    assert_eq!(rig.one_release("lab-b"), 2);
    let again = rig.deploy("lab-b");
    assert_eq!(again.is(0, "unchanged").json["release"], 2);
    rig.app(&["rollback", "--to", "1"]).is(0, "committed");
    assert_eq!(rig.one_release("lab-a"), 3, "a rollback is a release too");

    let releases = rig.app(&["releases"]);
    let text = releases.json.to_string();
    assert_eq!(releases.code, 0, "{releases:#?}");
    let list =
        releases.json.as_array().or_else(|| releases.json["releases"].as_array()).unwrap_or_else(|| panic!("{text}"));
    let row = |r: &Value| (r["number"].as_u64(), r["lane"].as_str().map(str::to_owned), r["rollbackOf"].as_u64());
    let rows: Vec<_> = list.iter().map(row).collect();
    let want = |n: u64, lane: &str, of: Option<u64>| (Some(n), Some(lane.to_owned()), of);
    assert_eq!(rows, [want(1, "lab-a", None), want(2, "lab-b", None), want(3, "lab-a", Some(1))]);

    rig.app(&["rollback", "--to", "lane:lab-b"]).is(0, "committed");
    assert_eq!(rig.one_release("lab-b"), 4);
    rig.app(&["rollback"]).is(0, "committed");
    assert_eq!(rig.one_release("lab-a"), 5);
    rig.app(&["rollback", "--to", "77"]).is(1, "refused").because(&["no such release", "1 (lab-a)"]);
    rig.app(&["rollback", "--to", "lane:lab-x"]).is(1, "refused");
    rig.deploy("lab-c").is(2, "usage").because(&["lab-c", "did you mean"]);
    assert_eq!(rig.one_release("lab-a"), 5);
}
