//! Files for the agents that people point at a lane's API: what Codex and Claude Code must be told so that they find the
//! model, its limits and the context beyond which it goes wrong (docs/gotchas.md G9, G10, G12). Pure.

pub mod claude;
pub mod codex;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::Serialize;

use crate::ids::Role;
use crate::render::Input;

/// A lane's API as its clients see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Served {
    /// `http://ADDRESS:PORT`, without a path.
    pub address: String,
    /// True when it listens on every address of the head; the one above is what the cluster file calls it.
    pub everywhere: bool,
    /// Name of the model.
    pub model: String,
    /// One line about it.
    pub description: String,
    /// Longest sequence, in tokens.
    pub window: u64,
    /// Tokens that a conversation should stay below.
    pub fence: u64,
    /// File on the head that holds the API key, when one is asked for.
    pub key_file: Option<String>,
    /// How a machine that is not the head gets at the API, where it listens on the head's loopback.
    pub tunnel: Option<String>,
}

/// vLLM derives the length from the checkpoint when a lane does not say it; no client can be told a number then.
const SHORTEST_KNOWN: u64 = 32_768;

impl Served {
    /// What a lane on a cluster serves.
    #[must_use]
    pub fn of(input: &Input<'_>) -> Self {
        let Input { lane, cluster, .. } = input;
        let listens: IpAddr = lane.api.host.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let window = lane.serve.max_model_len.unwrap_or(SHORTEST_KNOWN);
        let head = cluster.nodes.values().find(|node| node.role == Role::Head);
        let (port, user) = (lane.api.port, &cluster.ssh.user);
        // An API that listens on every address is reached by the one that the head is known by.
        let known = head.filter(|_| listens.is_unspecified()).map(|head| head.host.clone());
        let tunnel = |host: &str| format!("ssh -N -L {port}:127.0.0.1:{port} {user}@{host}");
        Self {
            address: match &known {
                Some(host) => format!("http://{}:{port}", bracketed(host)),
                None => format!("http://{}", SocketAddr::new(listens, port)),
            },
            everywhere: known.is_some(),
            model: lane.model.served_name.clone(),
            description: lane.description.clone(),
            window,
            fence: lane.model.fence_tokens.unwrap_or(window / 10 * 9),
            key_file: lane.api.key_file.clone(),
            tunnel: head.filter(|_| listens.is_loopback()).map(|head| tunnel(&head.host)),
        }
    }
}

/// A host as it stands in an address: IPv6 in brackets.
fn bracketed(host: &str) -> String {
    if host.parse::<std::net::Ipv6Addr>().is_ok() { format!("[{host}]") } else { host.to_owned() }
}

/// Something in a client's file that will not work with the lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Its number in docs/gotchas.md, where it has one.
    pub gotcha: Option<&'static str>,
    /// What is in the file.
    pub seen: String,
    /// What to write instead.
    pub remedy: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixture::case;

    #[test]
    fn a_lane_on_loopback_is_reached_through_its_head() {
        let mut case = case();
        case.lane.serve.max_model_len = Some(1000);
        let served = Served::of(&case.input());
        assert_eq!((served.address.as_str(), served.window, served.fence), ("http://127.0.0.1:8000", 1000, 900));
        assert_eq!(served.tunnel.as_deref(), Some("ssh -N -L 8000:127.0.0.1:8000 operator@10.9.0.1"));
        let env = claude::env(&served);
        assert!(env.contains("MAX_CONTEXT_TOKENS=960\n") && env.contains("AUTH_TOKEN=none\n"), "{env}");
    }

    #[test]
    fn a_lane_with_a_key_names_its_file_and_no_key() {
        let mut case = case();
        case.lane.api.host = "::".into();
        case.lane.api.key_file = Some("/etc/sparklane/api.key".into());
        case.lane.model.fence_tokens = Some(150_000);
        let served = Served::of(&case.input());
        assert_eq!((served.address.as_str(), served.fence, &served.tunnel), ("http://10.9.0.1:8000", 150_000, &None));
        assert!(served.everywhere);
        let env = claude::env(&served);
        assert!(env.contains("CONTEXT_TOKENS=160000") && env.contains("# The lane asks for a key"), "{env}");
        assert!(!env.contains("\nANTHROPIC_AUTH_TOKEN"), "{env}");
        assert!(codex::config(&served, "/c").contains("# VLLM_API_KEY: what /etc/sparklane/api.key on the head holds"));
    }
}
