//! The cluster's numbered record: what `rollback --to N` names (design.md section 1).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{ClusterName, Digest, GenerationId, LaneName, NodeName, StorePath, TxnId};

/// One node's part of a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseNode {
    /// The node.
    pub node: NodeName,
    /// Store path of its closure.
    pub path: StorePath,
    /// Identity of the closure's content.
    pub generation: GenerationId,
}

/// One committed state of the whole cluster. Written once, on the head, as the commit itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// Counts from 1.
    pub number: u64,
    /// The cluster.
    pub cluster: ClusterName,
    /// The lane all nodes serve.
    pub lane: LaneName,
    /// Every node of the cluster, head first.
    pub nodes: Vec<ReleaseNode>,
    /// Manifest digest of the lane's image.
    pub image: Option<Digest>,
    /// sha256 of the weights manifest, hex.
    pub weights: Option<String>,
    /// The transaction that made it.
    pub txn: TxnId,
    /// The release this one returned to, when it is a rollback.
    pub rollback_of: Option<u64>,
    /// RFC 3339 time of the control host, for people; nothing decides by it.
    pub time: String,
    /// `user@host` of the operator.
    pub who: String,
}

impl Release {
    /// True when every node is on its closure of this release. `at` tells where a node is.
    pub fn is_on<'a>(&self, at: impl Fn(&NodeName) -> Option<&'a StorePath>) -> bool {
        self.nodes.iter().all(|part| at(&part.node) == Some(&part.path))
    }
}
