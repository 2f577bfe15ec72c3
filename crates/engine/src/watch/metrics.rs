//! The few numbers of vLLM's `/metrics` that tell busy from stuck. Pure.

/// What an engine is doing. Sums over all label sets of a name; a gauge per engine is its largest.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Tokens generated since the engine's start.
    pub generated: f64,
    /// Tokens that its steps worked on since then, those of prompts too.
    pub worked: f64,
    /// Requests that run.
    pub running: f64,
    /// Requests that wait.
    pub waiting: f64,
    /// Share of the KV cache in use, 0 to 1.
    pub kv: f64,
}

/// Reads the text exposition format. `None` when it has none of vLLM's counters: then it is not the engine's.
#[must_use]
pub fn parse(text: &str) -> Option<Load> {
    let mut load = Load::default();
    let mut known = false;
    for (name, value) in text.lines().filter_map(sample) {
        match name {
            "vllm:generation_tokens_total" => {
                known = true;
                load.generated += value;
            }
            "vllm:iteration_tokens_total_sum" => load.worked += value,
            "vllm:num_requests_running" => load.running += value,
            "vllm:num_requests_waiting" => load.waiting += value,
            // The second is the older name.
            "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" => load.kv = load.kv.max(value),
            _ => {}
        }
    }
    known.then_some(load)
}

/// Name and value of a line; comments and what is not a finite number have none.
fn sample(line: &str) -> Option<(&str, f64)> {
    let line = line.trim();
    if line.starts_with('#') {
        return None;
    }
    // Label values may hold spaces and braces; the last brace ends them.
    let (name, rest) = match line.find('{') {
        Some(at) => (&line[..at], &line[line.rfind('}')? + 1..]),
        None => line.split_once(' ')?,
    };
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some((name.trim(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_real_engine_said() {
        let load = parse(include_str!("../../../../tests/fixtures/engine/single/metrics-after-requests.body")).unwrap();
        assert!(load.generated > 0.0 && load.worked > load.generated && (0.0..=1.0).contains(&load.kv), "{load:?}");
        assert_eq!(parse("# HELP x\nprocess_cpu 1\n"), None);
    }

    #[test]
    fn labels_may_hold_anything() {
        let text = "vllm:generation_tokens_total{engine=\"0\",model_name=\"a b} {c\"} 5\n\
                    vllm:generation_tokens_total{engine=\"1\"} 7 1700000000\n\
                    vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.97\n\
                    vllm:num_requests_running NaN\nvllm:num_requests_waiting{} 2\n";
        let load = parse(text).unwrap();
        assert_eq!(load, Load { generated: 12.0, worked: 0.0, running: 0.0, waiting: 2.0, kv: 0.97 });
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(text: String) {
            let _ = parse(&text);
            let _ = parse(&format!("vllm:generation_tokens_total{text}\n"));
        }
    }
}
