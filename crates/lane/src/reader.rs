//! Reading a file with every mistake reported at once.
//!
//! serde stops at the first error and does not say where it was. So a value is first held against the JSON schema
//! that schemars derives from the very type that serde will read: one definition gives the reader, the reference
//! page and the error messages. The walk knows only the parts of JSON Schema that our own types produce.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::ids;
use crate::problem::{Problem, closest};

/// Reads a value as `T`.
///
/// # Errors
/// All problems, in the order of the file's keys.
pub fn read<T: DeserializeOwned + JsonSchema>(value: &Value) -> Result<T, Vec<Problem>> {
    let schema = schemars::schema_for!(T);
    let root = schema.as_value();
    let mut walk = Walk { root, problems: Vec::new() };
    walk.check(root, value, "");
    if !walk.problems.is_empty() {
        return Err(walk.problems);
    }
    // Whatever the schema cannot say still ends as a problem, only without its key.
    serde_json::from_value(value.clone()).map_err(|e| vec![Problem::error("", e.to_string())])
}

struct Walk<'s> {
    root: &'s Value,
    problems: Vec<Problem>,
}

impl<'s> Walk<'s> {
    fn check(&mut self, schema: &'s Value, value: &Value, path: &str) {
        let Some(schema) = self.resolve(schema) else {
            return;
        };
        for word in ["oneOf", "anyOf"] {
            if let Some(variants) = schema.get(word).and_then(Value::as_array) {
                return self.check_variants(variants, value, path);
            }
        }
        if let Some(expected) = types_of(schema)
            && !expected.iter().any(|t| has_type(value, t))
        {
            let expected = expected.join(" or ");
            return self.fail(Problem::error(path, format!("is {}, expected {expected}", describe(value))));
        }
        if let Some(allowed) = schema.get("enum").and_then(Value::as_array) {
            self.check_choice(&allowed.iter().collect::<Vec<_>>(), value, path);
        }
        match value {
            Value::Object(map) => self.check_object(schema, map, path),
            Value::Array(items) => self.check_array(schema, items, path),
            Value::Number(_) => self.check_number(schema, value, path),
            Value::String(text) => self.check_text(schema, text, path),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn resolve(&self, schema: &'s Value) -> Option<&'s Value> {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else {
            return Some(schema);
        };
        self.root.pointer(reference.strip_prefix('#')?)
    }

    fn check_object(&mut self, schema: &'s Value, map: &Map<String, Value>, path: &str) {
        let known = schema.get("properties").and_then(Value::as_object);
        let rest = schema.get("additionalProperties");
        for (key, value) in map {
            let at = join(path, key);
            match (known.and_then(|k| k.get(key)), rest) {
                (Some(property), _) => self.check(property, value, &at),
                (None, Some(Value::Bool(false))) => self.unknown_key(known, map, key, &at),
                (None, Some(values)) if values.is_object() => {
                    self.check_key(schema, key, &at);
                    self.check(values, value, &at);
                }
                (None, _) => {}
            }
        }
        for key in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            if let Some(key) = key.as_str().filter(|k| !map.contains_key(*k)) {
                self.fail(Problem::error(join(path, key), "is missing"));
            }
        }
    }

    fn unknown_key(&mut self, known: Option<&Map<String, Value>>, map: &Map<String, Value>, key: &str, at: &str) {
        let keys = || known.into_iter().flat_map(Map::keys).map(String::as_str);
        let problem = Problem::error(at, "unknown key");
        let free = closest(key, keys().filter(|k| !map.contains_key(*k)));
        self.fail(match free.or_else(|| closest(key, keys())) {
            Some(near) if free.is_some() => problem.suggest(format!("did you mean `{near}`?")),
            // A lane's base may have set the right one.
            Some(near) => problem.suggest(format!("did you mean `{near}`? It is set too, here or by a base")),
            None => problem,
        });
    }

    /// Keys of a map with named entries (nodes, lanes) are identities themselves.
    fn check_key(&mut self, schema: &Value, key: &str, at: &str) {
        if let Some(names) = schema.get("propertyNames") {
            self.check_format(names, key, at);
        }
    }

    fn check_array(&mut self, schema: &'s Value, items: &[Value], path: &str) {
        let Some(each) = schema.get("items") else {
            return;
        };
        for (n, item) in items.iter().enumerate() {
            self.check(each, item, &format!("{path}[{n}]"));
        }
    }

    fn check_number(&mut self, schema: &Value, value: &Value, path: &str) {
        let Some(number) = value.as_f64() else { return };
        let low = schema.get("minimum").and_then(Value::as_f64);
        let high = schema.get("maximum").and_then(Value::as_f64).or_else(|| {
            let format = schema.get("format").and_then(Value::as_str)?;
            match format {
                "uint8" => Some(f64::from(u8::MAX)),
                "uint16" => Some(f64::from(u16::MAX)),
                "uint32" => Some(f64::from(u32::MAX)),
                "int32" => Some(f64::from(i32::MAX)),
                _ => None,
            }
        });
        if low.is_some_and(|l| number < l) || high.is_some_and(|h| number > h) {
            let bound = |b: Option<f64>| b.map_or_else(|| "…".to_owned(), |b| b.to_string());
            let what = format!("is {value}, outside {} to {}", bound(low), bound(high));
            self.fail(Problem::error(path, what));
        }
    }

    fn check_text(&mut self, schema: &Value, text: &str, path: &str) {
        if let Some(expected) = schema.get("const").and_then(Value::as_str).filter(|c| *c != text) {
            self.fail(Problem::error(path, format!("is {text:?}, expected {expected:?}")));
        }
        self.check_format(schema, text, path);
    }

    fn check_format(&mut self, schema: &Value, text: &str, path: &str) {
        let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
        if let Err(bad) = ids::check_format(format, text) {
            self.fail(Problem::error(path, bad.to_string()));
        }
    }

    /// `Option<T>`, enumerations with documented values, and enumerations tagged by a key.
    fn check_variants(&mut self, variants: &'s [Value], value: &Value, path: &str) {
        let variants: Vec<&Value> = variants.iter().filter_map(|v| self.resolve(v)).collect();
        if value.is_null() && variants.iter().any(|v| types_of(v).is_some_and(|t| t.contains(&"null"))) {
            return;
        }
        let solid: Vec<&Value> = variants.into_iter().filter(|v| types_of(v).is_none_or(|t| t != ["null"])).collect();
        if let [only] = solid[..] {
            return self.check(only, value, path);
        }
        let choices: Vec<&Value> = solid.iter().flat_map(|v| choices_of(v)).collect();
        if !choices.is_empty() {
            return self.check_choice(&choices, value, path);
        }
        self.check_tagged(&solid, value, path);
    }

    fn check_choice(&mut self, choices: &[&Value], value: &Value, path: &str) {
        if choices.contains(&value) {
            return;
        }
        let names: Vec<&str> = choices.iter().filter_map(|c| c.as_str()).collect();
        let given = value.as_str().unwrap_or_default();
        let problem = Problem::error(path, format!("is {value}, expected one of: {}", names.join(", ")));
        self.fail(match closest(given, names) {
            Some(near) => problem.suggest(format!("did you mean `{near}`?")),
            None => problem,
        });
    }

    fn check_tagged(&mut self, variants: &[&'s Value], value: &Value, path: &str) {
        let Some(map) = value.as_object() else {
            return self.fail(Problem::error(path, format!("is {}, expected object", describe(value))));
        };
        let Some(tag) = variants.first().and_then(|v| tag_of(v)).map(|(tag, _)| tag) else {
            return;
        };
        let Some(given) = map.get(tag) else {
            return self.fail(Problem::error(join(path, tag), "is missing"));
        };
        match variants.iter().find(|v| tag_of(v).is_some_and(|(_, name)| name == given)) {
            Some(variant) => self.check(variant, value, path),
            None => {
                let names: Vec<&Value> = variants.iter().filter_map(|v| Some(tag_of(v)?.1)).collect();
                self.check_choice(&names, given, &join(path, tag));
            }
        }
    }

    fn fail(&mut self, problem: Problem) {
        self.problems.push(problem);
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn types_of(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type")? {
        Value::String(one) => Some(vec![one]),
        Value::Array(many) => Some(many.iter().filter_map(Value::as_str).collect()),
        _ => None,
    }
}

fn choices_of(schema: &Value) -> Vec<&Value> {
    let constant = schema.get("const").into_iter();
    constant.chain(schema.get("enum").and_then(Value::as_array).into_iter().flatten()).collect()
}

/// The key that tells a tagged variant apart, and its value.
fn tag_of(schema: &Value) -> Option<(&str, &Value)> {
    schema.get("properties")?.as_object()?.iter().find_map(|(key, p)| Some((key.as_str(), p.get("const")?)))
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::ids::NodeName;

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    #[allow(dead_code)]
    struct File {
        name: NodeName,
        max_num_seqs: Option<u16>,
        #[serde(default)]
        #[schemars(extend("propertyNames" = {"format": "sparklane-node-name"}))]
        nodes: BTreeMap<NodeName, Inner>,
        colour: Option<Colour>,
        shape: Option<Shape>,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Inner {
        host: String,
    }

    /// Colours.
    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(rename_all = "kebab-case")]
    enum Colour {
        /// Like blood.
        Red,
        /// Like the sea.
        DeepBlue,
    }

    #[derive(Debug, Deserialize, JsonSchema)]
    #[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase", deny_unknown_fields)]
    #[allow(dead_code)]
    enum Shape {
        Disc { radius: u32 },
        Box { side: u32 },
    }

    fn problems(value: &Value) -> Vec<String> {
        read::<File>(value).map_or_else(|p| p.iter().map(ToString::to_string).collect(), |_| Vec::new())
    }

    #[test]
    fn every_mistake_is_reported_with_its_key() {
        let found = problems(&json!({
            "name": "Head!", "maxNumSeq": 3, "maxNumSeqs": 70000,
            "nodes": {"Bad": {"host": "x"}, "a": {"hots": "x"}},
            "colour": "deep-blu", "shape": {"kind": "disc", "radius": "big"},
        }));
        assert_eq!(
            found,
            [
                "error: name: \"Head!\" is not a node name (a-z, 0-9, -)",
                "error: maxNumSeq: unknown key (did you mean `maxNumSeqs`? It is set too, here or by a base)",
                "error: maxNumSeqs: is 70000, outside 0 to 65535",
                "error: nodes.Bad: \"Bad\" is not a node name (a-z, 0-9, -)",
                "error: nodes.a.hots: unknown key (did you mean `host`?)",
                "error: nodes.a.host: is missing",
                "error: colour: is \"deep-blu\", expected one of: red, deep-blue (did you mean `deep-blue`?)",
                "error: shape.radius: is \"big\", expected integer",
            ]
        );
    }

    #[test]
    fn a_tag_is_checked_like_any_choice() {
        let found = problems(&json!({"name": "a", "shape": {"kind": "boxx"}}));
        assert_eq!(found, ["error: shape.kind: is \"boxx\", expected one of: disc, box (did you mean `box`?)"]);
        assert_eq!(problems(&json!({"name": "a", "shape": {}})), ["error: shape.kind: is missing"]);
        assert_eq!(problems(&json!({"name": "a", "shape": 3})), ["error: shape: is 3, expected object"]);
        let found = problems(&json!({"name": "a", "shape": {"kind": "box", "side": 1, "sid": 2}}));
        assert_eq!(found, ["error: shape.sid: unknown key (did you mean `side`? It is set too, here or by a base)"]);
    }

    #[test]
    fn a_good_file_is_read() {
        let value = json!({"name": "a", "colour": null, "shape": {"kind": "box", "side": 1}});
        assert!(read::<File>(&value).is_ok());
        assert_eq!(problems(&json!([1])), ["error: is a list, expected object"]);
    }
}
