//! A cluster as the text of a Nix file.

use serde_json::{Map, Value};
use sparklane_lane::Cluster;

/// Longest line of an attribute set on one line.
const WIDTH: usize = 116;
/// Words that no attribute may be called without quotes.
const KEYWORDS: [&str; 9] = ["assert", "else", "if", "in", "inherit", "let", "or", "rec", "then"];

/// The file, with what is as it is without being said left out.
#[must_use]
pub fn file(cluster: &Cluster) -> String {
    let mut value = plain(cluster);
    if let Value::Object(top) = &mut value {
        trim(top);
    }
    format!("# Made by `sparklane init`, which keeps what is edited here.\n{}\n", text(&value, 0))
}

/// The cluster as data, without nothings.
#[must_use]
pub fn plain(cluster: &Cluster) -> Value {
    let mut value = serde_json::to_value(cluster).unwrap_or_default();
    without_null(&mut value);
    value
}

fn without_null(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(without_null);
        }
        Value::Array(all) => all.iter_mut().for_each(without_null),
        _ => {}
    }
}

/// Leaves out what a cluster file means when it is silent.
fn trim(top: &mut Map<String, Value>) {
    drop_equal(top, "keepReleases", &Value::from(5));
    for node in top.get_mut("nodes").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        for rail in ["rail1", "rail2"] {
            if let Some(rail) = node.get_mut(rail).and_then(Value::as_object_mut) {
                drop_equal(rail, "prefix", &Value::from(24));
            }
        }
    }
    for key in ["host", "fabric", "ssh"] {
        let Some(below) = top.get_mut(key).and_then(Value::as_object_mut) else { continue };
        for (name, usual) in [("unit", true), ("tmpfiles", true), ("memlock", false), ("preflight", false)] {
            drop_equal(below, name, &Value::from(usual));
        }
        below.retain(|_, v| !empty(v));
    }
    top.retain(|key, v| key == "nodes" || !empty(v));
}

fn drop_equal(map: &mut Map<String, Value>, key: &str, usual: &Value) {
    if map.get(key) == Some(usual) {
        map.shift_remove(key);
    }
}

fn empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_object().is_some_and(Map::is_empty)
}

/// A value as Nix, `depth` levels deep.
#[must_use]
pub fn text(value: &Value, depth: usize) -> String {
    match value {
        Value::String(string) => quoted(string),
        Value::Array(all) => {
            let parts: Vec<String> = all.iter().map(|v| text(v, depth + 1)).collect();
            lines_or_one(&parts, ("[", "]"), depth)
        }
        Value::Object(map) => {
            let parts: Vec<String> =
                map.iter().map(|(key, v)| format!("{} = {};", attribute(key), text(v, depth + 1))).collect();
            // The file itself and what holds more than plain values is easier to read in lines.
            let nested = depth == 0 || map.values().any(|v| v.as_object().is_some_and(|m| !m.is_empty()));
            if nested { lines(&parts, ("{", "}"), depth) } else { lines_or_one(&parts, ("{", "}"), depth) }
        }
        other => other.to_string(),
    }
}

fn lines_or_one(parts: &[String], (open, close): (&str, &str), depth: usize) -> String {
    let one = if parts.is_empty() { format!("{open} {close}") } else { format!("{open} {} {close}", parts.join(" ")) };
    if one.len() + 2 * depth + 20 <= WIDTH && !one.contains('\n') { one } else { lines(parts, (open, close), depth) }
}

fn lines(parts: &[String], (open, close): (&str, &str), depth: usize) -> String {
    let (inner, outer) = ("  ".repeat(depth + 1), "  ".repeat(depth));
    let all: String = parts.iter().map(|part| format!("{inner}{part}\n")).collect();
    format!("{open}\n{all}{outer}{close}")
}

fn attribute(name: &str) -> String {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-'".contains(&b));
    if begins && plain && !KEYWORDS.contains(&name) { name.to_owned() } else { quoted(name) }
}

/// A string: a quote, a backslash, what would begin an interpolation, and what ends a line are escaped.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    for c in text.chars() {
        match c {
            '"' | '\\' | '$' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    format!("\"{out}\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value() -> impl Strategy<Value = Value> {
        // Nix's JSON has no order of attributes and no numbers beyond 63 bits; its strings hold no NUL.
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<u32>().prop_map(Value::from),
            "[ -~äß\n\t\r]{0,12}".prop_map(Value::from),
            "[$\\{\\}\"\\\\']{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-z$ .\"-]{1,6}|if|or", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn nix_reads_what_is_written() {
        use proptest::strategy::ValueTree as _;
        use proptest::test_runner::TestRunner;
        let mut runner = TestRunner::deterministic();
        // One evaluation for all of them.
        let all: Vec<Value> = (0..200).map(|_| value().new_tree(&mut runner).unwrap().current()).collect();
        let all = Value::from(all);
        let output = std::process::Command::new("nix-instantiate")
            .args(["--eval", "--strict", "--json", "--expr", &text(&all, 0)])
            .output()
            .expect("nix-instantiate runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let read: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(read, all);
    }
}
