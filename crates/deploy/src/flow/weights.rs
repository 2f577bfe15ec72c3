//! Weights before a switch: who has them sends them to who lacks them, while what serves goes on serving.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use sparklane_lane::{NodeName, WeightsManifest};
use sparklane_weights::agent::Event;
use sparklane_weights::store::ROOT;
use sparklane_weights::transfer::Receipt;

use super::{Flow, all, died};
use crate::error::DeployError;
use crate::node::NodeHandle;
use crate::plan::NodeFacts;
use crate::ssh::Answer;
use crate::weights::{End, EndRail, SendOptions, send};

/// Longest reading of every byte of a model: one disk at 100 MB/s has 360 GB in it.
const DEEP: Duration = Duration::from_secs(3600);

/// Time between two words about a transfer.
const TELL: Duration = Duration::from_secs(4);

/// What a node says of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Has {
    /// `proved`, `unproved`, `partial` or `absent`.
    pub state: String,
    /// How it was proved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// What is wrong, each with its file.
    #[serde(default)]
    pub why: Vec<String>,
}

/// What each asked node says; one that does not answer is a finding.
pub type Answers = Vec<(NodeName, Result<Has, DeployError>)>;

impl Has {
    /// True when the node has every byte of it.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        self.state == "proved"
    }
}

impl Flow<'_> {
    /// Sends a manifest's files from one node to others.
    ///
    /// # Errors
    /// When a node is unknown, cannot be reached, or a transfer fails.
    pub fn send_weights(
        &self,
        manifest: &WeightsManifest,
        from: Option<&NodeName>,
        to: &[NodeName],
        options: &SendOptions,
        say: &(dyn Fn(&str, &Event) + Sync),
    ) -> Result<Vec<(String, Receipt)>, DeployError> {
        let first = || self.nodes.first().ok_or_else(|| DeployError::Refused("the cluster has no node".into()));
        let from = from.map_or_else(first, |name| self.find(name))?;
        let to: Vec<&NodeHandle> = if to.is_empty() {
            self.nodes.iter().filter(|n| n.member.node != from.member.node).collect()
        } else {
            to.iter().map(|name| self.find(name)).collect::<Result<_, _>>()?
        };
        if to.iter().any(|n| n.member.node == from.member.node) {
            return Err(DeployError::Usage(format!("{} cannot send to itself", from.member.node)));
        }
        let end = |node| self.end(node, &node.tool, Utf8Path::new(ROOT));
        let receivers: Vec<End<'_>> = to.into_iter().map(end).collect::<Result<_, _>>()?;
        send(manifest, &end(from)?, &receivers, options, say)
    }

    /// Asks nodes, all at once, whether they have a manifest's files; `deep` reads every byte.
    ///
    /// # Errors
    /// When a node is unknown. One that does not answer is a finding.
    pub fn have_weights(
        &self,
        manifest: &WeightsManifest,
        names: &[NodeName],
        deep: bool,
    ) -> Result<Answers, DeployError> {
        let nodes: Vec<&NodeHandle> = names.iter().map(|name| self.find(name)).collect::<Result<_, _>>()?;
        let text = manifest.to_text();
        let ask = |node: &NodeHandle| {
            let mut argv = vec![node.tool.as_str(), "weights", "verify", "-", "--json"];
            argv.extend(deep.then_some("--deep"));
            let answer = node.remote.run_for(&argv, text.as_bytes(), DEEP)?;
            answer_of(node, &answer)
        };
        let answers: Vec<Result<Has, DeployError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = nodes.iter().map(|node| scope.spawn(|| ask(node))).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(died()))).collect()
        });
        Ok(names.iter().cloned().zip(answers).collect())
    }

    fn find(&self, name: &NodeName) -> Result<&NodeHandle, DeployError> {
        let found = self.nodes.iter().find(|n| n.member.node == *name);
        found.ok_or_else(|| DeployError::Usage(format!("no node {name} in cluster {}", self.site.cluster.name)))
    }

    pub(super) fn end<'n>(&self, node: &'n NodeHandle, tool: &str, store: &Utf8Path) -> Result<End<'n>, DeployError> {
        let name = &node.member.node;
        let known = self.site.cluster.nodes.get(name);
        let known = known.ok_or_else(|| DeployError::Usage(format!("no node {name} in the cluster file")))?;
        let rail = |(label, rail): (&str, &sparklane_lane::cluster::Rail)| {
            let address = rail.address.parse();
            let address = address
                .map_err(|_| DeployError::Refused(format!("{name}: {label}: {:?} is no address", rail.address)))?;
            Ok(EndRail { name: label.to_owned(), address, device: Some(rail.netdev.clone()) })
        };
        let rails = [("rail1", &known.rail1), ("rail2", &known.rail2)];
        let rails = rails.into_iter().map(rail).collect::<Result<_, DeployError>>()?;
        Ok(End { shell: node, tool: tool.to_owned(), store: store.to_owned(), rails })
    }

    /// Brings the weights of a lane to every node that lacks them. Nothing that serves is touched.
    ///
    /// # Errors
    /// When no node has them, or a transfer fails.
    pub(super) fn stage_weights(&self, facts: &[NodeFacts]) -> Result<(), DeployError> {
        let Some(weights) = facts.first().and_then(|f| f.generation.weights.as_ref()) else { return Ok(()) };
        let store = Utf8PathBuf::from(&weights.path);
        let store = store.parent().unwrap_or(Utf8Path::new("/"));
        let states = std::thread::scope(|scope| {
            let rows = self.nodes.iter().zip(facts);
            let threads: Vec<_> = rows.map(|(node, fact)| scope.spawn(|| has(node, fact, store))).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(died()))).collect()
        });
        let states: Vec<Has> = all(states)?;
        let rows = || self.nodes.iter().zip(facts).zip(&states);
        let lacking: Vec<(&NodeHandle, &NodeFacts)> =
            rows().filter(|(_, has)| !has.is_proved()).map(|(pair, _)| pair).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        let Some(((holder, fact), _)) = rows().find(|(_, has)| has.is_proved()) else {
            return Err(DeployError::Refused(nobody_has(&weights.model, &weights.revision, &states)));
        };
        let text = holder.remote.run(&["cat", &format!("{}/weights.json", fact.to.path)], b"")?.stdout;
        let manifest = WeightsManifest::parse(&text)
            .map_err(|_| DeployError::Refused(format!("{}: its closure holds no manifest", holder.member.node)))?;
        if manifest.id() != weights.manifest {
            return Err(DeployError::Refused(format!("{}: its closure holds another manifest", holder.member.node)));
        }
        let tool = |fact: &NodeFacts| format!("{}/bin/sparklane", fact.to.path);
        let from = self.end(holder, &tool(fact), store)?;
        let to =
            lacking.iter().map(|(node, fact)| self.end(node, &tool(fact), store)).collect::<Result<Vec<_>, _>>()?;
        let rate = self.options.images.while_serving;
        let options = SendOptions { while_serving: true, rate, ..SendOptions::default() };
        self.observer.event(Some(holder.member.node.as_str()), &format!("send weights of {}", manifest.model));
        let lately = Mutex::new(BTreeMap::new());
        let receipts = send(&manifest, &from, &to, &options, &|node, event| match event {
            Event::Note(note) => self.observer.event(Some(node), note),
            Event::Progress { done, total, rate, .. } if is_due(&lately, node, Instant::now()) => {
                self.observer.event(Some(node), &progress_text(*done, *total, *rate));
            }
            _ => {}
        })?;
        for (node, receipt) in receipts {
            let ways: Vec<String> = receipt.ways.iter().map(|w| format!("{} bytes over {}", w.bytes, w.name)).collect();
            self.observer.event(Some(&node), &format!("weights: proved, {}", ways.join(", ")));
        }
        Ok(())
    }
}

/// Whether a node's progress is to be told again, and then notes that it was.
fn is_due(lately: &Mutex<BTreeMap<String, Instant>>, node: &str, now: Instant) -> bool {
    let mut lately = lately.lock().unwrap_or_else(PoisonError::into_inner);
    let due = lately.get(node).is_none_or(|at| now.saturating_duration_since(*at) >= TELL);
    if due {
        lately.insert(node.to_owned(), now);
    }
    due
}

/// `weights: 45 %, 4800 MB/s, 19 s left`.
fn progress_text(done: u64, total: u64, rate: u64) -> String {
    let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100);
    let left = total.saturating_sub(done).checked_div(rate).map_or_else(String::new, |secs| format!(", {secs} s left"));
    format!("weights: {percent} %, {} MB/s{left}", rate / 1_000_000)
}

fn has(node: &NodeHandle, fact: &NodeFacts, store: &Utf8Path) -> Result<Has, DeployError> {
    let (tool, manifest) = (format!("{}/bin/sparklane", fact.to.path), format!("{}/weights.json", fact.to.path));
    let answer = node.remote.run(&[&tool, "weights", "verify", &manifest, "--store", store.as_str(), "--json"], b"")?;
    answer_of(node, &answer)
}

/// An answer is one whatever the exit code: that something is not proved is 3.
fn answer_of(node: &NodeHandle, answer: &Answer) -> Result<Has, DeployError> {
    serde_json::from_str(&answer.stdout).map_err(|_| {
        let said = answer.stderr.trim().lines().last().unwrap_or("no answer").to_owned();
        DeployError::Refused(format!("{}: weights: {said}", node.member.node))
    })
}

fn nobody_has(model: &str, revision: &str, states: &[Has]) -> String {
    let found = states.iter().flat_map(|h| h.why.first()).next();
    let found = found.map_or_else(String::new, |why| format!(" ({why})"));
    format!(
        "no node has the weights of {model} at {revision}{found}. On the head: sparklane weights adopt FOLDER --manifest FILE, \
         or verify --deep for what is there"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_now_and_then_with_rate_and_time_left() {
        let (lately, start) = (Mutex::default(), Instant::now());
        assert!(is_due(&lately, "worker", start) && !is_due(&lately, "worker", start + TELL / 2));
        assert!(is_due(&lately, "third", start) && is_due(&lately, "worker", start + TELL));
        let text = progress_text(45_000_000_000, 100_000_000_000, 5_000_000_000);
        assert_eq!(text, "weights: 45 %, 5000 MB/s, 11 s left");
        assert_eq!(progress_text(0, 0, 0), "weights: 100 %, 0 MB/s");
    }

    #[test]
    fn what_a_node_says_is_read_and_nobody_having_it_names_the_way_out() {
        let has: Has =
            serde_json::from_str(r#"{"name":"x","state":"unproved","why":["a: was replaced"],"manifest":"0"}"#)
                .unwrap();
        assert_eq!(has.state, "unproved");
        let text = nobody_has("o/m", "abc", &[has]);
        assert!(text.contains("was replaced") && text.contains("adopt"), "{text}");
    }
}
