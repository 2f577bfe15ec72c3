//! What each node is asked to stage: its part of the transaction, the release, and who may ask the head.

use sparklane_host::peer::Head;
use sparklane_host::peer_keys::PeerKey;
use sparklane_host::stage::StageRequest;
use sparklane_lane::{Release, ReleaseNode, TxnId};
use sparklane_txn::spec::Spec;

use super::{Flow, Goalposts};
use crate::error::DeployError;
use crate::plan::NodeFacts;

/// What all nodes' requests share.
struct Common {
    txn: TxnId,
    release: Release,
    restart: bool,
    pairing: Head,
    askers: Vec<(String, String)>,
    peer_key: PeerKey,
}

impl Flow<'_> {
    pub(super) fn requests(
        &self,
        posts: &Goalposts,
        facts: &[NodeFacts],
        restart: bool,
    ) -> Result<Vec<StageRequest>, DeployError> {
        let txn = new_txn_id()?;
        let head = facts.iter().find(|f| f.generation.role.decides());
        let head = head.ok_or_else(|| DeployError::Refused("the cluster has no head".into()))?;
        let peer_key = PeerKey::random().map_err(|e| DeployError::Refused(format!("no randomness: {e}")))?;
        let release = self.release(posts, facts, &txn, head);
        let pairing = Head {
            user: self.user().to_owned(),
            addresses: head
                .generation
                .own()
                .map_or_else(Vec::new, |p| vec![p.rail1.clone(), p.rail2.clone(), p.host.clone()]),
            host_keys: head.status.host_keys.clone(),
        };
        let mut askers = Vec::new();
        for (node, fact) in self.nodes.iter().zip(facts).filter(|(n, _)| !n.member.role.decides()) {
            let key = match &fact.status.decision_key {
                Some(key) => key.clone(),
                None if self.options.goal.changes_nodes() => node.key()?,
                None => continue,
            };
            askers.push((self.user().to_owned(), key));
        }
        let common = Common { txn, release, restart, pairing, askers, peer_key };
        Ok(facts.iter().map(|fact| self.request(fact, &common)).collect())
    }

    fn request(&self, fact: &NodeFacts, common: &Common) -> StageRequest {
        let release = &common.release;
        let role = fact.generation.role;
        let confirm = u64::from(fact.generation.budgets.confirm_secs);
        let spec = Spec {
            txn: common.txn.clone(),
            node: fact.node.clone(),
            role,
            goal: self.options.goal,
            from: fact.status.current.clone(),
            to: fact.to.clone(),
            release: Some(release.clone()),
            owner: release.who.clone(),
            activation_secs: self.options.activation_secs.unwrap_or_else(|| fact.generation.activation_secs()),
            confirm_secs: self.options.confirm_secs.unwrap_or(confirm),
            restart_engine: common.restart,
            replace_edited: self.options.replace_edited,
            takeover: self.options.takeover,
        };
        StageRequest {
            spec,
            public_key: self.site.cluster.trusted_key.clone(),
            head: (!role.decides()).then(|| common.pairing.clone()),
            askers: if role.decides() { common.askers.clone() } else { Vec::new() },
            peer_key: Some(common.peer_key.clone()),
            dry: !self.options.goal.changes_nodes(),
            deploy_rs: None,
        }
    }

    fn release(&self, posts: &Goalposts, facts: &[NodeFacts], txn: &TxnId, head: &NodeFacts) -> Release {
        // Above every number that any node has seen, damaged records too: history is never written over.
        let of =
            |f: &NodeFacts| f.status.releases.iter().map(|r| r.number).max().unwrap_or(0).max(f.status.last_number);
        let number = facts.iter().map(of).max().unwrap_or(0) + 1;
        let part = |f: &NodeFacts| ReleaseNode {
            node: f.node.clone(),
            path: f.to.path.clone(),
            generation: f.to.generation.clone(),
        };
        Release {
            number,
            cluster: self.site.cluster.name.clone(),
            lane: posts.lane.clone(),
            nodes: facts.iter().map(part).collect(),
            image: head.generation.image.manifest.clone(),
            weights: head.generation.weights.as_ref().map(|w| w.manifest.clone()),
            txn: txn.clone(),
            rollback_of: posts.rollback_of,
            #[expect(clippy::disallowed_methods, reason = "for people to read")]
            time: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            who: who(),
        }
    }
}

/// Sorts by time, for people; the random end keeps two operators apart.
///
/// # Errors
/// When the system gives no random bytes.
pub fn new_txn_id() -> Result<TxnId, DeployError> {
    #[expect(clippy::disallowed_methods, reason = "for people to sort by; the random end keeps two apart")]
    let now = jiff::Timestamp::now().strftime("%Y%m%d-%H%M%S").to_string();
    let mut random = [0u8; 3];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| DeployError::Refused(format!("no randomness: {e}")))?;
    let end: String = random.iter().map(|b| format!("{b:02x}")).collect();
    format!("{now}-{end}").parse().map_err(|e: sparklane_lane::BadId| DeployError::Refused(e.to_string()))
}

/// `user@host` of the operator.
#[must_use]
pub fn who() -> String {
    let user = std::env::var("SUDO_USER").or_else(|_| std::env::var("USER")).unwrap_or_else(|_| "root".into());
    format!("{user}@{}", rustix::system::uname().nodename().to_string_lossy())
}
