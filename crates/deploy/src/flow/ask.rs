//! Questions to the nodes' tools, by parts that this crate does not know.

use std::time::Duration;

use sparklane_lane::NodeName;

use super::Flow;
use crate::error::DeployError;
use crate::node::NodeHandle;
use crate::ssh;

/// Every node's answer to one question; `None` where no tool answers yet.
pub type Reports<T> = Vec<(NodeName, Result<Option<T>, DeployError>)>;

/// One node's answer, and when it came.
pub struct TimedReport<T> {
    /// The node.
    pub node: NodeName,
    /// Its answer; `None` where no tool answers yet.
    pub answer: Result<Option<T>, DeployError>,
    /// This host's wall clock before the question and after the answer, in milliseconds since 1970.
    pub between: (u64, u64),
}

fn wall_millis() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "two machines are compared by it")]
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Flow<'_> {
    /// Asks every node at once with a subcommand of its tool; a node that does not answer is a finding.
    pub fn reports<T: serde::de::DeserializeOwned + Send>(&self, words: &[&str]) -> Reports<T> {
        let answers = self.each(|node| node.report(words));
        self.nodes.iter().map(|n| n.member.node.clone()).zip(answers).collect()
    }

    /// As [`Flow::reports`], with an input for each node and a longest wait; beside each answer this host's wall clock before and after, in
    /// milliseconds.
    pub fn reports_on<T: serde::de::DeserializeOwned + Send>(
        &self,
        words: &[&str],
        limit: Duration,
        input: impl Fn(&NodeName) -> Vec<u8> + Sync,
    ) -> Vec<TimedReport<T>> {
        let ask = |node: &NodeHandle| {
            let sent = wall_millis();
            let answer = node.report_in(words, &input(&node.member.node), limit);
            Ok(TimedReport { node: node.member.node.clone(), answer, between: (sent, wall_millis()) })
        };
        let answers = self.each(ask).into_iter().zip(&self.nodes);
        let dead = |error, node: &NodeHandle| TimedReport {
            node: node.member.node.clone(),
            answer: Err(error),
            between: (0, 0),
        };
        answers.map(|(answer, node)| answer.unwrap_or_else(|error| dead(error, node))).collect()
    }

    /// What the head's tool answers to a subcommand with that input; `None` where no tool answers yet.
    ///
    /// # Errors
    /// When the head cannot be reached, or its tool refuses.
    pub fn head_report<T: serde::de::DeserializeOwned>(
        &self,
        words: &[&str],
        input: &[u8],
    ) -> Result<Option<T>, DeployError> {
        let head = self.nodes.first().ok_or_else(|| DeployError::Refused("the cluster has no node".into()))?;
        head.report_in(words, input, ssh::ANSWER)
    }
}
