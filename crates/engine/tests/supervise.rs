//! The supervisor of one node, from creation to end.

#![allow(clippy::unwrap_used, clippy::panic)] // a test says what is wrong by failing

mod support;

use std::time::Duration;

use serde_json::json;
use sparklane_engine::EngineError;

use support::{Bench, CONFIG, MANIFEST};

#[tokio::test]
async fn a_head_is_ready_when_health_answers_and_stops_on_request() {
    let bench = Bench::new("head");
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        bench.fake.say("(Worker pid=1) INFO distributed_init_method=tcp://10.0.0.1:25000 backend=gloo");
        bench.until("STATUS=waiting for the other ranks").await;
        bench.fake.say("Loading safetensors checkpoint shards:  50% Completed | 1/2");
        bench.until("STATUS=loading weights 50%").await;
        bench.fake.say("INFO:     Application startup complete.");
        bench.until("STATUS=starting the API").await;
        assert!(!bench.heard("READY=1"));
        bench.serve_health();
        bench.until("READY=1").await;
        assert!(bench.state().ready);
        bench.stop.notify_one();
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    assert_eq!(result.unwrap(), 0);
    assert!(bench.heard("STOPPING=1"));
    let lines = bench.lines.lock().unwrap().clone();
    assert_eq!(lines.last().map(String::as_str), Some("draining"), "what is said while draining is kept");
    let name = "sparklane-engine";
    let calls = bench.fake.calls();
    assert_eq!(calls[..3], [format!("create {name}"), format!("start {name}"), format!("stop {name} 20")]);
    assert!(bench.fake.0.lock().unwrap().containers.is_empty(), "{calls:?}");
    assert_eq!((bench.state().exit_code, bench.state().ready), (Some(0), false));
}

#[tokio::test]
async fn a_worker_is_ready_at_the_rendezvous() {
    let bench = Bench::new("worker");
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!bench.heard("READY=1"));
        bench
            .fake
            .say("INFO Launching vLLM (v0.32.0) headless multiproc executor, with head node address 10.0.0.1:25000");
        bench.until("READY=1").await;
        bench.stop.notify_one();
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    assert_eq!(result.unwrap(), 0);
}

#[tokio::test]
async fn exit_codes_are_kept_but_zero_and_usage() {
    for (container, unit) in [(0, 1), (2, 78), (1, 1), (3, 3), (137, 137), (78, 78)] {
        let bench = Bench::new("head");
        let script = async {
            bench.until("STATUS=container runs, engine starts").await;
            bench.fake.say("(EngineCore pid=85) ERROR Worker proc VllmWorker-1 died unexpectedly (exit code: -9)");
            bench.fake.end(container);
        };
        let (result, ()) = tokio::join!(bench.run(), script);
        assert_eq!(result.unwrap(), unit, "container {container}");
        let state = bench.state();
        assert_eq!(state.exit_code, Some(container));
        assert_eq!(state.cause.as_deref(), Some("a rank's process died"));
        assert!(!bench.heard("READY=1"));
        let said = bench.heard.0.lock().unwrap().last().cloned().unwrap();
        assert!(said.contains("code") && said.contains("a rank's process died"), "{said}");
        assert!(bench.fake.0.lock().unwrap().containers.is_empty(), "the ended container is removed");
    }
}

#[tokio::test]
async fn the_image_is_found_by_each_of_its_identities_and_refused_by_name() {
    for found in ["classic", "containerd", "pulled by digest", "missing"] {
        let bench = Bench::new("worker");
        {
            let mut docker = bench.fake.0.lock().unwrap();
            docker.images.clear();
            match found {
                "classic" => docker.images.push(CONFIG.into()),
                "containerd" => docker.images.push(MANIFEST.into()),
                "pulled by digest" => docker.digests.push(("sha256:99".into(), format!("r.example/x@{MANIFEST}"))),
                _ => docker.digests.push(("sha256:99".into(), "sparklane-sim:lab@sha256:0".into())),
            }
        }
        let ender = async {
            if found != "missing" {
                bench.until("STATUS=container runs, engine starts").await;
                bench.stop.notify_one();
            }
        };
        let (result, ()) = tokio::join!(bench.run(), ender);
        let used = bench.fake.0.lock().unwrap().created.as_ref().map(|c| c["Image"].clone());
        match found {
            "classic" => assert_eq!(used, Some(CONFIG.into())),
            "containerd" => assert_eq!(used, Some(MANIFEST.into())),
            "pulled by digest" => assert_eq!(used, Some("sha256:99".into())),
            _ => {
                let error = result.unwrap_err();
                assert_eq!(error.exit_code(), 78);
                let text = error.to_string();
                assert!(text.contains(CONFIG) && text.contains(MANIFEST) && text.contains("deploy"), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn stale_containers_of_ours_go_and_foreign_ones_are_refused() {
    let bench = Bench::new("worker");
    let ours = json!({ "dev.sparklane.generation": "x", "dev.sparklane.role": "engine" });
    bench.fake.0.lock().unwrap().containers.insert("old-name".into(), ours);
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        bench.stop.notify_one();
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    result.unwrap();
    assert_eq!(bench.fake.calls()[..2], ["stop old-name 20", "remove old-name"]);

    let bench = Bench::new("worker");
    bench.fake.0.lock().unwrap().containers.insert("sparklane-engine".into(), json!({ "other": "1" }));
    let error = bench.run().await.unwrap_err();
    assert_eq!(error.exit_code(), 78);
    assert!(bench.fake.0.lock().unwrap().containers.contains_key("sparklane-engine"));
    assert_eq!(bench.fake.calls(), Vec::<String>::new());
}

#[tokio::test]
async fn a_container_that_cannot_start_is_removed() {
    for (status, code) in [(400, 78), (500, 1)] {
        let bench = Bench::new("worker");
        bench.fake.0.lock().unwrap().refuse_start = Some((status, "exec: no such file".into()));
        let error = bench.run().await.unwrap_err();
        assert_eq!(error.exit_code(), code);
        assert!(error.to_string().contains("no such file"));
        assert!(bench.fake.0.lock().unwrap().containers.is_empty());
    }
}

#[tokio::test]
async fn a_taken_port_a_missing_device_and_a_folder_that_cannot_be_made_are_named() {
    let bench = Bench::new("head");
    let _taken = std::net::TcpListener::bind(("127.0.0.1", bench.generation.engine.api_port)).unwrap();
    let error = bench.run().await.unwrap_err();
    assert!(matches!(error, EngineError::PortTaken { .. }), "{error}");
    let mut bench = Bench::new("worker");
    bench.generation.engine.devices = vec!["/dev/no-such-device".into()];
    let error = bench.run().await.unwrap_err();
    assert_eq!((error.exit_code(), error.to_string().contains("/dev/no-such-device")), (1, true));
    let mut bench = Bench::new("worker");
    let mount = json!({"source": "/proc/no/such/folder", "target": "/x", "readOnly": false, "create": true});
    bench.generation.engine.mounts = vec![serde_json::from_value(mount).unwrap()];
    let error = bench.run().await.unwrap_err();
    assert!(error.to_string().contains("/proc/no/such/folder"));
}

#[tokio::test]
async fn folders_are_made_and_the_api_key_is_in_no_log_and_no_request() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut bench = Bench::new("worker");
    let cache = bench.dir.path().join("cache/lab-a");
    bench.generation.engine.cache_roots.insert("vllm".into(), cache.display().to_string());
    let key = bench.dir.path().join("key");
    std::fs::write(&key, "sk-test-key\n").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    bench.generation.engine.api_key_file = Some(key.display().to_string());
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        bench.fake.say("non-default args: {'api_key': ['sk-test-key']} Launching vLLM (v0.32.0)");
        bench.until("READY=1").await;
        bench.stop.notify_one();
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    result.unwrap();
    assert!(cache.is_dir());
    let created = bench.fake.0.lock().unwrap().created.clone().unwrap().to_string();
    assert!(!created.contains("sk-test-key"), "{created}");
    let said = bench.lines.lock().unwrap().join("\n");
    assert!(said.contains("[redacted]") && !said.contains("sk-test-key"), "{said}");
    // The same file, readable by others, is refused before anything starts.
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::remove_file(bench.dir.path().join("docker.sock")).unwrap();
    let error = bench.run().await.unwrap_err();
    assert_eq!(error.exit_code(), 78);
}

#[tokio::test]
async fn the_tenth_failure_within_an_hour_is_the_last_and_a_human_begins_anew() {
    let bench = Bench::new("head");
    let fail = async |failures: usize, on_purpose: bool| {
        if failures > 0 {
            let mut state = bench.state();
            let at = state.failures.last().copied().unwrap().saturating_sub(100);
            state.failures = vec![at; failures];
            sparklane_engine::state::write(&bench.dir.path().join("run/engine.json"), &state);
        }
        bench.heard.0.lock().unwrap().clear();
        let script = async {
            bench.until("STATUS=container runs, engine starts").await;
            bench.fake.end(1);
        };
        let (result, ()) = tokio::join!(bench.run_started(on_purpose), script);
        result.unwrap()
    };
    assert_eq!(fail(0, false).await, 1);
    assert_eq!(fail(8, false).await, 1);
    assert_eq!(bench.state().failures.len(), 9);
    assert_eq!(fail(9, true).await, 1, "who starts it on purpose has looked");
    assert_eq!(fail(9, false).await, 79);
    assert!(bench.state().failure.unwrap().why.contains("a human is needed"));
    assert!(bench.state().failures.is_empty());
}

#[tokio::test]
async fn a_kill_by_the_kernel_is_named_and_older_ones_are_not() {
    let bench = Bench::new("head");
    let kill = |seq: u32, pid: u32| {
        format!(
            "3,{seq},5,-;Out of memory: Killed process {pid} (VLLM::Worker) total-vm:9kB, anon-rss:4096kB, file-rss:0kB, \
             shmem-rss:0kB, UID:0 pgtables:9kB oom_score_adj:0\n"
        )
    };
    let file = bench.dir.path().join("kmsg");
    std::fs::write(&file, kill(7, 111)).unwrap();
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        std::fs::write(&file, kill(7, 111) + &kill(8, 222)).unwrap();
        bench.fake.end(70);
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    assert_eq!(result.unwrap(), 70);
    let failure = bench.state().failure.unwrap();
    assert!(failure.why.contains("the kernel killed VLLM::Worker (pid 222)"), "{failure:?}");
    assert!(!failure.why.contains("111"), "{failure:?}");
    let kept = std::fs::read_to_string(std::path::Path::new(&failure.evidence.unwrap()).join("kernel.log")).unwrap();
    assert!(kept.contains("222") && !kept.contains("111"));
}
