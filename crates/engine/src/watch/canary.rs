//! Asking a serving head for a token, again and again.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use sparklane_lane::generation::Watchdog;
use tokio::sync::mpsc;

use super::Guard;
use super::metrics;
use super::triage::{self, Action, Canary, History};
use crate::http::{HttpError, Url, send};
use crate::judge;
use crate::redact::Redacted;

/// `user` of our own requests, so that whoever counts requests can leave them out.
pub const USER: &str = "sparklane-watchdog";
const METRICS_TIMEOUT: Duration = Duration::from_secs(5);

/// Where and how a head is asked.
#[derive(Clone)]
pub struct Api {
    /// Its address, any path.
    pub url: Url,
    /// Model name.
    pub model: String,
    /// Key, when the lane sets one.
    pub key: Option<Redacted<String>>,
}

/// What the watchdog says to the supervisor.
pub enum Event {
    /// A look was made: seconds the canary took, what was found (`None`: it serves).
    Look {
        /// How long the canary took.
        took: Duration,
        /// What is not as it should be.
        odd: Option<String>,
        /// The engine's metrics then, where they could be had.
        metrics: Option<String>,
    },
    /// Start the pair anew; others are held off while the leave lives.
    Bounce {
        /// Why.
        why: String,
        /// The engine's metrics then, where they could be had.
        metrics: Option<String>,
        /// Held until the supervisor's end.
        leave: Box<dyn Any + Send>,
    },
}

/// A task that looks every `canarySecs` until the receiver is gone, and what it says. One look at a time, from a thread
/// that may block.
pub fn watch(
    api: Api,
    watchdog: Watchdog,
    guard: Arc<dyn Guard>,
) -> (impl Future<Output = ()> + Send + 'static, mpsc::Receiver<Event>) {
    let (tell, events) = mpsc::channel(4);
    (look_on(api, watchdog, guard, tell), events)
}

async fn look_on(api: Api, watchdog: Watchdog, guard: Arc<dyn Guard>, tell: mpsc::Sender<Event>) {
    let mut history = History::default();
    loop {
        tokio::select! {
            () = tell.closed() => return,
            () = tokio::time::sleep(Duration::from_secs(watchdog.canary_secs.into())) => {}
        }
        let asked = api.clone();
        let timeout = Duration::from_secs(watchdog.canary_timeout_secs.into());
        let Ok(look) = tokio::task::spawn_blocking(move || look(&asked, timeout)).await else {
            continue;
        };
        let Look { canary, before, after, took } = look;
        let load = |text: &Option<String>| text.as_deref().and_then(metrics::parse);
        let finding = triage::judge(&canary, load(&before), load(&after));
        let odd = match history.take(finding, watchdog.canary_failures) {
            Action::Nothing => None,
            Action::Tell(words) => Some(words),
            Action::Bounce(why) => match guard.may_act() {
                Ok(leave) => {
                    let _told = tell.send(Event::Bounce { why, metrics: after, leave }).await;
                    return;
                }
                Err(not) => Some(format!("{why}; the watchdog does not act: {not}")),
            },
        };
        if tell.send(Event::Look { took, odd, metrics: after }).await.is_err() {
            return;
        }
    }
}

/// A canary with the metrics' texts around it.
struct Look {
    canary: Canary,
    before: Option<String>,
    after: Option<String>,
    took: Duration,
}

fn look(api: &Api, timeout: Duration) -> Look {
    let before = scrape(&api.url);
    let began = Instant::now();
    let canary = ask(api, timeout);
    let took = began.elapsed();
    // An answer says all; the metrics are for telling silence apart.
    let after = if canary == Canary::Answered { None } else { scrape(&api.url) };
    Look { canary, before, after, took }
}

/// The engine's metrics, as text. `None` when they cannot be had in a few seconds.
fn scrape(url: &Url) -> Option<String> {
    let answer = send(&url.with_path("/metrics"), None, None, METRICS_TIMEOUT).ok()?;
    (answer.status == 200).then(|| String::from_utf8_lossy(&answer.body).into_owned())
}

fn ask(api: &Api, timeout: Duration) -> Canary {
    let body = json!({
        "model": api.model,
        "messages": [{ "role": "user", "content": "hi" }],
        "max_tokens": 4,
        "temperature": 0,
        "user": USER,
    });
    let url = api.url.with_path("/v1/chat/completions");
    match send(&url, Some(body.to_string().as_bytes()), api.key.as_ref(), timeout) {
        Ok(answer) => answered(answer.status, &answer.body),
        Err(HttpError::Timeout(_)) => Canary::Timeout,
        Err(error) => Canary::NoAnswer(error.to_string()),
    }
}

fn answered(status: u16, body: &[u8]) -> Canary {
    match status {
        200 if judge::completion_tokens(body) > 0 => Canary::Answered,
        400..=499 => Canary::Refused(format!("HTTP {status}: {}", judge::excerpt(body))),
        _ => Canary::Failed(format!("HTTP {status}: {}", judge::excerpt(body))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_answers() {
        let chat = include_bytes!("../../../../tests/fixtures/engine/single/chat.body");
        assert_eq!(answered(200, chat), Canary::Answered);
        assert!(matches!(answered(200, b"{}"), Canary::Failed(_)));
        assert!(matches!(answered(500, b""), Canary::Failed(_)));
        let missing = include_bytes!("../../../../tests/fixtures/engine/single/err-404.body");
        assert!(matches!(answered(404, missing), Canary::Refused(_)));
    }
}
