//! Kernel lines that say something about the NIC. What healthy machines print too is not kept: the 27 W line, the `x0`
//! line of the GPU's port, corrected AER errors, bursts of `NV_ERR_NO_MEMORY` when an engine starts (fabric-real.md 17).

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;

use camino::Utf8Path;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// What a line means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Meaning {
    /// The PCI bus lost data of the NIC, or the NIC was given up.
    NicError,
    /// A NIC's function runs on fewer PCI lanes than it has.
    NicNarrow,
    /// A cable was plugged while the machine ran.
    Plugged,
    /// A cable was pulled, and the NIC with it.
    Pulled,
}

/// A line that means something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// Seconds since boot.
    pub secs: u64,
    /// What it means.
    pub meaning: Meaning,
    /// The kernel's words.
    pub text: String,
}

/// Most bytes read of a log.
const MOST: u64 = 16 * 1024 * 1024;
/// Most notices of one kind that are kept; the newest.
const MOST_OF_A_KIND: usize = 3;

/// Reads a log of `/dev/kmsg`'s form to its present end; an unreadable one has no lines.
#[must_use]
pub fn read(path: &Utf8Path) -> Vec<Notice> {
    // The device would wait for the next line for ever.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let Ok(file) = File::options().read(true).custom_flags(flags).open(path) else { return Vec::new() };
    let is_device = file.metadata().is_ok_and(|m| !m.is_file());
    let mut notices = if is_device { records(file) } else { lines(BufReader::new(file.take(MOST))) };
    for meaning in [Meaning::NicError, Meaning::NicNarrow, Meaning::Plugged, Meaning::Pulled] {
        let extra = notices.iter().filter(|n| n.meaning == meaning).count().saturating_sub(MOST_OF_A_KIND);
        let mut left = extra;
        notices.retain(|n| {
            n.meaning != meaning || left == 0 || {
                left -= 1;
                false
            }
        });
    }
    notices
}

/// The device gives one record per read, and an error for a record that was overwritten meanwhile.
fn records(mut device: File) -> Vec<Notice> {
    let mut notices = Vec::new();
    let mut buffer = [0_u8; 8192];
    let mut lost = 0;
    loop {
        match device.read(&mut buffer) {
            Ok(0) => return notices,
            Ok(n) => notices.extend(buffer.get(..n).and_then(|b| notice(&String::from_utf8_lossy(b)))),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) && lost < 100 => {
                lost += 1
            }
            Err(_) => return notices,
        }
    }
}

fn lines(log: impl std::io::BufRead) -> Vec<Notice> {
    log.split(b'\n').map_while(Result::ok).filter_map(|line| notice(&String::from_utf8_lossy(&line))).collect()
}

/// `6,339,5140900,-;text`: priority, number, microseconds since boot, flags.
#[must_use]
pub fn notice(record: &str) -> Option<Notice> {
    let (head, text) = record.split_once(';')?;
    let micros: u64 = head.split(',').nth(2)?.parse().ok()?;
    let text = text.lines().next().unwrap_or_default();
    Some(Notice { secs: micros / 1_000_000, meaning: meaning(text)?, text: text.chars().take(300).collect() })
}

/// Meaning of a line; `None` for what healthy machines print too.
#[must_use]
pub fn meaning(text: &str) -> Option<Meaning> {
    let has = |word: &str| text.contains(word);
    if has("cx7-pcie-hotplug") {
        return match () {
            () if has("Cable plugin") => Some(Meaning::Plugged),
            () if has("Cable removal") => Some(Meaning::Pulled),
            () => None,
        };
    }
    // Domains 0000 and 0002 are the NIC's two halves; 000f is the GPU's.
    let nic = ["0000:00:00.0", "0002:00:00.0", "0000:01:00.", "0002:01:00."].iter().any(|at| has(at));
    if !nic {
        return None;
    }
    if has("available PCIe bandwidth") && has("mlx5_core") && has("limited by") {
        return Some(Meaning::NicNarrow);
    }
    let uncorrectable = has("Uncorrectable") && (has("AER") || has("PCIe Bus Error"));
    (uncorrectable || has("mlx5_pci_err_detected")).then_some(Meaning::NicError)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_healthy_machines_print_means_nothing() {
        for line in [
            "mlx5_core 0000:01:00.0: mlx5_pcie_event:326:(pid 12): Detected insufficient power on the PCIe slot (27W).",
            "pci 000f:01:00.0: 0.000 Gb/s available PCIe bandwidth, limited by Unknown x0 link at 000f:00:00.0 (capable of 32.000 Gb/s with 2.5 GT/s PCIe x16 link)",
            "mlx5_core 0000:01:00.0: 126.028 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x4 link)",
            "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359",
            "pcieport 0000:00:00.0: AER: enabled with IRQ 329",
            "pcieport 0000:00:00.0: AER: Corrected error message received from 0000:01:00.1",
            "pcieport 0000:00:00.0: PCIe Bus Error: severity=Correctable",
            "mlx5_core 0000:01:00.1: Port module event: module 1, Cable plugged",
            "cx7-pcie-hotplug MTKP0001:00: Hotplug enabled",
        ] {
            assert_eq!(meaning(line), None, "{line}");
        }
    }

    #[test]
    fn what_matters_is_named() {
        for (line, expected) in [
            ("cx7-pcie-hotplug MTKP0001:00: Cable plugin", Meaning::Plugged),
            ("cx7-pcie-hotplug MTKP0001:00: Cable removal", Meaning::Pulled),
            (
                "pcieport 0000:00:00.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:01:00.1",
                Meaning::NicError,
            ),
            (
                "mlx5_core 0000:01:00.0: mlx5_pci_err_detected Device state = 1 health sensors: 0 pci_status: 1. Enter, pci channel state = 1",
                Meaning::NicError,
            ),
            (
                "mlx5_core 0002:01:00.0: 63.014 Gb/s available PCIe bandwidth, limited by 32.0 GT/s PCIe x2 link at 0002:00:00.0 (capable of 126.028 Gb/s with 32.0 GT/s PCIe x4 link)",
                Meaning::NicNarrow,
            ),
        ] {
            assert_eq!(meaning(line), Some(expected), "{line}");
            let record = format!("6,339,5140900,-;{line}\n SUBSYSTEM=pci\n");
            assert_eq!(notice(&record).map(|n| (n.secs, n.meaning)), Some((5, expected)));
        }
    }

    proptest! {
        #[test]
        fn no_record_makes_it_panic(text in "\\PC{0,200}") {
            let _ = notice(&text);
            let _ = notice(&format!("6,1,99999999999999999999999,-;{text}"));
        }
    }
}
