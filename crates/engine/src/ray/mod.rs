//! What Ray says of itself: its session, and who is in. `ray status` proves nothing (it answers for a dead session with
//! code 0), and a Python driver per question would cost 60 s where it fails; the dashboard's API on loopback answers in
//! milliseconds.

pub mod answers;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::http::{HttpError, Url, send};
use answers::RayNode;

/// How long one question may take; the first after a start takes Ray 1.4 s.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why Ray could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RayError {
    /// The dashboard does not answer.
    #[error("Ray's dashboard on 127.0.0.1:{port} does not answer: {source}")]
    Silent {
        /// Its port.
        port: u16,
        /// Why.
        source: HttpError,
    },
    /// It answers something else than it should.
    #[error("Ray's dashboard on 127.0.0.1:{port}: {why}")]
    Answer {
        /// Its port.
        port: u16,
        /// What is wrong.
        why: String,
    },
}

/// What the head's supervisor tells its peers of Ray.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RayView {
    /// Name of the session, new with each GCS.
    pub session: String,
    /// Nodes whose raylet the GCS takes for alive.
    pub alive: BTreeSet<IpAddr>,
}

/// A session and its whole node table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its name.
    pub name: String,
    /// Its nodes, also those that left.
    pub nodes: Vec<RayNode>,
}

impl Session {
    /// The short form for peers.
    #[must_use]
    pub fn view(&self) -> RayView {
        let alive = self.nodes.iter().filter(|n| n.alive).map(|n| n.address);
        RayView { session: self.name.clone(), alive: alive.collect() }
    }
}

/// Asks the dashboard on this machine's loopback. Blocks for up to 10 s.
///
/// # Errors
/// See [`RayError`].
pub fn fetch(dashboard_port: u16) -> Result<RayView, RayError> {
    ask(dashboard_port).map(|session| session.view())
}

/// As [`fetch`], with the whole table.
///
/// # Errors
/// See [`RayError`].
pub fn ask(dashboard_port: u16) -> Result<Session, RayError> {
    let port = dashboard_port;
    let bad = |why| RayError::Answer { port, why };
    let get = |path: &str| {
        let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let url = Url { address, path: path.to_owned() };
        let answer = send(&url, None, None, PATIENCE).map_err(|source| RayError::Silent { port, source })?;
        if answer.status == 200 { Ok(answer.body) } else { Err(bad(format!("HTTP {} for {path}", answer.status))) }
    };
    let name = answers::session(&get("/api/version")?).map_err(bad)?;
    let nodes = answers::nodes(&get("/api/v0/nodes")?).map_err(bad)?;
    Ok(Session { name, nodes })
}

/// Where a worker stands in the head's current session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// Its raylet is in.
    Alive,
    /// It is not: never joined this session, left it, or was lost. A raylet of an earlier session is never in the table.
    NotAlive,
}

/// A worker's standing, by its address on rail 1.
#[must_use]
pub fn membership(own: IpAddr, view: &RayView) -> Membership {
    if view.alive.contains(&own) { Membership::Alive } else { Membership::NotAlive }
}

/// What must be in before an engine starts on Ray.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Exactly these nodes.
    pub nodes: BTreeSet<IpAddr>,
    /// GPUs of each.
    pub gpus: u32,
}

/// What is still missing; nothing when all is as expected. `session` is the name that the GCS which we started gave itself.
#[must_use]
pub fn missing(expected: &Expected, session: &str, found: &Session) -> Option<String> {
    if found.name != session {
        return Some(format!("the dashboard is of another Ray (session {}, ours is {session})", found.name));
    }
    let alive: Vec<&RayNode> = found.nodes.iter().filter(|n| n.alive).collect();
    let words = || match alive.as_slice() {
        [] => "none".to_owned(),
        some => some.iter().map(|n| n.address.to_string()).collect::<Vec<_>>().join(", "),
    };
    if let Some(absent) = expected.nodes.iter().find(|a| !alive.iter().any(|n| n.address == **a)) {
        let dead = found.nodes.iter().rev().find(|n| n.address == *absent).and_then(|n| n.message.as_deref());
        let dead = dead.map(|why| format!(" (it was: {why})")).unwrap_or_default();
        return Some(format!("node {absent} is not ALIVE{dead}; alive: {}", words()));
    }
    if let Some(stranger) = alive.iter().find(|n| !expected.nodes.contains(&n.address)) {
        return Some(format!("{} is ALIVE and not of this cluster", stranger.address));
    }
    if alive.len() > expected.nodes.len() {
        return Some(format!("a node is ALIVE twice, one of an earlier start; alive: {}", words()));
    }
    let short = alive.iter().find(|n| n.gpus != expected.gpus)?;
    Some(format!("node {} brings {} GPUs, expected {}", short.address, short.gpus, expected.gpus))
}

#[cfg(test)]
mod tests {
    use super::answers::tests::{ONE, TWO, VERSION};
    use super::*;

    fn session(body: &[u8]) -> Session {
        Session { name: answers::session(VERSION).unwrap(), nodes: answers::nodes(body).unwrap() }
    }

    fn ip(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn expected() -> Expected {
        Expected { nodes: [ip(1), ip(2)].into(), gpus: 1 }
    }

    #[test]
    fn two_nodes_are_enough_and_one_is_not() {
        let two = session(TWO);
        assert_eq!(missing(&expected(), &two.name, &two), None);
        let one = session(ONE);
        let why = missing(&expected(), &one.name, &one).unwrap();
        assert!(why.starts_with("node 10.0.0.2 is not ALIVE (it was: Unexpected termination"), "{why}");
        assert!(why.ends_with("alive: 10.0.0.1"), "{why}");
        assert!(missing(&expected(), "session_x", &two).unwrap().contains("another Ray"));
    }

    #[test]
    fn exactly_the_expected_nodes() {
        let mut odd = session(TWO);
        odd.nodes.push(RayNode { address: ip(3), alive: true, gpus: 1, message: None });
        assert!(missing(&expected(), &odd.name, &odd).unwrap().contains("10.0.0.3 is ALIVE"));
        odd.nodes[2].address = ip(2);
        assert!(missing(&expected(), &odd.name, &odd).unwrap().contains("ALIVE twice"));
        // The earlier one is found dead at last.
        odd.nodes[1].alive = false;
        assert_eq!(missing(&expected(), &odd.name, &odd), None);
        odd.nodes[2].gpus = 0;
        assert_eq!(missing(&expected(), &odd.name, &odd).unwrap(), "node 10.0.0.2 brings 0 GPUs, expected 1");
        odd.nodes.clear();
        assert!(missing(&expected(), &odd.name, &odd).unwrap().ends_with("alive: none"));
    }

    #[test]
    fn a_worker_is_in_by_its_address() {
        assert_eq!(membership(ip(2), &session(TWO).view()), Membership::Alive);
        assert_eq!(membership(ip(2), &session(ONE).view()), Membership::NotAlive);
        assert_eq!(membership(ip(9), &session(TWO).view()), Membership::NotAlive);
    }

    #[test]
    fn nobody_answers_on_a_closed_port() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let error = fetch(free).unwrap_err().to_string();
        assert!(error.contains(&format!("127.0.0.1:{free} does not answer")), "{error}");
    }
}
