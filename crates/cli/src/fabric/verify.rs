//! `sparklane fabric verify`: every node asked at once, judged here.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use serde::Serialize;
use sparklane_deploy::progress::Quiet;
use sparklane_deploy::{DeployError, Flow, Site};
use sparklane_fabric::checks::{Asked, Input, Outcome, Row, judge, mtu};
use sparklane_fabric::facts::{NodeFacts, Root, recorded};
use sparklane_fabric::ping::Target;
use sparklane_fabric::table;
use sparklane_lane::cluster::Absent;
use sparklane_lane::fabric::Check;
use sparklane_lane::{Cluster, NodeName};

use super::node::Request;
use crate::deploy::Reach;
use crate::report::refused;

/// Check both nodes, both rails, both directions, what differs between nodes, and who listens.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane fabric verify --cluster lab
  sparklane fabric verify --cluster lab --json
  sparklane fabric verify --cluster sparks --sysroot head=trees/head --sysroot worker=trees/worker

What the cluster file declares absent says \"n/a: declared\". `fabric.severity` there weighs checks otherwise,
`fabric.listeners` names listeners that may be there.

Exit codes: 0 nothing failed, 1 something did, 2 usage.")]
pub struct Args {
    #[command(flatten)]
    reach: Reach,
    /// Judge a recorded tree in place of the node; for all nodes or none.
    #[arg(long, value_name = "NODE=DIR", value_parser = tree)]
    sysroot: Vec<(NodeName, Utf8PathBuf)>,
    /// Kernel log that the nodes read in place of /dev/kmsg.
    #[arg(long, value_name = "PATH", hide = true)]
    kmsg: Option<String>,
}

fn tree(text: &str) -> Result<(NodeName, Utf8PathBuf), String> {
    let (node, dir) = text.split_once('=').ok_or("is not NODE=DIR")?;
    Ok((node.parse().map_err(|e: sparklane_lane::BadId| e.to_string())?, dir.into()))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Verified {
    exit_code: u8,
    cluster: String,
    millis: u64,
    rows: Vec<Row>,
}

/// Longest wait for a node: its packets have 1.4 s twice, docker 5 s, ssh 10 s to connect.
const LONGEST: Duration = Duration::from_secs(30);

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    let begin = Instant::now();
    let (cluster, asked) = match ask(args) {
        Ok(found) => found,
        Err(error) => return Ok(refused(args.reach.json(), error.exit_code(), &error.to_string())),
    };
    let rows = judge(Input { cluster: &cluster, nodes: &asked });
    let exit_code = u8::from(rows.iter().any(|row| row.outcome == Outcome::Failed));
    let millis = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    if args.reach.json() {
        let verified = Verified { exit_code, cluster: cluster.name.to_string(), millis, rows };
        println!("{}", serde_json::to_string(&verified).unwrap_or_default());
    } else {
        println!("{}, {} ms", table::text(&rows), millis);
    }
    Ok(ExitCode::from(exit_code))
}

fn ask(args: &Args) -> Result<(Cluster, Vec<Asked>), DeployError> {
    let site = args.reach.site()?;
    let asked = if args.sysroot.is_empty() { asked(args, &site)? } else { of_trees(args, &site)? };
    Ok((site.cluster, asked))
}

/// Asks every node.
fn asked(args: &Args, site: &Site) -> Result<Vec<Asked>, DeployError> {
    let options = args.reach.options(None);
    let flow = Flow::new(site, &options, &Quiet)?;
    Ok(survey(&flow, &site.cluster, args.kmsg.as_deref()))
}

/// Asks the nodes of a flow, all at once.
pub fn survey(flow: &Flow<'_>, cluster: &Cluster, kmsg: Option<&str>) -> Vec<Asked> {
    let input = |node: &NodeName| {
        let request = Request {
            targets: targets(cluster, node),
            firmware: cluster.has(Absent::Gpu),
            kmsg: kmsg.map(str::to_owned),
        };
        serde_json::to_vec(&request).unwrap_or_default()
    };
    let answers = flow.reports_on::<NodeFacts>(&["node", "facts"], LONGEST, input);
    let one = |report: sparklane_deploy::flow::TimedReport<NodeFacts>| {
        let facts = match report.answer {
            Ok(Some(facts)) => Ok(facts),
            Ok(None) => Err("has no tool yet: nothing was ever deployed there".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        Asked { node: report.node, facts, between: Some(report.between) }
    };
    answers.into_iter().map(one).collect()
}

/// Before a deployment: refuses when something failed that the deployment would not mend itself, where the cluster file
/// asks for it.
///
/// # Errors
/// Refused, with every finding, its cause and what to do.
pub fn preflight(flow: &Flow<'_>, cluster: &Cluster) -> Result<(), DeployError> {
    if !cluster.fabric.preflight {
        return Ok(());
    }
    let asked = survey(flow, cluster, None);
    let rows = judge(Input { cluster, nodes: &asked });
    let failed: Vec<Row> =
        rows.into_iter().filter(|row| row.outcome == Outcome::Failed && counts_before(row.check, cluster)).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(DeployError::Refused(format!("fabric.preflight of the cluster file:\n{}", table::findings(&failed).trim_end())))
}

/// What a generation places is wrong before it is placed.
fn counts_before(check: Check, cluster: &Cluster) -> bool {
    match check {
        Check::Mtu | Check::Address | Check::Subnets | Check::RdmaMtu | Check::Gid | Check::Jumbo => {
            cluster.host.rails.is_none()
        }
        Check::MemlockUnit | Check::MemlockLogin => !cluster.host.memlock,
        // The table and what it guards are the generation's.
        Check::Firewall => cluster.host.firewall.is_none(),
        Check::MemlockContainer | Check::GpuContainer | Check::Nccl | Check::Release => false,
        _ => true,
    }
}

/// Both rails of every other node.
pub fn targets(cluster: &Cluster, node: &NodeName) -> Vec<Target> {
    let Some(own) = cluster.nodes.get(node) else { return Vec::new() };
    let mtu = u16::try_from(mtu(cluster)).unwrap_or(u16::MAX);
    let to = |(peer, other): (&NodeName, &sparklane_lane::cluster::Node)| {
        let rails = [("rail1", &own.rail1, &other.rail1), ("rail2", &own.rail2, &other.rail2)];
        rails.map(|(rail, own, other)| {
            let address = other.address.parse().ok()?;
            Some(Target { rail: rail.into(), netdev: own.netdev.clone(), peer: peer.to_string(), address, mtu })
        })
    };
    cluster.by_rank().into_iter().filter(|(name, _)| *name != node).flat_map(to).flatten().collect()
}

/// Reads recorded trees.
fn of_trees(args: &Args, site: &Site) -> Result<Vec<Asked>, DeployError> {
    let trees: BTreeMap<&NodeName, &Utf8PathBuf> = args.sysroot.iter().map(|(node, dir)| (node, dir)).collect();
    if let Some(stranger) = trees.keys().find(|node| !site.cluster.nodes.contains_key(**node)) {
        return Err(DeployError::Usage(format!("no node {stranger} in cluster {}", site.cluster.name)));
    }
    let one = |(node, _): (&NodeName, &sparklane_lane::cluster::Node)| {
        let Some(dir) = trees.get(node) else {
            return Err(DeployError::Usage(format!("no tree for {node}: give --sysroot {node}=DIR too")));
        };
        let facts = recorded(env!("CARGO_PKG_VERSION"), &Root::new(dir)).map_err(|e| e.to_string());
        Ok(Asked { node: node.clone(), facts, between: None })
    };
    site.cluster.by_rank().into_iter().map(one).collect()
}
