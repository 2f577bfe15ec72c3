//! What the end of a process means for the container's exit code. Pure.

/// `EX_SOFTWARE`: the engine ended with 0 though nobody asked it to; a real vLLM does so when a rank died.
pub const EXIT_QUIET: u8 = 70;
/// `EX_UNAVAILABLE`: the other nodes, or the head's GCS, were not there by the deadline.
pub const EXIT_PEERS: u8 = 69;
/// `EX_OSERR`: the entry itself could not work.
pub const EXIT_SYSTEM: u8 = 71;
/// Ray ended around the engine. (75 and 76 are the unit's own, `run::ending`.)
pub const EXIT_RAY: u8 = 73;
/// As of a shell: the program is there and cannot be run.
pub const EXIT_NOT_EXECUTABLE: u8 = 126;
/// As of a shell: there is no such program.
pub const EXIT_NOT_FOUND: u8 = 127;

/// What a supervisor says of "the engine" when the container ended with a code that only the entry gives.
#[must_use]
pub fn words(code: i64) -> Option<&'static str> {
    match u8::try_from(code).ok()? {
        EXIT_PEERS => Some("was not started: the other nodes were not there in time (code 69)"),
        EXIT_QUIET => Some("ended by itself with code 0, which counts as a failure (a rank died?)"),
        EXIT_SYSTEM => Some("was not started: the container's entry could not work (code 71)"),
        EXIT_RAY => Some("ended with its Ray (code 73)"),
        EXIT_NOT_EXECUTABLE => Some("cannot be run (code 126)"),
        EXIT_NOT_FOUND => Some("is not in the image (code 127)"),
        _ => None,
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with a code.
    Code(u8),
    /// By a signal.
    Signal(u8),
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// The container's exit code after the engine's end. `asked`: we passed a signal on before.
///
/// 0 is kept only when it was asked for; 2 (a refused command line) and every other code stay; a signal is 128 and its
/// number.
#[must_use]
pub fn judge(ended: Ended, asked: bool) -> u8 {
    match ended {
        Ended::Code(0) if !asked => EXIT_QUIET,
        Ended::Code(code) => code,
        Ended::Signal(signal) => 128_u8.saturating_add(signal),
    }
}

/// The same when Ray's own process ended unasked: it is never meant to, so its code says nothing that 73 does not. Its
/// refusal of the command line stays one.
#[must_use]
pub fn judge_ray(ended: Ended) -> u8 {
    match ended {
        Ended::Code(2) => 2,
        _ => EXIT_RAY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_a_success_only_when_asked_for() {
        assert_eq!(judge(Ended::Code(0), false), EXIT_QUIET);
        assert_eq!(judge(Ended::Code(0), true), 0);
        for (code, asked) in [(1, false), (2, false), (1, true), (137, false)] {
            assert_eq!(judge(Ended::Code(code), asked), code);
        }
        assert_eq!(judge(Ended::Signal(9), false), 137);
        assert_eq!(judge(Ended::Signal(15), true), 143);
    }

    #[test]
    fn ray_never_ends_well_by_itself() {
        for ended in [Ended::Code(0), Ended::Code(1), Ended::Signal(9)] {
            assert_eq!(judge_ray(ended), EXIT_RAY);
        }
        assert_eq!(judge_ray(Ended::Code(2)), 2);
    }

    #[test]
    fn only_codes_of_the_entry_have_its_words() {
        assert!(words(70).unwrap().contains("code 0"));
        for other in [-1, 0, 1, 2, 137, 1000] {
            assert_eq!(words(other), None);
        }
    }
}
