//! What the kernel did to a rank is named as the cause of its end, and nothing that it did before.

#![allow(clippy::unwrap_used, clippy::panic)] // a test says what is wrong by failing

mod support;

use std::io::Write as _;

use support::Bench;

fn log(bench: &Bench, line: &str) {
    let mut file = std::fs::File::options().create(true).append(true).open(bench.dir.path().join("kmsg")).unwrap();
    writeln!(file, "{line}").unwrap();
}

const KILLED: &str = "Out of memory: Killed process 4242 (ray::RayWorkerP) total-vm:1kB, anon-rss:2048kB, \
                      file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:1000";
const FELL: &str = "NVRM: Xid (PCI:000f:01:00): 79, pid=1, name=x, GPU has fallen off the bus.";

#[tokio::test]
async fn a_kill_for_memory_is_the_cause() {
    let bench = Bench::new("head");
    log(&bench, &format!("3,10,1000000,-;{FELL}"));
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        log(&bench, &format!("3,11,2000000,-;{KILLED}"));
        bench.fake.end(70);
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    assert_eq!(result.unwrap(), 70);
    let failure = bench.state().failure.unwrap();
    assert!(failure.why.contains("ended by itself with code 0"), "{}", failure.why);
    let killed =
        "the kernel's log says: the kernel killed ray::RayWorkerP (pid 4242) because memory ran out; it held 2 MiB";
    assert!(failure.why.contains(killed), "{}", failure.why);
    assert!(!failure.why.contains("Xid"), "that was before: {}", failure.why);
    let kept = std::path::Path::new(&failure.evidence.unwrap()).join("kernel.log");
    let kept = std::fs::read_to_string(kept).unwrap();
    assert!(kept.contains("Xid") && kept.contains("Killed process 4242"), "{kept}");
}

#[tokio::test]
async fn a_log_that_cannot_be_read_says_nothing() {
    let bench = Bench::new("head");
    let script = async {
        bench.until("STATUS=container runs, engine starts").await;
        bench.fake.end(3);
    };
    let (result, ()) = tokio::join!(bench.run(), script);
    assert_eq!(result.unwrap(), 3);
    assert!(!bench.state().failure.unwrap().why.contains("kernel"));
}
