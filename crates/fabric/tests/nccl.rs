//! Real logs, and what can happen to a log.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by failing")]

use proptest::prelude::*;
use sparklane_fabric::nccl::{Log, parse};
use sparklane_fabric::verdict::{Expected, Finding, GATE, Verdict, judge};

const ROCE: &str = include_str!("fixtures/nccl/nccl-roce-2hca.log");
const GOOD: &str = include_str!("fixtures/nccl/ag-good.log");
const SOCKET: &str = include_str!("fixtures/nccl/socket.log");

fn expected() -> Expected {
    Expected { devices: ["rocep1s0f1", "roceP2p1s0f1"].map(str::to_owned).to_vec(), gate: GATE }
}

fn judged(text: &str) -> (Log, Verdict) {
    let log = parse(text);
    let verdict = judge(&log, &expected());
    (log, verdict)
}

#[test]
fn a_real_tcp_fallback_is_one_though_it_prints_lines_of_net_ib() {
    assert!(SOCKET.contains("NET/IB"));
    let (log, verdict) = judged(SOCKET);
    assert_eq!(verdict.finding, Finding::Socket);
    assert_eq!(log.bandwidth(), Some(2.6930));
    assert_eq!(log.version.as_deref(), Some("2.28.9+cuda13.0"));
    assert_eq!(log.ranks.values().filter(|r| r.networks.contains("Socket")).count(), 2);
}

#[test]
fn ranks_on_one_machine_prove_nothing_about_a_cable() {
    for text in [include_str!("fixtures/nccl/p2p.log"), include_str!("fixtures/nccl/shm.log")] {
        let (log, verdict) = judged(text);
        assert_eq!(verdict.finding, Finding::OneMachine, "{:?}", log.channels());
        assert!(log.bandwidth().unwrap() > 1.0);
    }
}

#[test]
fn runs_without_a_result_name_their_cause() {
    for (text, word) in [
        (include_str!("fixtures/nccl/ib-missing.log"), "no RDMA device"),
        (include_str!("fixtures/nccl/badif.log"), "NCCL_SOCKET_IFNAME"),
        (include_str!("fixtures/nccl/nccl-regmr.log"), "could not be registered"),
        (include_str!("fixtures/nccl/nccl-bond.log"), "bonded"),
        ("", "before its first row"),
    ] {
        let (log, verdict) = judged(text);
        assert_eq!(verdict.finding, Finding::NoResult, "{log:?}");
        assert!(verdict.cause.as_ref().unwrap().contains(word), "{verdict:?}");
    }
}

#[test]
fn both_halves_of_a_real_pair_are_seen() {
    let (log, verdict) = judged(&format!("{ROCE}{GOOD}"));
    assert_eq!(log.used_devices().into_iter().collect::<Vec<_>>(), ["roceP2p1s0f1", "rocep1s0f1"]);
    assert_eq!((verdict.finding, verdict.gb_per_sec), (Finding::Good, Some(21.4033)));
    assert_eq!(log.rows.len(), 3);
    assert_eq!(log.rows[0].gb_per_sec, 20.80);
}

#[test]
fn a_cable_plugged_while_running_is_told_by_its_speed() {
    for text in [include_str!("fixtures/nccl/ag-degraded.log"), include_str!("fixtures/nccl/ag-degraded-fec.log")] {
        let (_, verdict) = judged(&format!("{ROCE}{text}"));
        assert_eq!(verdict.finding, Finding::Stuck);
        assert!(verdict.remedy.unwrap().starts_with("reboot both nodes with the cable in"));
    }
}

#[test]
fn one_device_of_two_is_half() {
    let one: String = ROCE.lines().filter(|l| !l.contains("via NET/IB/1")).map(|l| format!("{l}\n")).collect();
    let (_, verdict) = judged(&format!("{one}{GOOD}"));
    assert_eq!(verdict.finding, Finding::OneDevice);
    assert!(verdict.cause.unwrap().starts_with("roceP2p1s0f1 carries"));
    // One of the two ranks only: what the other sends arrives by one half.
    let text = ROCE.replace(
        "NCCL INFO Channel 01/0 : 1[0] -> 0[0] [receive] via NET/IB/1",
        "NCCL INFO Channel 01/0 : 1[0] -> 0[0] [receive] via NET/IB/0",
    );
    assert_ne!(text, ROCE);
    assert_eq!(judged(&format!("{text}{GOOD}")).1.finding, Finding::OneDevice);
    // Configured with one only.
    let text = ROCE.replace(" [1]roceP2p1s0f1:1/RoCE", "");
    assert_eq!(judged(&format!("{text}{GOOD}")).1.finding, Finding::OneDevice);
}

#[test]
fn a_table_without_a_log_proves_no_transport() {
    assert_eq!(judged(GOOD).1.finding, Finding::Unknown);
    // Opened devices are no channels.
    let missing: String = ROCE.lines().filter(|l| !l.contains(" via ")).map(|l| format!("{l}\n")).collect();
    assert_eq!(judged(&format!("{missing}{GOOD}")).1.finding, Finding::Unknown);
}

#[test]
fn merged_devices_are_both() {
    let text = ROCE
        .replace("[0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE", "[0]rocep1s0f1+roceP2p1s0f1:1/RoCE")
        .replace("via NET/IB/1", "via NET/IB/0");
    let table = include_str!("fixtures/nccl/ag-spark101.log");
    let (log, verdict) = judged(&format!("{text}{table}"));
    assert_eq!(verdict.finding, Finding::Good, "{log:?}");
    assert_eq!(log.rows.len(), 4);
}

#[test]
fn ranks_that_write_into_one_line_are_both_read() {
    let text = "a:1:1 [0] NCCL INFO Using network Sockeb:2:2 [0] NCCL INFO Using network IB\n";
    let log = parse(text);
    assert_eq!(log.networks().into_iter().collect::<Vec<_>>(), ["IB", "Sockeb:2:2"]);
    let text = "a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0b:2:2 [0] NCCL INFO Using network Socket\n";
    assert_eq!(parse(text).channels().get("NET/Socket"), Some(&1));
}

#[test]
fn wrong_data_never_passes() {
    let text = GOOD.replace("20.80       0", "20.80       3");
    assert_eq!(judged(&format!("{ROCE}{text}")).1.finding, Finding::WrongData);
}

#[test]
fn normal_lines_of_a_gb10_are_no_finding() {
    let text = format!("{}{ROCE}{GOOD}", include_str!("fixtures/nccl/nccl-gdr0.log"));
    let (log, verdict) = judged(&text);
    assert!(text.contains("GDR 0") && text.contains("GPU Direct RDMA Disabled"));
    assert_eq!((verdict.finding, log.warnings.len()), (Finding::Good, 0));
}

#[test]
fn a_table_of_nonsense_has_a_figure_that_json_can_hold() {
    let log = parse("1 2 3 1e308\n2 2 3 1e308\n3 2 3 1e308\n");
    assert_eq!((log.rows.len(), log.bandwidth()), (3, Some(f64::MAX)));
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,300}") {
        let _ = judged(&text);
        let _ = judged(&format!("a:1:2 [0] NCCL INFO {text}\n{text} NCCL WARN {text}\n# Avg bus bandwidth    : {text}"));
    }

    /// A truncated TCP log, or one with its lines in any order, is never taken for a good RDMA run.
    #[test]
    fn a_tcp_log_never_becomes_a_good_one(cut in 0..SOCKET.len(), seed in any::<u64>(), drop in 1..9_usize) {
        let cut = (cut..SOCKET.len()).find(|at| SOCKET.is_char_boundary(*at)).unwrap_or(0);
        prop_assert_ne!(judged(&SOCKET[..cut]).1.finding, Finding::Good);
        let mut lines: Vec<&str> = SOCKET.lines().collect();
        let mut state = seed | 1;
        for at in (1..lines.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            lines.swap(at, usize::try_from(state >> 33).unwrap() % (at + 1));
        }
        let kept: Vec<&str> = lines.into_iter().enumerate().filter(|(n, _)| n % drop != 0 || drop == 1).map(|(_, l)| l).collect();
        prop_assert_ne!(judged(&kept.join("\n")).1.finding, Finding::Good);
    }

    /// A truncated good run passes only with a figure and both devices' channels before the cut.
    #[test]
    fn a_cut_log_passes_only_with_all_it_needs(cut in 0..(ROCE.len() + GOOD.len())) {
        let whole = format!("{ROCE}{GOOD}");
        let text = &whole[..(cut..whole.len()).find(|at| whole.is_char_boundary(*at)).unwrap_or(0)];
        let (log, verdict) = judged(text);
        if verdict.passed() {
            prop_assert!(log.bandwidth().unwrap() >= GATE && log.used_devices().len() == 2);
        }
    }
}
