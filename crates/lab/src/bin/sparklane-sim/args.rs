//! The command line: vLLM's own flags (all are known, most are ignored) and the simulator's.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fail::Fail;

/// Every flag of `vllm serve` with what follows it: `switch`, `value`, or `many` values.
const FLAGS: &str = include_str!("flags.txt");

/// The simulator's own.
const OWN: [(&str, &str); 5] = [
    ("--sim-load-secs", "value"),
    ("--sim-stop-secs", "value"),
    ("--sim-token-ms", "value"),
    ("--sim-fail", "value"),
    ("--sim-fail-file", "value"),
];

/// Flags whose value vLLM checks to be a whole number, with the names it prints.
const NUMBERS: [(&str, &str); 8] = [
    ("--tensor-parallel-size", "--tensor-parallel-size/-tp"),
    ("--port", "--port"),
    ("--nnodes", "--nnodes/-n"),
    ("--node-rank", "--node-rank/-r"),
    ("--master-port", "--master-port"),
    ("--max-num-seqs", "--max-num-seqs"),
    ("--shutdown-timeout", "--shutdown-timeout"),
    ("--pipeline-parallel-size", "--pipeline-parallel-size/-pp"),
];

/// Short names of flags that we look at.
const SHORT: [(&str, &str); 4] =
    [("-tp", "--tensor-parallel-size"), ("-pp", "--pipeline-parallel-size"), ("-n", "--nnodes"), ("-r", "--node-rank")];

/// Flags by name with their values.
type Given = BTreeMap<String, Vec<String>>;

/// Why the command line is refused: vLLM's text for standard error. The exit code is 2.
#[derive(Debug, PartialEq, Eq)]
pub struct Usage(pub String);

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Config {
    /// Model path or name.
    pub model: String,
    /// Names in the API; the first one is answered with.
    pub served: Vec<String>,
    /// Address to listen on.
    pub host: String,
    /// Port of the API.
    pub port: u16,
    /// How many ranks.
    pub nodes: u32,
    /// This rank.
    pub rank: u32,
    /// Where rank 0 waits for the others.
    pub master: (String, u16),
    /// No API: any rank but 0.
    pub headless: bool,
    /// Requests answered at once.
    pub max_num_seqs: usize,
    /// Context length.
    pub max_model_len: u64,
    /// Tensor parallel size, for the fingerprint.
    pub tensor_parallel: u32,
    /// Keys of which one must be shown; none: no check.
    pub api_keys: Vec<String>,
    /// How long requests in flight may go on after SIGTERM.
    pub shutdown_timeout: Duration,
    /// Time from rendezvous to serving.
    pub load: Duration,
    /// Time from SIGTERM to the exit.
    pub stop: Duration,
    /// Time per token.
    pub token: Duration,
    /// Failure modes of the command line.
    pub fails: Vec<Fail>,
    /// File with more failure modes.
    pub fail_file: String,
    /// All flags that were given, for the log.
    pub given: BTreeMap<String, Vec<String>>,
}

/// The flags by name, each with its values; the model first.
fn scan(argv: &[String]) -> Result<(Option<String>, Given), Usage> {
    let known: BTreeMap<&str, &str> = FLAGS.lines().filter_map(|l| l.split_once(' ')).chain(OWN).collect();
    let (mut model, mut given, mut unknown) = (None, Given::new(), Vec::new());
    let mut words = argv.iter().peekable();
    while let Some(word) = words.next() {
        if !word.starts_with('-') {
            if model.is_none() && unknown.is_empty() {
                model = Some(word.clone());
            } else {
                unknown.push(word.clone());
            }
            continue;
        }
        let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(n, v)| (n, Some(v.to_owned())));
        // vLLM takes `_` for `-`, and `--compilation-config.mode` as a part of that flag's value.
        let name = name.split('.').next().unwrap_or(name);
        let name = if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() };
        let Some(kind) = known.get(name.as_str()) else {
            unknown.push(word.clone());
            continue;
        };
        let full = SHORT.iter().find(|(s, _)| *s == name).map_or(name.as_str(), |(_, l)| l).to_owned();
        let values = given.entry(full).or_default();
        match (*kind, value) {
            (_, Some(value)) => values.push(value),
            ("switch", None) => {}
            ("many", None) => {
                while let Some(v) = words.next_if(|w| !w.starts_with("--")) {
                    values.push(v.clone());
                }
            }
            (_, None) => match words.next() {
                Some(v) => values.push(v.clone()),
                None => {
                    return Err(serve_error(&format!("argument {name}: expected one argument")));
                }
            },
        }
    }
    if unknown.is_empty() { Ok((model, given)) } else { Err(unrecognised(&unknown)) }
}

fn unrecognised(words: &[String]) -> Usage {
    Usage(format!(
        "usage: vllm [-h] [-v]\n            {{chat,complete,serve,launch,bench,collect-env,download-kernels,preload,\
         run-batch,snapshot}}\n            ...\nvllm: error: unrecognized arguments: {}",
        words.join(" ")
    ))
}

fn serve_error(text: &str) -> Usage {
    Usage(format!("usage: vllm serve [model_tag] [options]\nvllm serve: error: {text}"))
}

impl Config {
    /// Reads what follows `serve`.
    pub fn parse(argv: &[String]) -> Result<Self, Usage> {
        let (model, given) = scan(argv)?;
        let last = |name: &str| given.get(name).and_then(|v| v.last()).cloned();
        for (name, printed) in NUMBERS {
            if let Some(value) = last(name).filter(|v| v.parse::<u32>().is_err()) {
                return Err(serve_error(&format!("argument {printed}: invalid int value: '{value}'")));
            }
        }
        let number = |name: &str, usual: u32| last(name).and_then(|v| v.parse().ok()).unwrap_or(usual);
        let seconds = |name: &str, usual: f64| -> Result<Duration, Usage> {
            let value = last(name).map_or(Ok(usual), |v| v.parse::<f64>());
            let value = value.ok().and_then(|v| Duration::try_from_secs_f64(v).ok());
            value.ok_or_else(|| serve_error(&format!("argument {name}: invalid float value")))
        };
        let port = |name: &str, usual: u16| {
            u16::try_from(number(name, usual.into()))
                .map_err(|_| serve_error(&format!("argument {name}: port out of range")))
        };
        let fails = given.get("--sim-fail").into_iter().flatten().flat_map(|v| v.split_whitespace());
        let fails = fails.map(|f| Fail::parse(f).map_err(|e| serve_error(&e))).collect::<Result<_, _>>()?;
        let model = last("--model").or(model).unwrap_or_else(|| "Qwen/Qwen3-0.6B".to_owned());
        let served = given.get("--served-model-name").filter(|v| !v.is_empty()).cloned();
        let environment_key = std::env::var("VLLM_API_KEY").ok().filter(|k| !k.is_empty());
        Ok(Self {
            served: served.unwrap_or_else(|| vec![model.clone()]),
            model,
            host: last("--host").unwrap_or_else(|| "0.0.0.0".to_owned()),
            port: port("--port", 8000)?,
            nodes: number("--nnodes", 1),
            rank: number("--node-rank", 0),
            master: (last("--master-addr").unwrap_or_else(|| "127.0.0.1".to_owned()), port("--master-port", 29501)?),
            headless: given.contains_key("--headless"),
            max_num_seqs: number("--max-num-seqs", 256) as usize,
            max_model_len: last("--max-model-len").and_then(|v| model_len(&v)).unwrap_or(2048),
            tensor_parallel: number("--tensor-parallel-size", 1),
            api_keys: given.get("--api-key").cloned().unwrap_or_else(|| environment_key.into_iter().collect()),
            shutdown_timeout: seconds("--shutdown-timeout", 0.0)?,
            load: seconds("--sim-load-secs", 0.0)?,
            stop: seconds("--sim-stop-secs", 0.3)?,
            token: seconds("--sim-token-ms", 2.0)?.div_f64(1000.0),
            fails,
            fail_file: last("--sim-fail-file").unwrap_or_else(|| "/sim/fail".to_owned()),
            given,
        })
    }
}

/// `131072`, `128k` (thousands), `128K` (1024s), as vLLM reads it.
fn model_len(text: &str) -> Option<u64> {
    let scale = [("k", 1000), ("K", 1024), ("m", 1_000_000), ("M", 1 << 20)];
    match scale.iter().find_map(|(end, by)| Some((text.strip_suffix(end)?, by))) {
        Some((number, by)) => Some(number.parse::<u64>().ok()? * by),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, Usage> {
        Config::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn reads_vllms_flags_in_all_their_forms() {
        let c =
            parse("/m --served-model-name a b --max_num_seqs=4 -tp 2 --enforce-eager -cc.mode=none --max-model-len 8k");
        let c = c.unwrap();
        assert_eq!((c.served, c.max_num_seqs, c.tensor_parallel), (vec!["a".to_owned(), "b".to_owned()], 4, 2));
        assert_eq!((c.model.as_str(), c.max_model_len), ("/m", 8000));
    }

    #[test]
    fn refuses_as_vllm_does() {
        let usage = |text: &str| parse(text).unwrap_err().0;
        assert!(usage("/m --no-such-flag 1").ends_with("vllm: error: unrecognized arguments: --no-such-flag 1"));
        let text = usage("/m --tensor-parallel-size two");
        assert!(text.ends_with("vllm serve: error: argument --tensor-parallel-size/-tp: invalid int value: 'two'"));
        assert!(usage("/m --port").ends_with("argument --port: expected one argument"));
        assert!(usage("/m --sim-fail nonsense").contains("nonsense"));
    }
}
