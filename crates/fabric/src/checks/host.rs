//! Limits, sessions, the GPU, memory, kernel lines.

use sparklane_lane::cluster::Absent;
use sparklane_lane::fabric::Check;

use super::{Row, Subject};
use crate::facts::Limit;
use crate::facts::kmsg::Meaning;

/// A cable that is there at boot is reported within this time of it (fabric-real.md 17: 5 s for the driver, removal 15 to 22 s).
const BOOT_SECS: u64 = 60;

pub(super) fn rows(s: Subject<'_>) -> Vec<Row> {
    let mut rows = memlock(s);
    rows.push(login(s));
    rows.extend(gpu(s));
    rows.push(cma(s));
    rows.extend(kernel(s));
    rows
}

fn memlock(s: Subject<'_>) -> Vec<Row> {
    let node = Some(s.name);
    let checks = [Check::MemlockUnit, Check::MemlockLogin, Check::MemlockContainer];
    if !s.cluster.has(Absent::SysResource) {
        return checks.iter().map(|check| Row::declared(*check, node, "sys-resource")).collect();
    }
    let live = &s.facts.live;
    let unit = judged(s, Check::MemlockUnit, live.unit_memlock, "systemd did not say").remedy_if(
        "host.memlock = true in the cluster file, deploy (it sets systemd's DefaultLimitMEMLOCK), then restart docker",
    );
    let tailscale = live.login.via.as_deref() == Some("tailscaled");
    let more = if tailscale {
        "log in by OpenSSH: Tailscale's ssh does not read limits.d"
    } else {
        "host.memlock = true in the cluster file, deploy, log in anew"
    };
    let login = judged(s, Check::MemlockLogin, live.login.memlock, "not asked through a login").remedy_if(more);
    let container = live.docker.as_ref().and_then(|d| d.container.as_ref());
    let inside = match container {
        None => Row::skipped(Check::MemlockContainer, node, "the engine's container does not run"),
        Some(container) => judged(s, Check::MemlockContainer, container.memlock, "its process could not be read")
            .remedy_if("ulimits.memlock = -1 in the lane's container settings, deploy"),
    };
    vec![unit, login, inside]
}

fn judged(s: Subject<'_>, check: Check, limit: Option<Limit>, unknown: &str) -> Row {
    let node = Some(s.name);
    match limit {
        None => Row::skipped(check, node, unknown),
        Some(Limit { bytes: None }) => Row::ok(check, node, "unlimited"),
        Some(Limit { bytes: Some(bytes) }) => {
            let whole = s.facts.files.mem_total_kb.map_or(u64::MAX, |kb| kb.saturating_mul(1024));
            if bytes >= whole {
                return Row::ok(check, node, format!("{} MiB, all of the memory", bytes >> 20));
            }
            Row::failed(check, node, format!("{} KiB", bytes >> 10))
                .wanted("unlimited")
                .because("RDMA needs locked memory; NCCL then says \"unhandled system error\" (ibv_reg_mr: Cannot allocate memory)")
        }
    }
}

impl Row {
    /// The remedy, where there is something to mend.
    fn remedy_if(self, remedy: &str) -> Self {
        if self.outcome == super::Outcome::Failed { self.remedy(remedy) } else { self }
    }
}

fn login(s: Subject<'_>) -> Row {
    let (check, node) = (Check::Login, Some(s.name));
    match s.facts.live.login.via.as_deref() {
        None => Row::skipped(check, node, "not asked through a login"),
        Some("tailscaled") => Row::failed(check, node, "Tailscale's own ssh")
            .warn()
            .wanted("OpenSSH")
            .because("its sessions skip PAM: limits.d looks ignored, and node-to-node logins differ from these")
            .remedy(
                "sudo tailscale set --ssh=false, or name the node by an address of another network in the cluster file",
            ),
        Some(via) => Row::ok(check, node, via),
    }
}

fn gpu(s: Subject<'_>) -> Vec<Row> {
    let node = Some(s.name);
    if !s.cluster.has(Absent::Gpu) {
        return [Check::Gpu, Check::GpuContainer].iter().map(|check| Row::declared(*check, node, "gpu")).collect();
    }
    let system = &s.facts.files.system;
    let host = match (&system.driver, system.gpus.len()) {
        (None, _) => Row::failed(Check::Gpu, node, "no driver is loaded")
            .wanted("the NVIDIA driver")
            .because("the kernel was updated without its driver, or the driver does not fit it")
            .remedy("sudo apt install --reinstall nvidia-driver-580-open, reboot; dkms status"),
        (Some(driver), 0) => Row::failed(Check::Gpu, node, format!("driver {driver}, no GPU"))
            .wanted("a GPU")
            .because("the driver cannot bring it up (nvidia-smi: No devices were found)")
            .remedy("power the node off and on; a reboot is not always enough"),
        (Some(driver), gpus) => Row::ok(Check::Gpu, node, format!("{gpus}, driver {driver}")),
    };
    let inside = match s.facts.live.docker.as_ref().and_then(|d| d.container.as_ref()) {
        None => Row::skipped(Check::GpuContainer, node, "the engine's container does not run"),
        Some(c) if c.gpu_devices.iter().any(|d| d == "nvidiactl") => {
            Row::ok(Check::GpuContainer, node, c.gpu_devices.join(", "))
        }
        Some(_) => Row::failed(Check::GpuContainer, node, "no /dev/nvidiactl in the engine's container")
            .wanted("the GPU's device files")
            .because(
                "the container was made without GPUs: nvidia-container-toolkit or its CDI file is missing or stale",
            )
            .remedy(
                "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; restart docker; start the engine anew",
            ),
    };
    vec![host, inside]
}

fn cma(s: Subject<'_>) -> Row {
    let (check, node) = (Check::Cma, Some(s.name));
    if !s.cluster.has(Absent::Rdma) {
        return Row::declared(check, node, "rdma");
    }
    match s.facts.files.cma_total_kb {
        None => Row::skipped(check, node, "this kernel does not say"),
        Some(0) => Row::failed(check, node, "CmaTotal: 0 kB")
            .wanted("some contiguous memory")
            .because("kernels of the 7.0.0-1019 line hand it to kexec handover; registering memory then fails at once")
            .remedy("boot with kho=off (/etc/default/grub, update-grub), or the kernel before it"),
        Some(kb) => Row::ok(check, node, format!("CmaTotal {} MiB", kb >> 10)),
    }
}

fn kernel(s: Subject<'_>) -> Vec<Row> {
    let (check, node) = (Check::Kernel, Some(s.name));
    let notices = &s.facts.files.kernel;
    let last = |meaning: Meaning| notices.iter().rev().find(|n| n.meaning == meaning);
    let mut rows = Vec::new();
    if let Some(n) = last(Meaning::NicError) {
        rows.push(
            Row::failed(check, node, format!("{} s after boot: {}", n.secs, n.text))
                .wanted("no uncorrected PCI errors of the NIC")
                .because("the PCI bus lost data of the NIC; its recovery is known to hang the machine")
                .remedy("reboot both nodes; if it comes again, update the firmware (sudo fwupdmgr update)"),
        );
    }
    if let Some(n) = last(Meaning::NicNarrow) {
        rows.push(
            Row::failed(check, node, n.text.clone())
                .wanted("32.0 GT/s PCIe x4 for each half")
                .because("system firmware from before 2026-04 gives one half of the NIC two lanes")
                .remedy("sudo fwupdmgr update, then reboot"),
        );
    }
    if let Some(n) = last(Meaning::Plugged).filter(|n| n.secs > BOOT_SECS) {
        rows.push(
            Row::failed(check, node, format!("cable plugged {} s after boot", n.secs))
                .warn()
                .wanted("a cable that was in at boot")
                .because("the link then says 200G and may deliver 13 Gb/s; no state shows it, only a measurement")
                .remedy("sparklane fabric judge a benchmark's output, or reboot both nodes with the cable in"),
        );
    }
    if rows.is_empty() {
        rows.push(Row::ok(check, node, "nothing about the NIC"));
    }
    rows
}
