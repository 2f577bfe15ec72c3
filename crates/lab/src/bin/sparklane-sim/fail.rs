//! Failure modes on demand: from `--sim-fail MODE`, or live from a file (`/sim/fail`) that tests write while we run.

use std::time::Duration;

/// Where in the start-up a crash can be asked for, in order.
pub const PHASES: [&str; 6] = ["start", "wait-peer", "load-weights", "kv-cache", "warmup", "serving"];

/// A way to fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fail {
    /// Loading the weights takes this much longer.
    SlowLoad(Duration),
    /// Ends with the exit code and last lines of vLLM when its engine dies in this phase.
    CrashAt(&'static str),
    /// Answers 200 without a token.
    NoTokens,
    /// Answers with noise instead of text.
    Garble,
    /// Takes requests and never answers; `/health` stays 200.
    Hang,
    /// Refuses every request with 400.
    Refuse,
    /// Says that the KV cache is nearly full.
    Full,
    /// This rank's worker process dies once serving.
    PeerDeath,
    /// One of the captured start-up errors (`exits/`): its last line.
    Exit(&'static str),
}

/// Start-up errors of the captured runs: mode and last line. All of them end with exit code 1.
const EXITS: [(&str, &str); 6] = [
    (
        "missing-model",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': \
         '{model}'. Use `repo_type` argument if needed.",
    ),
    ("bad-config", "OSError: It looks like the config file at '{model}/config.json' is not a valid JSON file."),
    (
        "too-long",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, User-specified \
         max_model_len (100000) is greater than the derived max_model_len",
    ),
    (
        "corrupt-shard",
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully \
         covered\nRuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ),
    (
        "missing-shard",
        "FileNotFoundError: Weight files referenced in index but missing: {'model-00002-of-00003.safetensors'}\n\
         RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ),
    (
        "kv-too-small",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing \
         the engine.\nRuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): \
         {'EngineCore': 1}",
    ),
];

impl Fail {
    /// The mode called `text`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').map_or((text, None), |(n, v)| (n, Some(v)));
        if let Some(phase) = name.strip_prefix("crash-at-") {
            let known = PHASES.iter().find(|p| **p == phase);
            return known.map(|p| Self::CrashAt(p)).ok_or_else(|| format!("no phase {phase:?}; phases: {PHASES:?}"));
        }
        if let Some((_, line)) = EXITS.iter().find(|(mode, _)| *mode == name) {
            return Ok(Self::Exit(line));
        }
        match name {
            "slow-load" => {
                let seconds = value.unwrap_or("60").parse().map_err(|_| format!("{text:?} has no number"))?;
                Ok(Self::SlowLoad(Duration::from_secs_f64(seconds)))
            }
            "no-tokens" => Ok(Self::NoTokens),
            "garble" => Ok(Self::Garble),
            "hang" => Ok(Self::Hang),
            "refuse" => Ok(Self::Refuse),
            "full" => Ok(Self::Full),
            "peer-death" => Ok(Self::PeerDeath),
            _ => Err(format!("unknown failure mode {text:?}")),
        }
    }
}

/// All modes in force: those of the command line and those of the file.
#[derive(Debug, Clone)]
pub struct Fails {
    fixed: Vec<Fail>,
    file: std::path::PathBuf,
}

impl Fails {
    /// Modes of the command line; `file` is read at every question.
    pub fn new(fixed: Vec<Fail>, file: std::path::PathBuf) -> Self {
        Self { fixed, file }
    }

    fn now(&self) -> Vec<Fail> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let live = text.split_whitespace().filter_map(|word| {
            // A misspelt mode must not pass for health in silence.
            Fail::parse(word).inspect_err(|e| eprintln!("sparklane-sim: {}: {e}", self.file.display())).ok()
        });
        self.fixed.iter().cloned().chain(live).collect()
    }

    /// True while `fail` is asked for.
    pub fn has(&self, fail: &Fail) -> bool {
        self.now().contains(fail)
    }

    /// How much longer the load takes.
    pub fn slow(&self) -> Duration {
        self.now().iter().map(|f| if let Fail::SlowLoad(d) = f { *d } else { Duration::ZERO }).sum()
    }

    /// The last lines of the start-up error that is asked for.
    pub fn exit_lines(&self) -> Option<&'static str> {
        self.now().into_iter().find_map(|f| if let Fail::Exit(line) = f { Some(line) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        assert_eq!(Fail::parse("slow-load=1.5"), Ok(Fail::SlowLoad(Duration::from_millis(1500))));
        assert_eq!(Fail::parse("crash-at-warmup"), Ok(Fail::CrashAt("warmup")));
        assert!(matches!(Fail::parse("missing-shard"), Ok(Fail::Exit(_))));
        for bad in ["", "crash-at-lunch", "slow-load=x", "no-token"] {
            assert!(Fail::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_file_is_read_live() {
        let file = std::env::temp_dir().join(format!("sim-fail-{}", std::process::id()));
        let fails = Fails::new(vec![Fail::Garble], file.clone());
        assert!(fails.has(&Fail::Garble) && !fails.has(&Fail::Hang));
        std::fs::write(&file, "hang slow-load=2\n").unwrap();
        assert!(fails.has(&Fail::Hang));
        assert_eq!(fails.slow(), Duration::from_secs(2));
        std::fs::remove_file(&file).unwrap();
        assert!(!fails.has(&Fail::Hang));
    }
}
