//! `bin/sparklane` of one system, in a store path that no lane changes.

use camino::Utf8Path;
use sparklane_lane::System;

use crate::attrs::Attrs;
use crate::error::BuildError;
use crate::{elf, fs};

pub(crate) fn build(attrs: &Attrs, out: &Utf8Path) -> Result<(), BuildError> {
    let program = attrs.path("program")?;
    let system: System = attrs.read("nodeSystem")?;
    let bytes = fs::read(program)?;
    let failed = |what: String| Err(BuildError::Failed(vec![format!("{program}: {what}")]));
    match elf::machine(&bytes) {
        Some(machine) if machine == system.elf_machine() => {}
        Some(machine) => {
            return failed(format!("is for ELF machine {machine}, {system} is {}", system.elf_machine()));
        }
        None => return failed("is no program".to_owned()),
    }
    if elf::wants_loader(&bytes) {
        return failed("is not static: a node has no loader for it".to_owned());
    }
    fs::write(&out.join("bin/sparklane"), &bytes, 0o555)
}
