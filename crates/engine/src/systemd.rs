//! What systemd says about a unit.

use std::process::{Command, Stdio};

/// A unit as far as gates look at it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnitState {
    /// `ActiveState`: active, activating, failed, inactive, …
    pub active: String,
    /// `SubState`: running, auto-restart, …
    pub sub: String,
    /// `Result`: success, exit-code, timeout, …
    pub result: String,
    /// `NRestarts` since the unit was last started on purpose.
    pub restarts: u32,
    /// `ExecMainStatus`: exit code of the last main process.
    pub exit_status: i32,
    /// True while a job for the unit is queued or runs.
    pub job: bool,
    /// The unit's own status line.
    pub status_text: String,
    /// `LoadState`: loaded, not-found, …
    pub load: String,
}

impl UnitState {
    /// Why the unit cannot become active by waiting, if so. `baseline` is `NRestarts` when the wait began.
    ///
    /// A unit with `Restart=` never shows `failed` while systemd keeps trying; a restart during the wait is a failure.
    #[must_use]
    pub fn failure(&self, baseline: u32) -> Option<String> {
        if self.load == "not-found" {
            return Some("systemd knows no such unit".to_owned());
        }
        let ended = match self.result.as_str() {
            "exit-code" => format!("ended with exit code {}", self.exit_status),
            "signal" | "core-dump" => format!("was killed by signal {}", self.exit_status),
            "timeout" => "did not start in time".to_owned(),
            "" | "success" => "ended".to_owned(),
            other => format!("failed ({other})"),
        };
        if self.active == "failed" {
            return Some(format!("{ended}{}", self.last_word()));
        }
        let restarted = format!("{ended} and was started again by systemd");
        if self.sub.starts_with("auto-restart") {
            return Some(format!("{restarted}{}", self.last_word()));
        }
        // What the status line says now is of the next run.
        (self.restarts > baseline).then_some(restarted)
    }

    /// The status line of a unit that ended: the engine's names the cause, which may be another node's rank.
    fn last_word(&self) -> String {
        if self.status_text.is_empty() { String::new() } else { format!("; it last said: {}", self.status_text) }
    }

    /// True for a unit that nothing will start.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.active == "inactive" && !self.job
    }
}

/// Where unit states come from.
pub trait UnitStates {
    /// The unit's state now.
    ///
    /// # Errors
    /// When systemd cannot be asked; words for a person.
    fn state(&self, unit: &str) -> Result<UnitState, String>;
}

/// Asks with `systemctl show`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Systemctl;

const ARGV: [&str; 4] = [
    "show",
    "--no-pager",
    "--property=LoadState,ActiveState,SubState,Result,NRestarts,ExecMainStatus,Job,StatusText",
    "--",
];

impl UnitStates for Systemctl {
    fn state(&self, unit: &str) -> Result<UnitState, String> {
        let mut command = Command::new("systemctl");
        command.args(ARGV).arg(unit).stdin(Stdio::null()).env("LC_ALL", "C");
        let output = command.output().map_err(|e| format!("systemctl cannot be run ({e})"))?;
        if !output.status.success() {
            return Err(format!("systemctl show {unit}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(parse(&String::from_utf8_lossy(&output.stdout)))
    }
}

/// Reads the `KEY=VALUE` lines of `systemctl show`.
#[must_use]
pub fn parse(text: &str) -> UnitState {
    let mut state = UnitState::default();
    for (key, value) in text.lines().filter_map(|l| l.split_once('=')) {
        match key {
            "LoadState" => value.clone_into(&mut state.load),
            "ActiveState" => value.clone_into(&mut state.active),
            "SubState" => value.clone_into(&mut state.sub),
            "Result" => value.clone_into(&mut state.result),
            "StatusText" => value.clone_into(&mut state.status_text),
            "NRestarts" => state.restarts = value.parse().unwrap_or(0),
            "ExecMainStatus" => state.exit_status = value.parse().unwrap_or(0),
            "Job" => state.job = !matches!(value, "" | "0"),
            _ => {}
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_systemctl() {
        let text = "Result=exit-code\nNRestarts=2\nExecMainStatus=78\nLoadState=loaded\nActiveState=failed\n\
                    SubState=failed\nStatusText=a=b\nJob=17\nnonsense\n";
        let state = parse(text);
        assert_eq!((state.active.as_str(), state.restarts, state.exit_status, state.job), ("failed", 2, 78, true));
        assert_eq!(state.status_text, "a=b");
        assert_eq!(state.failure(2).unwrap(), "ended with exit code 78; it last said: a=b");
    }

    #[test]
    fn a_restart_is_a_failure_though_the_unit_looks_alive() {
        let looks = |active: &str, sub: &str, restarts| UnitState {
            active: active.into(),
            sub: sub.into(),
            result: "exit-code".into(),
            exit_status: 1,
            restarts,
            status_text: "the rank on worker ended".into(),
            ..UnitState::default()
        };
        assert!(looks("activating", "auto-restart", 0).failure(0).unwrap().ends_with("the rank on worker ended"));
        assert!(looks("activating", "auto-restart-queued", 0).failure(0).is_some());
        let again = looks("activating", "start", 1).failure(0).unwrap();
        assert_eq!(again, "ended with exit code 1 and was started again by systemd", "another run's line is not its");
        assert!(looks("activating", "start", 1).failure(1).is_none());
        assert!(looks("active", "running", 0).failure(0).is_none());
    }
}
