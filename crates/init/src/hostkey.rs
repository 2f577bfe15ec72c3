//! Host keys: fingerprints, and what ssh says when it does not like one.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use sha2::{Digest as _, Sha256};

/// `SHA256:…` of a public key `type base64`, as `ssh-keygen -l` prints it; `None` when it is no key.
#[must_use]
pub fn fingerprint(key: &str) -> Option<String> {
    let body = key.split_whitespace().nth(1)?;
    let bytes = STANDARD.decode(body).ok()?;
    Some(format!("SHA256:{}", STANDARD_NO_PAD.encode(Sha256::digest(bytes))))
}

/// Why ssh did not let us in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// No host key of the node is known.
    Unknown,
    /// The node shows another key than the one that is known, or one that was revoked.
    Changed,
    /// The user's key is not accepted.
    Denied,
    /// There is no way there, or nobody answers.
    Unreachable,
    /// Something else.
    Other,
}

/// Judges ssh's standard error.
#[must_use]
pub fn trouble(stderr: &str) -> Trouble {
    let says = |words: &[&str]| words.iter().any(|word| stderr.contains(word));
    if says(&["IDENTIFICATION HAS CHANGED", "host key mismatch", "REVOKED HOST KEY"]) {
        Trouble::Changed
    } else if says(&["host key is known for"]) {
        Trouble::Unknown
    } else if says(&["Permission denied", "Too many authentication failures"]) {
        Trouble::Denied
    } else if says(&[
        "timed out",
        "Connection refused",
        "No route to host",
        "Could not resolve hostname",
        "Network is unreachable",
        "Connection closed",
        "Connection reset",
    ]) {
        Trouble::Unreachable
    } else {
        Trouble::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_ssh_keygens() {
        // ssh-keygen -lf of this key.
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl";
        assert_eq!(fingerprint(key).as_deref(), Some("SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU"));
        assert_eq!((fingerprint("ssh-ed25519"), fingerprint("a !"), fingerprint("")), (None, None, None));
    }

    #[test]
    fn what_ssh_says_is_told_apart() {
        let unknown = "No ED25519 host key is known for 10.77.0.10 and you have requested strict checking.\nHost key verification failed.";
        let changed = "@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nHost key verification failed.";
        let revoked = "@       WARNING: REVOKED HOST KEY DETECTED!               @\nHost key verification failed.";
        for (stderr, expected) in [
            (revoked, Trouble::Changed),
            ("Host key verification failed.", Trouble::Other),
            (unknown, Trouble::Unknown),
            (changed, Trouble::Changed),
            ("op@h: Permission denied (publickey).", Trouble::Denied),
            ("ssh: connect to host h port 22: Connection timed out", Trouble::Unreachable),
            ("", Trouble::Other),
        ] {
            assert_eq!(trouble(stderr), expected, "{stderr}");
        }
    }
}
