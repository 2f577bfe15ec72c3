//! What engine, kernel, Ray, systemd and docker say, as text or JSON.

use sparklane_engine::memory::{gate::Memory, kmsg};
use sparklane_engine::phase::PhaseTracker;
use sparklane_engine::redact::{Redacted, Redactor};
use sparklane_engine::watch::metrics;
use sparklane_engine::{entry, judge, lines, ray, systemd};
use sparklane_lane::Role;

fn text(text: &str) {
    if let Some(load) = metrics::parse(text) {
        assert!(![load.generated, load.worked, load.running, load.waiting, load.kv].iter().any(|n| n.is_nan()));
    }
    for line in text.lines() {
        if let Some(record) = kmsg::record(line) {
            let _ = kmsg::event(&record.text).map(|event| (event.is_cause(), event.to_string()));
        }
        let _ = (kmsg::event(line), entry::tree::parse(line));
    }
    for role in [Role::Head, Role::Worker] {
        let mut tracker = PhaseTracker::new(role);
        for line in text.lines() {
            let before = tracker.phase();
            tracker.line(line);
            assert!(tracker.phase() >= before, "a log never leads back");
            assert!(tracker.percent().is_none_or(|p| p <= 100), "{line:?}");
        }
    }
    let _ = (systemd::parse(text), Memory::parse(text));
    let secret = Redacted::new("sk-1".to_owned());
    let shown = Redactor::default().with(&secret).apply(text).into_owned();
    assert!(!shown.contains("sk-1"), "{shown}");
}

/// One input.
pub fn run(data: &[u8]) {
    for status in [200, 400, 500] {
        let _ = judge::judge_tokens(status, data, 1);
    }
    let _ = judge::completion_tokens(data);
    let shown = judge::excerpt(data);
    assert!(shown.chars().count() <= 160 && !shown.chars().any(char::is_control));
    let _ = (ray::answers::nodes(data), ray::answers::session(data));
    let _ = serde_json::from_slice::<bollard::models::SystemInfo>(data).map(|info| sparklane_engine::gpus::choose(&info));
    split(data);
    text(&String::from_utf8_lossy(data));
}

/// Lines are the same however their bytes arrive.
fn split(data: &[u8]) {
    let read = |pieces: &[&[u8]]| {
        let mut found = Vec::new();
        let mut lines = lines::LineCutter::default();
        let mut sink = |line: &str| found.push(line.to_owned());
        pieces.iter().for_each(|piece| lines.push(piece, &mut sink));
        lines.flush(&mut sink);
        found
    };
    let (begin, end) = data.split_at(data.len() / 3);
    assert_eq!(read(&[data]), read(&[begin, end]));
}
