//! Staging: every node checks for itself, all at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sparklane_host::stage::{StageRequest, Staged};
use sparklane_host::status::NodeStatus;
use sparklane_txn::{Link as _, Order, State};

use super::{Depth, Flow, PATIENCE_SECS, all, died};
use crate::error::DeployError;
use crate::link::SshLink;
use crate::node::NodeHandle;
use crate::verdict::{Verdict, VerdictKind};

/// How long a busy worker may take to be left by an operator who lost the head to us.
const YIELD_WAIT: Duration = Duration::from_secs(5);

impl Flow<'_> {
    /// Stages all nodes at once: proofs of closures take their time, and each node has its own. A refusal ends what was
    /// staged. Two operators meet at the head: who has it waits for what the other leaves.
    pub(super) fn stage_all(&self, requests: &[StageRequest]) -> Result<Option<Verdict>, DeployError> {
        let lost = AtomicBool::new(false);
        let answers: Vec<Result<Staged, DeployError>> = std::thread::scope(|scope| {
            let stage = |(node, request)| {
                let lost = &lost;
                scope.spawn(move || self.stage_one(node, request, lost))
            };
            let threads: Vec<_> = self.nodes.iter().zip(requests).map(stage).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(died()))).collect()
        });
        let rows = || self.nodes.iter().zip(&answers);
        let reasons = rows().flat_map(|(node, answer)| match answer {
            Ok(staged) => refusals(node, staged),
            Err(error) => vec![error.to_string()],
        });
        let reasons: Vec<String> = reasons.collect();
        if reasons.is_empty() {
            return Ok(None);
        }
        let why = reasons.join("; ");
        let staged: Vec<&NodeHandle> =
            rows().filter(|(_, a)| a.as_ref().is_ok_and(Staged::passed)).map(|r| r.0).collect();
        self.abort(&staged, requests, &why);
        for (node, answer) in rows() {
            if let (Err(DeployError::Refused(_)), Some(request)) = (answer, requests.first()) {
                node.give_up(&request.spec.txn, &why);
            }
        }
        // The head's answer comes first: that it is busy is the cause of all else.
        for answer in answers {
            answer?;
        }
        Ok(Some(Verdict::plain(&self.subject, VerdictKind::Refused, Some(why))))
    }

    /// Stages one node. A busy worker is asked again while the head is ours or undecided, as its owner may be one who
    /// lost the head and is about to leave.
    fn stage_one(&self, node: &NodeHandle, request: &StageRequest, lost: &AtomicBool) -> Result<Staged, DeployError> {
        self.observer.event(Some(node.member.node.as_str()), "stage");
        let until = Instant::now() + YIELD_WAIT;
        loop {
            let answer = node.stage(request);
            let decides = node.member.role.decides();
            if decides && !answer.as_ref().is_ok_and(Staged::passed) {
                lost.store(true, Ordering::Relaxed);
            }
            let busy = matches!(answer, Err(DeployError::Busy(_)));
            if decides || !busy || lost.load(Ordering::Relaxed) || Instant::now() >= until {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Ends transactions whose processes are gone for good, on all nodes at once: the old lane needs every rank. The
    /// plan is made of what the nodes are then. What cannot be ended is told when the nodes stage.
    pub(super) fn mended(
        &self,
        statuses: Vec<Option<NodeStatus>>,
        depth: Depth,
    ) -> Result<Vec<Option<NodeStatus>>, DeployError> {
        let dead = |s: &NodeStatus| {
            let stuck = s.last.as_ref().is_some_and(|t| t.state == State::Stuck);
            s.lock.is_none() && (stuck || s.open.iter().any(|t| t.state != State::InDoubt))
        };
        if depth < Depth::Act || !statuses.iter().flatten().any(dead) {
            return Ok(statuses);
        }
        let pairs: Vec<_> = self.nodes.iter().zip(&statuses).collect();
        std::thread::scope(|scope| {
            for (node, _) in pairs.iter().filter(|(_, status)| status.as_ref().is_some_and(dead)) {
                self.observer.event(Some(node.member.node.as_str()), "end a transaction that was left");
                scope.spawn(|| node.resolve());
            }
        });
        self.statuses()
    }

    fn abort(&self, staged: &[&NodeHandle], requests: &[StageRequest], why: &str) {
        let Some(first) = requests.first() else { return };
        let mut link = SshLink::new(&self.nodes, &first.spec.txn, self.observer, Duration::from_secs(PATIENCE_SECS));
        for node in staged {
            // When this is lost, the node ends the transaction at its deadline; nothing has changed on it.
            let _told = link.order(&node.member.node, &Order::abort(why));
        }
    }

    pub(super) fn check_only(&self, requests: &[StageRequest]) -> Result<Verdict, DeployError> {
        let answers = std::thread::scope(|scope| {
            let rows = self.nodes.iter().zip(requests);
            let threads: Vec<_> = rows.map(|(node, request)| scope.spawn(move || node.stage(request))).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(died()))).collect()
        });
        let staged: Vec<Staged> = all(answers)?;
        let refused: Vec<String> = self.nodes.iter().zip(&staged).flat_map(|(n, s)| refusals(n, s)).collect();
        Ok(if refused.is_empty() {
            Verdict::plain(&self.subject, VerdictKind::Checked, None)
        } else {
            Verdict::plain(&self.subject, VerdictKind::Refused, Some(refused.join("; ")))
        })
    }
}

fn refusals(node: &NodeHandle, staged: &Staged) -> Vec<String> {
    let row = |name: &str, why: &str| format!("{}: {name}: {why}", node.member.node);
    staged.checks.iter().filter_map(|c| c.refused.as_ref().map(|why| row(&c.name, why))).collect()
}
