//! Bodies of the API's answers, key by key as vLLM 0.32.0 gives them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::args::Config;

/// Which of the two text APIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// What all bodies of one answer share.
#[derive(Debug, Clone)]
pub struct Frame {
    /// Which API.
    pub kind: Kind,
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "vLLM tells it")]
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// 16 hex digits that no other call gives.
pub fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    #[expect(clippy::disallowed_methods, reason = "no more than a seed")]
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    hex(&format!("{nanos} {}", COUNT.fetch_add(1, Ordering::Relaxed)), 8)
}

fn hex(text: &str, bytes: usize) -> String {
    Sha256::digest(text).iter().take(bytes).map(|b| format!("{b:02x}")).collect()
}

fn fingerprint(config: &Config) -> String {
    let parallel = if config.tensor_parallel > 1 { format!("tp{}-", config.tensor_parallel) } else { String::new() };
    format!("vllm-0.32.0-{parallel}{}", hex(&format!("{:?}", config.given), 4))
}

impl Frame {
    /// For one request for `model`.
    pub fn new(kind: Kind, config: &Config, model: String) -> Self {
        let prefix = if kind == Kind::Chat { "chatcmpl" } else { "cmpl" };
        Self { kind, id: format!("{prefix}-{}", unique()), created: now(), model, fingerprint: fingerprint(config) }
    }

    /// The whole answer at once.
    pub fn full(&self, text: &str, reason: &str, usage: (u64, u64)) -> Value {
        match self.kind {
            Kind::Chat => json!({
                "id": self.id, "object": "chat.completion", "created": self.created, "model": self.model,
                "choices": [{
                    "index": 0,
                    "message": {
                        "role": "assistant", "content": text, "refusal": null, "annotations": null, "audio": null,
                        "function_call": null, "reasoning": null
                    },
                    "logprobs": null, "finish_reason": reason, "stop_reason": null, "token_ids": null,
                    "routed_experts": null
                }],
                "service_tier": null, "system_fingerprint": self.fingerprint, "usage": full_usage(usage),
                "prompt_logprobs": null, "prompt_token_ids": null, "prompt_text": null, "kv_transfer_params": null,
                "ec_transfer_params": null, "metrics": null
            }),
            Kind::Text => json!({
                "id": self.id, "object": "text_completion", "created": self.created, "model": self.model,
                "choices": [{
                    "index": 0, "text": text, "logprobs": null, "finish_reason": reason, "stop_reason": null,
                    "token_ids": null, "prompt_logprobs": null, "prompt_token_ids": null, "routed_experts": null
                }],
                "service_tier": null, "system_fingerprint": self.fingerprint, "usage": full_usage(usage),
                "kv_transfer_params": null, "ec_transfer_params": null, "metrics": null
            }),
        }
    }

    fn chunk(&self, choices: &Value) -> Value {
        let object = if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" };
        json!({ "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices })
    }

    /// The first chunk of a chat: the role.
    pub fn role(&self) -> Value {
        let mut chunk = self.chunk(&json!([{
            "index": 0, "delta": { "role": "assistant", "content": "" }, "logprobs": null, "finish_reason": null
        }]));
        chunk["prompt_token_ids"] = Value::Null;
        chunk["prompt_text"] = Value::Null;
        chunk
    }

    /// One token; the last one has a reason, and the fingerprint when no usage follows.
    pub fn token(&self, text: &str, reason: Option<&str>, usage_follows: bool) -> Value {
        let mut choice = match self.kind {
            Kind::Chat => {
                json!({ "index": 0, "delta": { "content": text }, "logprobs": null, "finish_reason": reason })
            }
            Kind::Text => {
                json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": reason })
            }
        };
        if reason.is_some() {
            choice["stop_reason"] = Value::Null;
        }
        choice["token_ids"] = Value::Null;
        let mut chunk = self.chunk(&json!([choice]));
        if reason.is_some() && !usage_follows {
            chunk["system_fingerprint"] = json!(self.fingerprint);
        }
        chunk
    }

    /// The chunk that `stream_options.include_usage` asks for.
    pub fn usage(&self, (prompt, made): (u64, u64)) -> Value {
        let mut chunk = self.chunk(&json!([]));
        chunk["usage"] = json!({ "prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made });
        chunk["system_fingerprint"] = json!(self.fingerprint);
        chunk
    }
}

fn full_usage((prompt, made): (u64, u64)) -> Value {
    json!({
        "prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made,
        "prompt_tokens_details": null, "completion_tokens_details": null
    })
}

/// An error's body.
pub fn error(message: &str, kind: &str, param: Option<&str>, code: u16) -> Value {
    json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
}

/// `/v1/models`.
pub fn models(config: &Config) -> Value {
    let model = |name: &String| {
        json!({
            "id": name, "object": "model", "created": now(), "owned_by": "vllm", "root": config.model, "parent": null,
            "max_model_len": config.max_model_len,
            "permission": [{
                "id": format!("modelperm-{}", unique()), "object": "model_permission", "created": now(),
                "allow_create_engine": false, "allow_sampling": true, "allow_logprobs": true,
                "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false, "organization": "*",
                "group": null, "is_blocking": false
            }]
        })
    };
    json!({ "object": "list", "data": config.served.iter().map(model).collect::<Vec<_>>() })
}
