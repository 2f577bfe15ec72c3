//! Claude Code: everything is environment (facts: ray-kit.md 2.7).

use super::Served;

/// It compacts at about fifteen sixteenths of what it is told: 160000 for a fence of 150000.
const COMPACTS_AT: (u64, u64) = (15, 16);
/// A prompt of a million tokens is prefilled for up to 19 minutes; its own limit is 10.
const TIMEOUT_MS: u64 = 30 * 60 * 1000;

/// Lines for a shell to read (`set -a; . ./claude-code.env; set +a`). No secret is among them.
#[must_use]
pub fn env(served: &Served) -> String {
    let told = served.fence / COMPACTS_AT.0 * COMPACTS_AT.1;
    let key = match &served.key_file {
        Some(file) => {
            format!("# The lane asks for a key: set ANTHROPIC_AUTH_TOKEN to what {file} on the head holds.\n")
        }
        None => "ANTHROPIC_AUTH_TOKEN=none\n".to_owned(),
    };
    format!(
        "ANTHROPIC_BASE_URL={}\n{key}ANTHROPIC_MODEL={model}\nANTHROPIC_SMALL_FAST_MODEL={model}\n\
         CLAUDE_CODE_MAX_CONTEXT_TOKENS={told}\nAPI_TIMEOUT_MS={TIMEOUT_MS}\n",
        served.address,
        model = served.model,
    )
}
