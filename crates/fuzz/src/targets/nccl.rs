//! NCCL's logs and bandwidth tables, truncated and mixed as they come.

use sparklane_fabric::{bench, nccl};

/// One input.
pub fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let log = nccl::parse(&text);
    let expected = ["rocep1s0f0".to_owned(), "roceP2p1s0f0".to_owned()];
    let used = log.used_devices();
    for device in log.unused(&expected) {
        let carried = log.ranks.values().filter(|r| !r.used.is_empty()).count();
        assert!(!used.contains(device) || carried > 1, "{device} is used and unused by one rank");
    }
    let _ = (log.networks(), log.channels());
    if let Some(figure) = log.bandwidth() {
        assert!(figure.is_finite() && figure >= 0.0, "{figure}");
    }
    let json = serde_json::to_vec(&log).expect("it can be written");
    // Numbers may come back with another last digit.
    let again: nccl::Log = serde_json::from_slice(&json).expect("and read");
    assert_eq!((&again.ranks, &again.warnings, again.rows.len()), (&log.ranks, &log.warnings, log.rows.len()));
    let kept = bench::kept(&text, 200);
    assert!(kept.len() <= 200 + 60 && (text.len() > 200 || kept == text));
}
