//! Replays what a real vLLM 0.32.0 answered (tests/fixtures/engine) against the simulator: status codes, header names,
//! JSON keys, metric names, log phases, exit codes.

mod support;

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use support::{Sim, ask, events, fixture, free_port, header_names, series, shape};

/// Name of the captured answer, method, path, body.
const CASES: &[(&str, &str, &str, &str)] = &[
    ("health", "GET", "/health", ""),
    ("ping", "GET", "/ping", ""),
    ("version", "GET", "/version", ""),
    ("load", "GET", "/load", ""),
    ("models", "GET", "/v1/models", ""),
    ("chat", "POST", CHAT, r#"{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":8}"#),
    ("completions", "POST", "/v1/completions", r#"{"model":"tiny","prompt":"hi","max_tokens":8}"#),
    ("err-404", "GET", "/nope", ""),
    ("err-405", "GET", CHAT, ""),
    ("err-badjson", "POST", CHAT, r#"{"model":"#),
    ("err-model", "POST", CHAT, r#"{"model":"nope","messages":[{"role":"user","content":"hi"}]}"#),
    ("err-nomsgs", "POST", CHAT, r#"{"model":"tiny"}"#),
    ("err-toolong", "POST", CHAT, r#"{"model":"tiny","messages":[],"max_tokens":999999}"#),
];

const CHAT: &str = "/v1/chat/completions";

#[test]
fn answers_have_the_captured_status_headers_and_keys() {
    let sim = Sim::start("--max-model-len 1024");
    sim.wait_healthy();
    for (name, method, path, body) in CASES {
        let answer = ask(sim.port, method, path, body).unwrap();
        let status = fixture(&format!("single/{name}.status"));
        assert_eq!(answer.status.to_string(), status.split_whitespace().next().unwrap(), "{name}");
        let headers = header_names(&fixture(&format!("single/{name}.headers")));
        assert_eq!(answer.headers, headers, "{name}");
        let captured = fixture(&format!("single/{name}.body"));
        if captured.trim().is_empty() {
            assert_eq!(answer.body, "", "{name}");
            continue;
        }
        let captured: Value = serde_json::from_str(&captured).unwrap();
        assert_eq!(shape(&answer.json()), shape(&captured), "{name}");
        if name.starts_with("err-") || matches!(*name, "version" | "load") {
            assert_eq!(answer.json(), captured, "{name}: errors are the same to the letter");
        }
    }
}

#[test]
fn streams_have_the_captured_chunks() {
    let sim = Sim::start("--max-model-len 1024");
    sim.wait_healthy();
    let usage = r#","stream_options":{"include_usage":true}"#;
    for (name, more) in [("chat-stream", usage), ("chat-stream-nousage", "")] {
        let answer = sim.chat(&format!(r#","max_tokens":8,"stream":true{more}"#));
        assert_eq!(answer.headers, header_names(&fixture(&format!("single/{name}.headers"))), "{name}");
        let captured = fixture(&format!("single/{name}.body"));
        // Every shape of a chunk once, in order of its first coming.
        let shapes = |body: &str| {
            let mut seen: Vec<String> = Vec::new();
            for event in events(body) {
                let shape = serde_json::from_str(event).map_or_else(|_| event.to_owned(), |v| shape(&v).to_string());
                if !seen.contains(&shape) {
                    seen.push(shape);
                }
            }
            seen
        };
        assert_eq!(shapes(&answer.body), shapes(&captured), "{name}");
    }
    let answer = sim.chat(&format!(r#","max_tokens":8,"stream":true{usage}"#));
    // Role, eight tokens, usage, end: one chunk per token.
    assert_eq!(events(&answer.body).len(), 11);
}

#[test]
fn metrics_have_all_names_and_labels() {
    let sim = Sim::start("");
    sim.wait_healthy();
    let before = ask(sim.port, "GET", "/metrics", "").unwrap();
    assert_eq!(before.headers, header_names(&fixture("single/metrics-idle.headers")));
    assert_eq!(series(&before.body), series(&fixture("single/metrics-after-requests.body")));
    assert_eq!(sim.chat(r#","max_tokens":5"#).status, 200);
    let after = ask(sim.port, "GET", "/metrics", "").unwrap().body;
    let line = "vllm:generation_tokens_total{engine=\"0\",model_name=\"tiny\"} 5.0";
    assert!(after.lines().any(|l| l == line));
}

#[test]
fn more_requests_than_seats_wait() {
    let sim = Sim::start("--max-num-seqs 4 --sim-token-ms 30");
    sim.wait_healthy();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(sim.chat(r#","max_tokens":16"#).status, 200));
        }
        std::thread::sleep(Duration::from_millis(250));
        let text = ask(sim.port, "GET", "/metrics", "").unwrap().body;
        let value = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.rsplit_once(' ')).map(|(_, v)| v);
        assert_eq!(value("vllm:num_requests_running{"), Some("4.0"));
        assert_eq!(value("vllm:num_requests_waiting{"), Some("2.0"));
    });
}

#[test]
fn exit_codes_and_last_lines_are_the_captured_ones() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("--port {}", taken.local_addr().unwrap().port());
    let cases = [
        ("unknown-flag", "--no-such-flag 1"),
        ("bad-value", "--tensor-parallel-size two"),
        ("port-in-use", taken.as_str()),
        ("missing-model", "--sim-fail missing-model"),
        ("bad-config", "--sim-fail bad-config"),
        ("too-long", "--sim-fail too-long"),
        ("corrupt-shard", "--sim-fail corrupt-shard"),
        ("missing-shard", "--sim-fail missing-shard"),
        ("kv-too-small", "--sim-fail kv-too-small"),
    ];
    let table = fixture("exits/exits.txt");
    for (name, arguments) in cases {
        let row = table.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(" rc=")).unwrap();
        let code: i32 = row.split(' ').next().unwrap().parse().unwrap();
        let marker = row.split_once(" :: ").unwrap().1.split('\'').next().unwrap();
        let mut sim = Sim::start(arguments);
        assert_eq!(sim.exit_code(5), Some(code), "{name}");
        // The captured runs had their own paths after the first quote or folder.
        let marker = marker.split("/opt").next().unwrap();
        assert!(sim.log().contains(marker), "{name}: no {marker:?} in\n{}", sim.log());
    }
}

#[test]
fn two_ranks_answer_as_captured() {
    let (head, worker) = Sim::pair("--max-model-len 2048");
    let first_line = |name: &str| -> Value { serde_json::from_str(fixture(name).lines().next().unwrap()).unwrap() };
    assert_eq!(shape(&head.chat(r#","max_tokens":16"#).json()), shape(&first_line("mp2/chat.json")));
    let models = ask(head.port, "GET", "/v1/models", "").unwrap().json();
    assert_eq!(shape(&models), shape(&first_line("mp2/models.json")));
    assert_eq!(models["data"][0]["max_model_len"], 2048);
    let metrics = ask(head.port, "GET", "/metrics", "").unwrap().body;
    assert_eq!(series(&metrics), series(&fixture("mp2/metrics.txt")));
    assert_eq!(worker.health(), None, "a headless rank has no API");
    for (sim, log) in [(&head, "mp2/mph.log"), (&worker, "mp2/mpw.log")] {
        assert_eq!(phases(&sim.log()), phases(&fixture(log)), "{log}");
    }
}

/// Marks of the load's phases in the order of their first coming.
fn phases(log: &str) -> Vec<&'static str> {
    const MARKS: [&str; 13] = [
        "Resolved architecture: ",
        "Using max model len 2048",
        "Initializing a V1 LLM engine",
        "Launching vLLM (v0.32.0) headless multiproc executor, with head node address",
        "distributed_init_method=tcp://",
        "is assigned as DP rank 0, PP rank 0",
        "Starting to load model /models/tiny...",
        "Loading weights took",
        "GiB for KV cache on node 0.",
        "KV cache size: 131,072 tokens",
        "init engine (profile, create kv cache, warmup model) took",
        "Starting vLLM server on http://",
        "Application startup complete.",
    ];
    let mut seen = Vec::new();
    for line in log.lines() {
        seen.extend(MARKS.iter().filter(|m| line.contains(**m) && !seen.contains(*m)).copied().collect::<Vec<_>>());
    }
    seen
}

#[test]
fn order_of_the_ranks_does_not_matter() {
    let master = free_port();
    let both = format!("--nnodes 2 --master-addr 127.0.0.1 --master-port {master}");
    let worker = Sim::start(&format!("{both} --node-rank 1 --headless"));
    std::thread::sleep(Duration::from_millis(300));
    let head = Sim::start(&format!("{both} --node-rank 0"));
    head.wait_healthy();
    assert!(worker.log().contains("rank=1"));
}

#[test]
fn an_idle_head_lies_about_a_dead_rank_until_the_next_request() {
    let (mut head, worker) = Sim::pair("");
    worker.signal("KILL");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(head.health(), Some(200));
    assert!(head.running());
    let answer = head.chat("");
    assert_eq!(answer.status, 500);
    let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
    assert_eq!(answer.json()["error"]["message"], message);
    assert_eq!(head.health(), Some(503));
    assert_eq!(head.exit_code(5), Some(0), "vLLM's code for a dead rank");
    assert!(head.log().contains("died unexpectedly"));
}

#[test]
fn a_rank_that_dies_under_load_ends_the_request_with_500() {
    let (mut head, worker) = Sim::pair("--sim-token-ms 20");
    std::thread::scope(|scope| {
        let request = scope.spawn(|| head.chat(r#","max_tokens":1000,"ignore_eos":true"#));
        std::thread::sleep(Duration::from_millis(300));
        worker.signal("KILL");
        assert_eq!(request.join().unwrap().status, 500);
    });
    assert_eq!(head.exit_code(5), Some(0));
}

#[test]
fn a_headless_rank_does_not_notice_the_heads_death() {
    let (head, mut worker) = Sim::pair("");
    head.signal("KILL");
    std::thread::sleep(Duration::from_millis(700));
    assert!(worker.running());
    worker.signal("TERM");
    assert_eq!(worker.exit_code(5), Some(0));
}

#[test]
fn sigterm_cuts_answers_short_or_drains() {
    let long = r#","max_tokens":40,"ignore_eos":true"#;
    let mut sim = Sim::start("--sim-token-ms 30");
    sim.wait_healthy();
    std::thread::scope(|scope| {
        let request = scope.spawn(|| sim.chat(long));
        std::thread::sleep(Duration::from_millis(300));
        sim.signal("TERM");
        let answer = request.join().unwrap();
        assert_eq!((answer.status, &answer.json()["choices"][0]["finish_reason"]), (200, &Value::from("abort")));
    });
    assert_eq!(sim.exit_code(5), Some(0));

    let mut sim = Sim::start("--sim-token-ms 30 --shutdown-timeout 20");
    sim.wait_healthy();
    std::thread::scope(|scope| {
        let request = scope.spawn(|| sim.chat(long));
        std::thread::sleep(Duration::from_millis(300));
        sim.signal("TERM");
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(sim.health(), Some(200), "healthy while it drains");
        let refused = sim.chat("");
        assert_eq!(refused.status, 500);
        assert_eq!(refused.json()["error"]["message"], "cannot schedule new futures after shutdown");
        let answer = request.join().unwrap().json();
        assert_eq!(answer["usage"]["completion_tokens"], 40);
    });
    assert_eq!(sim.exit_code(5), Some(0));
}

#[test]
fn failure_modes_by_file_are_read_live() {
    let file = std::env::temp_dir().join(format!("sim-modes-{}", std::process::id()));
    let mut sim = Sim::start(&format!("--sim-fail-file {}", file.display()));
    sim.wait_healthy();
    let text = |sim: &Sim| {
        let answer = sim.chat(r#","max_tokens":4"#);
        assert_eq!(answer.status, 200);
        let body = answer.json();
        (
            body["choices"][0]["message"]["content"].as_str().unwrap().to_owned(),
            body["usage"]["completion_tokens"].clone(),
        )
    };
    assert_eq!(text(&sim), ("The sky is blue".to_owned(), 4.into()));
    std::fs::write(&file, "no-tokens").unwrap();
    assert_eq!(text(&sim), (String::new(), 0.into()));
    std::fs::write(&file, "garble").unwrap();
    assert!(text(&sim).0.contains('\u{fffd}'));
    std::fs::write(&file, "hang").unwrap();
    let hung = std::thread::scope(|scope| {
        let request = scope.spawn(|| ask(sim.port, "POST", "/v1/completions", r#"{"prompt":"x","max_tokens":1}"#));
        std::thread::sleep(Duration::from_millis(400));
        assert_eq!(sim.health(), Some(200), "healthy while it hangs");
        assert!(!request.is_finished());
        std::fs::write(&file, "crash-at-serving").unwrap();
        request.join().unwrap()
    });
    assert_eq!(hung.map(|a| a.status).unwrap_or(500), 500);
    assert_eq!(sim.exit_code(5), Some(0));
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn crashes_in_a_phase_end_with_1_and_a_slow_load_is_slow() {
    let codes: BTreeSet<_> = ["start", "wait-peer", "load-weights", "kv-cache", "warmup"]
        .into_iter()
        .map(|phase| Sim::start(&format!("--sim-fail crash-at-{phase}")).exit_code(5))
        .collect();
    assert_eq!(codes, BTreeSet::from([Some(1)]));
    let mut slow = Sim::start("--sim-fail slow-load=30");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(slow.health(), None);
    slow.signal("TERM");
    assert_eq!(slow.exit_code(5), Some(0));
}

#[test]
fn peer_death_ends_rank_one_and_the_heads_next_request() {
    let file = std::env::temp_dir().join(format!("sim-peer-{}", std::process::id()));
    let (mut head, mut worker) = Sim::pair(&format!("--sim-fail-file {}", file.display()));
    std::fs::write(&file, "peer-death").unwrap();
    assert_eq!(worker.exit_code(5), Some(0));
    assert_eq!(head.health(), Some(200));
    assert_eq!(head.chat("").status, 500);
    assert_eq!(head.exit_code(5), Some(0));
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn keys_are_asked_for_and_stay_out_of_the_log() {
    let sim = Sim::start("--api-key sesame");
    sim.wait_healthy();
    assert_eq!(sim.chat("").status, 401);
    assert!(!sim.log().contains("sesame"));
    let help = Command::new(env!("CARGO_BIN_EXE_sparklane-sim")).arg("--help").output().unwrap();
    assert!(help.status.success() && !help.stdout.is_empty());
}
