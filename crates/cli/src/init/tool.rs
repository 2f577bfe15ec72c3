//! The program that is copied to a node, by the node's system.

use camino::{Utf8Path, Utf8PathBuf};
use serde::Deserialize as _;
use sparklane_init::InitError;
use sparklane_init::remote::is_for;
use sparklane_lane::System;

use crate::given;

/// `SYSTEM=FILE`.
pub fn of_system(text: &str) -> Result<(System, Utf8PathBuf), String> {
    let (system, file) = text.split_once('=').ok_or("is not SYSTEM=FILE")?;
    let value = serde_json::Value::from(system);
    let system = System::deserialize(value).map_err(|_| "the system is aarch64-linux or x86_64-linux".to_owned())?;
    Ok((system, file.into()))
}

/// Several times what this program has; a device or a pipe would be read without end.
const LARGEST: u64 = 64 << 20;

/// Reads the program for a system: the one that was named, this one, else what lies where prebuilt programs do.
///
/// # Errors
/// When there is none, with how to make it.
pub fn program(system: System, named: &[(System, Utf8PathBuf)]) -> Result<Vec<u8>, InitError> {
    if let Some((_, file)) = named.iter().find(|(s, _)| *s == system) {
        let bytes = given::bytes(file.as_str(), LARGEST);
        let bytes = bytes.map_err(|why| InitError::Usage(format!("--tool {file}: {why}")))?;
        let why = || InitError::Usage(format!("--tool {file}: is no program for {system}"));
        return is_for(&bytes, system).then_some(bytes).ok_or_else(why);
    }
    let places = places(system);
    let found = places.iter().filter_map(|path| std::fs::read(path).ok()).find(|bytes| is_for(bytes, system));
    found.ok_or_else(|| {
        let tried: Vec<&str> = places.iter().map(|p| p.as_str()).collect();
        InitError::Refused(format!(
            "no sparklane for {system} to ask the nodes with (looked at {}). Make it: cargo xtask prebuilt --system {system}; \
             or name one: --tool {system}=FILE",
            tried.join(", ")
        ))
    })
}

fn places(system: System) -> Vec<Utf8PathBuf> {
    let mut places = Vec::new();
    if system.uname_machine() == std::env::consts::ARCH {
        places.push("/proc/self/exe".into());
    }
    places.extend(prebuilt_input().map(|dir| dir.join(system.as_str()).join("sparklane")));
    // prebuilt/<system>/sparklane has the other systems beside it.
    let own = std::env::current_exe().ok().and_then(|exe| Utf8PathBuf::from_path_buf(exe).ok());
    let beside = own.as_deref().and_then(Utf8Path::parent).and_then(Utf8Path::parent);
    places.extend(beside.map(|dir| dir.join(system.as_str()).join("sparklane")));
    places.push(Utf8PathBuf::from("prebuilt").join(system.as_str()).join("sparklane"));
    places
}

/// The folder of prebuilt programs that the app was evaluated with.
fn prebuilt_input() -> Option<Utf8PathBuf> {
    let text = std::fs::read(crate::deploy::share_beside_app().join("flake.json")).ok()?;
    let flake: sparklane_deploy::site::Flake = serde_json::from_slice(&text).ok()?;
    flake.inputs.into_iter().find(|(name, _)| name.rsplit('/').next() == Some("prebuilt")).map(|(_, dir)| dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_taken_only_for_its_system() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let here = [System::Aarch64Linux, System::X86_64Linux]
            .into_iter()
            .find(|s| s.uname_machine() == std::env::consts::ARCH)
            .unwrap();
        let other = if here == System::Aarch64Linux { System::X86_64Linux } else { System::Aarch64Linux };
        assert_eq!(program(here, &[]).unwrap(), own);
        let named = [(other, Utf8PathBuf::from("/proc/self/exe"))];
        assert!(program(other, &named).unwrap_err().to_string().contains("is no program for"));
        assert!(of_system("riscv=x").is_err() && of_system("x").is_err() && of_system("aarch64-linux=x").is_ok());
    }
}
