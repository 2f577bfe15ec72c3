//! The real parts of a node, put together: systemd, nix-env, the engine's gates.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::Duration;

use sparklane_engine::gate::{GateContext, GateResult, Progress, RealClock, wait_gate};
use sparklane_engine::state::STATE_FILE;
use sparklane_engine::systemd::{Systemctl, UnitStates};
use sparklane_engine::{EngineError, docker, ranks};
use sparklane_host::HostError;
use sparklane_host::node::{Gates, Parts};
use sparklane_host::profile::NixEnv;
use sparklane_host::stage::{Context, StageStep};
use sparklane_host::units::Systemd;
use sparklane_lane::Generation;
use sparklane_lane::generation::{Gate, GateKind, GateScope};
use sparklane_txn::Fault;
use sparklane_txn::plan::ENGINE_UNIT;

/// The parts of this machine.
#[must_use]
pub fn real() -> Parts {
    Parts { units: Box::new(Systemd), mover: Box::new(NixEnv), gates: Box::new(EngineGates) }
}

/// Checks of other parts before anything changes.
#[must_use]
pub fn stage_steps() -> Vec<Box<dyn StageStep>> {
    vec![Box::new(DockerImage), Box::new(crate::weights::gate::Gate)]
}

/// Docker answers, and knows the image by its digest: found now and not after the old lane has stopped.
struct DockerImage;

/// Longest wait for docker's answer.
const DOCKER_WAIT: Duration = Duration::from_secs(20);

impl StageStep for DockerImage {
    fn name(&self) -> &'static str {
        "image"
    }
    fn check(&self, context: &Context<'_>) -> Result<(), HostError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| HostError::Refused(format!("no runtime: {e}")))?;
        let image = &context.generation.image;
        let asked =
            runtime.block_on(async { docker::Client::connect(docker::SOCKET, DOCKER_WAIT).await?.image(image).await });
        match asked {
            // Only looked at: a deployment brings it first (`deploy::flow::images`).
            Err(EngineError::ImageMissing { .. }) if context.request.dry && image.config.is_some() => Ok(()),
            other => other.map(drop).map_err(|e| HostError::Refused(e.to_string())),
        }
    }
}

/// Gates as the engine part judges them. Before a node's own, its unit must be READY; after the head's cluster gates each
/// worker's rank must be the one that served them.
struct EngineGates;

impl Gates for EngineGates {
    fn wait(
        &mut self,
        generation: &Generation,
        scope: GateScope,
        interrupted: &dyn Fn() -> Option<String>,
        progress: &dyn Fn(String),
    ) -> Result<(), Fault> {
        let worker = scope == GateScope::Cluster && !generation.role.decides();
        if worker && ranks::has_joined(STATE_FILE.as_ref()) {
            progress("gate ranks: this rank serves with the head".into());
            return Ok(());
        }
        gates(generation, scope).iter().try_for_each(|gate| one(generation, gate, interrupted, progress))
    }
}

/// What a node waits for. The cluster's gates ask the API, which the head alone has.
fn gates(generation: &Generation, scope: GateScope) -> Vec<Gate> {
    let own = || generation.gates.iter().filter(|g| g.scope == scope).cloned();
    match scope {
        GateScope::Node => {
            let ready = Gate {
                name: "ready".into(),
                scope,
                budget_secs: generation.budgets.start_secs,
                interval_secs: 0,
                kind: GateKind::Unit { unit: ENGINE_UNIT.into() },
            };
            std::iter::once(ready).chain(own()).collect()
        }
        GateScope::Cluster => ranks::gate(generation.role, ENGINE_UNIT).map_or_else(|| own().collect(), |g| vec![g]),
    }
}

fn one(
    generation: &Generation,
    gate: &Gate,
    interrupted: &dyn Fn() -> Option<String>,
    progress: &dyn Fn(String),
) -> Result<(), Fault> {
    let prober = crate::fabric::gate::NodeProber::of(generation);
    let watch = [ENGINE_UNIT.to_owned()];
    // Only the gate of that scope asks for more than the unit: a worker is up before its head is.
    let joined = ranks::Joined { units: &Systemctl, state_file: STATE_FILE.into() };
    let units: &dyn UnitStates = if gate.scope == GateScope::Cluster { &joined } else { &Systemctl };
    let context = GateContext { units, prober: &prober, clock: &RealClock::default(), watch: &watch };
    let why = RefCell::new(None);
    let mut said = String::new();
    let outcome = wait_gate(gate, &context, &mut |p: &Progress| {
        if p.waiting_for != said {
            said.clone_from(&p.waiting_for);
            progress(format!("gate {}: {} ({} s left)", p.gate, p.waiting_for, p.left_secs));
        }
        *why.borrow_mut() = interrupted();
        if why.borrow().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match outcome.result {
        GateResult::Passed(words) => {
            progress(format!("gate {}: {words}", gate.name));
            Ok(())
        }
        GateResult::Failed(text) => Err(Fault::failed(format!("gate {}: {text}", gate.name))),
        GateResult::TimedOut(text) => {
            Err(Fault::failed(format!("gate {}: not passed in {} s: {text}", gate.name, gate.budget_secs)))
        }
        GateResult::Cancelled => Err(Fault::Interrupted(why.take().unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use sparklane_lane::Role;

    use super::*;

    #[test]
    fn the_head_asks_its_api_and_a_worker_its_own_rank() {
        let text = include_str!("../../../tests/fixtures/engine/generation.json");
        let mut generation: Generation = serde_json::from_str(text).unwrap();
        generation.gates = vec![Gate {
            name: "api".into(),
            scope: GateScope::Cluster,
            budget_secs: 1,
            interval_secs: 0,
            kind: GateKind::Http { url: "http://127.0.0.1:1/".into(), status: 200 },
        }];
        let names = |generation: &Generation, scope| -> Vec<String> {
            gates(generation, scope).into_iter().map(|g| g.name).collect()
        };
        generation.role = Role::Worker;
        assert_eq!(names(&generation, GateScope::Cluster), ["ranks"]);
        assert_eq!(names(&generation, GateScope::Node).first().map(String::as_str), Some("ready"));
        generation.role = Role::Head;
        assert_eq!(names(&generation, GateScope::Cluster), ["api"]);
    }
}
