//! What Ray's dashboard answers, read without trust. Pure. Forms as Ray 2.57 and 2.60 give them (captured under
//! tests/fixtures/engine/ray).

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;

/// A row of Ray's node table; a node that left stays in it as dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RayNode {
    /// Address that it joined with.
    pub address: IpAddr,
    /// True while its raylet answers the GCS.
    pub alive: bool,
    /// GPUs that it brought.
    pub gpus: u32,
    /// Why it is dead.
    pub message: Option<String>,
}

#[derive(Deserialize)]
struct Answer<T> {
    result: bool,
    #[serde(default)]
    msg: String,
    data: Option<T>,
}

#[derive(Deserialize)]
struct Listed {
    result: List,
}

#[derive(Deserialize)]
struct List {
    result: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    node_ip: IpAddr,
    state: String,
    state_message: Option<String>,
    #[serde(default)]
    resources_total: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Version {
    session_name: String,
}

/// Reads the answer to `/api/v0/nodes`.
///
/// # Errors
/// Words, when it is none or says that it failed.
pub fn nodes(body: &[u8]) -> Result<Vec<RayNode>, String> {
    let answer: Answer<Listed> =
        serde_json::from_slice(body).map_err(|e| format!("the list of nodes cannot be read: {e}"))?;
    match answer.data {
        Some(data) if answer.result => Ok(data.result.result.into_iter().map(node).collect()),
        _ => Err(format!("Ray cannot list its nodes: {}", answer.msg)),
    }
}

fn node(row: Row) -> RayNode {
    let gpus = row.resources_total.get("GPU").copied().unwrap_or(0.0);
    RayNode {
        address: row.node_ip,
        alive: row.state == "ALIVE",
        // A cast from a float stays within the type's range.
        gpus: gpus as u32,
        message: row.state_message,
    }
}

/// Reads the session's name of the answer to `/api/version`.
///
/// # Errors
/// Words, when it is none.
pub fn session(body: &[u8]) -> Result<String, String> {
    let version: Version = serde_json::from_slice(body).map_err(|e| format!("Ray's version cannot be read: {e}"))?;
    Ok(version.session_name)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    macro_rules! fixture {
        ($state:literal, $file:literal) => {
            include_bytes!(concat!("../../../../tests/fixtures/engine/ray/", $state, "/", $file, ".json"))
        };
    }

    /// The node table of two living nodes, 10.0.0.1 and 10.0.0.2.
    pub(crate) const TWO: &[u8] = fixture!("two-nodes", "api_v0_nodes");
    /// The same with 10.0.0.2 dead.
    pub(crate) const ONE: &[u8] = fixture!("waiting-for-worker", "api_v0_nodes");
    /// The version of the session of [`TWO`].
    pub(crate) const VERSION: &[u8] = fixture!("two-nodes", "api_version");

    #[test]
    fn captured_tables_are_read() {
        let brief = |body| -> Vec<(String, bool, u32)> {
            nodes(body).unwrap().into_iter().map(|n| (n.address.to_string(), n.alive, n.gpus)).collect()
        };
        let row = |address: &str, alive| (address.to_owned(), alive, 1);
        for both in [TWO, fixture!("serving", "api_v0_nodes"), fixture!("after-rank1-sigkill", "api_v0_nodes")] {
            let mut rows = brief(both);
            rows.sort();
            // Ray's own view does not see a dead rank: only its raylet.
            assert_eq!(rows, [row("10.0.0.1", true), row("10.0.0.2", true)]);
        }
        for lost in [ONE, fixture!("after-linkdown", "api_v0_nodes")] {
            assert_eq!(brief(lost), [row("10.0.0.2", false), row("10.0.0.1", true)]);
        }
        let dead = &nodes(ONE).unwrap()[0];
        assert!(dead.message.as_deref().unwrap().contains("missing too many heartbeats"));
        assert_eq!(session(VERSION), Ok("session_2026-11-29_23-25-35_511977_350".to_owned()));
        assert_ne!(session(VERSION), session(fixture!("serving", "api_version")));
    }

    #[test]
    fn a_failure_says_so() {
        let failed = br#"{"result": false, "msg": "timed out", "data": {}}"#;
        assert!(nodes(failed).is_err());
        assert_eq!(
            nodes(br#"{"result": false, "msg": "timed out", "data": null}"#),
            Err("Ray cannot list its nodes: timed out".to_owned())
        );
        assert!(nodes(b"").is_err());
        assert!(session(b"{}").is_err());
        assert!(session(TWO).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_answer_breaks_the_reader(body in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = nodes(&body);
            let _ = session(&body);
        }

        /// Real answers with one byte changed.
        #[test]
        fn no_damage_breaks_the_reader(at in 0..TWO.len(), byte: u8) {
            let mut body = TWO.to_vec();
            body[at] = byte;
            let _ = nodes(&body);
        }
    }
}
