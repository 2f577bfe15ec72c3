//! How a container is given the GPUs. By CDI where docker has it: its device nodes are in the container's own specification,
//! so that a `systemctl daemon-reload` does not take them away, as it does with what NVIDIA's runtime hook adds later.

use std::path::Path;

use bollard::models::{ContainerCreateBody, DeviceRequest, SystemInfo};

/// CDI's name for all GPUs of a machine.
const ALL: &str = "nvidia.com/gpu=all";

/// A way to hand GPUs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gpus {
    /// By CDI's names.
    Cdi,
    /// By docker's own request, which NVIDIA's runtime hook serves.
    Runtime,
}

/// Chooses by what docker says of itself; files are looked at for the versions before 28.2, which do not list devices.
#[must_use]
pub fn choose(info: &SystemInfo) -> Gpus {
    let listed = info.discovered_devices.iter().flatten().any(|d| d.id.as_deref() == Some(ALL));
    let described = || info.cdi_spec_dirs.iter().flatten().any(|dir| describes_all(Path::new(dir)));
    if listed || described() { Gpus::Cdi } else { Gpus::Runtime }
}

/// True when a file of the folder describes the device: YAML or JSON, as `nvidia-ctk cdi generate` writes it.
fn describes_all(dir: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(dir) else { return false };
    entries.flatten().filter_map(|e| std::fs::read_to_string(e.path()).ok()).any(|text| {
        let plain: String = text.chars().filter(|c| !matches!(c, '"' | ' ')).collect();
        let has = |line: &str| plain.split(['\n', ',', '{', '}']).any(|l| l.trim().trim_start_matches('-') == line);
        has("kind:nvidia.com/gpu") && has("name:all")
    })
}

/// The request with its GPUs, if it has any, handed in this way.
#[must_use]
pub fn handed_in(mut body: ContainerCreateBody, how: Gpus) -> ContainerCreateBody {
    let requests = body.host_config.as_mut().and_then(|host| host.device_requests.as_mut());
    if let (Some(requests), Gpus::Cdi) = (requests, how) {
        *requests = vec![DeviceRequest {
            driver: Some("cdi".to_owned()),
            device_ids: Some(vec![ALL.to_owned()]),
            ..DeviceRequest::default()
        }];
    }
    body
}

#[cfg(test)]
mod tests {
    use bollard::models::DeviceInfo;
    use sparklane_lane::Generation;

    use super::*;
    use crate::load::tests::sample;
    use crate::spec::{Extra, container};

    #[test]
    fn cdi_is_taken_where_it_is() {
        assert_eq!(choose(&SystemInfo::default()), Gpus::Runtime);
        let device = |id: &str| Some(vec![DeviceInfo { source: Some("cdi".into()), id: Some(id.into()) }]);
        let with = |id: &str| choose(&SystemInfo { discovered_devices: device(id), ..SystemInfo::default() });
        assert_eq!((with(ALL), with("nvidia.com/gpu=0")), (Gpus::Cdi, Gpus::Runtime));
    }

    #[test]
    fn older_dockers_have_it_described_in_files() {
        let dir = tempfile::tempdir().unwrap();
        let info = SystemInfo { cdi_spec_dirs: Some(vec![dir.path().display().to_string()]), ..SystemInfo::default() };
        assert_eq!(choose(&info), Gpus::Runtime);
        let file = dir.path().join("nvidia.yaml");
        std::fs::write(&file, "cdiVersion: 0.5.0\ndevices:\n- name: \"0\"\nkind: nvidia.com/gpu\n").unwrap();
        assert_eq!(choose(&info), Gpus::Runtime);
        std::fs::write(&file, "cdiVersion: 0.5.0\ndevices:\n- name: \"0\"\n- name: all\nkind: nvidia.com/gpu\n")
            .unwrap();
        assert_eq!(choose(&info), Gpus::Cdi);
        std::fs::write(&file, "{\"kind\": \"nvidia.com/gpu\", \"devices\": [{\n  \"name\": \"all\"\n}]}").unwrap();
        assert_eq!(choose(&info), Gpus::Cdi);
    }

    #[test]
    fn only_a_lane_with_gpus_gets_them() {
        let mut generation = sample("head");
        let requests =
            |g: &Generation| handed_in(container(g, &Extra::default()), Gpus::Cdi).host_config.unwrap().device_requests;
        assert_eq!(requests(&generation), None);
        generation.engine.gpus = true;
        let request = &requests(&generation).unwrap()[0];
        assert_eq!(request.driver.as_deref(), Some("cdi"));
        assert_eq!(request.device_ids.as_deref(), Some(&[ALL.to_owned()][..]));
        assert_eq!(request.count, None);
    }
}
