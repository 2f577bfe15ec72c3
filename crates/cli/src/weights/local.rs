//! What works on this node's store.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use serde::{Deserialize, Serialize};
use sparklane_host::{HostError, HostPaths, lock, releases};
use sparklane_lane::{NodeName, WeightsManifest};
use sparklane_weights::adopt;
use sparklane_weights::proof::How;
use sparklane_weights::store::{Entry, Presence, ROOT};
use sparklane_weights::{Store, WeightsError, agent, hfview, preflight};

use super::{Place, bytes, manifest, print};
use crate::deploy::Reach;

/// Prove a manifest's files: by record, size, time and inode, or with --deep by every byte.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// Manifest; `-` reads it from stdin.
    pub manifest: Utf8PathBuf,
    /// Read every byte; while an engine serves, at the lowest priority.
    #[arg(long)]
    pub deep: bool,
    /// Folder of the node's weights.
    #[arg(long, value_name = "DIR", default_value = ROOT)]
    store: Utf8PathBuf,
    /// From the control host: compare a node with another one, the head unless --node names it.
    #[arg(long, value_name = "NODE")]
    pub against: Option<NodeName>,
    /// The node that is compared [default: the head]
    #[arg(long, value_name = "NODE", requires = "against")]
    pub node: Option<NodeName>,
    #[command(flatten)]
    pub reach: Reach,
}

/// Show what is in this node's store and whether it is proved; with --cluster, on every node side by side.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Folder of the node's weights.
    #[arg(long, value_name = "DIR", default_value = ROOT)]
    pub store: Utf8PathBuf,
    #[command(flatten)]
    pub reach: Reach,
}

/// Take files that are on this node already: a folder, or a Hugging Face cache of either layout.
#[derive(Debug, clap::Args)]
pub struct AdoptArgs {
    /// Folder of the files, of a snapshot, of a model in a cache, or of a cache.
    source: Utf8PathBuf,
    /// Manifest.
    #[arg(long, value_name = "FILE")]
    manifest: Utf8PathBuf,
    /// Copy what can be neither reflinked nor linked.
    #[arg(long)]
    copy: bool,
    #[command(flatten)]
    pub place: Place,
}

/// Remove what neither this node's generation nor its last releases name; asks first.
#[derive(Debug, clap::Args)]
pub struct GcArgs {
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    /// Keep these manifests, too.
    #[arg(long, value_name = "FILE")]
    keep: Vec<Utf8PathBuf>,
    #[command(flatten)]
    pub place: Place,
}

/// What a node has of one manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Name of its folder.
    pub name: String,
    /// `proved`, `unproved`, `partial` or `absent`.
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    how: Option<How>,
    /// What keeps it from being proved.
    pub why: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    manifest: Option<String>,
}

impl Row {
    fn new(name: String, presence: Presence) -> Self {
        let state = presence.word().to_owned();
        let (how, why) = match presence {
            Presence::Proved(how) => (Some(how), Vec::new()),
            Presence::Unproved(why) => (None, why),
            Presence::Partial | Presence::Absent => (None, Vec::new()),
        };
        Self { name, state, how, why, disk_bytes: None, manifest: None }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let size = self.disk_bytes.map_or_else(String::new, |b| format!("{:>10}  ", bytes(b)));
        let why = self.why.first().map_or_else(String::new, |w| format!(": {w}"));
        format!("{size}{:<8} {}{why}", self.state, self.name)
    }
}

fn row_of(store: &Store, entry: &Entry) -> Result<Row, WeightsError> {
    let presence = match (&entry.manifest, entry.published) {
        (_, false) => Presence::Partial,
        (Some(manifest), true) => store.presence(manifest)?,
        (None, true) => Presence::Unproved(vec!["its manifest is not on record".into()]),
    };
    let mut row = Row::new(entry.name.clone(), presence);
    row.disk_bytes = Some(entry.disk_bytes);
    row.manifest = entry.manifest.as_ref().map(sparklane_lane::WeightsManifest::id);
    Ok(row)
}

/// Shows what is there.
///
/// # Errors
/// When the store cannot be listed.
pub fn status(args: &StatusArgs) -> Result<ExitCode, WeightsError> {
    let store = Store::at(&args.store);
    let rows: Vec<Row> = store.entries()?.iter().map(|e| row_of(&store, e)).collect::<Result<_, _>>()?;
    if args.reach.json() {
        print(&rows)?;
    } else if rows.is_empty() {
        println!("no weights in {}", args.store);
    } else {
        rows.iter().for_each(|row| println!("{}", row.line()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Proves or disproves.
///
/// # Errors
/// When the manifest cannot be read or the store not be asked.
pub fn verify(args: &VerifyArgs) -> Result<ExitCode, WeightsError> {
    if args.deep {
        super::polite::when_serving();
    }
    let (store, manifest) = (Store::at(&args.store), manifest(&args.manifest)?);
    let mut presence = store.presence(&manifest)?;
    if args.deep && !matches!(presence, Presence::Absent | Presence::Partial) {
        let meter = Meter::new(manifest.bytes());
        let bad = store.verify(&manifest, agent::threads(), &|read| meter.add(read))?;
        let why: Vec<String> = bad.into_iter().map(|b| b.why).collect();
        presence = if why.is_empty() { store.presence(&manifest)? } else { Presence::Unproved(why) };
    }
    let good = matches!(presence, Presence::Proved(_));
    let mut row = Row::new(manifest.store_name(), presence);
    row.manifest = Some(manifest.id());
    if args.reach.json() {
        print(&row)?;
    } else {
        println!("{}", row.line());
        row.why.iter().skip(1).for_each(|why| println!("{why}"));
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// Adopts what is here already.
///
/// # Errors
/// When there is no room or the staging cannot be written.
pub fn adopt(args: &AdoptArgs) -> Result<ExitCode, WeightsError> {
    let (store, manifest) = (Store::at(&args.place.store), manifest(&args.manifest)?);
    let folder = store.folder(&manifest);
    if matches!(store.presence(&manifest)?, Presence::Proved(_)) {
        there(&args.place, &manifest, &format!("{folder} is there and proved"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let set = sparklane_weights::BlobSet::of_manifest(&manifest)?;
    preflight::check(store.root(), &store.root().join(".partial"), &set, !args.copy)?;
    let meter = Meter::new(manifest.bytes());
    let staging = store.staging(&manifest, &|_| true)?;
    let adopted = adopt::adopt(&args.source, &manifest, &staging, args.copy, &|read| meter.add(read))?;
    eprintln!("{} files adopted", adopted.files.len());
    if adopted.missing.is_empty() {
        let folder = store.publish(&manifest, staging, How::Stream)?;
        there(&args.place, &manifest, folder.as_str())?;
        return Ok(ExitCode::SUCCESS);
    }
    adopted.missing.iter().for_each(|why| eprintln!("not adopted: {why}"));
    let missing = adopted.missing.len();
    Err(WeightsError::Failed(format!(
        "{missing} files are missing; what was adopted is kept, a transfer brings the rest"
    )))
}

/// Says that a manifest's files are all there.
///
/// # Errors
/// When stdout cannot be written.
pub fn there(place: &Place, manifest: &WeightsManifest, text: &str) -> Result<(), WeightsError> {
    if !place.json {
        println!("{text}");
        return Ok(());
    }
    let folder = Store::at(&place.store).folder(manifest);
    print(&serde_json::json!({ "manifest": manifest.id(), "folder": folder, "state": "proved" }))
}

/// Makes the view.
///
/// # Errors
/// When the weights are not there.
pub fn view(file: &Utf8Path, place: &Place) -> Result<ExitCode, WeightsError> {
    let hub = hfview::make(&Store::at(&place.store), &manifest(file)?)?;
    if place.json {
        print(&serde_json::json!({ "hfHubCache": hub }))?;
    } else {
        println!("HF_HUB_OFFLINE=1 HF_HUB_CACHE={hub}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows sizes.
///
/// # Errors
/// When the store cannot be listed.
pub fn du(place: &Place) -> Result<ExitCode, WeightsError> {
    let entries = Store::at(&place.store).entries()?;
    let sum: u64 = entries.iter().map(|e| e.disk_bytes).sum();
    if place.json {
        let rows: Vec<_> = entries
            .iter()
            .map(|e| serde_json::json!({ "name": e.name, "published": e.published, "diskBytes": e.disk_bytes }))
            .collect();
        print(&rows)?;
    } else {
        for entry in &entries {
            let note = if entry.published { "" } else { "  (partial)" };
            println!("{:>10}  {}{note}", bytes(entry.disk_bytes), entry.name);
        }
        println!("{:>10}  in all", bytes(sum));
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes what nothing names.
///
/// # Errors
/// When what is named cannot be known, or an entry cannot be removed.
pub fn gc(args: &GcArgs) -> Result<ExitCode, WeightsError> {
    let store = Store::at(&args.place.store);
    let paths = HostPaths::system();
    // No transaction begins while its weights may go. Where nothing was ever deployed there is none to hold off.
    let held = paths.state.exists().then(|| lock::take(&paths, "weights gc", None, Duration::ZERO));
    let _held = held.transpose().map_err(|error| match error {
        HostError::Busy(_) => WeightsError::Busy(error.to_string()),
        other => WeightsError::Refused(other.to_string()),
    })?;
    let mut keep = named_on(&paths)?;
    for file in &args.keep {
        keep.push(manifest(file)?.id());
    }
    let garbage = store.garbage(&keep)?;
    let sum: u64 = garbage.iter().map(|e| e.disk_bytes).sum();
    let told = |removed: bool| {
        let names: Vec<&String> = garbage.iter().map(|e| &e.name).collect();
        print(&serde_json::json!({ "entries": names, "bytes": sum, "removed": removed }))
    };
    if garbage.is_empty() {
        if args.place.json {
            told(false)?
        } else {
            println!("nothing to remove")
        }
        return Ok(ExitCode::SUCCESS);
    }
    for entry in &garbage {
        let note = if entry.published { "" } else { "  (partial)" };
        eprintln!("{:>10}  {}{note}", bytes(entry.disk_bytes), entry.name);
    }
    if !args.yes && !confirmed(&format!("remove {} entries, {}?", garbage.len(), bytes(sum)))? {
        return Err(WeightsError::Refused("not removed".into()));
    }
    garbage.iter().try_for_each(|entry| store.remove(entry))?;
    if args.place.json {
        told(true)?
    } else {
        println!("{} removed", bytes(sum))
    }
    Ok(ExitCode::SUCCESS)
}

/// Manifests that this node's generation and the releases that it keeps name.
fn named_on(paths: &HostPaths) -> Result<Vec<String>, WeightsError> {
    let (releases, generation) =
        releases::in_use(paths).map_err(|e| WeightsError::Refused(format!("what is in use cannot be known: {e}")))?;
    let current = generation.and_then(|g| g.weights).map(|w| w.manifest);
    Ok(releases.into_iter().filter_map(|r| r.weights).chain(current).collect())
}

fn confirmed(question: &str) -> Result<bool, WeightsError> {
    if !std::io::stdin().is_terminal() {
        return Err(WeightsError::Refused("nobody can be asked here; use --yes".into()));
    }
    print!("{question} [y/N] ");
    let _shown = std::io::stdout().flush();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(WeightsError::file("read", "-"))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// A line of progress now and then.
pub struct Meter {
    total: u64,
    done: AtomicU64,
    started: Instant,
    said: Mutex<Instant>,
}

impl Meter {
    /// A meter for so many bytes.
    pub fn new(total: u64) -> Self {
        let now = Instant::now();
        Self { total, done: AtomicU64::new(0), started: now, said: Mutex::new(now) }
    }

    /// Counts; always true.
    pub fn add(&self, read: u64) -> bool {
        let done = self.done.fetch_add(read, Ordering::Relaxed) + read;
        if let Ok(mut said) = self.said.try_lock()
            && said.elapsed() > Duration::from_secs(2)
        {
            *said = Instant::now();
            let secs = self.started.elapsed().as_secs_f64().max(0.001);
            eprintln!("{}", super::progress::line(done, self.total, (done as f64 / secs) as u64));
        }
        true
    }
}
