//! What the kernel says of a rank: whom it killed for memory, what the GPU reported, and whom it would kill first.

use std::path::Path;

use super::Run;
use crate::evidence::Exhibit;
use crate::memory::{gate, kmsg, oom, swap};

/// Causes that are repeated in words, the newest; more say no more.
const TOLD: usize = 3;
/// Lines of the kernel's log that evidence keeps.
const KEPT: usize = 200;
/// Where the kernel counts the pages that it moved.
const VMSTAT: &str = "/proc/vmstat";

impl Run<'_> {
    /// Remembers where the kernel's log is, so that only what follows is taken for a cause.
    pub(super) fn look_at_kernel(&mut self) {
        self.kernel_from = kmsg::newest(&self.setup.kmsg).ok().flatten();
    }

    /// Words for what the kernel did since the start, if anything.
    pub(super) fn kernel_says(&self) -> Option<String> {
        // Without the right to read it, it says nothing.
        let causes = kmsg::causes(&self.setup.kmsg, self.kernel_from).ok()?;
        let newest = &causes[causes.len().saturating_sub(TOLD)..];
        let words: Vec<String> = newest.iter().map(ToString::to_string).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// The end of the kernel's log.
    pub(super) fn kernel_exhibit(&self) -> Option<Exhibit> {
        let all = kmsg::read(&self.setup.kmsg, None).ok()?;
        let last = &all[all.len().saturating_sub(KEPT)..];
        let line = |r: &kmsg::Record| format!("{}.{:06} {}\n", r.micros / 1_000_000, r.micros % 1_000_000, r.text);
        Some(Exhibit { name: "kernel.log", content: last.iter().map(line).collect() })
    }

    /// Looks whether the machine swaps; it is told when that begins and when it ends, and nothing is done about it: what
    /// fills the memory need not be the engine.
    pub(super) fn look_at_swap(&mut self) {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let Some(sample) = swap::Sample::parse(&read(gate::MEMINFO), &read(VMSTAT)) else { return };
        let swaps = self.swap.look(sample);
        if self.swaps.is_some() == swaps.is_some() {
            return;
        }
        match &swaps {
            Some(words) => tracing::warn!("{words}"),
            None => tracing::info!("the machine does not swap any more"),
        }
        self.swaps = swaps;
        self.publish();
    }

    /// Notes which of the engine's processes the kernel would kill before the lane means it to. Looked at once, when all
    /// of them are there.
    pub(super) async fn note_first_victims(&mut self) {
        let Some(id) = &self.container_id else { return };
        let Ok(Some(state)) = self.setup.client.state(id).await else { return };
        let Some(pid) = state.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0) else { return };
        let wanted = self.setup.generation.engine.oom_score_adj.unwrap_or(0);
        let scores = oom::scores(Path::new("/proc"), pid);
        let note =
            |victim: &oom::Scored| format!("{victim}, the lane wants at most {wanted}: the kernel would kill it first");
        let notes: Vec<String> = oom::first_victims(&scores, wanted).into_iter().map(note).collect();
        notes.iter().for_each(|note| tracing::warn!("{note}"));
        self.notes.extend(notes);
        self.publish();
    }
}
