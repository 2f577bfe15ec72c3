use super::*;
use sparklane_txn::spec::Side;

fn release(number: u64, paths: [&str; 2]) -> sparklane_lane::Release {
    let nodes = ["head", "worker"]
        .iter()
        .zip(paths)
        .map(|(node, path)| serde_json::json!({"node": node, "path": path, "generation": "0".repeat(64)}));
    serde_json::from_value(serde_json::json!({
        "number": number, "cluster": "lab", "lane": "lab-a", "nodes": nodes.collect::<Vec<_>>(), "image": null,
        "weights": null, "txn": "t1", "rollbackOf": null, "time": "2026-01-01T00:00:00Z", "who": "a@b",
    }))
    .unwrap()
}

fn path(letter: &str) -> String {
    format!("/nix/store/{}-g", letter.repeat(32))
}

fn row(node: &str, at: Option<&str>, active: &str) -> NodeRow {
    let side = |p: &str| Side { path: path(p).parse().unwrap(), generation: "0".repeat(64).parse().unwrap() };
    let engine = UnitStatus { active: active.into(), sub: "running".into(), ..UnitStatus::default() };
    let status = NodeStatus {
        current: at.map(side),
        releases: vec![release(1, [&path("a"), &path("b")]), release(2, [&path("c"), &path("d")])],
        engine: Some(engine),
        ..NodeStatus::default()
    };
    NodeRow::of(node.parse().unwrap(), Ok(Some(status)))
}

fn judged(head: NodeRow, worker: NodeRow) -> (String, u8) {
    let status = ClusterStatus::of("lab".into(), vec![head, worker]);
    (status.state, status.exit_code)
}

#[test]
fn one_release_is_told_only_when_all_nodes_are_on_it_and_serve() {
    let up = |node, at| row(node, Some(at), "active");
    assert_eq!(judged(up("head", "c"), up("worker", "d")), ("release 2".into(), 0));
    assert_eq!(judged(up("head", "a"), up("worker", "b")), ("release 1".into(), 0));
    assert_eq!(judged(up("head", "a"), up("worker", "d")), ("mixed".into(), 4));
    let mut waits = up("worker", "d");
    waits.status.as_mut().unwrap().waits_for_ranks = true;
    assert_eq!(judged(up("head", "c"), waits), ("release 2, not serving".into(), 1));
    let mut booted = up("head", "c");
    booted.status.as_mut().unwrap().engine_of = Some("lab-a".into());
    assert!(ClusterStatus::of("lab".into(), vec![booted.clone()]).to_string().contains("still that of lab-a"));
    assert_eq!(judged(booted, up("worker", "d")), ("release 2, engine still of lab-a".into(), 1));
    let down = row("worker", Some("d"), "failed");
    assert_eq!(judged(up("head", "c"), down), ("release 2, not serving".into(), 1));
    assert_eq!(judged(row("head", None, "inactive"), row("worker", None, "inactive")), ("nothing deployed".into(), 1));
}

#[test]
fn weights_that_are_not_proved_any_more_are_no_full_release() {
    let mut worker = row("worker", Some("d"), "active");
    let (model, manifest) = ("o/m".to_owned(), "f".repeat(64));
    let why = Some("a: was written to".to_owned());
    worker.status.as_mut().unwrap().weights =
        Some(WeightsStatus { model, manifest, state: "proved".into(), why: None });
    assert_eq!(judged(row("head", Some("c"), "active"), worker.clone()), ("release 2".into(), 0));
    let weights = worker.status.as_mut().unwrap().weights.as_mut().unwrap();
    (weights.state, weights.why) = ("unproved".into(), why);
    let status = ClusterStatus::of("lab".into(), vec![row("head", Some("c"), "active"), worker]);
    assert_eq!((status.state.as_str(), status.exit_code), ("release 2, weights unproved on worker", 1));
    let text = status.to_string();
    assert!(text.contains("weights unproved (o/m ffffffffffff): a: was written to"), "{text}");
    assert!(text.contains("weights send mends"), "{text}");
}

#[test]
fn an_engine_that_is_doubted_is_in_the_first_line_and_the_failed_node_is_named() {
    let (mut head, mut worker) = (row("head", Some("c"), "active"), row("worker", Some("d"), "active"));
    head.status.as_mut().unwrap().supervisor =
        Some(serde_json::json!({ "state": "DEGRADED", "reason": "no word from worker" }));
    let status = ClusterStatus::of("lab".into(), vec![head.clone(), worker.clone()]);
    assert_eq!((&*status.state, status.exit_code), ("release 2, degraded on head: no word from worker", 0));
    worker.status.as_mut().unwrap().firewall = Some("the table inet sparklane is gone".into());
    let status = ClusterStatus::of("lab".into(), vec![head.clone(), worker.clone()]);
    assert_eq!((status.state.contains("firewall of worker: the table"), status.exit_code), (true, 1));
    head.status.as_mut().unwrap().waits_for_ranks = true;
    worker.status.as_mut().unwrap().engine.as_mut().unwrap().active = "failed".into();
    let status = ClusterStatus::of("lab".into(), vec![head, worker]);
    assert_eq!((&*status.state, status.exit_code), ("release 2, not serving", 1));
    assert!(status.to_string().contains("sparklane-engine on worker"), "{status}");
}

#[test]
fn a_node_without_its_tools_link_is_not_one_with_nothing_deployed() {
    let (head, mut worker) = (row("head", Some("c"), "active"), row("worker", Some("d"), "active"));
    worker.status.as_mut().unwrap().tool_lost = Some("/g/tool is missing".into());
    let status = ClusterStatus::of("lab".into(), vec![head, worker]);
    assert_eq!((status.state.as_str(), status.exit_code), ("release 2, tool of worker: /g/tool is missing", 1));
    let text = status.to_string();
    assert!(text.contains("tool: /g/tool is missing; at boot") && text.contains("do: nix run .#deploy"), "{text}");
}

#[test]
fn a_node_that_does_not_answer_is_never_a_release() {
    let silent = |cause| {
        let error = DeployError::NoAnswer { cause, why: "worker: no route".into() };
        NodeRow::of("worker".parse().unwrap(), Err(error))
    };
    let gone = silent(Cause::Unreachable);
    let status = ClusterStatus::of("lab".into(), vec![row("head", Some("c"), "active"), gone]);
    assert_eq!((status.state.as_str(), status.exit_code, status.release), ("unreachable", 4, None));
    assert!(status.to_string().contains("\n  worker   no route\n"), "{status}");
    assert!(status.to_string().contains("do: bring the node back to the network"), "{status}");
    // What is no matter of the network is not sent there.
    for (cause, state, next) in [
        (Cause::Login, "no login on worker", "do: let ssh in"),
        (Cause::Sudo, "no sudo on worker", "do: mend sudo there"),
        (Cause::Tool, "no answer from worker", "do: mend what is said above"),
    ] {
        let status = ClusterStatus::of("lab".into(), vec![row("head", Some("c"), "active"), silent(cause)]);
        assert_eq!((status.state.as_str(), status.exit_code, status.release), (state, 4, None));
        assert!(status.to_string().contains(next), "{status}");
    }
    let refused = NodeRow::of("worker".parse().unwrap(), Err(DeployError::Refused("worker: odd".into())));
    assert_eq!(refused.cause, Some(Cause::Tool));
}

#[test]
fn a_worker_serves_when_the_head_does_and_its_rank_has_joined() {
    let (mut head, mut worker) = (row("head", Some("c"), "active"), row("worker", Some("d"), "active"));
    let text = |row: &mut NodeRow, text: &str| {
        row.status.as_mut().unwrap().engine.as_mut().unwrap().text = text.into();
    };
    text(&mut head, "serving");
    text(&mut worker, "loaded, ready to work for the head");
    let said = |head: &NodeRow, worker: &NodeRow| {
        ClusterStatus::of("lab".into(), vec![head.clone(), worker.clone()]).to_string()
    };
    assert!(
        said(&head, &worker).contains("worker   nothing, engine active (serving with the head)"),
        "{}",
        said(&head, &worker)
    );
    text(&mut worker, "waiting for the other ranks");
    worker.status.as_mut().unwrap().waits_for_ranks = true;
    assert!(said(&head, &worker).contains("active (waiting for the other ranks)"), "{}", said(&head, &worker));
    text(&mut head, "starting the API");
    worker.status.as_mut().unwrap().waits_for_ranks = false;
    text(&mut worker, "loaded, ready to work for the head");
    assert!(said(&head, &worker).contains("active (loaded, ready"), "{}", said(&head, &worker));
}

/// A deployment is refused until the profile is mended, so that is what has to be done first.
#[test]
fn a_profile_that_is_not_ours_is_mended_before_a_deployment() {
    let mut worker = row("worker", Some("d"), "active");
    let status = worker.status.as_mut().unwrap();
    (status.current, status.foreign_profile) = (None, Some("leads nowhere".into()));
    let status = ClusterStatus::of("lab".into(), vec![row("head", Some("c"), "active"), worker]);
    assert_eq!((status.state.as_str(), status.exit_code), ("mixed", 4));
    assert!(status.next.as_deref().unwrap().starts_with("mend the profile of worker"), "{status:?}");
}

#[test]
fn what_people_must_see_is_in_the_lines() {
    let mut head = row("head", Some("c"), "active");
    let status = head.status.as_mut().unwrap();
    status.foreign_profile = Some("is not a sparklane generation".into());
    status.damaged_releases = vec!["/r/7.json: EOF".into()];
    status.drift = vec!["/etc/x".into()];
    let told = ClusterStatus::of("lab".into(), vec![head.clone()]);
    assert_eq!((told.exit_code, &*told.state), (1, "release records of head are damaged"));
    let text = ClusterStatus::of("lab".into(), vec![head]).to_string();
    for part in ["not ours: is not", "damaged release: /r/7.json", "edited by hand: /etc/x"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn damaged_journals_are_shown_with_what_to_do_and_one_that_had_begun_is_a_doubt() {
    let txn = |id: &str, state, unsettled| DamagedTxn { txn: id.parse().unwrap(), state, unsettled };
    let (mut head, mut worker) = (row("head", Some("c"), "active"), row("worker", Some("d"), "active"));
    head.status.as_mut().unwrap().damaged = vec![txn("t1", Some(State::Committed), false), txn("t2", None, false)];
    let status = ClusterStatus::of("lab".into(), vec![head.clone(), worker.clone()]);
    assert_eq!((status.state.as_str(), status.exit_code), ("release 2", 0));
    let text = status.to_string();
    for part in ["t1 was committed", "t2 holds no record", "sudo rm -r /var/lib/sparklane/txn/t2"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    worker.status.as_mut().unwrap().damaged = vec![txn("t3", None, true)];
    let status = ClusterStatus::of("lab".into(), vec![head, worker]);
    assert_eq!((status.state.as_str(), status.exit_code), ("in doubt", 4));
    assert!(status.to_string().contains("deploy -- --replace-edited"), "{status}");
    assert!(status.to_string().contains("how far t3 came"), "{status}");
}
