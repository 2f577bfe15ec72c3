//! Judging a chat completion: 200 alone proves nothing. Pure.

use serde::Deserialize;

/// What one try of a gate found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It holds; words for the record.
    Pass(String),
    /// It does not hold yet and may still come.
    NotYet(String),
    /// An answer that more waiting does not mend; a few in a row end the gate.
    Bad(String),
}

#[derive(Deserialize)]
struct Completion {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    content: Option<String>,
    /// Where newer and older vLLM put a thinking model's first tokens.
    reasoning: Option<String>,
    reasoning_content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: Option<u64>,
}

/// Judges the answer to a non-streaming chat completion.
#[must_use]
pub fn judge_tokens(status: u16, body: &[u8], min_tokens: u32) -> Verdict {
    match status {
        200 => judge_body(body, min_tokens),
        401 | 403 => Verdict::Bad(format!("HTTP {status}: the API key is not accepted")),
        400 | 404 | 405 | 422 => Verdict::Bad(format!("HTTP {status}: {}", excerpt(body))),
        _ => Verdict::NotYet(format!("HTTP {status}: {}", excerpt(body))),
    }
}

fn judge_body(body: &[u8], min_tokens: u32) -> Verdict {
    let Ok(answer) = serde_json::from_slice::<Completion>(body) else {
        return Verdict::Bad(format!("HTTP 200 but no chat completion: {}", excerpt(body)));
    };
    let Some(message) = answer.choices.into_iter().next().and_then(|c| c.message) else {
        return Verdict::Bad("HTTP 200 without a choice".to_owned());
    };
    let tokens = answer.usage.and_then(|u| u.completion_tokens).unwrap_or(0);
    if tokens < u64::from(min_tokens.max(1)) {
        return Verdict::Bad(format!("HTTP 200 with {tokens} completion tokens, {} wanted", min_tokens.max(1)));
    }
    let parts = [message.reasoning, message.reasoning_content, message.content];
    let text: String = parts.into_iter().flatten().collect();
    if text.trim().is_empty() {
        return Verdict::Bad(format!("HTTP 200 counts {tokens} tokens but the text is blank"));
    }
    match garbled(&text) {
        Some(why) => Verdict::Bad(format!("the text is garbled ({why})")),
        None => Verdict::Pass(format!("{tokens} tokens")),
    }
}

/// A coarse sentinel for output that no working model gives. Finer probes belong to the evaluation.
fn garbled(text: &str) -> Option<&'static str> {
    let chars: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let broken = chars.iter().filter(|c| **c == '\u{fffd}' || c.is_control()).count();
    if broken * 2 > chars.len() {
        return Some("mostly broken characters");
    }
    // Dirty cache after rejected drafts showed as one character over and over.
    let longest = chars.chunk_by(|a, b| a == b).map(<[char]>::len).max().unwrap_or(0);
    (longest >= 24 && longest * 2 > chars.len()).then_some("one character repeated")
}

/// Tokens of a chat completion, by its own count; 0 for what is none.
#[must_use]
pub fn completion_tokens(body: &[u8]) -> u64 {
    let answer = serde_json::from_slice::<Completion>(body).ok();
    answer.and_then(|a| a.usage?.completion_tokens).unwrap_or(0)
}

/// A short, printable piece of a body for an error message.
#[must_use]
pub fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(400)]);
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(160).collect();
    if text.trim().is_empty() { "(empty answer)".to_owned() } else { text.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(content: &str, tokens: u32) -> Vec<u8> {
        serde_json::to_vec(&serde_json::json!({
            "choices": [{"message": {"role": "assistant", "content": content}}],
            "usage": {"completion_tokens": tokens}
        }))
        .unwrap()
    }

    fn passes(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Pass(_))
    }

    #[test]
    fn a_real_answer_passes() {
        let real = include_bytes!("../../../tests/fixtures/engine/single/chat.body");
        assert_eq!(judge_tokens(200, real, 8), Verdict::Pass("8 tokens".into()));
        assert!(matches!(judge_tokens(200, real, 9), Verdict::Bad(_)));
    }

    #[test]
    fn real_errors_do_not_pass() {
        let missing = include_bytes!("../../../tests/fixtures/engine/single/err-404.body");
        assert!(matches!(judge_tokens(404, missing, 1), Verdict::Bad(_)));
        let json = include_bytes!("../../../tests/fixtures/engine/single/err-badjson.body");
        assert!(matches!(judge_tokens(400, json, 1), Verdict::Bad(_)));
        let stream = include_bytes!("../../../tests/fixtures/engine/single/chat-stream.body");
        assert!(matches!(judge_tokens(200, stream, 1), Verdict::Bad(_)));
    }

    #[test]
    fn two_hundred_without_tokens_fails() {
        for bad in [&b""[..], b"{}", b"[]", b"{\"choices\":[]}", b"{\"choices\":[{}]}", b"ok"] {
            assert!(matches!(judge_tokens(200, bad, 1), Verdict::Bad(_)), "{}", String::from_utf8_lossy(bad));
        }
        assert!(matches!(judge_tokens(200, &body("", 8), 1), Verdict::Bad(_)));
        assert!(matches!(judge_tokens(200, &body(" \n\t ", 8), 1), Verdict::Bad(_)));
        assert!(matches!(judge_tokens(200, &body("hello", 0), 0), Verdict::Bad(_)));
        assert!(passes(&judge_tokens(200, &body("hello", 1), 0)));
    }

    #[test]
    fn reasoning_counts_as_text() {
        let thinking =
            br#"{"choices":[{"message":{"content":null,"reasoning":"Let me"}}],"usage":{"completion_tokens":2}}"#;
        assert!(passes(&judge_tokens(200, thinking, 2)));
    }

    #[test]
    fn garble_is_seen() {
        assert!(matches!(judge_tokens(200, &body(&"!".repeat(60), 60), 1), Verdict::Bad(_)));
        assert!(matches!(judge_tokens(200, &body("\u{fffd}\u{fffd}\u{fffd}a", 4), 1), Verdict::Bad(_)));
        assert!(passes(&judge_tokens(200, &body("The capital of France is Paris.", 7), 1)));
        assert!(passes(&judge_tokens(200, &body("北京是中国的首都。", 7), 1)));
    }

    #[test]
    fn a_server_that_is_not_up_yet_is_waited_for() {
        assert!(matches!(judge_tokens(503, b"", 1), Verdict::NotYet(_)));
        assert!(matches!(judge_tokens(500, b"x", 1), Verdict::NotYet(_)));
        assert!(matches!(judge_tokens(401, b"{}", 1), Verdict::Bad(_)));
    }

    proptest::proptest! {
        #[test]
        fn no_answer_breaks_the_judge(status: u16, body in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let _ = judge_tokens(status, &body, 1);
            let _ = judge_tokens(200, &body, 1);
        }
    }
}
