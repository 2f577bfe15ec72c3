//! A deployment from end to end: build, ask, refuse or copy, stage, drive, tell.

use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use sparklane_host::status::NodeStatus;
use sparklane_lane::{Cluster, Generation, LaneName, NodeName};
use sparklane_txn::cluster::{Member, drive};
use sparklane_txn::spec::Side;
use sparklane_txn::{Goal, State};

use crate::error::DeployError;
use crate::flow::images::ImageOptions;
use crate::link::SshLink;
use crate::node::NodeHandle;
use crate::plan::{ClusterPlan, NodeFacts, plan, release_in_force};
use crate::progress::Observer;
use crate::site::Site;
use crate::ssh::{self, Remote};
use crate::survey::{ClusterStatus, NodeRow};
use crate::verdict::{Subject, Verdict, VerdictKind};
use crate::{cancel, nix, ssh::control_dir};

mod answers;
mod ask;
pub mod images;
mod ranks;
pub mod requests;
mod staging;
pub mod weights;

pub(crate) use answers::all;
use answers::{busy_rather, died};

pub use ask::{Reports, TimedReport};

/// Seconds beyond the confirm window that a lost answer is waited for.
const PATIENCE_SECS: u64 = 15;

/// What an operator may choose.
#[derive(Debug, Clone)]
pub struct DeployOptions {
    /// Purpose.
    pub goal: Goal,
    /// Only these nodes, when that is safe; empty for all.
    pub targets: Vec<NodeName>,
    /// Overwrite managed files that someone edited (a copy is kept).
    pub replace_edited: bool,
    /// Take over files that are not ours (put back when we leave them).
    pub takeover: bool,
    /// Seconds from the first change to the vote; the lane's own budgets otherwise.
    pub activation_secs: Option<u64>,
    /// Seconds from the vote to the commit; the lane's own otherwise.
    pub confirm_secs: Option<u64>,
    /// File with the secret key that signs closures.
    pub signing_key: Option<Utf8PathBuf>,
    /// Overrides the cluster file's user.
    pub ssh_user: Option<String>,
    /// Further arguments of ssh.
    pub ssh_opts: Vec<String>,
    /// Overrides nodes' host names: `node=host`.
    pub hostnames: Vec<(NodeName, String)>,
    /// How images come to the nodes.
    pub images: ImageOptions,
    /// What is asked of the nodes before a lane is staged; refuses.
    pub preflight: Option<Preflight>,
}

/// A question to all nodes before anything changes, by a part that this crate does not know.
pub type Preflight = fn(&Flow<'_>, &Cluster) -> Result<(), DeployError>;

/// Where to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A lane of the flake.
    Lane(Option<String>),
    /// A release by number; `None` for the one before the current.
    Release(Option<u64>),
    /// The newest release of a lane that is not in force.
    ReleaseOfLane(LaneName),
}

/// How far a command goes into the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Depth {
    /// Only asks; nothing is copied.
    Look,
    /// Copies what is to be checked there.
    Check,
    /// Ends what a dead transaction left, too.
    Act,
}

/// One command's run.
pub struct Flow<'a> {
    site: &'a Site,
    options: &'a DeployOptions,
    observer: &'a dyn Observer,
    nodes: Vec<NodeHandle>,
    begin: Instant,
    subject: Subject,
    _control: tempfile::TempDir,
}

/// Built or recorded sides of every node, by rank.
struct Goalposts {
    lane: LaneName,
    sides: Vec<Side>,
    rollback_of: Option<u64>,
}

impl<'a> Flow<'a> {
    /// Prepares connections; nothing is contacted yet.
    ///
    /// # Errors
    /// When a named target or host override is no node of the cluster.
    pub fn new(site: &'a Site, options: &'a DeployOptions, observer: &'a dyn Observer) -> Result<Self, DeployError> {
        let named = options.targets.iter().chain(options.hostnames.iter().map(|(n, _)| n));
        for node in named {
            if !site.cluster.nodes.contains_key(node) {
                let known: Vec<&str> = site.cluster.nodes.keys().map(NodeName::as_str).collect();
                return Err(DeployError::Usage(format!("no node {node}; there are: {}", known.join(", "))));
            }
        }
        let opts = site.cluster.ssh.opts.iter().chain(&options.ssh_opts);
        if let Some(opt) = opts.clone().find(|o| o.contains(char::is_whitespace)) {
            // nix copy takes them as one string that it splits at spaces.
            return Err(DeployError::Usage(format!(
                "the ssh argument {opt:?} holds a space, which nix copy cannot pass on"
            )));
        }
        let control = control_dir()?;
        let dir = ssh::utf8(&control)?;
        let nodes = site
            .members()
            .into_iter()
            .filter_map(|m| handle(site, options, m, &dir).transpose())
            .collect::<Result<_, _>>()?;
        let subject = Subject::of(site, &Target::Release(None));
        Ok(Self { site, options, observer, nodes, begin: Instant::now(), subject, _control: control })
    }

    /// What is known of the command's subject, also after it failed.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Asks every node at once; `None` where no tool answers yet.
    ///
    /// # Errors
    /// When a node cannot be reached; all such nodes are named.
    pub fn statuses(&self) -> Result<Vec<Option<NodeStatus>>, DeployError> {
        all(self.each(NodeHandle::status))
    }

    /// As [`Flow::statuses`], but a node that does not answer is a finding.
    #[must_use]
    pub fn survey(&self) -> ClusterStatus {
        let answers = self.each(|node| match node.status()? {
            None => node.remains().map_or(Ok(None), Err),
            status => Ok(status),
        });
        let row = |(node, answer): (&NodeHandle, _)| NodeRow::of(node.member.node.clone(), answer);
        ClusterStatus::of(self.site.cluster.name.to_string(), self.nodes.iter().zip(answers).map(row).collect())
    }

    /// Goes to the target: the whole transaction.
    ///
    /// # Errors
    /// Refused before any change, busy, or not understood. From staging on, the verdict tells.
    pub fn run(&mut self, target: &Target) -> Result<Verdict, DeployError> {
        self.subject = Subject::of(self.site, target);
        let depth = if self.options.goal.changes_nodes() { Depth::Act } else { Depth::Check };
        let (posts, facts) = self.prepare(target, depth)?;
        let plan = plan(&facts);
        self.subject.previous = release_in_force(&facts).map(|r| r.number);
        // What is not committed may be gone in a moment: staging says who holds the node, or ends what was left.
        let open = facts.iter().any(|f| !f.status.open.is_empty());
        if plan.unchanged && !open && self.options.goal == Goal::Switch {
            return Ok(self.timed(Verdict::plain(&self.subject, VerdictKind::Unchanged, None)));
        }
        let requests = self.requests(&posts, &facts, plan.restarts_engine)?;
        let Some(first) = requests.first() else { return Err(DeployError::Refused("the cluster has no node".into())) };
        // Never before a way back.
        if let (Some(preflight), Target::Lane(_)) = (self.options.preflight, target) {
            preflight(self, &self.site.cluster)?;
        }
        if !self.options.goal.changes_nodes() {
            let checked = self.check_only(&requests)?;
            return Ok(self.timed(checked));
        }
        cancel::check()?;
        let brought = self.stage_images(&facts).and_then(|()| self.stage_weights(&facts));
        brought.map_err(|error| busy_rather(&facts, error))?;
        let (txn, number) = (first.spec.txn.clone(), first.spec.release.as_ref().map_or(0, |r| r.number));
        self.observer.event(None, &format!("transaction {txn}: release {number}, lane {}", posts.lane));
        cancel::check()?;
        self.subject.txn = Some(txn.clone());
        if let Some(refused) = self.stage_all(&requests)? {
            return Ok(self.timed(refused));
        }
        let patience = Duration::from_secs(first.spec.confirm_secs + PATIENCE_SECS);
        let members: Vec<Member> = self.nodes.iter().map(|n| n.member.clone()).collect();
        let mut link = SshLink::new(&self.nodes, &txn, self.observer, patience);
        let outcome = drive(&mut link, &members, self.options.goal, ranks::stops(&facts));
        drop(link);
        let outcome = self.together(outcome);
        Ok(self.timed(Verdict::of(&self.subject, txn, number, outcome)))
    }

    /// Only the plan.
    ///
    /// # Errors
    /// As [`Flow::run`].
    pub fn plan(&mut self, target: &Target) -> Result<ClusterPlan, DeployError> {
        let (_, facts) = self.prepare(target, Depth::Look)?;
        Ok(plan(&facts))
    }

    /// Builds or looks up both sides, asks the nodes, and as deep as it goes copies what they lack.
    fn prepare(&mut self, target: &Target, depth: Depth) -> Result<(Goalposts, Vec<NodeFacts>), DeployError> {
        let (posts, mut statuses) = match target {
            Target::Lane(lane) => {
                let lane = self.site.lane(lane.as_deref())?;
                self.check_pinned(&lane)?;
                let names: Vec<NodeName> = self.nodes.iter().map(|n| n.member.node.clone()).collect();
                // Evaluation and the nodes' answers take about as long as each other.
                let (sides, statuses) = std::thread::scope(|scope| {
                    let asked = scope.spawn(|| self.statuses());
                    let sides = nix::build(self.site, &lane, &names);
                    (sides, asked.join().unwrap_or_else(|_| Err(DeployError::Refused("the survey died".into()))))
                });
                let sides = sides?;
                (Goalposts { lane, sides, rollback_of: None }, self.mended(statuses?, depth)?)
            }
            Target::Release(_) | Target::ReleaseOfLane(_) => {
                let statuses = self.mended(self.statuses()?, depth)?;
                (self.recorded(target, &statuses)?, statuses)
            }
        };
        self.subject.lane = Some(posts.lane.clone());
        check_open(&self.nodes, &statuses)?;
        self.check_targets(&posts, &statuses)?;
        if depth > Depth::Look {
            self.copy_missing(&posts, &statuses)?;
        }
        if depth == Depth::Look {
            // A node without a tool has nothing of ours.
            statuses = statuses.into_iter().map(|s| Some(s.unwrap_or_default())).collect();
        } else if statuses.iter().any(|status| status.as_ref().is_none_or(|s| s.tool_lost.is_some())) {
            for (node, side) in self.nodes.iter_mut().zip(&posts.sides) {
                node.use_tool_of(&side.path);
            }
            statuses = self.statuses()?;
        }
        let facts = self.facts(&posts, statuses)?;
        Ok((posts, facts))
    }

    /// Told before anything is built: nodes could not prove what they run.
    fn check_pinned(&self, lane: &LaneName) -> Result<(), DeployError> {
        let image = self.site.catalog.lanes.get(lane.as_str()).and_then(|l| self.site.catalog.images.get(&l.image));
        let Some(image) = image.filter(|i| i.manifest.is_none()) else { return Ok(()) };
        Err(DeployError::Refused(format!(
            "lane {lane}: the image {} has no known digest yet, so nodes could not prove what they run. Pin it where its \
             registry is reachable: {}",
            image.reference,
            image.pin_command()
        )))
    }

    fn facts(&self, posts: &Goalposts, statuses: Vec<Option<NodeStatus>>) -> Result<Vec<NodeFacts>, DeployError> {
        let rows = self.nodes.iter().zip(statuses).zip(&posts.sides);
        rows.map(|((node, status), side)| {
            let name = &node.member.node;
            let status = status.ok_or_else(|| DeployError::Refused(format!("{name}: its tool does not answer")))?;
            if let Some(why) = &status.foreign_profile {
                return Err(DeployError::Refused(format!("{name}: {why}")));
            }
            let generation = match &status.generation {
                Some(current) if status.current.as_ref().is_some_and(|c| c.path == side.path) => current.clone(),
                _ => self.generation_of(node, side)?,
            };
            Ok(NodeFacts { node: name.clone(), status, to: side.clone(), generation })
        })
        .collect()
    }

    /// The content of a side: from this host's store, else (an old release) from the node.
    fn generation_of(&self, node: &NodeHandle, side: &Side) -> Result<Generation, DeployError> {
        if let Ok(generation) = read_local(side) {
            return Ok(generation);
        }
        let path = format!("{}/generation.json", side.path);
        let answer = node.remote.run(&["cat", &path], b"")?;
        serde_json::from_str(&answer.stdout).map_err(|e| {
            DeployError::Refused(format!(
                "{}: {path}: {e}. The release's closure is gone; deploy its lane again",
                node.member.node
            ))
        })
    }

    /// The release a rollback names, from the head's records.
    fn recorded(&self, target: &Target, statuses: &[Option<NodeStatus>]) -> Result<Goalposts, DeployError> {
        let head = statuses.first().and_then(Option::as_ref);
        let releases = head.map_or(&[][..], |s| s.releases.as_slice());
        let at = |node: &NodeName| {
            let place = self.nodes.iter().position(|h| h.member.node == *node)?;
            statuses.get(place)?.as_ref()?.current.as_ref().map(|side| &side.path)
        };
        let in_force = releases.iter().rev().find(|r| r.is_on(at));
        let wanted = match target {
            Target::Release(Some(number)) => releases.iter().find(|r| r.number == *number),
            Target::ReleaseOfLane(lane) => releases.iter().rev().find(|r| r.lane == *lane),
            _ => releases.iter().rev().find(|r| in_force.is_none_or(|f| r.number < f.number && r.nodes != f.nodes)),
        };
        let damaged = head.map_or(&[][..], |s| s.damaged_releases.as_slice());
        if matches!(target, Target::Release(None)) && !damaged.is_empty() {
            // The release before the one in force would be a guess.
            let why = format!("release records of the head are damaged ({}); say which: --to N", damaged.join("; "));
            return Err(DeployError::Refused(why));
        }
        if releases.is_empty() {
            return Err(DeployError::Refused("no release is recorded on the head; deploy a lane first".into()));
        }
        let Some(release) = wanted else {
            let known: Vec<String> = releases.iter().map(|r| format!("{} ({})", r.number, r.lane)).collect();
            return Err(DeployError::Refused(format!("no such release to return to; there are: {}", known.join(", "))));
        };
        let mut sides = Vec::new();
        for node in &self.nodes {
            let Some(part) = release.nodes.iter().find(|n| n.node == node.member.node) else {
                let (number, name) = (release.number, &node.member.node);
                return Err(DeployError::Refused(format!("release {number} has no part for node {name}")));
            };
            sides.push(Side { path: part.path.clone(), generation: part.generation.clone() });
        }
        Ok(Goalposts { lane: release.lane.clone(), sides, rollback_of: Some(release.number) })
    }

    fn copy_missing(&self, posts: &Goalposts, statuses: &[Option<NodeStatus>]) -> Result<(), DeployError> {
        let missing: Vec<(&NodeHandle, &Side)> = self
            .nodes
            .iter()
            .zip(&posts.sides)
            .zip(statuses)
            .filter(|((_, side), status)| {
                status.as_ref().and_then(|s| s.current.as_ref()).map(|c| &c.path) != Some(&side.path)
            })
            .map(|(pair, _)| pair)
            .collect();
        if missing.is_empty() || posts.rollback_of.is_some() {
            return Ok(());
        }
        if let Some(key) = self.signing_key() {
            let paths: Vec<_> = missing.iter().map(|(_, side)| &side.path).collect();
            nix::sign(&paths, key.as_str())?;
        }
        let copied = std::thread::scope(|scope| {
            let copy = |(node, side): &(&NodeHandle, &Side)| {
                self.observer.event(Some(node.member.node.as_str()), &format!("copy {}", side.path));
                nix::copy(&node.remote, &side.path)
            };
            let threads: Vec<_> = missing.iter().map(|pair| scope.spawn(move || copy(pair))).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(died()))).collect()
        });
        all(copied).map(drop)
    }

    fn signing_key(&self) -> Option<Utf8PathBuf> {
        let default = Utf8PathBuf::from("/etc/sparklane/signing.key");
        self.options.signing_key.clone().or_else(|| default.exists().then_some(default))
    }

    /// `--targets` on a lane that spans nodes is safe only when the others are where they shall be already. Told before
    /// anything is copied.
    fn check_targets(&self, posts: &Goalposts, statuses: &[Option<NodeStatus>]) -> Result<(), DeployError> {
        let targets = &self.options.targets;
        if targets.is_empty() {
            return Ok(());
        }
        let there = |status: &Option<NodeStatus>, side: &Side| {
            let current = status.as_ref().and_then(|s| s.current.as_ref());
            current.is_some_and(|c| c.generation == side.generation)
        };
        let rows = self.nodes.iter().zip(statuses).zip(&posts.sides);
        let left = rows.filter(|((n, status), side)| !targets.contains(&n.member.node) && !there(status, side));
        let names: Vec<&str> = left.map(|((node, _), _)| node.member.node.as_str()).collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(DeployError::Refused(format!(
            "--targets would leave {} on another lane, and the ranks of two lanes cannot serve together; deploy all nodes",
            names.join(", ")
        )))
    }

    fn each<T: Send>(&self, act: impl Fn(&NodeHandle) -> Result<T, DeployError> + Sync) -> Vec<Result<T, DeployError>> {
        std::thread::scope(|scope| {
            let act = &act;
            let threads: Vec<_> = self.nodes.iter().map(|node| scope.spawn(move || act(node))).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(died()))).collect()
        })
    }

    fn user(&self) -> &str {
        self.options.ssh_user.as_deref().unwrap_or(&self.site.cluster.ssh.user)
    }

    fn timed(&self, verdict: Verdict) -> Verdict {
        Verdict { millis: u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX), ..verdict }
    }
}

impl Drop for Flow<'_> {
    fn drop(&mut self) {
        std::thread::scope(|scope| {
            for node in &self.nodes {
                scope.spawn(|| node.remote.close());
            }
        });
    }
}

type Handle = Result<Option<NodeHandle>, DeployError>;

fn handle(site: &Site, options: &DeployOptions, member: Member, control: &Utf8PathBuf) -> Handle {
    let Some(node) = site.cluster.nodes.get(&member.node) else { return Ok(None) };
    let host = options.hostnames.iter().find(|(n, _)| *n == member.node).map_or(&node.host, |(_, host)| host);
    let mut remote = Remote {
        name: member.node.to_string(),
        user: options.ssh_user.clone().unwrap_or_else(|| site.cluster.ssh.user.clone()),
        host: host.clone(),
        opts: site.cluster.ssh.opts.iter().chain(&options.ssh_opts).cloned().collect(),
        control: control.clone(),
    };
    if !node.host_keys.is_empty() {
        remote.believe_only(&node.host_keys)?;
    }
    Ok(Some(NodeHandle::new(member, remote)))
}

fn read_local(side: &Side) -> Result<Generation, DeployError> {
    let path = Utf8PathBuf::from(side.path.as_str());
    sparklane_host::closure::generation(&path).map_err(|e| DeployError::Refused(e.to_string()))
}

/// A doubt must be ended by people or by time before anything new begins.
fn check_open(nodes: &[NodeHandle], statuses: &[Option<NodeStatus>]) -> Result<(), DeployError> {
    for (node, status) in nodes.iter().zip(statuses) {
        let open = status.as_ref().map_or(&[][..], |s| s.open.as_slice());
        if let Some(doubt) = open.iter().find(|t| t.state == State::InDoubt) {
            return Err(DeployError::InDoubt(format!(
                "{}: transaction {} is in doubt ({}); it ends by itself once the head can be reached. Look: sparklane status; docs/operations.md, In doubt",
                node.member.node,
                doubt.txn,
                doubt.why.as_deref().unwrap_or("")
            )));
        }
    }
    Ok(())
}
