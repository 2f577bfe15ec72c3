//! The apps: one binary under several names, and what it must know about the flake it came from.

use camino::Utf8Path;
use serde_json::json;

use crate::attrs::Attrs;
use crate::error::BuildError;
use crate::fs;

pub(crate) fn build(attrs: &Attrs, out: &Utf8Path) -> Result<(), BuildError> {
    let tool = attrs.path("tool")?;
    let names: Vec<String> = attrs.read("names")?;
    for name in names {
        fs::symlink(&format!("{tool}/bin/sparklane"), &out.join("bin").join(name))?;
    }
    let flake = json!({
        "flake": attrs.text("flake")?,
        "inputs": attrs.value("inputs")?,
    });
    let share = out.join("share/sparklane");
    fs::write(&share.join("flake.json"), format!("{flake}\n").as_bytes(), 0o444)?;
    fs::write(&share.join("lanes.json"), format!("{}\n", attrs.value("catalog")?).as_bytes(), 0o444)
}
