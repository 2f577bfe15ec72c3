//! Networks of the lab: one namespace per machine and one, `sl-fabric`, with a bridge per network.
//!
//! Every cable is a veth pair whose far end is a port of a bridge in `sl-fabric`. A cut takes that port down, so the machine
//! sees its carrier go, as when a cable is pulled, and cannot undo it. This host joins the management network.

use crate::error::{LabError, Result};
use crate::run::{run, run_with_input};
use crate::spec::{HOST_ADDRESS, LinkEnd, Network, NodeSpec, nodes};

const FABRIC: &str = "sl-fabric";
/// This host's interface on the management network.
const HOST_LINK: &str = "sl-mgmt";

fn port(node: &str, network: Network) -> String {
    // 15 characters are the kernel's limit: "control-rail1" has 13.
    format!("{node}-{}", network.name())
}

/// True when all namespaces exist.
pub fn exists() -> bool {
    let names: Vec<String> = nodes().iter().map(NodeSpec::netns).chain([FABRIC.to_owned()]).collect();
    names.iter().all(|n| std::path::Path::new("/run/netns").join(n).exists())
}

/// Makes all networks; nothing of them may exist.
pub fn make() -> Result<()> {
    run(&["ip", "netns", "add", FABRIC])?;
    let mut fabric = String::from("link set lo up\n");
    for network in Network::ALL {
        let (name, mtu) = (network.name(), network.mtu());
        fabric += &format!("link add {name} type bridge forward_delay 0\nlink set {name} mtu {mtu} up\n");
    }
    for node in nodes() {
        let netns = node.netns();
        run(&["ip", "netns", "add", &netns])?;
        run(&["ip", "-n", &netns, "link", "set", "lo", "up"])?;
        for network in node.networks() {
            fabric += &cable(&port(node.name, *network), network.name(), Some(&netns), *network);
        }
    }
    fabric += &cable(&port("host", Network::Mgmt), HOST_LINK, None, Network::Mgmt);
    run_with_input(&["ip", "-n", FABRIC, "-batch", "-"], Some(&fabric))?;
    let address = format!("{HOST_ADDRESS}/24");
    run(&["ip", "address", "add", &address, "dev", HOST_LINK])?;
    run(&["ip", "link", "set", HOST_LINK, "up"])?;
    Ok(())
}

/// Batch lines for one cable: `port` in the fabric, `name` in `netns` (none: this host's).
fn cable(port: &str, name: &str, netns: Option<&str>, network: Network) -> String {
    // `netns PID` means that process's namespace: this host's.
    let place = netns.map_or_else(|| format!("netns {}", std::process::id()), |n| format!("netns {n}"));
    let (bridge, mtu) = (network.name(), network.mtu());
    format!(
        "link add {port} mtu {mtu} type veth peer name {name} mtu {mtu} {place}\nlink set {port} master {bridge} up\n"
    )
}

/// Removes all networks, also half-made ones.
pub fn remove() -> Result<()> {
    let mut names: Vec<String> = nodes().iter().map(NodeSpec::netns).collect();
    names.push(FABRIC.to_owned());
    for name in names {
        if std::path::Path::new("/run/netns").join(&name).exists() {
            run(&["ip", "netns", "delete", &name])?;
        }
    }
    // The kernel takes a namespace apart a little later than `ip` returns, and with it this pair.
    if std::path::Path::new("/sys/class/net").join(HOST_LINK).exists()
        && let Err(e) = run(&["ip", "link", "delete", HOST_LINK])
        && std::path::Path::new("/sys/class/net").join(HOST_LINK).exists()
    {
        return Err(e);
    }
    Ok(())
}

/// Pulls (`up` false) or plugs the cable of each end.
pub fn set(ends: &[LinkEnd], up: bool) -> Result<()> {
    let state = if up { "up" } else { "down" };
    let batch: String = ends.iter().map(|end| format!("link set {} {state}\n", port(end.node, end.network))).collect();
    run_with_input(&["ip", "-n", FABRIC, "-batch", "-"], Some(&batch)).map(drop)
}

/// Cables that are pulled now.
pub fn cut_links() -> Result<Vec<String>> {
    let text = run(&["ip", "-json", "-n", FABRIC, "link", "show"])?;
    let links: Vec<serde_json::Value> = serde_json::from_str(&text)
        .map_err(|e| LabError::BadFile { path: "ip -json link show".into(), why: e.to_string() })?;
    let up = |name: &str| {
        links
            .iter()
            .filter(|l| l["ifname"] == name)
            .any(|l| l["flags"].as_array().is_some_and(|f| f.iter().any(|flag| flag == "UP")))
    };
    let ends = nodes().into_iter().flat_map(|n| n.networks().iter().map(move |network| (n.name, *network)));
    Ok(ends
        .filter(|(node, network)| !up(&port(node, *network)))
        .map(|(node, network)| format!("{node}:{}", network.name()))
        .collect())
}
