//! What the subcommands share: how a registry is reached, where images lie, how progress and failures are shown.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use camino::Utf8PathBuf;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde::Serialize;
use sparklane_oci::registry::{Credentials, Event, Http, Registry, RegistryError, Timeouts};
use sparklane_oci::{Digest, OciError, Platform};

use crate::report::Failure;

/// Where a node keeps images.
pub const STORE: &str = "/var/lib/sparklane/images";

/// How a registry is reached.
#[derive(Debug, Clone, clap::Args)]
pub struct Reach {
    /// File with logins, as docker's config.json has them ("auths"); only its owner may read it.
    #[arg(long, value_name = "FILE")]
    pub auth_file: Option<Utf8PathBuf>,
    /// Registry to speak plain http to; this machine itself needs no word. Repeat it for more.
    #[arg(long, value_name = "HOST[:PORT]")]
    pub plain_http: Vec<String>,
}

impl Reach {
    /// The client.
    pub fn registry(&self) -> Result<Registry, OciError> {
        let credentials = self.auth_file.as_deref().map(Credentials::read).transpose()?.unwrap_or_default();
        let http = Http::new(Timeouts::default(), self.plain_http.clone())?;
        Ok(Registry { http, credentials })
    }
}

/// `os/architecture[/variant]`.
pub fn platform(text: &str) -> Result<Platform, String> {
    let mut parts = text.split('/');
    let (Some(os), Some(architecture), variant, None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err("is not OS/ARCHITECTURE, e.g. linux/arm64".into());
    };
    if [Some(os), Some(architecture), variant].into_iter().flatten().any(str::is_empty) {
        return Err("is not OS/ARCHITECTURE, e.g. linux/arm64".into());
    }
    Ok(Platform { os: os.into(), architecture: architecture.into(), variant: variant.map(str::to_owned) })
}

/// Bytes per second: a number with K, M or G (powers of 1024).
pub fn rate(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last().map(u8::to_ascii_uppercase) {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits.parse().map_err(|_| "is no number of bytes per second, e.g. 50M".to_owned())?;
    number.checked_mul(unit).filter(|n| *n > 0).ok_or_else(|| "is out of range".into())
}

/// Runs async work on this thread.
pub fn block_on<T>(work: impl Future<Output = Result<T, OciError>>) -> Result<T, OciError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| RegistryError::Setup(format!("no runtime: {e}")))?.block_on(work)
}

/// The exit code of a failure: 1 when nothing was begun, 3 on the way.
pub fn exit_code(error: &OciError) -> u8 {
    match error {
        OciError::Reference { .. } => 2,
        OciError::Registry(
            RegistryError::GaveUp { .. } | RegistryError::Connection { .. } | RegistryError::Stalled { .. },
        )
        | OciError::Io { .. }
        | OciError::DigestMismatch { .. }
        | OciError::SizeMismatch { .. } => 3,
        _ => 1,
    }
}

/// Shows the answer or the failure, as JSON or as text, and gives the exit code.
pub fn answer<T: Serialize>(json: bool, done: Result<T, OciError>, text: impl Fn(&T) -> String) -> ExitCode {
    match done {
        Ok(value) => {
            let shown = if json { serde_json::to_string(&value).unwrap_or_default() } else { text(&value) };
            println!("{shown}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let why = error.to_string();
            let failure = Failure::of(exit_code(&error), &why);
            if json {
                println!("{}", failure.json());
            } else {
                eprintln!("{}: {why}", failure.verdict);
            }
            ExitCode::from(failure.exit_code)
        }
    }
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let (mut whole, mut unit) = (bytes, "B");
    let mut tenth = 0;
    for next in units {
        if whole < 1024 {
            break;
        }
        (tenth, whole, unit) = (whole % 1024 * 10 / 1024, whole / 1024, next);
    }
    if unit == "B" { format!("{whole} B") } else { format!("{whole}.{tenth} {unit}") }
}

/// A listener for downloads: bars on a terminal, otherwise a line where something happens.
pub fn progress(quiet: bool) -> Arc<dyn Fn(Event) + Send + Sync> {
    if quiet {
        return Arc::new(|_| ());
    }
    let multi = std::io::stderr().is_terminal().then(MultiProgress::new);
    let bars: Mutex<BTreeMap<Digest, ProgressBar>> = Mutex::default();
    let begun: Mutex<BTreeMap<Digest, u64>> = Mutex::default();
    Arc::new(move |event| match &multi {
        Some(multi) => draw(multi, &bars, event),
        None => {
            if let Some(line) = line(&begun, &event) {
                eprintln!("{line}");
            }
        }
    })
}

fn draw(multi: &MultiProgress, bars: &Mutex<BTreeMap<Digest, ProgressBar>>, event: Event) {
    let Ok(mut bars) = bars.lock() else { return };
    match event {
        Event::Begin { digest, size, have } => {
            let template = "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {msg}";
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = multi.add(ProgressBar::new(size).with_style(style).with_prefix(short(&digest)));
            bar.set_position(have);
            bar.reset_eta();
            bars.insert(digest, bar);
        }
        Event::Bytes { digest, count } => bars.get(&digest).into_iter().for_each(|bar| bar.inc(count)),
        Event::Restart { digest, why } => {
            if let Some(bar) = bars.get(&digest) {
                bar.set_position(0);
                bar.set_message(why);
            }
        }
        Event::Retry { digest, why, .. } => bars.get(&digest).into_iter().for_each(|bar| bar.set_message(why.clone())),
        Event::Done { digest } => bars.remove(&digest).into_iter().for_each(|bar| bar.finish_and_clear()),
    }
}

/// The first digits of a digest, for people.
pub fn short(digest: &Digest) -> String {
    digest.hex().chars().take(12).collect()
}

fn line(begun: &Mutex<BTreeMap<Digest, u64>>, event: &Event) -> Option<String> {
    let mut begun = begun.lock().ok()?;
    match event {
        Event::Begin { digest, size: bytes, have } => {
            begun.insert(digest.clone(), *bytes);
            let here = if *have > 0 { format!(", {} are here", size(*have)) } else { String::new() };
            Some(format!("{} {}{here}", short(digest), size(*bytes)))
        }
        Event::Bytes { .. } => None,
        Event::Restart { digest, why } => Some(format!("{} from its beginning: {why}", short(digest))),
        Event::Retry { digest, why, wait } => {
            Some(format!("{} again in {} ms: {why}", short(digest), wait.as_millis()))
        }
        Event::Done { digest } => Some(format!("{} done", short(digest))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_sizes_are_for_people() {
        assert_eq!(rate("50M"), Ok(50 << 20));
        assert_eq!(rate("1"), Ok(1));
        for bad in ["", "M", "-1", "0", "5x", "99999999999999999999G", "ü"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(20 << 30), "20.0 GiB");
    }

    #[test]
    fn platforms_have_two_or_three_parts() {
        assert_eq!(platform("linux/arm64/v8").unwrap().to_string(), "linux/arm64/v8");
        for bad in ["linux", "linux/", "/arm64", "a/b/c/d", ""] {
            assert!(platform(bad).is_err(), "{bad}");
        }
    }
}
