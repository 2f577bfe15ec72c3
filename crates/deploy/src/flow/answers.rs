//! Many nodes' answers as one.

use crate::error::DeployError;
use crate::plan::NodeFacts;

/// What keeps images or weights from a node that someone else holds says nothing: that they hold it does.
pub(super) fn busy_rather(facts: &[NodeFacts], error: DeployError) -> DeployError {
    let held = facts.iter().find_map(|f| f.status.lock.as_ref().map(|owner| (&f.node, owner)));
    match (held, error) {
        (Some((node, owner)), DeployError::Refused(why) | DeployError::NoAnswer { why, .. }) => {
            DeployError::Busy(format!("{node}: {}; besides: {why}", owner.holds()))
        }
        (_, error) => error,
    }
}

/// All answers, or all failures in one: a person mends them in one go.
pub(crate) fn all<T>(answers: Vec<Result<T, DeployError>>) -> Result<Vec<T>, DeployError> {
    let mut good = Vec::new();
    let mut bad: Vec<DeployError> = Vec::new();
    for answer in answers {
        match answer {
            Ok(value) => good.push(value),
            Err(error) => bad.push(error),
        }
    }
    match bad.len() {
        0 => Ok(good),
        1 => Err(bad.remove(0)),
        _ => {
            let why = bad.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            // What began on one node outweighs that another was busy, and busy a plain refusal.
            if bad.iter().any(|e| matches!(e, DeployError::Failed(_))) {
                return Err(DeployError::Failed(why));
            }
            let busy = bad.iter().any(|e| matches!(e, DeployError::Busy(_)));
            Err(if busy { DeployError::Busy(why) } else { DeployError::Refused(why) })
        }
    }
}

pub(super) fn died() -> DeployError {
    DeployError::Refused("a thread of this program died".into())
}
