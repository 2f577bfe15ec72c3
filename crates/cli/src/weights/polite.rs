//! Long reading beside an engine that serves: the whole process steps back, at the disk and at the cores.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use sparklane_host::units::{Systemd, Units as _};
use sparklane_txn::plan::ENGINE_UNIT;

/// Set for the process that runs politely already.
const MARK: &str = "SPARKLANE_POLITE";
/// The idle class gets the disk when nobody else wants it.
const POLITE: [&str; 7] = ["-c", "3", "-t", "nice", "-n", "19", "--"];

/// Starts this program anew at the lowest priority when this node's engine serves. It comes back only when that is not
/// needed, was done, or cannot be done.
pub fn when_serving() {
    if std::env::var_os(MARK).is_some() {
        eprintln!("an engine serves: reading when it leaves disk and cores idle (nice {})", nice().unwrap_or(0));
        return;
    }
    let serves = Systemd.status(ENGINE_UNIT).is_ok_and(|unit| matches!(unit.active.as_str(), "active" | "activating"));
    let Some(program) = std::env::current_exe().ok().filter(|_| serves) else { return };
    let mut command = Command::new("ionice");
    command.args(POLITE).arg(program).args(std::env::args_os().skip(1)).env(MARK, "1");
    let error = command.exec();
    eprintln!("reading at the usual priority, beside an engine that serves: ionice: {error}");
}

/// How nice this process is (field 19 of /proc/self/stat, proc(5)).
fn nice() -> Option<i32> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name may hold spaces; numbers follow its closing bracket.
    text.rsplit_once(')')?.1.split_whitespace().nth(16)?.parse().ok()
}
