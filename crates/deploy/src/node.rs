//! One node as the control host asks it: status, staging, keys.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use sparklane_host::HostPaths;
use sparklane_host::stage::{StageRequest, Staged};
use sparklane_host::status::NodeStatus;
use sparklane_lane::{StorePath, TxnId};
use sparklane_txn::Order;
use sparklane_txn::cluster::Member;

use crate::answer::read;
use crate::error::DeployError;
use crate::ssh::{self, Answer, Remote};

/// A node and how to reach it.
#[derive(Debug, Clone)]
pub struct NodeHandle {
    /// Name and role.
    pub member: Member,
    /// ssh.
    pub remote: Remote,
    /// The tool to run there.
    pub tool: String,
}

impl NodeHandle {
    /// A handle that uses the tool of the node's last deployment.
    #[must_use]
    pub fn new(member: Member, remote: Remote) -> Self {
        Self { member, remote, tool: usual(&HostPaths::system()) }
    }

    /// From here on the tool of a closure that was copied to the node.
    pub fn use_tool_of(&mut self, closure: &StorePath) {
        self.tool = format!("{closure}/bin/sparklane");
    }

    /// The node's state; `None` when it has no tool yet, or one that speaks another version.
    ///
    /// # Errors
    /// When the node cannot be reached, refuses sudo, or cannot read its own state.
    pub fn status(&self) -> Result<Option<NodeStatus>, DeployError> {
        let Some(answer) = self.answer(&["node", "status"], b"", ssh::ANSWER)? else { return Ok(None) };
        if answer.code != 0 {
            return Err(self.refused(&answer));
        }
        match read(&answer.stdout) {
            Ok(status) => Ok(Some(status)),
            // A tool of another time, in whose place the new one asks.
            Err(_) if read::<serde_json::Map<String, Value>>(&answer.stdout).is_ok() => Ok(None),
            Err(error) => Err(self.odd(&error)),
        }
    }

    /// Stages, or only checks.
    ///
    /// # Errors
    /// When the node refuses to stage at all, or is busy.
    pub fn stage(&self, request: &StageRequest) -> Result<Staged, DeployError> {
        let input = serde_json::to_vec(request).map_err(|e| DeployError::Refused(e.to_string()))?;
        self.ask(&["node", "stage"], &input)
    }

    /// The public key with which the node asks the head.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn key(&self) -> Result<String, DeployError> {
        self.ask(&["node", "key"], b"")
    }

    /// Ends what a staging without an answer may have left: the connection or the process may have died after the
    /// node began. One try; without it the node ends the transaction at its deadline.
    pub fn give_up(&self, txn: &TxnId, why: &str) {
        if let Ok(mut order) = serde_json::to_vec(&Order::abort(why)) {
            order.push(b'\n');
            let _told = self.remote.run(&[&self.tool, "txn", "talk", txn.as_str()], &order);
        }
    }

    /// What a subcommand of the node's tool answers as JSON; `None` when the node has no tool yet.
    ///
    /// # Errors
    /// When the node cannot be reached, or its tool refuses or does not know the subcommand.
    pub fn report<T: DeserializeOwned>(&self, words: &[&str]) -> Result<Option<T>, DeployError> {
        self.report_in(words, b"", ssh::ANSWER)
    }

    /// As [`NodeHandle::report`], with `input` on the subcommand's stdin, for an answer that takes up to `limit`.
    ///
    /// # Errors
    /// As [`NodeHandle::report`].
    pub fn report_in<T: DeserializeOwned>(
        &self,
        words: &[&str],
        input: &[u8],
        limit: Duration,
    ) -> Result<Option<T>, DeployError> {
        let Some(answer) = self.answer(words, input, limit)? else { return Ok(None) };
        if answer.code != 0 {
            return Err(self.refused(&answer));
        }
        read(&answer.stdout).map(Some).map_err(|e| self.odd(&e))
    }

    fn ask<T: DeserializeOwned>(&self, words: &[&str], input: &[u8]) -> Result<T, DeployError> {
        let argv: Vec<&str> = std::iter::once(self.tool.as_str()).chain(words.iter().copied()).collect();
        let answer = self.remote.run(&argv, input)?;
        if answer.code != 0 {
            return Err(self.refused(&answer));
        }
        read(&answer.stdout).map_err(|e| self.odd(&e))
    }

    fn odd(&self, error: &serde_json::Error) -> DeployError {
        DeployError::Refused(format!("{}: odd answer: {error}; what does its tool print there?", self.member.node))
    }

    /// What the tool answers; `None` when the node has none. Where the link to it is lost, that of the generation which
    /// is deployed answers in its place.
    fn answer(&self, words: &[&str], input: &[u8], limit: Duration) -> Result<Option<Answer>, DeployError> {
        let paths = HostPaths::system();
        let spare = (self.tool == usual(&paths)).then(|| format!("{}/bin/sparklane", paths.profile));
        for tool in std::iter::once(&self.tool).chain(&spare) {
            let argv: Vec<&str> = std::iter::once(tool.as_str()).chain(words.iter().copied()).collect();
            let answer = self.remote.run_for(&argv, input, limit)?;
            if !is_absent(tool, &answer) {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    /// Ends what a dead transaction left; what cannot be ended is told when the node stages.
    pub(crate) fn resolve(&self) {
        let _ended = self.answer(&["txn", "resolve"], b"", ssh::ANSWER);
    }

    /// Why a node whose tool does not answer is not one that was never deployed to; `None` when it is.
    #[must_use]
    pub fn remains(&self) -> Option<DeployError> {
        let profile = HostPaths::system().profile;
        let link = self.remote.run(&["readlink", "--", profile.as_str()], b"").ok()?;
        let at = link.stdout.trim().lines().last().filter(|_| link.code == 0)?;
        Some(DeployError::Refused(format!(
            "{}: {profile} leads to {at}, and no program of ours is behind it: the generation is gone from the node's store, or \
             that profile is not ours. On the node, nix-store --verify --check-contents says what is missing; nix run .#deploy \
             of the lane it was on copies it again. To begin anew: sudo mv {profile} {profile}.lost",
            self.member.node
        )))
    }

    fn refused(&self, answer: &Answer) -> DeployError {
        let text = answer.stderr.trim();
        let text = if text.is_empty() { format!("exit code {}", answer.code) } else { text.to_owned() };
        let text = format!("{}: {text}", self.member.node);
        if answer.code == 5 { DeployError::Busy(text) } else { DeployError::Refused(text) }
    }
}

/// The tool of the node's last deployment.
fn usual(paths: &HostPaths) -> String {
    format!("{}/bin/sparklane", paths.tool())
}

/// True when the node has no such tool, which is not the tool's own failure.
fn is_absent(tool: &str, answer: &Answer) -> bool {
    let gone = |line: &str| {
        line.contains(tool) && (line.ends_with("not found") || line.ends_with("No such file or directory"))
    };
    answer.code != 0 && answer.stderr.trim().lines().any(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_is_not_there_is_no_failure_of_it() {
        let tool = "/nix/var/nix/gcroots/sparklane/tool/bin/sparklane";
        let absent =
            |code: i32, stderr: &str| is_absent(tool, &Answer { code, stdout: String::new(), stderr: stderr.into() });
        assert!(absent(1, &format!("sudo: {tool}: command not found\n")));
        assert!(absent(127, &format!("bash: line 1: {tool}: No such file or directory\n")));
        assert!(absent(127, &format!("sh: 1: {tool}: not found\n")));
        assert!(absent(1, &format!("sudo: unable to resolve host x: y\nsudo: {tool}: command not found")));
        assert!(!absent(1, "cat: /x: No such file or directory") && !absent(0, &format!("{tool}: not found")));
        assert!(!absent(1, &format!("sudo: unable to execute {tool}: Exec format error")));
    }
}
