//! What a measurement means: passed, or the likely cause of what it shows.

use serde::{Deserialize, Serialize};

use crate::nccl::Log;

/// Least GB/s of the bus that serves (mp kit, section 8; good pairs give 17 to 23).
pub const GATE: f64 = 15.0;

/// What should have been used.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    /// RDMA devices, those of both rails.
    pub devices: Vec<String>,
    /// Least GB/s.
    pub gate: f64,
}

/// What a measurement shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// Over RDMA, both halves, fast enough.
    Good,
    /// No bandwidth was printed.
    NoResult,
    /// Data came out wrong.
    WrongData,
    /// TCP.
    Socket,
    /// The ranks were on one machine.
    OneMachine,
    /// The log does not tell the transport.
    Unknown,
    /// RDMA over fewer devices than there are.
    OneDevice,
    /// RDMA at the speed of a cable that was plugged while running, or of stale firmware.
    Stuck,
    /// RDMA, but below the gate.
    Slow,
}

/// A judgement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// What it shows.
    pub finding: Finding,
    /// GB/s of the bus.
    pub gb_per_sec: Option<f64>,
    /// The likely cause.
    pub cause: Option<String>,
    /// What to do.
    pub remedy: Option<String>,
}

impl Verdict {
    /// True when the pair may serve.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.finding == Finding::Good
    }
}

/// Judges a log.
#[must_use]
pub fn judge(log: &Log, expected: &Expected) -> Verdict {
    let gb_per_sec = log.bandwidth();
    let say = |finding, cause: &str, remedy: &str| Verdict {
        finding,
        gb_per_sec,
        cause: Some(cause.to_owned()),
        remedy: Some(remedy.to_owned()),
    };
    let (networks, channels) = (log.networks(), log.channels());
    let has = |transport: &str| channels.contains_key(transport);
    let Some(speed) = gb_per_sec else {
        let (cause, remedy) = no_result(log);
        return say(Finding::NoResult, cause, remedy);
    };
    if log.wrong > 0 {
        return say(
            Finding::WrongData,
            "the test counted wrong elements",
            "do not serve; reboot both nodes and measure again",
        );
    }
    let between = has("NET/IB") || has("NET/Socket");
    if !between && (has("P2P") || has("SHM")) {
        return say(Finding::OneMachine, "all channels stay within one machine", "start one rank on each node");
    }
    if has("NET/Socket") || (!between && networks.contains("Socket")) {
        return say(
            Finding::Socket,
            "TCP instead of RDMA: no RDMA device in the container, NCCL_IB_DISABLE, or NCCL_IB_HCA names devices that are not there",
            "sparklane fabric verify; set NCCL_NET=IB in the lane, so that it refuses to run instead",
        );
    }
    if !has("NET/IB") && !networks.contains("IB") {
        return say(Finding::Unknown, "the log names no transport", "measure with NCCL_DEBUG=INFO");
    }
    let missing = log.unused(&expected.devices);
    if !missing.is_empty() && !has("NET/IB") {
        return say(
            Finding::Unknown,
            "the log names no channel, so the devices in use are not known",
            "measure with NCCL_DEBUG=INFO",
        );
    }
    if !missing.is_empty() {
        let cause = format!(
            "{} carries no channel: half of the bandwidth",
            missing.iter().copied().collect::<Vec<_>>().join(", ")
        );
        return say(
            Finding::OneDevice,
            &cause,
            "NCCL_IB_HCA must name both halves (deploy makes it so from the cluster file); sparklane fabric verify",
        );
    }
    if speed >= expected.gate {
        return Verdict { finding: Finding::Good, gb_per_sec, cause: None, remedy: None };
    }
    if (1.0..=4.0).contains(&speed) {
        return say(
            Finding::Stuck,
            "about 3 GB/s over RDMA: a cable that was plugged or moved while the machines ran, unequal or stale firmware, or a development build of NCCL",
            "reboot both nodes with the cable in; then make firmware equal (sparklane fabric verify, parity); then another NCCL",
        );
    }
    say(
        Finding::Slow,
        "RDMA over all devices, but below the gate",
        "sparklane fabric verify: MTU 9000 on both ends, PCI lanes, one cable's two halves",
    )
}

/// Why nothing was measured, by NCCL's own warnings.
fn no_result(log: &Log) -> (&'static str, &'static str) {
    let warned = |word: &str| log.warnings.iter().any(|w| w.contains(word));
    match () {
        () if warned("ibv_reg_mr") => (
            "memory could not be registered: locked memory is limited, CmaTotal is 0, or the driver is wedged",
            "sparklane fabric verify (memlock, cma); reboot both nodes if all is well there",
        ),
        () if warned("no socket interface found") => (
            "NCCL_SOCKET_IFNAME names no interface of this machine",
            "name the rail's netdev in the cluster file and deploy",
        ),
        () if warned("Failed to initialize any NET plugin") => (
            "no RDMA device in the container, and TCP is not allowed",
            "hand in /dev/infiniband; sparklane fabric verify (rdma, infiniband)",
        ),
        () if warned("Got completion from peer") => (
            "packets of a rail are lost: bonded rails, one-sided MTU, or ports paired crosswise",
            "no bond over the halves; sparklane fabric verify (jumbo, address)",
        ),
        () => ("the test ended before its first row", "run it with NCCL_DEBUG=INFO and read the last warning"),
    }
}
