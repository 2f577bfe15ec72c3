//! The cluster's transaction as the control host drives it (design.md section 6). Pure over [`Link`].
//!
//! The coordinator decides nothing: the head's `committed` record does. So this code may be killed at any message.

use serde::{Deserialize, Serialize};
use sparklane_lane::generation::GateScope;
use sparklane_lane::{NodeName, Role};

use crate::effects::{Order, Reply};
use crate::goal::Goal;
use crate::plan::Part;
use crate::record::State;

/// Messages to nodes.
pub trait Link {
    /// Sends an order to one node and waits for the answer.
    ///
    /// # Errors
    /// When the answer did not come; whether the order was carried out is unknown then.
    fn order(&mut self, node: &NodeName, order: &Order) -> Result<Reply, String>;

    /// Sends an order to several nodes at once; answers in the order of `nodes`. When one node answers that it is not
    /// done, an implementation may cut the others' waiting short with [`Order::Abort`].
    fn order_all(&mut self, nodes: &[NodeName], order: &Order) -> Vec<Result<Reply, String>> {
        nodes.iter().map(|n| self.order(n, order)).collect()
    }

    /// Sends an order to `first` and, as soon as the record of its first step is durable there, to `others` in turn: an
    /// implementation may know that before `first` is done. Nothing is sent to the others when `first` did not get so
    /// far. The answers that came, `first`'s first.
    fn order_behind(&mut self, first: &NodeName, others: &[NodeName], order: &Order) -> Vec<Result<Reply, String>> {
        let mut answers = Vec::new();
        for node in std::iter::once(first).chain(others) {
            let answer = self.order(node, order);
            let done = answer.as_ref().is_ok_and(|r| r.done);
            answers.push(answer);
            if !done {
                break;
            }
        }
        answers
    }

    /// Waits a little before a question is repeated; `false` when there is no time left for another.
    fn pause(&mut self) -> bool;
}

/// A node and its role, in the order of ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The node.
    pub node: NodeName,
    /// Its role.
    pub role: Role,
}

/// Where one node ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeEnd {
    /// The node.
    pub node: NodeName,
    /// Its last known state; `None` when it did not answer.
    pub state: Option<State>,
    /// What it said.
    pub detail: Option<String>,
}

/// How a transaction ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// The head's record is durable. Nodes that did not confirm yet ask the head by themselves.
    Committed {
        /// Per node.
        nodes: Vec<NodeEnd>,
    },
    /// The lane passed every gate and the nodes are back as they were, as `--test` asks.
    Tested {
        /// Per node.
        nodes: Vec<NodeEnd>,
    },
    /// Nothing had changed anywhere.
    Refused {
        /// What failed, on which node.
        why: String,
        /// Per node.
        nodes: Vec<NodeEnd>,
    },
    /// Every node is back, proved by reading.
    RolledBack {
        /// What failed, on which node.
        why: String,
        /// Per node.
        nodes: Vec<NodeEnd>,
    },
    /// Some node is neither proved old nor proved new.
    InDoubt {
        /// What failed, on which node.
        why: String,
        /// Per node.
        nodes: Vec<NodeEnd>,
    },
}

impl Outcome {
    /// The exit code (design.md section 6).
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Committed { .. } | Self::Tested { .. } => 0,
            Self::Refused { .. } => 1,
            Self::RolledBack { .. } => 3,
            Self::InDoubt { .. } => 4,
        }
    }
}

/// How the old engines are stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stops {
    /// The workers after the head: it drains its requests, for which it needs them.
    InTurn,
    /// The workers as soon as the head has begun: it cuts its requests short anyway, within a second, and a worker takes
    /// five to end (engine-real.md, SIGTERM). Never before: recovery relies on it that no worker has stopped beside a
    /// head that did not begin to.
    Overlapping,
}

/// Drives a staged transaction to its end.
pub fn drive(link: &mut dyn Link, members: &[Member], goal: Goal, stops: Stops) -> Outcome {
    let mut driver = Driver { link, members, stops, begun: false };
    match driver.forward(goal) {
        Ok(()) if !goal.commits() => match driver.back("the test passed") {
            Outcome::RolledBack { nodes, .. } | Outcome::Refused { nodes, .. } => Outcome::Tested { nodes },
            other => other,
        },
        Ok(()) => driver.commit(),
        Err(why) => driver.back(&why),
    }
}

struct Driver<'a> {
    link: &'a mut dyn Link,
    members: &'a [Member],
    stops: Stops,
    /// True once a node may have stopped its engine.
    begun: bool,
}

impl Driver<'_> {
    fn heads(&self) -> Vec<NodeName> {
        self.members.iter().filter(|m| m.role.decides()).map(|m| m.node.clone()).collect()
    }

    fn workers(&self) -> Vec<NodeName> {
        self.members.iter().filter(|m| !m.role.decides()).map(|m| m.node.clone()).collect()
    }

    fn all(&self) -> Vec<NodeName> {
        self.heads().into_iter().chain(self.workers()).collect()
    }

    /// Every phase up to the votes, in the one fixed order.
    fn forward(&mut self, goal: Goal) -> Result<(), String> {
        let (all, heads, workers) = (self.all(), self.heads(), self.workers());
        self.each(&all, &Order::Prepare)?;
        self.begun = true;
        // Head first: it stops sending work to a worker that is about to go.
        self.stop(&heads, &workers)?;
        self.one_by_one(&workers, &Order::Run { part: Part::Switch })?;
        self.one_by_one(&heads, &Order::Run { part: Part::Switch })?;
        // Worker first: a head that finds a stale peer would rendezvous with the wrong launch.
        self.one_by_one(&workers, &Order::Run { part: Part::Start })?;
        self.one_by_one(&heads, &Order::Run { part: Part::Start })?;
        if goal.restarts_engine() {
            self.each(&all, &Order::Gate { scope: GateScope::Node })?;
            self.one_by_one(&heads, &Order::Gate { scope: GateScope::Cluster })?;
            // Now that the head serves: with these ranks, or with others that were left?
            self.each(&workers, &Order::Gate { scope: GateScope::Cluster })?;
        }
        // Workers first: once the head has voted, only its own commit is missing.
        self.each(&workers, &Order::Vote)?;
        self.each(&heads, &Order::Vote)
    }

    fn stop(&mut self, heads: &[NodeName], workers: &[NodeName]) -> Result<(), String> {
        let order = Order::Run { part: Part::Stop };
        match (heads, self.stops) {
            ([head], Stops::Overlapping) => {
                let answers = self.link.order_behind(head, workers, &order);
                let mut named = std::iter::once(head).chain(workers).zip(answers);
                named.try_for_each(|(node, answer)| check(node, answer))
            }
            _ => {
                self.one_by_one(heads, &order)?;
                self.one_by_one(workers, &order)
            }
        }
    }

    fn one_by_one(&mut self, nodes: &[NodeName], order: &Order) -> Result<(), String> {
        nodes.iter().try_for_each(|node| {
            let answer = self.link.order(node, order);
            check(node, answer)
        })
    }

    fn each(&mut self, nodes: &[NodeName], order: &Order) -> Result<(), String> {
        let answers = self.link.order_all(nodes, order);
        let failures: Vec<String> =
            nodes.iter().zip(answers).filter_map(|(node, answer)| check(node, answer).err()).collect();
        // A node that was only interrupted is not the cause. All causes at once: a person mends them in one go.
        let causes: Vec<&str> = failures.iter().map(String::as_str).filter(|f| !f.contains("interrupted:")).collect();
        match (causes.is_empty(), failures.first()) {
            (false, _) => Err(causes.join("; ")),
            (true, Some(first)) => Err(first.clone()),
            (true, None) => Ok(()),
        }
    }

    /// The commit: one durable record on the head, then the workers are told.
    fn commit(&mut self) -> Outcome {
        for head in self.heads() {
            match self.ask_until(&head, &Order::Commit, &|_| true) {
                Ok(reply) if reply.state == State::Committed => {}
                Ok(reply) => {
                    return self.back(&format!("{head}: {}", reply.detail.unwrap_or_default()));
                }
                Err(why) => {
                    let nodes = self.ends(&Order::Report);
                    return Outcome::InDoubt { why: format!("{head}: no answer to the commit: {why}"), nodes };
                }
            }
        }
        for worker in self.workers() {
            // A worker that cannot be told now asks the head at its deadline; the release stands.
            let _told = self.link.order(&worker, &Order::Commit);
        }
        Outcome::Committed { nodes: self.ends(&Order::Report) }
    }

    /// Back on all nodes, head first: once the head has given up, a voted worker may too.
    fn back(&mut self, why: &str) -> Outcome {
        let order = Order::Abort { why: why.to_owned(), together: self.begun };
        let nodes = self.ends(&order);
        let is = |state: State| nodes.iter().all(|n| n.state == Some(state));
        let unchanged = nodes.iter().all(|n| n.detail.as_deref() == Some(UNCHANGED));
        let why = why.to_owned();
        if nodes.iter().any(|n| n.state == Some(State::Committed)) && is(State::Committed) {
            return Outcome::Committed { nodes };
        }
        if is(State::RolledBack) && unchanged {
            return Outcome::Refused { why, nodes };
        }
        if is(State::RolledBack) { Outcome::RolledBack { why, nodes } } else { Outcome::InDoubt { why, nodes } }
    }

    /// Tells all nodes at once, then repeats what is idempotent until each node has answered for good: the old lane's
    /// gates need every rank, so no node may wait for another's turn.
    fn ends(&mut self, order: &Order) -> Vec<NodeEnd> {
        let all = self.all();
        let answers = self.link.order_all(&all, order);
        let settled = |reply: &Reply| !matches!(order, Order::Abort { .. }) || reply.state.is_final();
        let mut ends = Vec::new();
        for (node, answer) in all.into_iter().zip(answers) {
            let answer = match answer {
                Ok(reply) if settled(&reply) => Ok(reply),
                _ => self.ask_until(&node, order, &settled),
            };
            ends.push(end(node, answer));
        }
        ends
    }

    /// Repeats an idempotent order until the node answers or time is up.
    fn ask_until(&mut self, node: &NodeName, order: &Order, settled: &dyn Fn(&Reply) -> bool) -> Result<Reply, String> {
        loop {
            let answer = self.link.order(node, order);
            if answer.as_ref().is_ok_and(settled) || !self.link.pause() {
                return answer;
            }
        }
    }
}

fn end(node: NodeName, answer: Result<Reply, String>) -> NodeEnd {
    match answer {
        Ok(reply) => {
            let unchanged = reply.state == State::RolledBack && !reply.changed;
            let detail = if unchanged { Some(UNCHANGED.to_owned()) } else { reply.detail };
            NodeEnd { node, state: Some(reply.state), detail }
        }
        Err(why) => NodeEnd { node, state: None, detail: Some(why) },
    }
}

const UNCHANGED: &str = "nothing had changed";

fn check(node: &NodeName, answer: Result<Reply, String>) -> Result<(), String> {
    match answer {
        Ok(reply) if reply.done => Ok(()),
        Ok(reply) => Err(format!("{node}: {}", reply.detail.unwrap_or_else(|| format!("in state {}", reply.state)))),
        Err(why) => Err(format!("{node}: {why}")),
    }
}
