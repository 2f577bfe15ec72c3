//! What differs between two files, by key.

use serde_json::Value;

/// Lines `key: old -> new` for every key that differs, in the order of the new file.
#[must_use]
pub fn lines(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk("", old, new, &mut found);
    found
}

fn walk(path: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    if old == new {
        return;
    }
    let (Value::Object(before), Value::Object(after)) = (old, new) else {
        found.push(format!("{path}: {} -> {}", short(old), short(new)));
        return;
    };
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    for key in after.keys().chain(gone) {
        let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let side = |side: &serde_json::Map<String, Value>| side.get(key).cloned().unwrap_or(Value::Null);
        walk(&below, &side(before), &side(after), found);
    }
}

fn short(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_differs_is_told() {
        let old = json!({"a": {"x": 1, "y": "p"}, "b": [1], "c": 0});
        let new = json!({"a": {"x": 2, "y": "p", "z": true}, "b": [1]});
        assert_eq!(lines(&old, &new), ["a.x: 1 -> 2", "a.z: none -> true", "c: 0 -> none"]);
        assert!(lines(&new, &new).is_empty());
    }
}
