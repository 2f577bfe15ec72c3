//! JSON objects whose untouched values keep their very text: escapes, numbers, order, unknown fields (R18).
//!
//! A parsed tree written again would change `\u0026` to `&` and 1.0e3 to 1000.0; a value that nobody asked to change must
//! not change, as the digest of a config is an image's identity.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::value::{RawValue, to_raw_value};

/// An object: keys in their order, values as text.
#[derive(Debug, Clone, Default)]
pub struct RawObject(Vec<(String, Box<RawValue>)>);

impl RawObject {
    /// Reads an object.
    ///
    /// # Errors
    /// When it is none, or a key is there twice.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }

    /// A member's text; `null` counts as none.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.get()).filter(|text| *text != "null")
    }

    /// A member read as a type; `None` where it is missing or null.
    ///
    /// # Errors
    /// When it has another shape.
    pub fn read<'a, T: Deserialize<'a>>(&'a self, key: &str) -> Result<Option<T>, String> {
        self.get(key).map(|text| serde_json::from_str(text).map_err(|e| format!("{key}: {e}"))).transpose()
    }

    /// Sets a member: in its place, or at the end.
    ///
    /// # Errors
    /// When the value cannot be JSON.
    pub fn set(&mut self, key: &str, value: &impl Serialize) -> Result<(), String> {
        let raw = to_raw_value(value).map_err(|e| format!("{key}: {e}"))?;
        match self.0.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = raw,
            None => self.0.push((key.to_owned(), raw)),
        }
        Ok(())
    }

    /// Takes a member out.
    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(k, _)| k != key);
    }

    /// The keys in their order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(k, _)| k.as_str())
    }

    /// The object as compact JSON (values as they are).
    ///
    /// # Errors
    /// Never for what was parsed.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|e| e.to_string())
    }
}

impl Serialize for RawObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = RawObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawObject, A::Error> {
                let (mut members, mut seen) = (Vec::new(), HashSet::new());
                while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format!("{key:?} is there twice")));
                    }
                    members.push((key, value));
                }
                Ok(RawObject(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_touched_keeps_its_text() {
        let text = r#"{"z":"a\u0026b","a":1.0e3,"big":123456789012345678901234567890,"n":null,"o":{ "x" : 1 }}"#;
        let mut object = RawObject::parse(text.as_bytes()).unwrap();
        assert_eq!(object.to_bytes().unwrap(), text.as_bytes());
        object.set("a", &"new").unwrap();
        object.set("last", &[1]).unwrap();
        object.remove("n");
        let changed = r#"{"z":"a\u0026b","a":"new","big":123456789012345678901234567890,"o":{ "x" : 1 },"last":[1]}"#;
        assert_eq!(String::from_utf8(object.to_bytes().unwrap()).unwrap(), changed);
        assert_eq!(object.read::<String>("z"), Ok(Some("a&b".to_owned())));
    }

    #[test]
    fn a_doubled_key_is_refused() {
        assert!(RawObject::parse(br#"{"a":1,"a":2}"#).unwrap_err().contains("twice"));
        assert!(RawObject::parse(b"[]").is_err());
    }
}
