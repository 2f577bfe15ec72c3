//! `weights send`: from the node that has them to the others, started here, moved over the rails.

use std::process::ExitCode;

use camino::Utf8PathBuf;
use sparklane_deploy::weights::SendOptions;
use sparklane_deploy::{DeployError, Flow};
use sparklane_lane::NodeName;
use sparklane_weights::agent::Event;

use super::progress::Display;
use crate::deploy::Reach;

/// Send a manifest's files from the node that has them to the others, over both rails.
#[derive(Debug, clap::Args)]
pub struct SendArgs {
    /// Manifest.
    manifest: Utf8PathBuf,
    /// The node that has them [default: the head]
    #[arg(long, value_name = "NODE")]
    from: Option<NodeName>,
    /// Only these receivers [default: all other nodes]
    #[arg(long, value_name = "NODE")]
    to: Vec<NodeName>,
    /// Encrypt the bytes (AES-128-GCM). They are proved against the manifest either way; this is for private weights.
    #[arg(long)]
    seal: bool,
    /// Most megabytes per second and receiver.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Leave disk and cores to an engine that serves.
    #[arg(long)]
    while_serving: bool,
    /// Read everything back from the receivers' disks at the end.
    #[arg(long)]
    readback: bool,
    /// Connections per rail [default: up to 4, as there are cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=8))]
    connections: Option<u8>,
    /// Seconds without any byte after which a receiver gives up and keeps what it has.
    #[arg(long, value_name = "SECS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    give_up: u64,
    #[command(flatten)]
    pub reach: Reach,
}

/// Runs it. Exit codes: 0 done, 1 refused, 2 usage, 3 failed, 5 busy.
pub fn run(args: &SendArgs) -> ExitCode {
    match send(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => super::refused(args.reach.json(), error.exit_code(), &error.to_string()),
    }
}

fn send(args: &SendArgs) -> Result<(), DeployError> {
    let manifest = super::manifest(&args.manifest).map_err(|e| DeployError::Refused(e.to_string()))?;
    let (site, options) = (args.reach.site()?, args.reach.options(None));
    let flow = Flow::new(&site, &options, &sparklane_deploy::progress::Quiet)?;
    let sending = SendOptions {
        seal: args.seal,
        rate: args.rate.map(|mb| mb.saturating_mul(1_000_000)),
        while_serving: args.while_serving,
        readback: args.readback,
        connections: args.connections.map(usize::from),
        give_up_secs: Some(args.give_up),
    };
    let display = Display::new();
    let told = |node: &str, event: &Event| display.told(node, event);
    let receipts = flow.send_weights(&manifest, args.from.as_ref(), &args.to, &sending, &told);
    drop(display);
    let receipts = receipts?;
    if args.reach.json() {
        let rows: Vec<_> =
            receipts.iter().map(|(node, receipt)| serde_json::json!({ "node": node, "receipt": receipt })).collect();
        println!("{}", serde_json::json!({ "manifest": manifest.id(), "receivers": rows }));
        return Ok(());
    }
    for (node, receipt) in &receipts {
        let ways: Vec<String> = receipt.ways.iter().map(|w| format!("{} {}", w.name, super::bytes(w.bytes))).collect();
        let rate = receipt.fetched.saturating_mul(1000) / receipt.millis.max(1);
        println!(
            "{node}: {} in {} s, {}/s ({}), {} were there, {} ranges mended",
            super::bytes(receipt.fetched),
            receipt.millis / 1000,
            super::bytes(rate),
            ways.join(", "),
            super::bytes(receipt.had),
            receipt.repaired.len()
        );
    }
    Ok(())
}
