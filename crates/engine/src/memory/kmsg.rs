//! The kernel's log: whom it killed for memory, and what the GPU reported (Xid). An engine that died of either says nothing
//! of it itself.

use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The kernel's log, one record a line (Documentation/ABI/testing/dev-kmsg).
pub const KMSG: &str = "/dev/kmsg";
/// Most that is read at once; the kernel's own buffer is smaller.
const MOST: usize = 16 << 20;
/// Longest record the kernel gives, with room.
const RECORD: usize = 16 << 10;

/// A record of the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its number since boot.
    pub seq: u64,
    /// Microseconds since boot.
    pub micros: u64,
    /// What it says.
    pub text: String,
}

/// Reads one line of the form `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,…];TEXT`; lines that start with a blank belong to the
/// record before and are none.
#[must_use]
pub fn record(line: &str) -> Option<Record> {
    let (head, text) = line.split_once(';')?;
    let mut fields = head.split(',');
    fields.next()?.parse::<u32>().ok()?;
    let seq = fields.next()?.parse().ok()?;
    let micros = fields.next()?.parse().ok()?;
    Some(Record { seq, micros, text: text.trim_end().to_owned() })
}

/// What an engine can die of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The kernel killed a process for memory.
    Killed {
        /// Its id on the host.
        pid: i32,
        /// Its name, as the kernel cuts it.
        name: String,
        /// Resident memory of its own, in KiB.
        resident_kib: Option<u64>,
        /// Its `oom_score_adj`.
        score: Option<i32>,
        /// True when a cgroup's limit was met, and not the machine's.
        limit: bool,
    },
    /// The NVIDIA driver reported an error.
    Xid {
        /// PCI address.
        device: String,
        /// Number of the error.
        code: u32,
        /// The driver's words.
        text: String,
    },
}

/// Xids after which the GPU does not work on by itself: 48 double-bit ECC, 79 off the bus, 94 and 95 uncorrected ECC, 119
/// GSP timeout, 140 ECC of the fabric, 154 recovery needed.
pub const CATASTROPHIC: [u32; 7] = [48, 79, 94, 95, 119, 140, 154];

impl Event {
    /// True for what explains an engine's death; other Xids come from a program's own fault.
    #[must_use]
    pub fn is_cause(&self) -> bool {
        match self {
            Self::Killed { name, .. } => is_engines(name),
            Self::Xid { code, .. } => CATASTROPHIC.contains(code),
        }
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Killed { pid, name, resident_kib, score, limit } => {
                let why = if *limit { "for the memory limit of its cgroup" } else { "because memory ran out" };
                write!(f, "the kernel killed {name} (pid {pid}) {why}")?;
                if let Some(kib) = resident_kib {
                    write!(f, "; it held {} MiB", kib / 1024)?;
                }
                score.map_or(Ok(()), |score| write!(f, "; oom_score_adj {score}"))
            }
            Self::Xid { device, code, text } => write!(f, "the GPU at {device} reported Xid {code}: {text}"),
        }
    }
}

/// True for names of an engine's processes, as the kernel cuts them to 15 bytes.
#[must_use]
pub fn is_engines(name: &str) -> bool {
    const BEGIN: [&str; 8] = ["ray::", "raylet", "gcs_server", "VLLM", "vllm", "EngineCore", "sparklane", "python3"];
    BEGIN.iter().any(|begin| name.starts_with(begin))
}

/// What a record's text tells of an engine.
#[must_use]
pub fn event(text: &str) -> Option<Event> {
    killed(text).or_else(|| xid(text))
}

/// `[Memory cgroup ]out of memory…: Killed process PID (NAME) total-vm:…kB, anon-rss:…kB, … oom_score_adj:N`, as
/// `mm/oom_kill.c` writes it.
fn killed(text: &str) -> Option<Event> {
    let (before, rest) = text.split_once("Killed process ")?;
    if !before.to_ascii_lowercase().contains("out of memory") {
        return None;
    }
    let (pid, rest) = rest.split_once(" (")?;
    // The name may hold anything, what follows it may not.
    let (name, rest) = rest.rsplit_once(") total-vm:").or_else(|| rest.rsplit_once(')'))?;
    let number = |key: &str| {
        let (_, after) = rest.split_once(key)?;
        Some(after.split(|c: char| !c.is_ascii_digit() && c != '-').next()?.to_owned())
    };
    Some(Event::Killed {
        pid: pid.parse().ok()?,
        name: name.to_owned(),
        resident_kib: number("anon-rss:").and_then(|n| n.parse().ok()),
        score: number("oom_score_adj:").and_then(|n| n.parse().ok()),
        limit: before.contains("cgroup"),
    })
}

/// `NVRM: Xid (PCI:DEVICE): CODE, …`, as the driver writes it; older ones leave the device's `PCI:` out.
fn xid(text: &str) -> Option<Event> {
    let (_, rest) = text.split_once("NVRM: Xid (")?;
    let (device, rest) = rest.split_once("): ")?;
    let (code, rest) = rest.split_once(',').unwrap_or((rest, ""));
    Some(Event::Xid {
        device: device.trim_start_matches("PCI:").to_owned(),
        code: code.trim().parse().ok()?,
        text: rest.trim().to_owned(),
    })
}

/// Reads the log from a record on: all after the number `after`. Never waits.
///
/// # Errors
/// When the log cannot be opened or read; without `CAP_SYSLOG` that is so on most hosts.
pub fn read(path: &Path, after: Option<u64>) -> std::io::Result<Vec<Record>> {
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut file = std::fs::File::options().read(true).custom_flags(nonblock).open(path)?;
    let (mut all, mut buffer) = (Vec::new(), vec![0; RECORD]);
    while all.len() < MOST {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => all.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
            // The record was overwritten before it was read: the next one follows.
            Err(e)
                if [Some(rustix::io::Errno::PIPE.raw_os_error()), Some(rustix::io::Errno::INTR.raw_os_error())]
                    .contains(&e.raw_os_error()) => {}
            Err(e) => return Err(e),
        }
    }
    let text = String::from_utf8_lossy(&all);
    Ok(text.lines().filter_map(record).filter(|r| after.is_none_or(|n| r.seq > n)).collect())
}

/// Number of the newest record, to read from later.
///
/// # Errors
/// As [`read`].
pub fn newest(path: &Path) -> std::io::Result<Option<u64>> {
    Ok(read(path, None)?.last().map(|r| r.seq))
}

/// What happened after a record that can explain an engine's death, oldest first.
///
/// # Errors
/// As [`read`].
pub fn causes(path: &Path, after: Option<u64>) -> std::io::Result<Vec<Event>> {
    Ok(read(path, after)?.iter().filter_map(|r| event(&r.text)).filter(Event::is_cause).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: &str = "Out of memory: Killed process 4242 (ray::RayWorkerP) total-vm:181202176kB, \
        anon-rss:83066880kB, file-rss:1024kB, shmem-rss:0kB, UID:0 pgtables:168000kB oom_score_adj:1000";
    const CGROUP: &str = "Memory cgroup out of memory: Killed process 7 (a) (b) total-vm:1kB, anon-rss:2kB, \
        file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:-500";
    const FELL: &str = "NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.";
    const FAULT: &str = "NVRM: Xid (PCI:0000:01:00): 31, pid=1234, name=python3, Ch 00000010, intr 00000000. MMU Fault";

    #[test]
    fn a_kill_for_memory_is_told() {
        let found = event(KILLED).unwrap();
        assert!(found.is_cause());
        assert_eq!(
            found.to_string(),
            "the kernel killed ray::RayWorkerP (pid 4242) because memory ran out; it held 81120 MiB; oom_score_adj 1000"
        );
        let Event::Killed { name, score, limit, .. } = event(CGROUP).unwrap() else { panic!() };
        assert_eq!((name.as_str(), score, limit), ("a) (b", Some(-500), true));
        assert!(!event(CGROUP).unwrap().is_cause(), "none of the engine's");
        assert_eq!(event("oom_reaper: reaped process 4242 (x), now anon-rss:0kB"), None);
        assert_eq!(event("traps: Killed process 1 (x)"), None);
    }

    #[test]
    fn xids_are_told_apart() {
        let found = event(FELL).unwrap();
        assert!(found.is_cause());
        assert!(found.to_string().starts_with("the GPU at 000f:01:00 reported Xid 79: pid="), "{found}");
        assert!(found.to_string().ends_with("GPU has fallen off the bus."), "{found}");
        assert!(!event(FAULT).unwrap().is_cause());
        let Some(Event::Xid { code, .. }) = event("NVRM: Xid (0000:01:00): 119") else { panic!() };
        assert_eq!(code, 119);
        assert_eq!(event("NVRM: Xid (x): y, z"), None);
    }

    #[test]
    fn records_are_read_from_a_number_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        let text = format!(
            "6,100,5000000,-;booting\n SUBSYSTEM=x\n4,101,6000000,-;{KILLED}\n12,bad\n3,102,7000000,-,caller=T1;{FELL}\n"
        );
        std::fs::write(&path, text).unwrap();
        let all = read(&path, None).unwrap();
        assert_eq!(
            all.iter().map(|r| (r.seq, r.micros)).collect::<Vec<_>>(),
            [(100, 5_000_000), (101, 6_000_000), (102, 7_000_000)]
        );
        assert_eq!(newest(&path).unwrap(), Some(102));
        assert_eq!(causes(&path, None).unwrap().len(), 2);
        assert_eq!(causes(&path, Some(101)).unwrap(), [event(FELL).unwrap()]);
        assert!(read(&dir.path().join("none"), None).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_the_reader(text in "\\PC{0,80}") {
            let _ = record(&text);
            let _ = event(&text);
        }

        /// Real texts with a piece cut out.
        #[test]
        fn no_damage_breaks_the_reader(from in 0..KILLED.len(), len in 0..60_usize) {
            for text in [KILLED, CGROUP, FELL] {
                let kept: String = text.chars().enumerate().filter(|(i, _)| *i < from || *i >= from + len).map(|c| c.1).collect();
                if let Some(found) = event(&kept) {
                    let _ = (found.is_cause(), found.to_string());
                }
            }
        }
    }
}
