//! A generation's closure in the store: read, and proved against Nix's own record before anything is switched.

use camino::{Utf8Path, Utf8PathBuf};
use sparklane_lane::{Generation, GenerationId, StorePath, System};

use crate::error::HostError;
use crate::process;

/// Reads `generation.json` of a closure.
///
/// # Errors
/// When it is missing, not ours, or of another schema.
pub fn generation(closure: &Utf8Path) -> Result<Generation, HostError> {
    let path = closure.join("generation.json");
    let bytes = std::fs::read(&path).map_err(HostError::file("read", &path))?;
    let generation: Generation =
        serde_json::from_slice(&bytes).map_err(|e| HostError::Content { path: path.clone(), why: e.to_string() })?;
    if generation.schema == sparklane_lane::generation::SCHEMA {
        return Ok(generation);
    }
    Err(HostError::Content {
        path,
        why: format!("has schema {}, this tool knows {}", generation.schema, sparklane_lane::generation::SCHEMA),
    })
}

/// Reads the generation id of a closure.
///
/// # Errors
/// When it is missing or is no id.
pub fn id(closure: &Utf8Path) -> Result<GenerationId, HostError> {
    let path = closure.join("generation.id");
    let text = std::fs::read_to_string(&path).map_err(HostError::file("read", &path))?;
    text.trim().parse().map_err(|e: sparklane_lane::BadId| HostError::Content { path, why: e.to_string() })
}

/// The tool of a closure: the store path that `bin/sparklane` leads into.
///
/// # Errors
/// When the link leads nowhere or outside the store.
pub fn tool(closure: &Utf8Path) -> Result<StorePath, HostError> {
    let link = closure.join("bin/sparklane");
    let real = link.canonicalize_utf8().map_err(HostError::file("resolve", &link))?;
    let real = real.as_str();
    let store = real.find("/nix/store/").map_or(real, |at| &real[at..]);
    let top: String = store.split('/').take(4).collect::<Vec<_>>().join("/");
    top.parse().map_err(|e: sparklane_lane::BadId| HostError::Content { path: link, why: e.to_string() })
}

/// Proves that every path of the closure has the content Nix recorded and, with a key, a signature of that key.
///
/// # Errors
/// When a path is missing, was changed, or is not signed by the key; Nix's own words name it.
pub fn prove(path: &StorePath, public_key: Option<&str>) -> Result<(), HostError> {
    let mut args = vec!["--extra-experimental-features", "nix-command", "store", "verify", "--recursive"];
    match public_key {
        // `--sigs-needed 1` also refuses what is trusted only because it was built here.
        Some(key) => args.extend(["--sigs-needed", "1", "--option", "trusted-public-keys", key]),
        None => args.push("--no-trust"),
    }
    args.push(path.as_str());
    process::run("nix", &args)
        .map(drop)
        .map_err(|error| HostError::Refused(unproved(path, public_key, &error.to_string())))
}

/// What Nix's verdict means: no good signature, or other bytes than were recorded.
fn unproved(path: &StorePath, public_key: Option<&str>, error: &str) -> String {
    match public_key.and_then(|key| key.split_once(':')) {
        Some((name, _)) if error.contains("is untrusted") => format!(
            "the closure {path} has no signature by the cluster's key {name} (trustedKey in the cluster file; {error}). \
             Sign with that key: --signing-key FILE"
        ),
        _ => format!(
            "the closure {path} is not what was built ({error}). Copy it again; for a changed path: nix-store --repair-path"
        ),
    }
}

/// Refuses a closure for another architecture: what this machine is and what the tool's ELF header says.
///
/// # Errors
/// When either differs from the generation's system.
pub fn check_architecture(closure: &Utf8Path, system: System) -> Result<(), HostError> {
    let machine = rustix::system::uname().machine().to_string_lossy().into_owned();
    if machine != system.uname_machine() {
        return Err(HostError::Refused(format!("the generation is for {system}, this node is {machine}")));
    }
    let binary: Utf8PathBuf = closure.join("bin/sparklane");
    let mut header = [0u8; 20];
    let read = std::fs::File::open(&binary).and_then(|mut f| std::io::Read::read_exact(&mut f, &mut header));
    read.map_err(HostError::file("read", &binary))?;
    let found = u16::from_le_bytes([header[18], header[19]]);
    if header.starts_with(b"\x7fELF") && found == system.elf_machine() {
        return Ok(());
    }
    Err(HostError::Refused(format!("{binary} is not an executable for {system} (ELF machine {found})")))
}
