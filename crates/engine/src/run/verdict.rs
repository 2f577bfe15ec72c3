//! What is made of a run's end: words, evidence, the exit code, and the other nodes' knowledge of it.

use super::ending::{self, End};
use super::{Run, backoff, since_boot};
use crate::error::{EXIT_CONFIG, EXIT_GIVE_UP, EngineError};
use crate::evidence::{self, Exhibit};
use crate::pair::Rank;
use crate::phase::Phase;
use crate::state::Failure;

/// Lines of the log that the report of a failure repeats.
const REPORTED: usize = 20;

impl Run<'_> {
    /// What of a failure is lost with the container.
    pub(super) async fn exhibits(&self, result: &Result<End, EngineError>) -> Vec<Exhibit> {
        if ending::words(result, None).is_none() || self.setup.evidence.is_none() {
            return Vec::new();
        }
        let mut all = vec![Exhibit { name: "engine.log", content: self.tail.lines().join("\n") }];
        if let Some(id) = &self.container_id
            && let Some(text) = self.setup.client.inspect_text(id).await
        {
            all.push(Exhibit { name: "container.json", content: self.redactor.apply(&text).into_owned() });
        }
        if let Some(metrics) = &self.metrics {
            all.push(Exhibit { name: "metrics.txt", content: metrics.clone() });
        }
        let peers = serde_json::to_string_pretty(&self.peers()).unwrap_or_default();
        all.push(Exhibit { name: "peers.json", content: peers });
        all.extend(self.kernel_exhibit());
        all
    }

    /// Says how it ended, keeps the evidence, tells the other nodes, and gives the unit's exit code.
    pub(super) async fn verdict(&mut self, result: &Result<End, EngineError>, exhibits: &[Exhibit]) -> u8 {
        if let Ok(End::Exited(exit)) = result {
            self.exit_code = Some(exit.code);
        }
        let mut words = ending::words(result, self.tracker.cause());
        let mut code = ending::code(result);
        if let Some(why) = &mut words {
            if let Some(kernel) = self.kernel_says() {
                *why = format!("{why}; the kernel's log says: {kernel}");
            }
            if self.counts(result) {
                code = EXIT_GIVE_UP;
                *why = format!(
                    "{why}. It failed {} times within an hour and stays down: a human is needed. Look: sudo sparklane engine \
                     evidence; then: systemctl restart sparklane-engine",
                    self.failures.len()
                );
            }
            self.report(result, why);
            self.failure = Some(self.keep(why, code, exhibits));
        }
        if code == EXIT_GIVE_UP {
            // Whoever starts it now has looked.
            self.failures.clear();
        }
        self.ready = false;
        self.rank = Rank::Ended;
        self.waits = None;
        self.tracker.reach(Phase::Ended);
        let saying = self.saying(words.clone());
        self.publish();
        if let Some(words) = words {
            self.setup.notify.status(&words);
        }
        if let Some(pair) = &mut self.setup.pair {
            pair.say_last(saying).await;
        }
        code
    }

    /// Counts a failure; true when it was one too many. What another node's rank did is counted there.
    fn counts(&mut self, result: &Result<End, EngineError>) -> bool {
        if matches!(result, Ok(End::Left(_))) {
            return false;
        }
        self.failures.push(since_boot());
        backoff::gives_up(self.failures.len()) && ending::code(result) != EXIT_CONFIG
    }

    fn report(&self, result: &Result<End, EngineError>, why: &str) {
        // The caller tells errors itself.
        if result.is_ok() {
            let lines = self.tail.lines();
            let last = lines[lines.len().saturating_sub(REPORTED)..].join("\n  | ");
            tracing::error!("{why}; its last lines:\n  | {last}");
        }
    }

    fn keep(&self, why: &str, code: u8, exhibits: &[Exhibit]) -> Failure {
        #[expect(clippy::disallowed_methods, reason = "for people to read")]
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let at = since.map_or(0, |since| since.as_secs());
        let summary = evidence::Summary {
            lane: self.setup.generation.lane.as_str(),
            node: self.setup.generation.node.as_str(),
            why,
            attempt: self.attempt,
            phase: self.tracker.phase().words(),
            at,
            code,
        };
        let kept = self.setup.evidence.as_deref().map(|folder| evidence::keep(folder, &summary, exhibits));
        let path = match kept {
            Some(Ok(path)) => Some(path.display().to_string()),
            Some(Err(error)) => {
                tracing::warn!(%error, "the evidence of this failure could not be kept");
                None
            }
            None => None,
        };
        Failure { why: why.to_owned(), attempt: self.attempt, at, code, evidence: path }
    }
}
