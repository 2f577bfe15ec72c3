//! What a supervisor's own words mean: the known ways in which these engines go wrong, explained. Pure.
//!
//! The numbers are those of docs/gotchas.md. Machines and cables are the fabric part's to judge.

use serde::{Deserialize, Serialize};

use crate::state::{EngineState, State};

/// Something that is, or was, not as it should be on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Its number in docs/gotchas.md, where it has one.
    pub gotcha: Option<String>,
    /// True for what is over: the engine has come up again since.
    pub past: bool,
    /// The supervisor's words.
    pub seen: String,
    /// What they mean, where that is known.
    pub means: Option<String>,
    /// What to do.
    pub remedy: String,
}

struct Known {
    mark: &'static str,
    gotcha: &'static str,
    means: &'static str,
    remedy: &'static str,
}

/// Marks in a supervisor's words. Earlier rows explain more, so the first that fits counts.
const KNOWN: [Known; 17] = [
    Known {
        mark: "the kernel killed",
        gotcha: "G13",
        means: "memory ran out and the kernel took a rank",
        remedy: "sparklane lane ladder LANE prints the next step down; look for what else uses memory on that node",
    },
    Known {
        mark: "reported Xid",
        gotcha: "T11",
        means: "the GPU itself failed; starting again does not mend it",
        remedy: "keep the evidence, switch the machine off and on, compare firmware: sparklane fabric verify",
    },
    Known {
        mark: "NCCL failed",
        gotcha: "G1",
        means: "locked memory is bounded, or a rail is gone",
        remedy: "sparklane fabric verify names which; host.memlock = true in the cluster file, then deploy",
    },
    Known {
        mark: "not enough memory",
        gotcha: "T3",
        means: "the engine would have started into a full memory and taken the other rank down",
        remedy: "free memory on that node (another engine, page cache of a copy), or take a step down: sparklane lane ladder",
    },
    Known {
        mark: "no memory is left for the KV cache",
        gotcha: "T1",
        means: "weights and cache do not fit together",
        remedy: "sparklane lane ladder LANE prints the next step down",
    },
    Known {
        mark: "GPU memory ran out",
        gotcha: "T1",
        means: "the working set grew beyond the memory",
        remedy: "sparklane lane ladder LANE prints the next step down",
    },
    Known {
        mark: "is no longer ALIVE",
        gotcha: "G11",
        means: "a raylet left the head's session; both ranks start anew by themselves",
        remedy: "when it comes again: journalctl -u sparklane-engine on the node of that address, and fabric verify",
    },
    Known {
        mark: "Ray is not complete",
        gotcha: "G11",
        means: "the worker's raylet never joined the head's own session",
        remedy: "journalctl -u sparklane-engine on the worker; a firewall or another Ray on the port: sparklane fabric verify",
    },
    Known {
        mark: "refused its command line",
        gotcha: "G5",
        means: "the image's vLLM does not know a flag of the lane",
        remedy: "sparklane lane show LANE prints the arguments; compare with the image's version",
    },
    Known {
        mark: "the API refuses the canary",
        gotcha: "T7",
        means: "the engine lives and the request does not fit it: model name or API key of the lane",
        remedy: "ask it by hand: curl the lane's /v1/models on the head",
    },
    Known {
        mark: "livelock",
        gotcha: "T8",
        means: "the KV cache was full and nobody new got in",
        remedy: "fewer sequences or shorter ones: sparklane lane ladder LANE",
    },
    Known {
        mark: "no token in time",
        gotcha: "T7",
        means: "/health said 200 while no token came for anyone: a rank or the link hung",
        remedy: "the evidence has metrics and log; sparklane fabric verify; both ranks were started anew",
    },
    Known {
        mark: "oom_score_adj",
        gotcha: "G13",
        means: "when memory runs out the kernel takes this process first",
        remedy: "RAY_worker_oom_score_adjustment=0 is set in Ray lanes: deploy the lane again",
    },
    Known {
        mark: "the machine swaps",
        gotcha: "T12",
        means: "memory filled up over time; requests are slow, and the engine is next",
        remedy: "find what else uses memory on that node; then restart both: systemctl restart sparklane-engine on the head",
    },
    Known {
        mark: "no word from",
        gotcha: "T6",
        means: "the other node's supervisor is not heard: it is off, starts, or both rails are cut",
        remedy: "is it up? sparklane status; sparklane fabric verify. Both start together once it is heard",
    },
    Known {
        mark: "at another release",
        gotcha: "T6",
        means: "the nodes were brought to different lanes, so their ranks must not meet",
        remedy: "nix run .#deploy brings both to one lane",
    },
    Known {
        mark: "code 0, which counts as a failure",
        gotcha: "G13",
        means: "vLLM ends with 0 when one of its ranks died",
        remedy: "the cause is in the other rank's evidence of the same attempt, or in the kernel's log",
    },
];

const LOOK: &str = "the folder under /var/lib/sparklane/evidence on that node has log, container and kernel lines";

/// Everything that a supervisor's state tells.
#[must_use]
pub fn findings(state: &EngineState) -> Vec<Finding> {
    let serves = state.state == State::Serving;
    let mut all: Vec<Finding> = Vec::new();
    if let Some(reason) = &state.reason {
        all.push(explained(reason, false));
    }
    all.extend(state.notes.iter().map(|note| explained(note, false)));
    if let Some(failure) = &state.failure {
        all.push(explained(&failure.why, serves || state.attempt != failure.attempt && state.ready));
    }
    all
}

fn explained(words: &str, past: bool) -> Finding {
    let known = KNOWN.iter().find(|k| words.contains(k.mark));
    Finding {
        gotcha: known.map(|k| k.gotcha.to_owned()),
        past,
        seen: words.to_owned(),
        means: known.map(|k| k.means.to_owned()),
        remedy: known.map_or(LOOK, |k| k.remedy).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{kmsg, oom::Scored};
    use crate::pair::{Advice, AttemptId, Rank, rules};
    use crate::phase::{Phase, PhaseTracker};
    use crate::run::ending::{self, End};
    use crate::state::{Failure, tests::state};
    use crate::watch::triage::{Canary, Finding as Look, judge};

    fn gotcha(words: &str) -> Option<String> {
        explained(words, false).gotcha
    }

    /// The words come from the code that says them, so that a changed sentence does not lose its explanation.
    #[test]
    fn what_the_parts_say_is_known() {
        let cause = |line: &str| {
            let mut tracker = PhaseTracker::new(sparklane_lane::Role::Head);
            tracker.line(line);
            tracker.cause().unwrap_or_default().to_owned()
        };
        assert_eq!(gotcha(&cause("NCCL WARN unhandled system error")).as_deref(), Some("G1"));
        assert_eq!(gotcha(&cause("No available memory for the cache blocks")).as_deref(), Some("T1"));
        assert_eq!(gotcha(&cause("CUDA out of memory")).as_deref(), Some("T1"));
        let killed = "Out of memory: Killed process 42 (ray::RayWorkerP) total-vm:1kB, anon-rss:2kB, file-rss:0kB, \
                      shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:1000";
        assert_eq!(gotcha(&kmsg::event(killed).unwrap().to_string()).as_deref(), Some("G13"));
        let fell = "NVRM: Xid (PCI:000f:01:00): 79, pid=1, name=x, GPU has fallen off the bus.";
        assert_eq!(gotcha(&kmsg::event(fell).unwrap().to_string()).as_deref(), Some("T11"));
        let victim = Scored { pid: 1, name: "ray::R".into(), score: 1000 };
        assert_eq!(gotcha(&victim.to_string()).as_deref(), Some("G13"));
        let mut swap = crate::memory::swap::Watch::default();
        let swaps = [0, 9000].map(|moved| swap.look(crate::memory::swap::Sample { used: 2 << 30, moved }));
        assert_eq!(gotcha(swaps[1].as_deref().unwrap()).as_deref(), Some("T12"));
        let exit = |code| crate::docker::Exit { code, oom: false, error: String::new() };
        let words = |code| ending::words(&Ok(End::Exited(exit(code))), None).unwrap();
        assert_eq!(gotcha(&words(2)).as_deref(), Some("G5"));
        assert_eq!(gotcha(&words(0)).as_deref(), Some("G13"));
        let Look::Odd(odd) = judge(&Canary::Refused("HTTP 404".into()), None, None) else { panic!() };
        assert_eq!(gotcha(&odd).as_deref(), Some("T7"));
        let load = |tokens| Some(crate::watch::metrics::Load { generated: tokens, ..Default::default() });
        let Look::Suspect(frozen) = judge(&Canary::Timeout, load(1.0), load(1.0)) else { panic!() };
        assert_eq!(gotcha(&frozen).as_deref(), Some("T7"));
        let own = rules::Own {
            serves: "s".into(),
            attempt: Some(AttemptId::random().unwrap()),
            rank: Rank::Waiting,
            spent: None,
        };
        let silent = rules::Heard { node: "worker".parse().unwrap(), role: sparklane_lane::Role::Worker, last: None };
        let Advice::Wait(waits) = rules::head(&own, &[silent], std::time::Duration::from_secs(9)) else { panic!() };
        assert_eq!(gotcha(&waits).as_deref(), Some("T6"));
    }

    #[test]
    fn a_healthy_engine_has_no_findings_and_an_old_failure_is_past() {
        let mut now = state(Phase::Serving);
        now.state = State::Serving;
        assert_eq!(findings(&now), []);
        let why = "the engine ended with code 137".to_owned();
        now.failure = Some(Failure { why, attempt: None, at: 1, code: 137, evidence: None });
        let found = findings(&now);
        assert!(found.len() == 1 && found[0].past && found[0].means.is_none());
        now.state = State::Failed;
        assert!(!findings(&now)[0].past || now.ready);
    }
}
