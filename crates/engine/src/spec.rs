//! The container of a generation, as docker's API takes it. A pure function of its input.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HostConfig, HostConfigLogConfig, Mount, MountType,
    ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};
use sparklane_lane::Generation;

use crate::key::{KEY_IN_CONTAINER, TOOL_IN_CONTAINER};

/// Label that marks a container as ours; its value names lane and node.
pub const LABEL: &str = "dev.sparklane.generation";
/// Label that tells the engine's container from other ones of ours.
pub const ROLE_LABEL: &str = "dev.sparklane.role";
/// Value of [`ROLE_LABEL`] for the engine's container.
pub const ROLE_ENGINE: &str = "engine";

/// What the container gets besides the generation.
#[derive(Debug, Clone, Default)]
pub struct Extra {
    /// Identity under which docker knows the image.
    pub image: String,
    /// Path of the node's tool, mounted to be process 1.
    pub tool: String,
    /// Value of [`LABEL`].
    pub label: String,
}

/// The request body that creates the engine's container.
#[must_use]
pub fn container(generation: &Generation, extra: &Extra) -> ContainerCreateBody {
    let engine = &generation.engine;
    let mut cmd = vec!["entry".to_owned()];
    if engine.api_key_file.is_some() {
        cmd.extend(["--api-key-file", KEY_IN_CONTAINER].map(str::to_owned));
    }
    if let Some(ray) = engine.ray.as_ref().and_then(|ray| serde_json::to_string(ray).ok()) {
        cmd.extend(["--ray".to_owned(), ray]);
    }
    cmd.push("--".to_owned());
    cmd.extend(engine.argv.iter().cloned());
    let labels = HashMap::from([
        (LABEL.to_owned(), extra.label.clone()),
        (ROLE_LABEL.to_owned(), ROLE_ENGINE.to_owned()),
        ("dev.sparklane.lane".to_owned(), generation.lane.to_string()),
    ]);
    ContainerCreateBody {
        image: Some(extra.image.clone()),
        entrypoint: Some(vec![TOOL_IN_CONTAINER.to_owned()]),
        cmd: Some(cmd),
        env: Some(engine.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        labels: Some(labels),
        stop_signal: Some("SIGTERM".to_owned()),
        stop_timeout: Some(i64::from(engine.stop_secs)),
        host_config: Some(host_config(generation, extra)),
        ..ContainerCreateBody::default()
    }
}

/// Value of [`ROLE_LABEL`] for a measurement's container, which no engine's cleaning takes for its own.
pub const ROLE_BENCH: &str = "bench";

/// The request body of a measurement in the lane's image: the engine's devices, limits and GPUs, another program and
/// environment, nothing mounted.
#[must_use]
pub fn bench(
    generation: &Generation,
    extra: &Extra,
    argv: &[String],
    env: &BTreeMap<String, String>,
) -> ContainerCreateBody {
    let (program, arguments) = argv.split_at(1.min(argv.len()));
    let labels = HashMap::from([
        (LABEL.to_owned(), extra.label.clone()),
        (ROLE_LABEL.to_owned(), ROLE_BENCH.to_owned()),
        ("dev.sparklane.lane".to_owned(), generation.lane.to_string()),
    ]);
    let host = HostConfig { mounts: Some(Vec::new()), ..host_config(generation, extra) };
    ContainerCreateBody {
        entrypoint: Some(program.to_vec()),
        cmd: Some(arguments.to_vec()),
        env: Some(env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        labels: Some(labels),
        host_config: Some(host),
        ..container(generation, extra)
    }
}

fn host_config(generation: &Generation, extra: &Extra) -> HostConfig {
    let engine = &generation.engine;
    let ulimit = |(name, value): (&String, &i64)| ResourcesUlimits {
        name: Some(name.clone()),
        soft: Some(*value),
        hard: Some(*value),
    };
    let device = |path: &String| DeviceMapping {
        path_on_host: Some(path.clone()),
        path_in_container: Some(path.clone()),
        cgroup_permissions: Some("rwm".to_owned()),
    };
    let gpus =
        DeviceRequest { count: Some(-1), capabilities: Some(vec![vec!["gpu".to_owned()]]), ..DeviceRequest::default() };
    HostConfig {
        network_mode: Some("host".to_owned()),
        ipc_mode: Some("host".to_owned()),
        mounts: Some(mounts(generation, extra)),
        devices: Some(engine.devices.iter().map(device).collect()),
        device_requests: engine.gpus.then(|| vec![gpus]),
        cap_add: Some(engine.capabilities.clone()),
        ulimits: Some(engine.ulimits.iter().map(ulimit).collect()),
        shm_size: i64::try_from(engine.shm_bytes).ok().filter(|bytes| *bytes > 0),
        oom_score_adj: engine.oom_score_adj.map(i64::from),
        // systemd restarts the unit; docker restarting the container behind its back would hide every failure.
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        // The lines reach journald through the unit, redacted; docker keeps a bounded copy to follow them from.
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some(HashMap::from([
                ("max-size".to_owned(), "20m".to_owned()),
                ("max-file".to_owned(), "3".to_owned()),
            ])),
        }),
        ..HostConfig::default()
    }
}

/// Bind mounts by docker's `Mounts`: unlike `Binds` they never make a missing source silently, and take any name.
fn mounts(generation: &Generation, extra: &Extra) -> Vec<Mount> {
    let bind = |source: &str, target: &str, read_only: bool| Mount {
        source: Some(source.to_owned()),
        target: Some(target.to_owned()),
        typ: Some(MountType::BIND),
        read_only: Some(read_only),
        ..Mount::default()
    };
    let engine = &generation.engine;
    let mut all: Vec<Mount> = engine.mounts.iter().map(|m| bind(&m.source, &m.target, m.read_only)).collect();
    all.extend(engine.api_key_file.as_ref().map(|key| bind(key, KEY_IN_CONTAINER, true)));
    all.push(bind(&extra.tool, TOOL_IN_CONTAINER, true));
    all
}

#[cfg(test)]
mod tests {
    use sparklane_lane::generation::Ray;

    use super::*;
    use crate::load::tests::sample;

    fn extra() -> Extra {
        Extra { image: "sha256:22".into(), tool: "/nix/store/x/bin/sparklane".into(), label: "lab-a/head".into() }
    }

    #[test]
    fn arrays_reach_docker_unchanged() {
        let body = container(&sample("head"), &extra());
        assert_eq!(body.entrypoint, Some(vec![TOOL_IN_CONTAINER.to_owned()]));
        let cmd = body.cmd.unwrap();
        assert_eq!(cmd[..3], ["entry", "--", "/sparklane-sim"]);
        assert_eq!(cmd[5], "{\"method\":\"dspark\",\"num_speculative_tokens\":7}");
        assert_eq!(body.env, Some(vec!["A=1".to_owned(), "NCCL_SOCKET_IFNAME=rail1".to_owned()]));
        let host = body.host_config.unwrap();
        assert_eq!(host.network_mode.as_deref(), Some("host"));
        assert_eq!(host.ipc_mode.as_deref(), Some("host"));
        assert_eq!(host.device_requests, None);
        assert_eq!(host.oom_score_adj, None);
        let limits: Vec<_> = host.ulimits.unwrap().into_iter().map(|u| (u.name.unwrap(), u.soft.unwrap())).collect();
        assert_eq!(limits, [("memlock".to_owned(), -1), ("stack".to_owned(), 67_108_864)]);
        assert_eq!(body.stop_timeout, Some(20));
    }

    #[test]
    fn a_measurement_has_the_engines_devices_and_limits_and_nothing_of_its_files() {
        let mut generation = sample("head");
        generation.engine.gpus = true;
        generation.engine.api_key_file = Some("/etc/sparklane/api.key".into());
        let argv = ["python3", "-c", "print(1)"].map(str::to_owned);
        let body = bench(&generation, &extra(), &argv, &BTreeMap::from([("RANK".to_owned(), "0".to_owned())]));
        assert_eq!(body.entrypoint, Some(vec!["python3".to_owned()]));
        assert_eq!(body.cmd.as_deref(), Some(&argv[1..]));
        assert_eq!(body.env, Some(vec!["RANK=0".to_owned()]));
        assert_eq!(body.labels.unwrap()[ROLE_LABEL], ROLE_BENCH);
        let (host, engine) = (body.host_config.unwrap(), container(&generation, &extra()).host_config.unwrap());
        assert_eq!(host.mounts, Some(Vec::new()));
        assert_eq!(
            (&host.ulimits, &host.device_requests, &host.network_mode),
            (&engine.ulimits, &engine.device_requests, &engine.network_mode)
        );
    }

    #[test]
    fn a_spark_gets_gpus_devices_and_oom_score() {
        let mut generation = sample("worker");
        generation.engine.gpus = true;
        generation.engine.devices = vec!["/dev/infiniband".into()];
        generation.engine.oom_score_adj = Some(-500);
        let host = container(&generation, &extra()).host_config.unwrap();
        let request = &host.device_requests.unwrap()[0];
        assert_eq!((request.count, request.capabilities.clone()), (Some(-1), Some(vec![vec!["gpu".to_owned()]])));
        assert_eq!(host.devices.unwrap()[0].path_on_host.as_deref(), Some("/dev/infiniband"));
        assert_eq!(host.oom_score_adj, Some(-500));
    }

    #[test]
    fn rays_plan_is_one_argument() {
        let mut generation = sample("worker");
        let ray = Ray { gcs: "10.0.0.1:6379".into(), join_secs: 120, head: None };
        generation.engine.ray = Some(ray.clone());
        let cmd = container(&generation, &extra()).cmd.unwrap();
        assert_eq!((cmd[1].as_str(), cmd[3].as_str()), ("--ray", "--"));
        assert_eq!(serde_json::from_str::<Ray>(&cmd[2]).unwrap(), ray);
    }

    #[test]
    fn the_key_is_mounted_and_never_in_argv_or_env() {
        let mut generation = sample("head");
        generation.engine.api_key_file = Some("/var/lib/sparklane/keys/api".into());
        let body = container(&generation, &extra());
        assert_eq!(body.entrypoint, Some(vec![TOOL_IN_CONTAINER.to_owned()]));
        let cmd = body.cmd.clone().unwrap();
        assert_eq!(cmd[..5], ["entry", "--api-key-file", KEY_IN_CONTAINER, "--", "/sparklane-sim"]);
        assert!(!serde_json::to_string(&body).unwrap().contains(crate::key::KEY_ENV));
        let mounts = body.host_config.unwrap().mounts.unwrap();
        assert!(mounts.iter().all(|m| m.read_only == Some(true)));
        assert_eq!(mounts[0].source.as_deref(), Some("/var/lib/sparklane/keys/api"));
    }
}
