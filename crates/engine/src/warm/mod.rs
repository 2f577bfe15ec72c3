//! Warm-up after each start, before the unit counts as started: the requests whose kernels are compiled at first use.
//!
//! The shapes are those of the mp kit (`mp-kit.md` section 5.6): a plain chat, a tool choice, a long prompt, sampling; and
//! several at once. Each may take as long as the lane says, as a cold compile takes minutes.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http::send;
use crate::judge;
use crate::watch::canary::Api;

/// `user` of these requests, so that whoever counts requests can leave them out.
pub const USER: &str = "sparklane-warmup";
/// More at once would say nothing new.
const MOST_AT_ONCE: usize = 8;
/// Repetitions of the filler: above 4096 tokens with the model's tokenizer.
const LONG: usize = 1200;

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Its name for people.
    pub name: &'static str,
    /// Its body.
    pub body: Value,
}

/// What the warm-up did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Requests that were sent.
    pub requests: u32,
    /// Tokens that came back; metrics that count them can leave them out.
    pub tokens: u64,
    /// Milliseconds in all.
    pub millis: u64,
    /// Shapes that the API refused, with its words.
    pub refused: Vec<String>,
}

/// The shapes for a model, in order.
#[must_use]
pub fn shapes(model: &str) -> Vec<Shape> {
    let ask = |name, content: String, tokens: u32, temperature: f64| Shape {
        name,
        body: json!({
            "model": model,
            "messages": [{ "role": "user", "content": content }],
            "max_tokens": tokens,
            "temperature": temperature,
            "user": USER,
        }),
    };
    let mut tool = ask("a tool choice", "What is the weather in Tokyo?".to_owned(), 64, 0.0);
    tool.body["tool_choice"] = json!("auto");
    tool.body["tools"] = json!([{ "type": "function", "function": {
        "name": "get_weather",
        "description": "Weather of a place",
        "parameters": { "type": "object", "properties": { "location": { "type": "string" } }, "required": ["location"] },
    } }]);
    let filler: String = (0..LONG).map(|i| format!(" filler segment {i}.")).collect();
    let mut sampled = ask("sampling", "Tell a very short story.".to_owned(), 64, 1.0);
    sampled.body["top_p"] = json!(1.0);
    vec![
        ask("a plain chat", "warm-up".to_owned(), 8, 0.0),
        tool,
        ask("a long prompt", format!("Reply with the single word ok.{filler}"), 8, 0.0),
        sampled,
    ]
}

/// Requests at once: what the engine seats, up to a bound.
#[must_use]
pub fn at_once(argv: &[String]) -> usize {
    let seats = argv.iter().position(|word| word == "--max-num-seqs").and_then(|at| argv.get(at + 1)?.parse().ok());
    seats.unwrap_or(1).clamp(1, MOST_AT_ONCE)
}

/// Sends every shape in turn, then the plain one `at_once` times at once. Blocks.
///
/// # Errors
/// The shape that was not answered, and how. What the API refuses (4xx) is noted, not an error: a lane need not have a
/// tool parser.
pub fn run(api: &Api, at_once: usize, cap: Duration, told: &dyn Fn(&'static str)) -> Result<Report, String> {
    let began = Instant::now();
    let mut report = Report::default();
    let shapes = shapes(&api.model);
    for shape in &shapes {
        told(shape.name);
        let answer = one(api, shape, cap)?;
        report.take(shape.name, answer);
    }
    if let Some(plain) = shapes.first().filter(|_| at_once > 1) {
        told("several at once");
        let answers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(|| one(api, plain, cap))).collect();
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a thread died".to_owned()))).collect()
        });
        for answer in answers {
            report.take("several at once", answer?);
        }
    }
    report.millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

/// Tokens, or the API's words of refusal.
type Answer = Result<u64, String>;

impl Report {
    fn take(&mut self, name: &str, answer: Answer) {
        self.requests += 1;
        match answer {
            Ok(tokens) => self.tokens += tokens,
            Err(words) => self.refused.push(format!("{name}: {words}")),
        }
    }
}

fn one(api: &Api, shape: &Shape, cap: Duration) -> Result<Answer, String> {
    let url = api.url.with_path("/v1/chat/completions");
    let answer = send(&url, Some(shape.body.to_string().as_bytes()), api.key.as_ref(), cap)
        .map_err(|error| format!("warm-up, {}: {error}", shape.name))?;
    match answer.status {
        // What is in the answer is for the lane's gates to judge.
        200 => Ok(Ok(judge::completion_tokens(&answer.body))),
        status @ 400..=499 => Ok(Err(format!("HTTP {status}: {}", judge::excerpt(&answer.body)))),
        status => Err(format!("warm-up, {}: HTTP {status}: {}", shape.name, judge::excerpt(&answer.body))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_marked_and_the_long_one_is_long() {
        let shapes = shapes("m");
        assert!(shapes.iter().all(|s| s.body["user"] == USER && s.body["model"] == "m"));
        let words = shapes[2].body["messages"][0]["content"].as_str().unwrap().split_whitespace().count();
        assert!(words > 3600, "{words}");
        assert_eq!(shapes[1].body["tool_choice"], "auto");
    }

    #[test]
    fn as_many_at_once_as_the_engine_seats() {
        let argv = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(at_once(&argv("vllm serve m --max-num-seqs 6")), 6);
        assert_eq!(at_once(&argv("vllm serve m --max-num-seqs 256")), 8);
        assert_eq!(at_once(&argv("vllm serve m --max-num-seqs")), 1);
        assert_eq!(at_once(&argv("vllm serve m")), 1);
    }
}
