//! What a canary and the metrics around it mean, and what follows. Pure.
//!
//! Source of the rules: `mp-kit.md` section 5.7 and its weak points (a wrong model name bounced for ever; a busy engine was
//! taken for a stuck one), issue 5 item 4.

use super::metrics::Load;

/// From here the KV cache counts as full.
const FULL: f64 = 0.95;
/// Canaries in a row that found a full cache and progress before it counts as livelock.
const LIVELOCK: u32 = 3;
/// Tokens worked on beyond which someone else's prompt is being read: a long one yields nothing for minutes.
const WORK: f64 = 256.0;

/// How a canary ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Canary {
    /// Tokens came.
    Answered,
    /// The API refused it: its own words. The engine may be well, the request does not fit it.
    Refused(String),
    /// The API answered, but not with tokens.
    Failed(String),
    /// No answer could be had at all.
    NoAnswer(String),
    /// No complete answer in time.
    Timeout,
}

/// What one look found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It serves.
    Well,
    /// Something a person should know; starting anew would not mend it.
    Odd(String),
    /// It works on other requests.
    Busy(String),
    /// It works, but the KV cache is full and nobody gets in.
    Saturated(String),
    /// It does not do its work.
    Suspect(String),
}

/// Judges a canary by the metrics before and after it; `None` where they could not be had.
#[must_use]
pub fn judge(canary: &Canary, before: Option<Load>, after: Option<Load>) -> Finding {
    match (canary, before, after) {
        (Canary::Answered, ..) => Finding::Well,
        (Canary::Refused(words), ..) => Finding::Odd(format!("the API refuses the canary: {words}")),
        (Canary::Failed(words), ..) => Finding::Suspect(format!("the API answers without tokens: {words}")),
        (Canary::NoAnswer(words), ..) => Finding::Suspect(format!("the API does not answer: {words}")),
        (Canary::Timeout, Some(before), Some(after)) => slow(before, after),
        (Canary::Timeout, ..) => Finding::Suspect("neither a token nor metrics came in time".to_owned()),
    }
}

fn slow(before: Load, after: Load) -> Finding {
    let load = format!(
        "{} requests run, {} wait, {:.0} % of the KV cache is used",
        after.running,
        after.waiting,
        after.kv * 100.0
    );
    // A counter that fell was begun anew: that is no progress of the engine that was asked. The canary's own prompt is a
    // few tokens of work, so a step that took it and hung is none either.
    let progress = after.generated > before.generated || after.worked >= before.worked + WORK;
    match (progress, after.kv >= FULL) {
        (false, _) => Finding::Suspect(format!("no token in time and none for anyone else: {load}")),
        (true, true) => Finding::Saturated(load),
        (true, false) => Finding::Busy(load),
    }
}

/// What the watchdog does after a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// Tell people: the engine serves, but not as it should.
    Tell(String),
    /// Start the pair anew.
    Bounce(String),
}

/// Findings so far. It forgets everything at an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct History {
    suspects: u32,
    saturated: u32,
}

impl History {
    /// Takes a finding; `failures` suspects in a row are enough.
    pub fn take(&mut self, finding: Finding, failures: u32) -> Action {
        match finding {
            Finding::Well => {
                *self = Self::default();
                Action::Nothing
            }
            // Both prove that the engine lives.
            Finding::Odd(words) | Finding::Busy(words) => {
                *self = Self::default();
                Action::Tell(words)
            }
            Finding::Saturated(words) => {
                self.suspects = 0;
                self.saturated += 1;
                if self.saturated >= LIVELOCK {
                    Action::Bounce(format!("livelock: {words}"))
                } else {
                    Action::Tell(words)
                }
            }
            Finding::Suspect(words) => {
                self.saturated = 0;
                self.suspects += 1;
                if self.suspects >= failures.max(1) { Action::Bounce(words) } else { Action::Tell(words) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(generated: f64, running: f64, kv: f64) -> Option<Load> {
        Some(Load { generated, worked: 0.0, running, waiting: 1.0, kv })
    }

    fn bounces(findings: &[Finding]) -> Vec<bool> {
        let mut history = History::default();
        findings.iter().map(|f| matches!(history.take(f.clone(), 2), Action::Bounce(_))).collect()
    }

    #[test]
    fn twelve_of_twelve_seats_busy_is_no_fault() {
        let finding = judge(&Canary::Timeout, load(100.0, 12.0, 0.6), load(900.0, 12.0, 0.6));
        assert!(matches!(finding, Finding::Busy(_)), "{finding:?}");
        assert_eq!(bounces(&vec![finding; 50]), [false; 50]);
    }

    #[test]
    fn a_request_that_the_api_refuses_is_no_fault() {
        let finding = judge(&Canary::Refused("HTTP 400: no such model".into()), None, None);
        assert_eq!(bounces(&vec![finding; 50]), [false; 50]);
    }

    #[test]
    fn frozen_is_a_fault_whatever_the_cache() {
        for kv in [0.1, 0.99] {
            let finding = judge(&Canary::Timeout, load(100.0, 4.0, kv), load(100.0, 4.0, kv));
            assert_eq!(bounces(&[finding.clone(), finding]), [false, true]);
        }
        let restarted = judge(&Canary::Timeout, load(100.0, 4.0, 0.1), load(3.0, 4.0, 0.1));
        assert!(matches!(restarted, Finding::Suspect(_)));
    }

    #[test]
    fn a_long_prompt_is_progress_and_the_canarys_own_is_none() {
        let worked = |worked| Some(Load { worked, running: 1.0, ..Load::default() });
        assert!(matches!(judge(&Canary::Timeout, worked(0.0), worked(8192.0)), Finding::Busy(_)));
        assert!(matches!(judge(&Canary::Timeout, worked(0.0), worked(12.0)), Finding::Suspect(_)));
    }

    #[test]
    fn a_full_cache_with_progress_is_told_and_only_livelock_is_a_fault() {
        let finding = judge(&Canary::Timeout, load(100.0, 4.0, 0.97), load(101.0, 4.0, 0.97));
        assert!(matches!(finding, Finding::Saturated(_)));
        assert_eq!(bounces(&[finding.clone(), finding.clone(), finding.clone()]), [false, false, true]);
        assert_eq!(bounces(&[finding.clone(), finding.clone(), Finding::Well, finding]), [false; 4]);
    }

    #[test]
    fn an_api_that_is_gone_or_empty_is_a_fault_after_some_tries() {
        for canary in [Canary::NoAnswer("refused".into()), Canary::Failed("HTTP 500".into()), Canary::Timeout] {
            let finding = judge(&canary, None, None);
            assert_eq!(
                bounces(&[finding.clone(), Finding::Well, finding.clone(), finding]),
                [false, false, false, true]
            );
        }
    }
}
