//! Whom the kernel would kill first when memory runs out: a look at the engine's processes, from the host.
//!
//! docker sets `oom_score_adj` of the container; Ray sets its workers', which are the ranks, to 1000 unless
//! `RAY_worker_oom_score_adjustment` says otherwise. Looked at only: lowering needs a right that not every host gives.

use std::path::Path;

use crate::entry::tree::{below, table};

/// One process of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scored {
    /// Its id on the host.
    pub pid: i32,
    /// Its name, as the kernel cuts it.
    pub name: String,
    /// Its `oom_score_adj`, -1000 (never) to 1000 (first).
    pub score: i32,
}

impl std::fmt::Display for Scored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (pid {}) has oom_score_adj {}", self.name, self.pid, self.score)
    }
}

/// The container's process 1 and all below it. `proc` is the host's `/proc`; a process that ends meanwhile is left out.
#[must_use]
pub fn scores(proc: &Path, container: i32) -> Vec<Scored> {
    let all = std::iter::once(container).chain(below(container, &table(proc)));
    all.filter_map(|pid| {
        let of = |name: &str| std::fs::read(proc.join(pid.to_string()).join(name)).ok();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
        let score = text(of("oom_score_adj")?).parse().ok()?;
        Some(Scored { pid, name: text(of("comm")?), score })
    })
    .collect()
}

/// Those that the kernel would take before the lane means it to. `wanted` is the container's own value.
#[must_use]
pub fn first_victims(scores: &[Scored], wanted: i32) -> Vec<&Scored> {
    scores.iter().filter(|s| s.score > wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(proc: &Path, pid: i32, parent: i32, name: &str, score: &str) {
        let dir = proc.join(pid.to_string());
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("stat"), format!("{pid} ({name}) S {parent} 1 1 0")).unwrap();
        std::fs::write(dir.join("comm"), format!("{name}\n")).unwrap();
        std::fs::write(dir.join("oom_score_adj"), format!("{score}\n")).unwrap();
    }

    #[test]
    fn rays_workers_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path();
        process(proc, 10, 1, "sparklane", "-500");
        process(proc, 11, 10, "raylet", "-500");
        process(proc, 12, 11, "ray::RayWorkerP", "1000");
        process(proc, 13, 10, "VLLM::EngineCor", "-500");
        process(proc, 99, 1, "sshd", "1000");
        std::fs::create_dir(proc.join("self")).unwrap();
        let all = scores(proc, 10);
        assert_eq!(all.len(), 4);
        let found = first_victims(&all, -500);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "ray::RayWorkerP (pid 12) has oom_score_adj 1000");
        // A host that cannot lower them: 0 is what was asked for.
        assert_eq!(first_victims(&all, 0).len(), 1);
        assert_eq!(first_victims(&all, -600).len(), 4);
        std::fs::write(proc.join("12/oom_score_adj"), "nonsense").unwrap();
        assert_eq!(scores(proc, 10).len(), 3);
        assert!(scores(proc, 4242).is_empty());
    }

    #[test]
    fn this_process_has_a_score() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(scores(Path::new("/proc"), own)[0].pid, own);
    }
}
