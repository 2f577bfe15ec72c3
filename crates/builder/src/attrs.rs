//! The attributes of the derivation.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::BuildError;
use crate::fs;

/// The attributes of the derivation that is being built.
#[derive(Debug, Clone)]
pub struct Attrs {
    values: Map<String, Value>,
}

impl Attrs {
    /// Finds and reads the attributes: newer Nix names the file, older Nix puts it into the build folder.
    ///
    /// # Errors
    /// When there is none, or it is no JSON object.
    pub fn from_env() -> Result<Self, BuildError> {
        let named = std::env::var("NIX_ATTRS_JSON_FILE").ok().map(Utf8PathBuf::from);
        let beside = || std::env::var("NIX_BUILD_TOP").ok().map(|top| Utf8Path::new(&top).join(".attrs.json"));
        let file = named.filter(|f| f.exists()).or_else(beside).ok_or(BuildError::NoAttrs)?;
        let value: Value = fs::read_json(&file)?;
        Self::from_value(value)
    }

    /// Takes the attributes from a value.
    ///
    /// # Errors
    /// When it is no object.
    pub fn from_value(value: Value) -> Result<Self, BuildError> {
        match value {
            Value::Object(values) => Ok(Self { values }),
            _ => Err(bad("", "are no object")),
        }
    }

    /// Where the output goes.
    pub(crate) fn out(&self) -> Result<Utf8PathBuf, BuildError> {
        let out = self.value("outputs")?.get("out").and_then(Value::as_str);
        Ok(out.ok_or_else(|| bad("outputs", "has no out"))?.into())
    }

    pub(crate) fn value(&self, name: &str) -> Result<&Value, BuildError> {
        self.values.get(name).ok_or_else(|| bad(name, "is missing"))
    }

    pub(crate) fn text(&self, name: &str) -> Result<&str, BuildError> {
        self.value(name)?.as_str().ok_or_else(|| bad(name, "is no text"))
    }

    pub(crate) fn path(&self, name: &str) -> Result<&Utf8Path, BuildError> {
        self.text(name).map(Utf8Path::new)
    }

    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<T, BuildError> {
        serde_json::from_value(self.value(name)?.clone()).map_err(|e| bad(name, &e.to_string()))
    }

    pub(crate) fn paths(&self, name: &str) -> Result<BTreeMap<String, Utf8PathBuf>, BuildError> {
        self.read(name)
    }
}

fn bad(name: &str, what: &str) -> BuildError {
    BuildError::Attr { name: name.to_owned(), what: what.to_owned() }
}
