//! Kill points for rehearsals: `/run/sparklane/crash-at` makes the transaction's process kill itself at a record.
//!
//! Only root can write the file; a node that has none pays one failed `open` per record. The lab uses it to prove
//! each record × point on real parts (issue 2). Content: `<state> <nth> <point>`, points `before-fsync`,
//! `after-fsync`, `after-effect`.

use camino::Utf8PathBuf;
use sparklane_txn::State;

use crate::paths::HostPaths;

/// Where around a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Written but not durable.
    BeforeFsync,
    /// Durable, effect not begun.
    AfterFsync,
    /// Effect done.
    AfterEffect,
}

/// Watches for a planned kill.
#[derive(Debug, Clone)]
pub struct CrashPoint {
    file: Utf8PathBuf,
}

impl CrashPoint {
    /// The node's kill point.
    #[must_use]
    pub fn of(paths: &HostPaths) -> Self {
        Self { file: paths.run.join("crash-at") }
    }

    /// Kills this process when the plan names exactly this place. The plan is used up first, so a restart lives.
    pub fn pass(&self, state: State, nth: usize, point: Point) {
        let Ok(text) = std::fs::read_to_string(&self.file) else { return };
        if parse(&text) == Some((state, nth, point)) && std::fs::remove_file(&self.file).is_ok() {
            let _sent = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
}

fn parse(text: &str) -> Option<(State, usize, Point)> {
    let mut words = text.split_whitespace();
    let state_word = words.next()?;
    let state = State::ALL.into_iter().find(|s| s.as_str() == state_word)?;
    let nth = words.next()?.parse().ok()?;
    let point = match words.next()? {
        "before-fsync" => Point::BeforeFsync,
        "after-fsync" => Point::AfterFsync,
        "after-effect" => Point::AfterEffect,
        _ => return None,
    };
    Some((state, nth, point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_names_state_count_and_point() {
        assert_eq!(parse("switching 2 after-effect\n"), Some((State::Switching, 2, Point::AfterEffect)));
        assert_eq!(parse("switching two after-effect"), None);
        assert_eq!(parse(""), None);
    }
}
