//! `deploy`, `rollback`, `plan`, `status`, `releases`: the control host's commands.

use std::process::ExitCode;
use std::time::Instant;

use camino::Utf8PathBuf;
use clap::Args;
use serde::Serialize;
use sparklane_deploy::cancel;
use sparklane_deploy::flow::Reports;
use sparklane_deploy::flow::images::ImageOptions;
use sparklane_deploy::progress::{self, Observer, Quiet};
use sparklane_deploy::{ClusterStatus, DeployError, DeployOptions, Flow, Site, Subject, Target, Verdict};
use sparklane_lane::NodeName;
use sparklane_txn::Goal;
use tokio::signal::unix::SignalKind;

use crate::{say, signals};

/// Which cluster, and how its nodes are reached.
#[derive(Debug, Clone, Args)]
pub struct Reach {
    /// Cluster of the flake; needed when it has more than one. Also: SPARKLANE_CLUSTER.
    #[arg(long)]
    cluster: Option<String>,
    /// Print one JSON object on stdout.
    #[arg(long)]
    json: bool,
    /// User on the nodes, instead of the cluster file's.
    #[arg(long, value_name = "USER")]
    ssh_user: Option<String>,
    /// One further argument of ssh; repeat it for more.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    ssh_opts: Vec<String>,
    /// Address of a node, instead of the cluster file's: NODE=HOST.
    #[arg(long, value_name = "NODE=HOST", value_parser = node_host)]
    hostname: Vec<(NodeName, String)>,
    /// Folder with flake.json and lanes.json [default: the one beside the app]
    #[arg(long, value_name = "DIR")]
    share: Option<Utf8PathBuf>,
}

/// How a transaction is carried out.
#[derive(Debug, Clone, Args)]
pub struct How {
    /// Check everything on every node, change nothing.
    #[arg(long, conflicts_with_all = ["boot", "test"])]
    dry_activate: bool,
    /// Take effect at the next boot; what serves now is not touched.
    #[arg(long, conflicts_with = "test")]
    boot: bool,
    /// Serve the lane, pass its gates, return to what was.
    #[arg(long)]
    test: bool,
    /// Only these nodes; refused when the others would stay on another lane.
    #[arg(long, visible_alias = "node", value_name = "NODE", num_args = 1..)]
    targets: Vec<NodeName>,
    /// Seconds from the first change until all gates must have passed [default: the lane's budgets]
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    activation_timeout: Option<u64>,
    /// Seconds from the last gate until the commit must have arrived [default: the lane's budget]
    #[arg(long, value_name = "SECS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    confirm_timeout: Option<u64>,
    /// Replace managed files that were edited by hand; a copy is kept on the node.
    #[arg(long)]
    replace_edited: bool,
    /// Take over files that are not ours; they are put back when a later lane leaves them.
    #[arg(long)]
    takeover: bool,
    /// Bring an image that a node lacks although it serves, at most so many bytes per second, e.g. 50M. Weights are then
    /// held to that rate too; without it they go as fast as disk and cores allow at the lowest priority.
    #[arg(long, value_name = "RATE", value_parser = crate::image::rate)]
    while_serving: Option<u64>,
    /// Registry that nodes may speak plain http to; repeat it for more.
    #[arg(long, value_name = "HOST[:PORT]")]
    plain_http: Vec<String>,
    /// File on the head with the registry's login, readable by root only.
    #[arg(long, value_name = "FILE")]
    registry_auth: Option<Utf8PathBuf>,
    /// File with the secret key that signs closures [default: /etc/sparklane/signing.key when it exists]
    #[arg(long, value_name = "FILE")]
    signing_key: Option<Utf8PathBuf>,
}

/// Bring all nodes to a lane, or leave all as they were.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nix run .#deploy -- --cluster lab
  nix run .#deploy -- lab-b --cluster lab
  nix run .#deploy -- ray-0731 --cluster sparks --dry-activate
  nix run .#deploy -- ray-0731-multiagent --cluster sparks --test --json

Exit codes: 0 committed, 1 refused before any change, 2 usage, 3 failed and rolled back (read back),
4 in doubt or rollback failed, 5 busy.")]
pub struct DeployArgs {
    /// Lane of the flake [default: the cluster's defaultLane]
    lane: Option<String>,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    how: How,
}

/// Return all nodes to a prior release, by number or by lane.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nix run .#rollback -- --cluster lab
  nix run .#rollback -- --cluster lab --to 1
  nix run .#rollback -- --cluster lab --to lane:lab-a")]
pub struct RollbackArgs {
    /// Number of a release, or lane:NAME for its newest release [default: the one before the current]
    #[arg(long, value_name = "N|lane:NAME", value_parser = release, allow_hyphen_values = true)]
    to: Option<Target>,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    how: How,
}

/// Show what a deployment would change, on which node.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nix run .#plan -- lab-b --cluster lab
  nix run .#plan -- lab-b --cluster lab --json")]
pub struct PlanArgs {
    /// Lane of the flake [default: the cluster's defaultLane]
    lane: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

/// Show what each node serves, and what is open or in doubt.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nix run .#status -- --cluster lab
  nix run .#status -- --cluster lab --watch

Exit codes: 0 all nodes on one release and serving, 1 not so, 4 in doubt, on different lanes, or a node does not answer.")]
pub struct StatusArgs {
    #[command(flatten)]
    reach: Reach,
    /// Ask again every two seconds until interrupted.
    #[arg(long)]
    watch: bool,
}

/// List the cluster's releases.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nix run .#releases -- --cluster lab
  nix run .#releases -- --cluster lab --json")]
pub struct ReleasesArgs {
    #[command(flatten)]
    reach: Reach,
}

fn node_host(text: &str) -> Result<(NodeName, String), String> {
    let (node, host) = text.split_once('=').ok_or("is not NODE=HOST")?;
    Ok((node.parse().map_err(|e: sparklane_lane::BadId| e.to_string())?, host.to_owned()))
}

fn release(text: &str) -> Result<Target, String> {
    if let Some(lane) = text.strip_prefix("lane:") {
        return lane.parse().map(Target::ReleaseOfLane).map_err(|e: sparklane_lane::BadId| e.to_string());
    }
    let number = text.parse().map_err(|_| "is neither a number nor lane:NAME".to_owned())?;
    Ok(Target::Release(Some(number)))
}

impl Reach {
    /// True when JSON is wanted.
    pub fn json(&self) -> bool {
        self.json
    }

    /// The cluster that was named.
    pub fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// Asks every node with a subcommand of its tool.
    ///
    /// # Errors
    /// When the cluster is not known.
    pub fn reports<T: serde::de::DeserializeOwned + Send>(&self, words: &[&str]) -> Result<Reports<T>, DeployError> {
        let site = self.site()?;
        let options = self.options(None);
        Ok(Flow::new(&site, &options, &Quiet)?.reports(words))
    }

    pub(crate) fn site(&self) -> Result<Site, DeployError> {
        let share = self.share.clone().unwrap_or_else(share_beside_app);
        Site::of_app(&share, self.cluster.as_deref())
    }

    /// The cluster and its nodes, when they are known.
    fn about(&self) -> Subject {
        self.site().map_or_else(|_| Subject::default(), |site| Subject::of(&site, &Target::Release(None)))
    }

    fn observer(&self) -> Box<dyn Observer> {
        progress::fitting(self.json)
    }

    pub(crate) fn options(&self, how: Option<&How>) -> DeployOptions {
        let goal = match how {
            Some(how) if how.dry_activate => Goal::DryActivate,
            Some(how) if how.boot => Goal::Boot,
            Some(how) if how.test => Goal::Test,
            _ => Goal::Switch,
        };
        DeployOptions {
            goal,
            targets: how.map_or_else(Vec::new, |h| h.targets.clone()),
            replace_edited: how.is_some_and(|h| h.replace_edited),
            takeover: how.is_some_and(|h| h.takeover),
            activation_secs: how.and_then(|h| h.activation_timeout),
            confirm_secs: how.and_then(|h| h.confirm_timeout),
            signing_key: how.and_then(|h| h.signing_key.clone()),
            ssh_user: self.ssh_user.clone(),
            ssh_opts: self.ssh_opts.clone(),
            hostnames: self.hostname.clone(),
            preflight: Some(crate::fabric::verify::preflight),
            images: how.map_or_else(ImageOptions::default, |h| ImageOptions {
                while_serving: h.while_serving,
                plain_http: h.plain_http.clone(),
                auth_file: h.registry_auth.clone(),
            }),
        }
    }
}

/// `<app>/share/sparklane` for `<app>/bin/deploy`: argv[0] is the app's link, not the binary it leads to.
pub(crate) fn share_beside_app() -> Utf8PathBuf {
    let argv0 = std::env::args().next().unwrap_or_default();
    let bin = Utf8PathBuf::from(argv0);
    bin.parent().and_then(|p| p.parent()).map_or_else(|| "share/sparklane".into(), |app| app.join("share/sparklane"))
}

/// `sparklane deploy`.
///
/// # Errors
/// Never; failures are verdicts and exit codes.
pub fn deploy(args: DeployArgs) -> miette::Result<ExitCode> {
    Ok(go(&args.reach, &args.how, &Target::Lane(args.lane)))
}

/// `sparklane rollback`.
///
/// # Errors
/// Never; failures are verdicts and exit codes.
pub fn rollback(args: RollbackArgs) -> miette::Result<ExitCode> {
    Ok(go(&args.reach, &args.how, &args.to.unwrap_or(Target::Release(None))))
}

/// Ctrl-C once: the nodes go back now. Twice: this program ends, and they go back at their deadline.
fn watch_interrupts() -> std::io::Result<()> {
    let stop = || {
        if cancel::ask() {
            eprintln!("left: a transaction that is under way ends at its deadline; look: sparklane status");
            std::process::exit(130);
        }
        eprintln!("interrupted: ending at the next safe point; once more leaves the nodes to their deadline");
    };
    signals::on(SignalKind::interrupt(), stop)?;
    signals::on(SignalKind::terminate(), stop)
}

fn go(reach: &Reach, how: &How, target: &Target) -> ExitCode {
    if let Err(error) = watch_interrupts() {
        tracing::warn!(%error, "an interrupt will end this program at once");
    }
    let begin = Instant::now();
    let mut about = Subject::default();
    let run = |about: &mut Subject| -> Result<Verdict, DeployError> {
        let site = reach.site()?;
        *about = Subject::of(&site, target);
        let options = reach.options(Some(how));
        let observer = reach.observer();
        let mut flow = Flow::new(&site, &options, &*observer)?;
        let done = flow.run(target);
        about.clone_from(flow.subject());
        done
    };
    match run(&mut about) {
        Ok(verdict) => {
            show(reach.json, &verdict, &verdict.lines());
            ExitCode::from(verdict.exit_code)
        }
        Err(error) => failed((reach.json, begin), &about, &error),
    }
}

fn failed((json, begin): (bool, Instant), about: &Subject, error: &DeployError) -> ExitCode {
    let millis = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    let verdict = Verdict { millis, ..Verdict::plain(about, error.into(), Some(error.to_string())) };
    if json {
        show(true, &verdict, "");
    } else {
        eprintln!("{}: {error}", verdict.verdict.as_str());
    }
    ExitCode::from(verdict.exit_code)
}

fn show(json: bool, value: &impl Serialize, text: &str) {
    if json {
        println!("{}", serde_json::to_string(value).unwrap_or_default());
    } else {
        println!("{text}");
    }
}

/// `sparklane plan`.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn plan(args: PlanArgs) -> miette::Result<ExitCode> {
    let reach = &args.reach;
    let begin = Instant::now();
    let target = Target::Lane(args.lane.clone());
    let mut about = Subject::default();
    let run = |about: &mut Subject| {
        let site = reach.site()?;
        *about = Subject::of(&site, &target);
        let options = reach.options(None);
        let observer = reach.observer();
        Flow::new(&site, &options, &*observer)?.plan(&target)
    };
    Ok(match run(&mut about) {
        Ok(plan) => {
            show(reach.json, &plan, &plan.to_string());
            ExitCode::SUCCESS
        }
        Err(error) => failed((reach.json, begin), &about, &error),
    })
}

/// `sparklane status`.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn status(args: StatusArgs) -> miette::Result<ExitCode> {
    let reach = &args.reach;
    loop {
        let begin = Instant::now();
        let code = match survey(reach) {
            Ok(status) => {
                show(reach.json, &status, &status.to_string());
                ExitCode::from(status.exit_code)
            }
            Err(error) => failed((reach.json, begin), &reach.about(), &error),
        };
        if !args.watch || say::unread() {
            return Ok(code);
        }
        std::thread::sleep(std::time::Duration::from_secs(2));
    }
}

fn survey(reach: &Reach) -> Result<ClusterStatus, DeployError> {
    let site = reach.site()?;
    let options = reach.options(None);
    Ok(Flow::new(&site, &options, &Quiet)?.survey())
}

/// `sparklane releases`.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn releases(args: ReleasesArgs) -> miette::Result<ExitCode> {
    let reach = &args.reach;
    let begin = Instant::now();
    let status = match survey(reach) {
        Ok(status) => status,
        Err(error) => return Ok(failed((reach.json, begin), &reach.about(), &error)),
    };
    let Some(head) = status.nodes.first() else { return Ok(ExitCode::from(1)) };
    if let Some(error) = &head.error {
        return Ok(failed((reach.json, begin), &reach.about(), &DeployError::Refused(error.clone())));
    }
    let releases = head.status.as_ref().map_or(&[][..], |s| s.releases.as_slice());
    let line = |r: &sparklane_lane::Release| {
        let mark = if status.release == Some(r.number) { '*' } else { ' ' };
        let from = r.rollback_of.map_or_else(String::new, |n| format!(" (rollback to {n})"));
        format!("{mark} {:>4}  {}  {}  {}{from}", r.number, r.time, r.lane, r.who)
    };
    let text: Vec<String> = releases.iter().map(line).collect();
    show(reach.json, &releases, &text.join("\n"));
    Ok(ExitCode::SUCCESS)
}
