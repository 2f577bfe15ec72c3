//! What an image of ours is made of: the document that the flake hands over (`image-<lane>`), or a file given to
//! `sparklane image build`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::OciError;
use crate::layer::entry::TreePath;
use crate::wheel::Lock;

/// Oldest time that entries may have: python's zipfile raises on older files (R2).
pub const OLDEST: u64 = 315_532_800;
/// Time of every entry where the document names none: 2020-01-01.
pub const EPOCH: u64 = 1_577_836_800;

/// An image: base, layers, config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// Name in the catalogue, for messages.
    pub name: String,
    /// What it stands on.
    pub base: Base,
    /// Layers of ours, lowest first.
    pub layers: Vec<Layer>,
    /// What changes in the config.
    #[serde(default)]
    pub config: Delta,
    /// Seconds since 1970 that every entry and the config carry; no clock is read.
    #[serde(default = "epoch")]
    pub epoch: u64,
    /// What the lane records; the build fails with the difference when it moves.
    #[serde(default)]
    pub expected: Option<Expected>,
}

/// What an image was when it was recorded: the same members as in its `image.json`, of which only `manifest` decides and the
/// others say what moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expected {
    /// Digest of the manifest.
    pub manifest: Digest,
    /// Digest of the config.
    #[serde(default)]
    pub config: Option<Digest>,
    /// Digests of our layers, lowest first.
    #[serde(default)]
    pub layers: Option<Vec<Digest>>,
    /// Digest of each member of the config.
    #[serde(default)]
    pub keys: Option<BTreeMap<String, Digest>>,
}

fn epoch() -> u64 {
    EPOCH
}

/// A pinned base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Base {
    /// Where it is from, for people and for annotations.
    pub reference: String,
    /// Digest of its manifest.
    pub manifest: Digest,
    /// Digest of its config.
    pub config: Digest,
}

/// One layer of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Layer {
    /// Python distributions.
    Wheels(Wheels),
    /// Changed text files of the base.
    Edits(Edits),
    /// Plain files.
    Files(Files),
}

/// Python distributions, installed without pip or an interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Wheels {
    /// The wheels.
    pub lock: Lock,
    /// The interpreter that scripts name, absolute, e.g. `/usr/bin/python3`.
    pub interpreter: String,
    /// Where modules go, absolute, e.g. `/usr/local/lib/python3.12/dist-packages`.
    pub site: String,
    /// Where scripts go, absolute, e.g. `/usr/local/bin`.
    pub scripts: String,
    /// What is done about a distribution that the base has in another version.
    #[serde(default)]
    pub upgrade: Upgrade,
}

/// What is done about a distribution that the base has in another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Upgrade {
    /// It goes, by its RECORD (R34).
    #[default]
    Replace,
    /// The build is refused.
    Refuse,
}

/// Changes of text files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edits {
    /// Each of another file.
    pub edits: Vec<Edit>,
}

/// A change of one file of the base.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edit {
    /// Absolute path.
    pub path: String,
    /// SHA-256 of the file as the base has it; `None` until `sparklane image pin` has seen it, and then the build refuses.
    pub preimage: Option<String>,
    /// SHA-256 of the file as it shall be.
    #[serde(default)]
    pub postimage: Option<String>,
    /// The change.
    pub change: Change,
}

/// How a text changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Change {
    /// A text that must be there exactly once gives way to another.
    Replace {
        /// What is there.
        old: String,
        /// What shall be there.
        new: String,
    },
    /// Text put before a text that must be there exactly once.
    InsertBefore {
        /// What is there.
        anchor: String,
        /// What is put before it.
        text: String,
    },
    /// Text put after a text that must be there exactly once.
    InsertAfter {
        /// What is there.
        anchor: String,
        /// What is put after it.
        text: String,
    },
    /// A unified diff of this one file, applied without fuzz (R37).
    Diff(String),
}

/// Plain files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Files {
    /// The files.
    #[serde(default)]
    pub files: Vec<PlainFile>,
    /// Absolute paths of the base that go.
    #[serde(default)]
    pub removes: Vec<String>,
}

/// A file whose content someone supplies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlainFile {
    /// Absolute path in the image.
    pub path: String,
    /// Where the content is on this machine.
    pub source: String,
    /// SHA-256 of the content, hexadecimal.
    pub sha256: String,
    /// `0644` or `0755` as a rule; octal text.
    #[serde(default = "plain_mode")]
    pub mode: String,
    /// What the content must hold.
    #[serde(default)]
    pub asserts: Vec<Assert>,
}

fn plain_mode() -> String {
    "0644".into()
}

/// A text with the number of times that it must be there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Assert {
    /// The text.
    pub text: String,
    /// Exactly so often.
    pub count: usize,
}

/// Changes of the config; `null` takes a value out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Delta {
    /// Environment.
    pub env: BTreeMap<String, Option<String>>,
    /// Labels.
    pub labels: BTreeMap<String, Option<String>>,
    /// Entry point; set without `cmd`, it clears the base's (R18).
    pub entrypoint: Option<Vec<String>>,
    /// Default arguments.
    pub cmd: Option<Vec<String>>,
    /// Working folder.
    pub workdir: Option<String>,
}

impl Spec {
    /// Reads a document.
    ///
    /// # Errors
    /// When it is none, has unknown fields, or says something that cannot be.
    pub fn parse(what: &str, bytes: &[u8]) -> Result<Self, OciError> {
        let bad = |why: String| OciError::document(what, why);
        let spec: Self = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        spec.check().map_err(bad)?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), String> {
        if self.epoch < OLDEST {
            return Err(format!(
                "epoch {} is before 1980-01-01 ({OLDEST}): python's zipfile fails on such files",
                self.epoch
            ));
        }
        if self.epoch > i64::MAX as u64 / 2 {
            return Err(format!("epoch {} is no time", self.epoch));
        }
        for key in self.config.env.keys() {
            if key.is_empty() || key.contains(['=', '\0']) {
                return Err(format!("config.env: {key:?} is no name"));
            }
        }
        for (i, layer) in self.layers.iter().enumerate() {
            layer.check().map_err(|why| format!("layers[{i}]: {why}"))?;
        }
        Ok(())
    }
}

impl Layer {
    /// For history and messages: what the layer is, without anything of the machine that builds it.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Wheels(w) => format!("wheels {}", w.lock.requirements.join(" ")),
            Self::Edits(e) => format!("edits {}", list(e.edits.iter().map(|e| e.path.as_str()))),
            Self::Files(f) => {
                let removes = f.removes.iter().map(|r| format!("-{r}"));
                list(f.files.iter().map(|f| f.path.clone()).chain(removes)).replacen("", "files ", 1)
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        let absolute = |path: &str| absolute(path).map(|_| ());
        match self {
            Self::Wheels(w) => {
                [&w.interpreter, &w.site, &w.scripts].into_iter().try_for_each(|p| absolute(p))?;
                w.lock.check()
            }
            Self::Edits(e) if e.edits.is_empty() => Err("there is no edit in it".into()),
            Self::Edits(e) => e.edits.iter().try_for_each(|edit| {
                absolute(&edit.path)?;
                [&edit.preimage, &edit.postimage].into_iter().flatten().try_for_each(|h| hex(h))
            }),
            Self::Files(f) if f.files.is_empty() && f.removes.is_empty() => Err("there is nothing in it".into()),
            Self::Files(f) => {
                f.removes.iter().try_for_each(|p| absolute(p))?;
                f.files.iter().try_for_each(|file| {
                    absolute(&file.path)?;
                    hex(&file.sha256)?;
                    mode(&file.mode).map(|_| ())
                })
            }
        }
    }
}

fn list<S: AsRef<str>>(paths: impl Iterator<Item = S>) -> String {
    paths.map(|p| p.as_ref().to_owned()).collect::<Vec<_>>().join(" ")
}

/// The path inside the image of an absolute path.
///
/// # Errors
/// When it is not absolute or not plain.
pub fn absolute(path: &str) -> Result<TreePath, String> {
    let rest = path.strip_prefix('/').ok_or_else(|| format!("{path:?} is not absolute"))?;
    TreePath::new(rest)
}

/// Permission bits from octal text.
///
/// # Errors
/// When it is none.
pub fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| format!("{text:?} is no mode, e.g. 0644"))
}

fn hex(text: &str) -> Result<(), String> {
    let good = text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if good { Ok(()) } else { Err(format!("{text:?} is no SHA-256 in hexadecimal")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(rest: &str) -> String {
        let sum = "a".repeat(64);
        format!(r#"{{"name":"x","base":{{"reference":"r","manifest":"sha256:{sum}","config":"sha256:{sum}"}},{rest}}}"#)
    }

    #[test]
    fn every_kind_of_layer_is_read() {
        let sum = "b".repeat(64);
        let text = with(&format!(
            r#""layers":[
            {{"kind":"wheels","lock":{{"format":1,"python":"cp312","platform":"aarch64","glibc":"2.28","requirements":["a"],"wheels":[]}},
              "interpreter":"/usr/bin/python3","site":"/usr/lib/python3/dist-packages","scripts":"/usr/bin"}},
            {{"kind":"edits","edits":[{{"path":"/a.py","preimage":null,"change":{{"replace":{{"old":"a","new":"b"}}}}}}]}},
            {{"kind":"files","files":[{{"path":"/etc/x","source":"x","sha256":"{sum}"}}],"removes":["/opt/y"]}}]"#
        ));
        let spec = Spec::parse("spec", text.as_bytes()).unwrap();
        let titles: Vec<String> = spec.layers.iter().map(Layer::title).collect();
        assert_eq!(titles, ["wheels a", "edits /a.py", "files /etc/x -/opt/y"]);
        assert_eq!(spec.epoch, EPOCH);
        let again = serde_json::to_vec(&spec).unwrap();
        assert_eq!(Spec::parse("again", &again).unwrap(), spec);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (rest, word) in [
            (r#""layers":[],"extra":1"#, "extra"),
            (r#""layers":[{"kind":"files","removes":["opt"]}]"#, "not absolute"),
            (r#""layers":[{"kind":"files","removes":["/a/../b"]}]"#, "plain"),
            (r#""layers":[{"kind":"files","removes":["/a"],"more":1}]"#, "more"),
            (r#""layers":[{"kind":"files"}]"#, "nothing"),
            (r#""layers":[{"kind":"edits","edits":[]}]"#, "no edit"),
            (r#""layers":[],"config":{"env":{"A=B":"x"}}"#, "no name"),
        ] {
            let error = Spec::parse("spec", with(rest).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    /// Issue row 27 (rules_docker#2269, hatch#1605): files older than 1980 break python's zipfile.
    #[test]
    fn row_27_an_epoch_before_1980_is_refused() {
        for epoch in [0, 1, OLDEST - 1] {
            let error = Spec::parse("spec", with(&format!(r#""layers":[],"epoch":{epoch}"#)).as_bytes()).unwrap_err();
            assert!(error.to_string().contains("1980"), "{error}");
        }
        Spec::parse("spec", with(&format!(r#""layers":[],"epoch":{OLDEST}"#)).as_bytes()).unwrap();
    }
}
