//! `weights lock` and `weights fetch`: from the hub or a mirror.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use camino::Utf8PathBuf;
use sparklane_weights::hub::line::HttpDial;
use sparklane_weights::hub::lock::{Choice, lock as lock_at, named};
use sparklane_weights::hub::{HUB, Origin};
use sparklane_weights::proof::How;
use sparklane_weights::store::Presence;
use sparklane_weights::transfer::{Progress, Pull, PullOptions};
use sparklane_weights::{BlobSet, Store, WeightsError, preflight};

use super::local::there;
use super::progress::Display;
use super::{Place, bytes, manifest, print};

/// How the hub or a mirror is reached.
#[derive(Debug, Clone, clap::Args)]
pub struct Server {
    /// Address of the hub.
    #[arg(long, value_name = "URL", env = "HF_ENDPOINT", default_value = HUB)]
    endpoint: String,
    /// File with a token, readable by its owner only; it is sent to the server that is asked (the endpoint, or --mirror) and to no other host.
    #[arg(long, value_name = "FILE")]
    token_file: Option<Utf8PathBuf>,
    /// Host that may be spoken to without TLS; repeat it for more.
    #[arg(long, value_name = "HOST[:PORT]")]
    plain_http: Vec<String>,
}

/// Make a manifest of a revision from the hub: every file with size and sha256.
#[derive(Debug, clap::Args)]
pub struct LockArgs {
    /// Model and commit; a branch or tag is refused with the commit that it is now.
    #[arg(value_name = "ORG/NAME@COMMIT")]
    model: String,
    /// Only files that match; `*` stands for any text.
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Not files that match.
    #[arg(long, value_name = "PATTERN", default_value = ".gitattributes")]
    exclude: Vec<String>,
    /// Where to write it [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    output: Option<Utf8PathBuf>,
    #[command(flatten)]
    server: Server,
}

/// Download a manifest's files from the hub or a mirror, prove them and make them visible.
#[derive(Debug, clap::Args)]
pub struct FetchArgs {
    /// Manifest.
    manifest: Utf8PathBuf,
    /// Address below which the files lie by their paths, instead of the hub.
    #[arg(long, value_name = "URL", conflicts_with = "endpoint")]
    mirror: Option<String>,
    /// Requests at once.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=32))]
    connections: u8,
    /// Most megabytes per second.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    pub place: Place,
}

impl Server {
    fn origin(&self, mirror: Option<&str>) -> Result<Origin, WeightsError> {
        let origin = mirror.map_or_else(|| Origin::hub(&self.endpoint), Origin::mirror)?.with_plain(&self.plain_http);
        match &self.token_file {
            Some(file) => origin.with_token_file(file),
            None => Ok(origin),
        }
    }
}

/// Locks a revision.
///
/// # Errors
/// When it moves, the hub refuses, or its files contradict each other.
pub fn lock(args: &LockArgs) -> Result<ExitCode, WeightsError> {
    let (model, revision) = named(&args.model)?;
    let choice = Choice { include: args.include.clone(), exclude: args.exclude.clone() };
    let locked = lock_at(&args.server.origin(None)?, &model, &revision, &choice, &|what| eprintln!("{what}"))?;
    match &args.output {
        None => print!("{}", locked.to_text()),
        Some(file) => {
            std::fs::write(file, locked.to_text()).map_err(|e| WeightsError::Failed(format!("{file}: {e}")))?;
            eprintln!("{file}: {} files, {}, id {}", locked.files.len(), bytes(locked.bytes()), locked.id());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Fetches what is missing.
///
/// # Errors
/// When there is no room, or the server fails; what was proved is kept.
pub fn fetch(args: &FetchArgs) -> Result<ExitCode, WeightsError> {
    let (store, manifest) = (Store::at(&args.place.store), manifest(&args.manifest)?);
    let folder = store.folder(&manifest);
    match store.presence(&manifest)? {
        Presence::Proved(_) => {
            there(&args.place, &manifest, &format!("{folder} is there and proved"))?;
            return Ok(ExitCode::SUCCESS);
        }
        Presence::Unproved(why) => {
            let why = why.first().cloned().unwrap_or_default();
            eprintln!("{why}; every byte is read");
            let bad = store.verify(&manifest, sparklane_weights::agent::threads(), &|_| true)?;
            if bad.is_empty() {
                if let Presence::Unproved(why) = store.presence(&manifest)? {
                    return Err(WeightsError::Refused(why.join("; ")));
                }
                there(&args.place, &manifest, &format!("{folder} is proved"))?;
                return Ok(ExitCode::SUCCESS);
            }
            bad.iter().for_each(|b| eprintln!("{}", b.why));
            store.take_back(&manifest, &bad)?;
        }
        Presence::Partial | Presence::Absent => {}
    }
    let set = Arc::new(BlobSet::of_manifest(&manifest)?);
    preflight::check(store.root(), &store.root().join(".partial").join(manifest.store_name()), &set, false)?;
    let staging = store.staging(&manifest, &|_| true)?;
    let origin = args.server.origin(args.mirror.as_deref())?;
    let dial = HttpDial::new(origin, &manifest.model, &manifest.revision, Arc::clone(&set));
    let options = PullOptions {
        connections: usize::from(args.connections),
        rate: args.rate.map(|mb| mb.saturating_mul(1_000_000)),
        // A server may ask for patience; that is no silence.
        give_up: Duration::from_secs(900),
    };
    let (progress, stop, ended) = (Progress::default(), AtomicBool::new(false), AtomicBool::new(false));
    let receipt = std::thread::scope(|scope| {
        scope.spawn(|| {
            let display = Display::new();
            sparklane_weights::agent::tell(&progress, &set, &ended, &|event| display.told("", event));
        });
        let receipt = Pull::new(&staging, &dial, options, &progress, &stop).run();
        ended.store(true, Ordering::Relaxed);
        receipt
    })?;
    store.publish(&manifest, staging, How::Stream)?;
    if args.place.json {
        print(&receipt)?;
    } else {
        println!("{folder}");
    }
    Ok(ExitCode::SUCCESS)
}
