//! Rules about the API, the environment, the gates and the times.

use std::net::IpAddr;

use crate::generation::GateScope;
use crate::image::EnvMeaning;
use crate::lane::{Executor, GateCheck};
use crate::problem::Problem;
use crate::render::{Input, SET_BY_TOOL};

/// deploy-rs reads its times as 16-bit numbers.
const DEPLOY_RS_MOST: u64 = u16::MAX as u64;

/// Lists and unit files have one line for it.
pub(super) fn description_is_a_line(input: &Input<'_>) -> Vec<Problem> {
    let text = &input.lane.description;
    if !text.chars().any(char::is_control) {
        return Vec::new();
    }
    vec![Problem::error("description", format!("{text:?} is not one line of text"))]
}

/// Clients write it into files that shells and TOML read, and into addresses.
pub(super) fn served_name_is_plain(input: &Input<'_>) -> Vec<Problem> {
    let name = &input.lane.model.served_name;
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:+@".contains(c);
    if !name.is_empty() && name.chars().all(plain) {
        return Vec::new();
    }
    let problem = Problem::error("model.servedName", format!("{name:?} is no plain name"));
    vec![problem.suggest("use letters, digits and . _ - / : + @")]
}

/// The API stays on loopback unless a key guards it.
pub(super) fn api_is_guarded(input: &Input<'_>) -> Vec<Problem> {
    let api = &input.lane.api;
    let mut problems = Vec::new();
    match api.host.parse::<IpAddr>() {
        Err(_) => problems.push(Problem::error("api.host", format!("{:?} is not an IP address", api.host))),
        Ok(host) if !host.is_loopback() && api.key_file.is_none() => {
            let problem = Problem::error("api.host", format!("is {host}, open to others without a key"));
            problems.push(problem.suggest("use 127.0.0.1, or set api.keyFile"));
        }
        Ok(_) => {}
    }
    if let Some(file) = &api.key_file {
        if !file.starts_with('/') {
            problems.push(Problem::error("api.keyFile", "is not an absolute path"));
        }
        if file.starts_with("/nix/") {
            problems.push(Problem::error("api.keyFile", "is in the Nix store, which everyone can read"));
        }
    }
    problems
}

/// Names that follow from the cluster or the lane's name.
pub(super) fn env_is_ours_to_set(input: &Input<'_>) -> Vec<Problem> {
    let names = input.lane.env.keys().filter(|n| SET_BY_TOOL.contains(&n.as_str()));
    names
        .map(|n| Problem::error(format!("env.{n}"), "is set by the tool from the cluster and the lane's name"))
        .collect()
}

/// Names that the image ignores are dropped, names that nobody listed may be slips.
pub(super) fn env_means_something(input: &Input<'_>) -> Vec<Problem> {
    let image = input.image;
    let meaning = |name: &String| match image.env_meaning(name) {
        EnvMeaning::Registered => None,
        EnvMeaning::Ignored => {
            let what = format!("image {} ignores it; it is dropped", image.name);
            Some(Problem::warning(format!("env.{name}"), what).suggest("take it out"))
        }
        EnvMeaning::Unknown => {
            Some(Problem::warning(format!("env.{name}"), format!("image {} does not list it", image.name)))
        }
    };
    input.lane.env.keys().filter(|n| !SET_BY_TOOL.contains(&n.as_str())).filter_map(meaning).collect()
}

/// Ends of names that hold secrets: `VLLM_API_KEY`, `HF_TOKEN`, `AWS_SECRET_ACCESS_KEY`, ….
const SECRET_ENDS: [&str; 6] = ["API_KEY", "TOKEN", "PASSWORD", "SECRET", "ACCESS_KEY", "CREDENTIALS"];

/// A lane ends up in /nix/store, in `docker inspect` and in plans: no place for a secret (design.md section 8).
pub(super) fn env_is_no_secret(input: &Input<'_>) -> Vec<Problem> {
    let secret = |name: &&String| SECRET_ENDS.iter().any(|end| name.to_ascii_uppercase().ends_with(end));
    let problem = |name: &String| {
        let what = "holds a secret by its name, and everyone can read /nix/store";
        Problem::error(format!("env.{name}"), what).suggest("put the API's key into a file of mode 0600: api.keyFile")
    };
    input.lane.env.keys().filter(secret).map(problem).collect()
}

/// Settings that are known to break the machine.
pub(super) fn env_is_harmless(input: &Input<'_>) -> Vec<Problem> {
    let harmful = |(name, value): (&String, &String)| {
        let setting = format!("{name}={value}");
        let known = input.image.env.forbidden.contains(&setting);
        known.then(|| {
            Problem::error(format!("env.{name}"), format!("{setting} is known to break image {}", input.image.name))
        })
    };
    input.lane.env.iter().filter_map(harmful).collect()
}

/// Names are unique, API checks run where the API is, and something asks for real tokens.
pub(super) fn gates_make_sense(input: &Input<'_>) -> Vec<Problem> {
    let gates = &input.lane.gates;
    let mut problems = Vec::new();
    for (n, gate) in gates.iter().enumerate() {
        let at = format!("gates[{n}]");
        if gates[..n].iter().any(|g| g.name == gate.name) {
            problems.push(Problem::error(format!("{at}.name"), format!("{:?} is used twice", gate.name)));
        }
        let asks_api = matches!(gate.check, GateCheck::Http { .. } | GateCheck::Tokens { .. });
        if matches!(gate.check, GateCheck::Fabric {}) && gate.scope == GateScope::Cluster {
            problems.push(Problem::error(format!("{at}.scope"), "is cluster, but each node looks at itself"));
        }
        if asks_api && gate.scope == GateScope::Node {
            problems.push(Problem::error(format!("{at}.scope"), "is node, but only the head has the API"));
        }
        for (key, value) in [("budgetSecs", gate.budget_secs), ("intervalSecs", gate.interval_secs)] {
            if value == 0 {
                problems.push(Problem::error(format!("{at}.{key}"), "is 0"));
            }
        }
        if let GateCheck::Tokens { max_tokens, min_tokens, .. } = gate.check
            && !(1..=max_tokens).contains(&min_tokens)
        {
            let what = format!("is {min_tokens}, expected 1 to maxTokens ({max_tokens})");
            problems.push(Problem::error(format!("{at}.check.minTokens"), what));
        }
    }
    if !gates.iter().any(|g| matches!(g.check, GateCheck::Tokens { .. })) {
        problems.push(Problem::warning("gates", "none asks for tokens: a wedged engine would pass"));
    }
    problems
}

/// Start, gates and confirmation together fit deploy-rs's timeouts.
pub(super) fn budgets_fit(input: &Input<'_>) -> Vec<Problem> {
    let budgets = input.lane.budgets;
    let mut problems = Vec::new();
    for (key, value) in [("startSecs", budgets.start_secs), ("confirmSecs", budgets.confirm_secs)] {
        if value == 0 {
            problems.push(Problem::error(format!("budgets.{key}"), "is 0"));
        }
    }
    let gates: u64 = input.lane.gates.iter().map(|g| u64::from(g.budget_secs)).sum();
    let total = u64::from(budgets.start_secs) + gates + u64::from(budgets.confirm_secs);
    if total > DEPLOY_RS_MOST {
        let what = format!("start, gates and confirmation take {total} seconds, more than {DEPLOY_RS_MOST}");
        problems.push(Problem::error("budgets", what));
    }
    problems
}

/// Seconds that vLLM needs after its drain to end its ranks (measured: 9 to 13, `engine-real.md`).
const AFTER_DRAIN_SECS: u32 = 15;

/// The engine's own drain ends before it is killed.
pub(super) fn drain_fits(input: &Input<'_>) -> Vec<Problem> {
    let (Some(drain), stop) = (input.lane.serve.shutdown_timeout, input.lane.budgets.stop_secs) else {
        return Vec::new();
    };
    let least = drain.saturating_add(AFTER_DRAIN_SECS);
    if least <= stop {
        return Vec::new();
    }
    let what = format!(
        "is {stop}, expected at least {least}: serve.shutdownTimeout ({drain}) and {AFTER_DRAIN_SECS} for the ranks to end"
    );
    vec![Problem::error("budgets.stopSecs", what)]
}

/// What the start waits for must end before systemd ends the start, or nobody learns what it was.
pub(super) fn waits_fit_the_start(input: &Input<'_>) -> Vec<Problem> {
    let memory = input.lane.serve.gpu_memory_utilization.map_or(0, |_| input.lane.memory.wait_secs);
    let join = match input.lane.executor {
        Executor::Ray { join_secs, .. } => join_secs,
        Executor::Mp { .. } => 0,
    };
    let start = input.lane.budgets.start_secs;
    if start > memory.saturating_add(join) {
        return Vec::new();
    }
    let what = format!("is {start}, not above memory.waitSecs {memory} and executor.joinSecs {join}");
    vec![Problem::error("budgets.startSecs", what)]
}

/// The watchdog's times make sense, and its port is its own.
pub(super) fn watchdog_fits(input: &Input<'_>) -> Vec<Problem> {
    let watchdog = input.lane.watchdog;
    let mut problems = Vec::new();
    let least = [
        ("port", watchdog.port.into(), 1),
        ("peerGraceSecs", watchdog.peer_grace_secs, LEAST_GRACE_SECS),
        ("canaryTimeoutSecs", watchdog.canary_timeout_secs, 1),
        ("canaryFailures", watchdog.canary_failures, 1),
    ];
    for (key, value, least) in least {
        if value < least {
            problems.push(Problem::error(format!("watchdog.{key}"), format!("is {value}, expected at least {least}")));
        }
    }
    let (Executor::Mp { port } | Executor::Ray { port, .. }) = input.lane.executor;
    for (other, key) in [(port, "executor.port"), (input.lane.api.port, "api.port")] {
        if watchdog.port == other {
            problems.push(Problem::error("watchdog.port", format!("is {other}, which is {key}")));
        }
    }
    problems
}

/// Shorter, and a node that is merely busy would be taken for a dead one.
const LEAST_GRACE_SECS: u32 = 5;

#[cfg(test)]
mod tests {
    use super::super::fixture::case;
    use crate::generation::GateScope;
    use crate::lane::{Executor, GateCheck};
    use crate::problem::Severity::{Error, Warning};

    #[test]
    fn description() {
        let mut case = case();
        for bad in ["two\nlines", "bell\x07"] {
            case.lane.description = bad.into();
            assert_eq!(case.found(), [(Error, "description".into())]);
        }
    }

    #[test]
    fn served_name() {
        let mut case = case();
        for bad in ["", "my model", "m; touch x", "m\n", "$(m)", "-\u{e9}"] {
            case.lane.model.served_name = bad.into();
            assert_eq!(case.found(), [(Error, "model.servedName".into())]);
        }
    }

    #[test]
    fn api() {
        let mut case = case();
        case.lane.api.host = "0.0.0.0".into();
        assert_eq!(case.found(), [(Error, "api.host".into())]);
        case.lane.api.key_file = Some("/etc/sparklane/api-key".into());
        assert_eq!(case.found(), []);
        case.lane.api.key_file = Some("/nix/store/x".into());
        assert_eq!(case.found(), [(Error, "api.keyFile".into())]);
        case.lane.api.host = "localhost".into();
        case.lane.api.key_file = Some("key".into());
        assert_eq!(case.found(), [(Error, "api.host".into()), (Error, "api.keyFile".into())]);
        case.lane.api.host = "::1".into();
        case.lane.api.key_file = None;
        assert_eq!(case.found(), []);
    }

    #[test]
    fn env() {
        let mut case = case();
        for (name, value) in
            [("NCCL_NET", "IB"), ("VLLM_HOST_IP", "1"), ("VLLM_OLD", "1"), ("TYPO", "1"), ("VLLM_BAD", "1")]
        {
            case.lane.env.insert(name.into(), value.into());
        }
        case.image.env.registered.push("VLLM_BAD".into());
        assert_eq!(
            case.found(),
            [
                (Error, "env.VLLM_HOST_IP".into()),
                (Warning, "env.TYPO".into()),
                (Warning, "env.VLLM_OLD".into()),
                (Error, "env.VLLM_BAD".into()),
            ]
        );
    }

    #[test]
    fn a_secret_by_its_name_is_refused_and_never_repeated() {
        let mut case = case();
        for name in ["VLLM_API_KEY", "hf_token", "AWS_SECRET_ACCESS_KEY", "MAX_TOKENS"] {
            case.lane.env.insert(name.into(), "hunter2".into());
            case.image.env.registered.push(name.into());
        }
        let errors: Vec<_> =
            case.found().into_iter().filter(|(level, _)| *level == Error).map(|(_, key)| key).collect();
        assert_eq!(errors, ["env.AWS_SECRET_ACCESS_KEY", "env.VLLM_API_KEY", "env.hf_token"]);
        let said: Vec<String> = super::env_is_no_secret(&case.input()).iter().map(ToString::to_string).collect();
        assert!(said.len() == 3 && said.iter().all(|s| !s.contains("hunter2")), "{said:?}");
    }

    #[test]
    fn gates() {
        let mut case = case();
        case.lane.gates.push(case.lane.gates[0].clone());
        case.lane.gates[1].scope = GateScope::Node;
        case.lane.gates[1].budget_secs = 0;
        let GateCheck::Tokens { min_tokens, .. } = &mut case.lane.gates[1].check else { panic!() };
        *min_tokens = 0;
        assert_eq!(
            case.found(),
            [
                (Error, "gates[1].name".into()),
                (Error, "gates[1].scope".into()),
                (Error, "gates[1].budgetSecs".into()),
                (Error, "gates[1].check.minTokens".into()),
            ]
        );
        case.lane.gates.truncate(1);
        case.lane.gates.push(case.lane.gates[0].clone());
        case.lane.gates[1].name = "fabric".into();
        case.lane.gates[1].check = GateCheck::Fabric {};
        assert_eq!(case.found(), [(Error, "gates[1].scope".into())]);
        case.lane.gates[1].scope = GateScope::Node;
        assert_eq!(case.found(), []);
        case.lane.gates.clear();
        assert_eq!(case.found(), [(Warning, "gates".into())]);
    }

    #[test]
    fn budgets() {
        let mut case = case();
        case.lane.budgets.start_secs = 65_536 - 50;
        assert_eq!(case.found(), [(Error, "budgets".into())]);
        case.lane.budgets.start_secs -= 1;
        assert_eq!(case.found(), []);
        case.lane.budgets.confirm_secs = 0;
        assert_eq!(case.found(), [(Error, "budgets.confirmSecs".into())]);
        case.lane.budgets.confirm_secs = 30;
        case.lane.budgets.start_secs = 600;
        assert_eq!(case.found(), [(Error, "budgets.startSecs".into())]);
        case.lane.memory.wait_secs = 500;
        assert_eq!(case.found(), []);
        case.lane.executor = Executor::Ray { port: 6379, join_secs: 100 };
        assert_eq!(case.found(), [(Error, "budgets.startSecs".into())]);
        case.lane.serve.gpu_memory_utilization = None;
        assert_eq!(case.found(), []);
    }

    #[test]
    fn drain() {
        let mut case = case();
        let stop = case.lane.budgets.stop_secs;
        case.lane.serve.shutdown_timeout = Some(stop - 14);
        assert_eq!(case.found(), [(Error, "budgets.stopSecs".into())]);
        case.lane.serve.shutdown_timeout = Some(stop - 15);
        assert_eq!(case.found(), []);
    }

    #[test]
    fn watchdog() {
        let mut case = case();
        assert_eq!(case.found(), []);
        case.lane.watchdog.port = case.lane.api.port;
        case.lane.watchdog.peer_grace_secs = 4;
        case.lane.watchdog.canary_failures = 0;
        assert_eq!(
            case.found(),
            [
                (Error, "watchdog.peerGraceSecs".into()),
                (Error, "watchdog.canaryFailures".into()),
                (Error, "watchdog.port".into()),
            ]
        );
    }
}
