//! Images onto the nodes before anything is staged: the head from the registry, the others from the head over the rails,
//! serving untouched. The control host starts both ends and hands each the transfer's key; no byte passes through it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize;
use sparklane_host::status::NodeStatus;
use sparklane_oci::Reference;
use sparklane_oci::node::{From, Order, Said, StagedImage, TransferKey, Wanted};
use sparklane_weights::agent::Event;
use sparklane_weights::images::ImageServeRequest;
use sparklane_weights::transfer::Key;

use super::{Flow, all, died};
use crate::error::DeployError;
use crate::node::NodeHandle;
use crate::plan::NodeFacts;
use crate::weights::{READY, Running, rails_between};

/// Silence after which a node counts as gone; it says something every 3 s.
const SILENCE: Duration = Duration::from_secs(60);

/// How images come to the nodes.
#[derive(Debug, Clone, Default)]
pub struct ImageOptions {
    /// Bytes per second that may be moved while an engine serves; without it no image is. Weights keep to it too.
    pub while_serving: Option<u64>,
    /// Registries that nodes may speak plain http to.
    pub plain_http: Vec<String>,
    /// File on the head with logins.
    pub auth_file: Option<Utf8PathBuf>,
}

#[derive(Deserialize)]
struct State {
    present: bool,
}

/// `EX_USAGE` of clap: a tool that does not know the subcommand.
const UNKNOWN: i32 = 2;

/// A node and what it shall have.
#[derive(Clone)]
struct Want<'a> {
    node: &'a NodeHandle,
    fact: &'a NodeFacts,
    wanted: Wanted,
    /// The tool to ask, once one has answered.
    tool: String,
}

impl Want<'_> {
    fn refused(&self, why: &str) -> DeployError {
        DeployError::Refused(format!("{}: image: {why}{}", self.node.member.node, remedy(why)))
    }

    fn serves(&self) -> bool {
        disturbed(&self.fact.status)
    }
}

/// What to do about docker's commonest trouble, whose own words do not say it.
fn remedy(why: &str) -> &'static str {
    if why.contains("did not connect") { ". Start docker there: systemctl start docker" } else { "" }
}

/// True when fetching would disturb a node: its engine serves or loads. One that waits for a rank that cannot come, as its
/// image is what is missing, does neither.
fn disturbed(status: &NodeStatus) -> bool {
    let up = status.engine.as_ref().is_some_and(|e| matches!(e.active.as_str(), "active" | "activating"));
    up && !status.waits_for_ranks
}

impl Flow<'_> {
    /// Brings the lane's image into the docker of every node that lacks it.
    ///
    /// # Errors
    /// Refused: a node serves and no rate was given, or the image cannot be had.
    pub(super) fn stage_images(&self, facts: &[NodeFacts]) -> Result<(), DeployError> {
        let asked: Vec<Want<'_>> = self.nodes.iter().zip(facts).filter_map(|(n, f)| want(n, f)).collect();
        let Some(found) = all(self.at_once(&asked, look))?.into_iter().collect::<Option<Vec<_>>>() else {
            // A release from before these commands: whether its image is there, its own staging finds.
            return Ok(());
        };
        let (wants, present): (Vec<Want<'_>>, Vec<bool>) = found.into_iter().unzip();
        let missing: Vec<&Want<'_>> = wants.iter().zip(&present).filter(|(_, there)| !**there).map(|p| p.0).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let rate = self.options.images.while_serving;
        let serving = wants.iter().filter(|w| w.serves()).map(|w| w.node.member.node.as_str());
        let serving: Vec<&str> = serving.collect();
        if rate.is_none() && !serving.is_empty() {
            let lacking: Vec<&str> = missing.iter().map(|w| w.node.member.node.as_str()).collect();
            return Err(DeployError::Refused(format!(
                "{} lacks the image {} and {} serves: fetching and unpacking would disturb it. Do it slowly: \
                 --while-serving 50M, or stop the engine first",
                lacking.join(", "),
                missing.first().map_or("", |w| w.wanted.reference.as_str()),
                serving.join(", ")
            )));
        }
        let (head, others): (Vec<&Want<'_>>, Vec<&Want<'_>>) =
            wants.iter().partition(|w| w.fact.generation.role.decides());
        let lacks = |w: &&Want<'_>| missing.iter().any(|m| m.node.member.node == w.node.member.node);
        let others: Vec<Want<'_>> = others.into_iter().filter(|w| lacks(w)).cloned().collect();
        let Some(head) = head.first() else { return Err(died()) };
        let names: Vec<&str> = others.iter().map(|w| w.node.member.node.as_str()).collect();
        self.take_from_registry(head, !others.is_empty(), rate).map_err(|error| match names.as_slice() {
            [] => error,
            // The head may have it in its docker and fetches for them.
            names => error.because(&format!("the image was for {}, which lacks it", names.join(", "))),
        })?;
        self.take_from_head(head, &others, rate)
    }

    fn at_once<'w, T: Send>(
        &self,
        wants: &'w [Want<'w>],
        act: impl Fn(&'w Want<'w>) -> Result<T, DeployError> + Sync,
    ) -> Vec<Result<T, DeployError>> {
        std::thread::scope(|scope| {
            let act = &act;
            let threads: Vec<_> = wants.iter().map(|want| scope.spawn(move || act(want))).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(died()))).collect()
        })
    }

    fn take_from_registry(&self, want: &Want<'_>, keep: bool, rate: Option<u64>) -> Result<(), DeployError> {
        let images = &self.options.images;
        let from = match want.wanted.reference.parse::<Reference>() {
            Ok(_) => From::Registry { plain_http: images.plain_http.clone(), auth_file: images.auth_file.clone() },
            Err(_) => From::Here,
        };
        let order = Order { wanted: want.wanted.clone(), from, keep, rate };
        let child = self.start(want, &order)?;
        self.follow(want, child)
    }

    /// One sender on the head for all that lack the image.
    fn take_from_head(&self, head: &Want<'_>, others: &[Want<'_>], rate: Option<u64>) -> Result<(), DeployError> {
        if others.is_empty() {
            return Ok(());
        }
        let key = Key::random().map_err(|e| head.refused(&e.to_string()))?.expose();
        let from = self.end(head.node, &head.tool, Utf8Path::new("/"))?;
        let request = ImageServeRequest {
            key: key.clone(),
            manifest: head.wanted.manifest.clone(),
            listen: from.rails.iter().map(|r| r.address).collect(),
            receivers: others.len(),
        };
        let mut sender = Running::start(&from, &["node", "image-serve"], &request, head.serves())?;
        let (Some(Event::Offered(blobs)), Some(Event::Listening(listening))) = (sender.next(READY), sender.next(READY))
        else {
            return Err(sender.failed(false));
        };
        let taken = self.at_once(others, |want| {
            let to = self.end(want.node, &want.tool, Utf8Path::new("/"))?;
            let rails = rails_between(&from, &listening, &to);
            let from = From::Rails { key: TransferKey(key.clone()), rails, blobs: blobs.clone() };
            let order = Order { wanted: want.wanted.clone(), from, keep: false, rate };
            let child = self.start(want, &order)?;
            self.follow(want, child)
        });
        sender.end();
        all(taken).map(drop)
    }

    fn start(&self, want: &Want<'_>, order: &Order) -> Result<Child, DeployError> {
        self.observer.event(Some(want.node.member.node.as_str()), &format!("image {}", want.wanted.manifest));
        let mut line = serde_json::to_vec(order).map_err(|e| want.refused(&e.to_string()))?;
        line.push(b'\n');
        let mut command = want.node.remote.command(&[&want.tool, "node", "image-stage"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| want.refused(&format!("ssh cannot be started: {e}")))?;
        if let Some(stdin) = child.stdin.as_mut() {
            // A node that ends at once says why on stderr.
            let _sent = stdin.write_all(&line).and_then(|()| stdin.flush());
        }
        Ok(child)
    }

    /// Passes on what the node says, up to its answer.
    fn follow(&self, want: &Want<'_>, mut child: Child) -> Result<(), DeployError> {
        let (lines, heard) = mpsc::channel();
        let stderr = child.stderr.take();
        std::thread::spawn(move || {
            for line in stderr.into_iter().flat_map(|e| BufReader::new(e).lines()).map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let mut last = String::new();
        let answer = loop {
            match heard.recv_timeout(SILENCE) {
                Ok(line) => match serde_json::from_str::<Said>(&line) {
                    Ok(Said::Event(text)) if text.is_empty() => {}
                    Ok(Said::Event(text)) => self.observer.event(Some(want.node.member.node.as_str()), &text),
                    Ok(Said::Staged(staged)) => break Ok(staged),
                    Ok(Said::Failed(why)) => break Err(why),
                    // ssh's or sudo's own words.
                    Err(_) if !line.trim().is_empty() => last = line,
                    Err(_) => {}
                },
                Err(RecvTimeoutError::Disconnected) => {
                    let lost = if last.is_empty() { "the connection was lost".to_owned() } else { last };
                    break Err(format!("{lost}; what came is kept"));
                }
                Err(RecvTimeoutError::Timeout) => {
                    break Err(format!("silent for {} s; what came is kept", SILENCE.as_secs()));
                }
            }
        };
        end(child);
        let staged = answer.map_err(|why| want.refused(&why))?;
        self.observer.event(Some(want.node.member.node.as_str()), &told(&staged));
        Ok(())
    }
}

/// What a person wants to know of it.
fn told(staged: &StagedImage) -> String {
    let StagedImage { store, id, blobs, bytes, present, unchanged } = staged;
    let moved = format!("{blobs} blobs came ({bytes} bytes), {present} were there");
    if *unchanged {
        format!("image {id} is in docker; {moved}")
    } else {
        format!("image {id} ({store} store): {moved}")
    }
}

/// Ends a child that has said all it had to say, or never will.
fn end(mut child: Child) {
    let _killed = child.kill();
    let _reaped = child.wait();
}

/// What a node shall have; `None` where the lane's image is not known by both numbers, and nothing can be proved.
fn want<'a>(node: &'a NodeHandle, fact: &'a NodeFacts) -> Option<Want<'a>> {
    let image = &fact.generation.image;
    let wanted = Wanted {
        manifest: image.manifest.clone()?,
        config: image.config.clone()?,
        reference: image.reference.clone(),
        delta: Some(format!("{}/image", fact.to.path).into()),
    };
    Some(Want { node, fact, wanted, tool: format!("{}/bin/sparklane", fact.to.path) })
}

/// Whether a node's docker has the image. The closure's own tool is asked first, as the node's may be older than these
/// commands; for an old release it is the other way round. `None` when neither knows them.
fn look<'a>(want: &Want<'a>) -> Result<Option<(Want<'a>, bool)>, DeployError> {
    let mut line = serde_json::to_vec(&want.wanted).map_err(|e| want.refused(&e.to_string()))?;
    line.push(b'\n');
    for tool in [&want.tool, &want.node.tool] {
        let answer = want.node.remote.run(&[tool, "node", "image-state"], &line)?;
        match answer.code {
            0 => {
                let state: Result<State, _> = serde_json::from_str(&answer.stdout);
                let state = state.map_err(|e| want.refused(&format!("odd answer: {e}")))?;
                return Ok(Some((Want { tool: tool.clone(), ..want.clone() }, state.present)));
            }
            UNKNOWN => {}
            _ => return Err(want.refused(answer.stderr.trim())),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparklane_host::units::UnitStatus;

    #[test]
    fn an_engine_that_waits_for_a_rank_without_an_image_is_not_disturbed() {
        let status = |active: &str, waits_for_ranks| {
            let engine = UnitStatus { active: active.into(), ..UnitStatus::default() };
            NodeStatus { engine: Some(engine), waits_for_ranks, ..NodeStatus::default() }
        };
        assert!(disturbed(&status("active", false)) && disturbed(&status("activating", false)));
        assert!(!disturbed(&status("activating", true)) && !disturbed(&status("failed", false)));
        assert!(!disturbed(&NodeStatus::default()));
    }
}
