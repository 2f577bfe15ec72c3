//! What a node's tool prints, read as JSON.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Lines that a login shell may print before the tool's answer.
const GREETING: usize = 50;

/// An answer, behind whatever a login shell printed before it.
///
/// # Errors
/// When no JSON of that kind is there.
pub fn read<T: DeserializeOwned>(stdout: &str) -> Result<T, serde_json::Error> {
    let lines = stdout.match_indices('\n').take(GREETING).filter_map(|(at, _)| stdout.get(at + 1..));
    let whole = serde_json::from_str::<Value>(stdout);
    let found = match whole {
        Ok(value) => value,
        Err(error) => lines
            .filter(|rest| !rest.trim().is_empty())
            .find_map(|rest| serde_json::from_str(rest).ok())
            .ok_or(error)?,
    };
    serde_json::from_value(harmless(found))
}

/// A node's words for the operator's terminal: lines and tabs stay, nothing moves the cursor.
#[must_use]
pub fn shown(text: &str) -> String {
    text.replace('\r', "").replace(control, "\u{fffd}")
}

fn control(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
}

/// Names of processes and files are anybody's to choose, and what a node reports ends on the operator's terminal.
fn harmless(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace(control, "\u{fffd}")),
        Value::Array(items) => items.into_iter().map(harmless).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, harmless(value))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_node_move_no_cursor() {
        assert_eq!(shown("a\r\n\tb\u{1b}[2J\u{7}"), "a\n\tb\u{fffd}[2J\u{fffd}");
    }

    #[test]
    fn a_greeting_before_the_answer_is_passed_over() {
        assert_eq!(read::<Vec<u8>>("[1]\n").unwrap(), [1]);
        assert_eq!(read::<Vec<u8>>("Welcome\n\n[1,\n2]\n").unwrap(), [1, 2]);
        assert_eq!(read::<Vec<String>>(r#"["\u001b[2Jx\ny"]"#).unwrap(), ["\u{fffd}[2Jx\ny"]);
        assert!(read::<Vec<u8>>("Welcome\n").is_err() && read::<Vec<u8>>("").is_err());
    }
}
