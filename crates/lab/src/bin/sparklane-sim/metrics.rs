//! `/metrics`: vLLM's own exposition (all names, helps and labels of a captured one) with our values in it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A captured answer, its values set to nought and its HTTP server's part left out.
const TEMPLATE: &str = include_str!("metrics.txt");

/// What is counted.
#[derive(Debug)]
pub struct Metrics {
    model: String,
    started: f64,
    /// Requests that hold a seat.
    pub running: u32,
    /// Requests that wait for one.
    pub waiting: u32,
    /// Whether the KV cache counts as nearly full.
    pub full: bool,
    prompt_tokens: u64,
    generation_tokens: u64,
    finished: BTreeMap<&'static str, u64>,
    observed: BTreeMap<&'static str, Vec<f64>>,
    http: BTreeMap<(String, String, u16), u64>,
}

/// One request that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Finished {
    /// `stop`, `length` or `abort`.
    pub reason: &'static str,
    /// Length of the prompt.
    pub prompt_tokens: u64,
    /// Length of the answer.
    pub generation_tokens: u64,
    /// Time to the first token.
    pub first_token: Duration,
    /// Time to the end.
    pub total: Duration,
}

impl Metrics {
    /// Nothing counted yet.
    pub fn new(model: String) -> Self {
        #[expect(clippy::disallowed_methods, reason = "vLLM tells it")]
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Self {
            model,
            started,
            running: 0,
            waiting: 0,
            full: false,
            prompt_tokens: 0,
            generation_tokens: 0,
            finished: BTreeMap::new(),
            observed: BTreeMap::new(),
            http: BTreeMap::new(),
        }
    }

    /// Counts a request's prompt when it gets its seat.
    pub fn prompt(&mut self, tokens: u64) {
        self.prompt_tokens += tokens;
    }

    /// Counts one generated token.
    pub fn token(&mut self) {
        self.generation_tokens += 1;
    }

    /// Counts a request that ended by itself; a client that went away is counted nowhere, as in vLLM.
    pub fn finish(&mut self, request: Finished) {
        *self.finished.entry(request.reason).or_default() += 1;
        let per_token = request.total.saturating_sub(request.first_token).as_secs_f64()
            / (request.generation_tokens.max(2) - 1) as f64;
        let values = [
            ("vllm:request_prompt_tokens", request.prompt_tokens as f64),
            ("vllm:request_generation_tokens", request.generation_tokens as f64),
            ("vllm:time_to_first_token_seconds", request.first_token.as_secs_f64()),
            ("vllm:request_time_per_output_token_seconds", per_token),
            ("vllm:inter_token_latency_seconds", per_token),
            ("vllm:e2e_request_latency_seconds", request.total.as_secs_f64()),
            ("vllm:request_inference_time_seconds", request.total.as_secs_f64()),
        ];
        for (name, value) in values {
            self.observed.entry(name).or_default().push(value);
        }
    }

    /// Counts an answer of the HTTP server.
    pub fn answered(&mut self, handler: &str, method: &str, status: u16) {
        *self.http.entry((handler.to_owned(), method.to_owned(), status / 100)).or_default() += 1;
    }

    /// The exposition.
    pub fn render(&self) -> String {
        let mut out = String::with_capacity(TEMPLATE.len());
        for line in TEMPLATE.lines() {
            if line.starts_with('#') {
                out += line;
            } else if let Some((series, usual)) = line.rsplit_once(' ') {
                let series = series.replace("model_name=\"tiny\"", &format!("model_name=\"{}\"", self.model));
                let _ = write!(out, "{series} {}", self.value(&series).unwrap_or_else(|| usual.to_owned()));
            }
            out.push('\n');
        }
        out += "# HELP http_requests_total Total number of requests by method, status and handler.\n\
                # TYPE http_requests_total counter\n";
        for ((handler, method, class), count) in &self.http {
            let labels = format!("handler=\"{handler}\",method=\"{method}\",status=\"{class}xx\"");
            let _ = writeln!(out, "http_requests_total{{{labels}}} {count}.0");
        }
        out
    }

    fn value(&self, series: &str) -> Option<String> {
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        if name.ends_with("_created") || name == "process_start_time_seconds" {
            return Some(format!("{:e}", self.started));
        }
        let label = |wanted: &str| labels.split_once(&format!("{wanted}=\"")).and_then(|(_, r)| r.split('"').next());
        let value = match name {
            "vllm:num_requests_running" => f64::from(self.running),
            "vllm:num_requests_waiting" => f64::from(self.waiting),
            "vllm:num_requests_waiting_by_reason" if label("reason") == Some("capacity") => f64::from(self.waiting),
            "vllm:prompt_tokens_total" | "vllm:prefix_cache_queries_total" => self.prompt_tokens as f64,
            "vllm:prompt_tokens_by_source_total" if label("source") == Some("local_compute") => {
                self.prompt_tokens as f64
            }
            "vllm:kv_cache_usage_perc" if self.full => 0.97,
            "vllm:generation_tokens_total" => self.generation_tokens as f64,
            "vllm:request_success_total" => {
                label("finished_reason").and_then(|r| self.finished.get(r)).copied().unwrap_or(0) as f64
            }
            _ => self.histogram(name, label("le"))?,
        };
        Some(format!("{value:?}"))
    }

    fn histogram(&self, name: &str, le: Option<&str>) -> Option<f64> {
        let (base, part) = name.rsplit_once('_')?;
        let values = self.observed.get(base)?;
        match part {
            "sum" => Some(values.iter().sum()),
            "count" => Some(values.len() as f64),
            "bucket" => {
                let limit = le.and_then(|l| l.replace("+Inf", "inf").parse::<f64>().ok())?;
                Some(values.iter().filter(|v| **v <= limit).count() as f64)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_buckets() {
        let mut m = Metrics::new("m".to_owned());
        m.running = 3;
        m.token();
        m.answered("/health", "GET", 200);
        let ms = Duration::from_millis;
        m.finish(Finished {
            reason: "length",
            prompt_tokens: 7,
            generation_tokens: 1,
            first_token: ms(5),
            total: ms(9),
        });
        let text = m.render();
        for line in [
            "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0",
            "vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 1.0",
            "vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"m\"} 1.0",
            "vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"5.0\",model_name=\"m\"} 0.0",
            "vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"10.0\",model_name=\"m\"} 1.0",
            "vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"+Inf\",model_name=\"m\"} 1.0",
            "http_requests_total{handler=\"/health\",method=\"GET\",status=\"2xx\"} 1.0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}");
        }
    }
}
