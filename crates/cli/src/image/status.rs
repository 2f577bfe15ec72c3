//! `sparklane image status`: both nodes side by side.

use std::process::ExitCode;

use serde::Serialize;
use sparklane_lane::NodeName;
use sparklane_oci::Digest;
use sparklane_oci::docker::StoreKind;

use super::common::size;
use super::node::Report;
use crate::deploy::Reach;

/// Show on every node which image the lane wants, docker has and the engine runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image status --cluster lab
  sparklane image status --cluster lab --json

Exit codes: 0 every node runs the image of its lane, 1 not so, 4 a node does not answer.")]
pub struct Args {
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    node: NodeName,
    report: Option<Report>,
    error: Option<String>,
    /// `ok`, or what is not.
    verdict: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    exit_code: u8,
    nodes: Vec<Row>,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let answers = match args.reach.reports::<Report>(&["node", "image-report"]) {
        Ok(answers) => answers,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::from(error.exit_code()));
        }
    };
    let rows = answers.into_iter().map(|(node, answer)| match answer {
        Ok(report) => {
            let verdict = report.as_ref().map_or_else(|| "nothing deployed".to_owned(), judge);
            Row { node, report, error: None, verdict }
        }
        Err(error) => Row { node, report: None, error: Some(error.to_string()), verdict: "no answer".into() },
    });
    let nodes: Vec<Row> = rows.collect();
    let exit_code = match &nodes {
        all if all.iter().any(|r| r.error.is_some()) => 4,
        all if all.iter().all(|r| r.verdict == "ok") && one_image(all) => 0,
        _ => 1,
    };
    let status = Status { exit_code, nodes };
    let shown =
        if args.reach.json() { serde_json::to_string(&status).unwrap_or_default() } else { lines(&status.nodes) };
    println!("{shown}");
    Ok(ExitCode::from(exit_code))
}

/// Whether a node's docker has and runs what its lane wants, each by the number of its store.
fn judge(report: &Report) -> String {
    let Some(wanted) = &report.wanted else { return "nothing deployed".into() };
    let (Some(manifest), Some(config)) = (&wanted.manifest, &wanted.config) else {
        return "the lane's image has no digest yet".into();
    };
    let right = report.store.id_of(manifest, config);
    match (&report.docker, &report.running) {
        (None, _) => "docker does not have it".into(),
        (Some(_), None) => "the engine does not run".into(),
        (Some(_), Some(running)) if running == right => "ok".into(),
        (Some(_), Some(running)) => format!("the engine runs {running}"),
    }
}

/// One manifest on all nodes.
fn one_image(rows: &[Row]) -> bool {
    let manifest = |r: &Row| r.report.as_ref().and_then(|r| r.wanted.as_ref()).and_then(|w| w.manifest.clone());
    let mut all = rows.iter().map(manifest);
    let first = all.next().flatten();
    all.all(|m| m == first)
}

fn lines(rows: &[Row]) -> String {
    let text = |d: Option<&Digest>| d.map_or_else(|| "-".to_owned(), |d| d.to_string());
    let field = |name: &str, of: &dyn Fn(&Report) -> String| {
        let cells = rows.iter().map(|row| row.report.as_ref().map_or_else(|| "-".to_owned(), of));
        let cells: Vec<String> = cells.map(|cell| format!("{cell:<72}")).collect();
        format!("{name:<10} {}", cells.join(" ").trim_end())
    };
    let wanted = |of: fn(&sparklane_lane::generation::Image) -> Option<&Digest>| {
        move |r: &Report| text(r.wanted.as_ref().and_then(of))
    };
    let head = rows.iter().map(|r| format!("{:<72}", format!("{}: {}", r.node, r.verdict)));
    let head: Vec<String> = head.collect();
    let store = |r: &Report| match r.store {
        StoreKind::Classic => "classic (an image's id is its config's digest)".to_owned(),
        StoreKind::Containerd => "containerd (an image's id is its manifest's digest)".to_owned(),
    };
    let layout = |r: &Report| {
        let whole = r.layout.iter().filter(|l| l.complete).count();
        format!("{whole} of {} images whole, {}", r.layout.len(), size(r.layout_bytes))
    };
    let mut all = vec![
        format!("{:<10} {}", "", head.join(" ").trim_end()),
        field("image", &|r| r.wanted.as_ref().map_or_else(|| "-".to_owned(), |w| w.reference.clone())),
        field("manifest", &wanted(|w| w.manifest.as_ref())),
        field("config", &wanted(|w| w.config.as_ref())),
        field("store", &store),
        field("docker id", &|r| text(r.docker.as_ref())),
        field("running", &|r| text(r.running.as_ref())),
        field("layout", &layout),
    ];
    all.extend(rows.iter().filter_map(|r| r.error.as_ref().map(|e| format!("{}: {e}", r.node))));
    all.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(store: StoreKind, docker: Option<&[u8]>, running: Option<&[u8]>) -> Report {
        let of = |b: &[u8]| sparklane_oci::digest::of(b);
        let wanted = sparklane_lane::generation::Image {
            reference: "x/y:1".into(),
            base: None,
            manifest: Some(of(b"manifest")),
            config: Some(of(b"config")),
            pin_with: String::new(),
        };
        let (docker, running) = (docker.map(of), running.map(of));
        Report {
            store,
            wanted: Some(wanted),
            docker,
            repo_digests: Vec::new(),
            running,
            layout: Vec::new(),
            layout_bytes: 0,
        }
    }

    /// Row 15 (docker/cli#6996, #6670, #5526, moby#48401): the right number in each store.
    #[test]
    fn row_15_each_store_is_judged_by_its_own_number() {
        let verdict = |store, running: &[u8]| judge(&report(store, Some(b"any"), Some(running)));
        assert_eq!(verdict(StoreKind::Classic, b"config"), "ok");
        assert_eq!(verdict(StoreKind::Containerd, b"manifest"), "ok");
        assert!(verdict(StoreKind::Classic, b"manifest").contains("runs"));
        assert!(verdict(StoreKind::Containerd, b"config").contains("runs"));
        assert_eq!(judge(&report(StoreKind::Classic, None, None)), "docker does not have it");
        let rows = [Row {
            node: "head".parse().unwrap(),
            report: Some(report(StoreKind::Classic, None, None)),
            error: None,
            verdict: "x".into(),
        }];
        assert!(lines(&rows).contains("classic (an image's id is its config's digest)"));
    }
}
