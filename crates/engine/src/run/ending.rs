//! How a run ends, its words and the unit's exit code. Pure.

use crate::docker::Exit;
use crate::error::{EXIT_CONFIG, EngineError};

/// The attempt is over because another node's rank is gone.
pub const EXIT_PEER: u8 = 75;
/// The engine was alive but did not do its work, and was stopped.
pub const EXIT_STUCK: u8 = 76;
/// Ended by itself with 0, as `sparklane entry` in the container says it.
pub const EXIT_ALONE: i64 = 70;

/// How a run ended.
#[derive(Debug)]
pub enum End {
    /// We were asked to stop.
    Stopped,
    /// The container ended by itself.
    Exited(Exit),
    /// Another node's rank is gone, so this one was ended.
    Left(String),
    /// The engine ran but did not do its work (start budget, warm-up, canary), so it was ended.
    Stuck(String),
}

/// What is told of an end: nothing of one that was asked for.
#[must_use]
pub fn words(result: &Result<End, EngineError>, cause: Option<&str>) -> Option<String> {
    match result {
        Ok(End::Stopped) => None,
        Ok(End::Exited(exit)) => Some(format!("the engine {}", exit_words(exit, cause))),
        Ok(End::Left(why)) => Some(format!("this node's rank was ended: {why}")),
        Ok(End::Stuck(why)) => Some(format!("the engine was ended: {why}")),
        Err(error) => Some(error.to_string()),
    }
}

/// The unit's exit code.
///
/// 0 only when the end was asked for. A container that ends with 0 by itself failed (vLLM does so when a rank dies), so
/// that becomes 1; its usage error 2 becomes 78, which systemd does not restart; any other code is kept.
#[must_use]
pub fn code(result: &Result<End, EngineError>) -> u8 {
    match result {
        Ok(End::Stopped) => 0,
        Ok(End::Exited(exit)) => exit_code(exit.code),
        Ok(End::Left(_)) => EXIT_PEER,
        Ok(End::Stuck(_)) => EXIT_STUCK,
        Err(error) => error.exit_code(),
    }
}

/// The unit's exit code for a container that ended without being asked to.
#[must_use]
pub fn exit_code(container: i64) -> u8 {
    match container {
        0 => 1,
        2 => EXIT_CONFIG,
        code => u8::try_from(code).unwrap_or(1),
    }
}

fn exit_words(exit: &Exit, cause: Option<&str>) -> String {
    let mut words = match exit.code {
        0 | EXIT_ALONE => "ended by itself with code 0, which counts as a failure (a rank died?)".to_owned(),
        2 => "refused its command line (code 2)".to_owned(),
        code => format!("ended with code {code}"),
    };
    if exit.oom {
        words.push_str(", killed by the kernel for memory");
    }
    if !exit.error.is_empty() {
        words.push_str(&format!(", docker says: {}", exit.error));
    }
    if let Some(cause) = cause {
        words.push_str(&format!("; the log says: {cause}"));
    }
    words
}
