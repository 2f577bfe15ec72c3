//! Small identities shared by every part. Each is checked once, where it enters, and is a type from there on.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a text is not the identity it was taken for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {what}")]
pub struct BadId {
    /// The refused text.
    pub text: String,
    /// What was expected, with its article, e.g. "a sha256 digest (sha256: and 64 hex digits)".
    pub what: &'static str,
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $format:literal, $what:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn inline_schema() -> bool {
                true
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "format": $format })
            }
        }

        impl $name {
            /// The text of the identity.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;
            fn try_from(text: String) -> Result<Self, BadId> {
                let check: fn(&str) -> bool = $check;
                if check(&text) { Ok(Self(text)) } else { Err(BadId { text, what: $what }) }
            }
        }

        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                Self::try_from(text.to_owned())
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

pub(crate) fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// True for names that are safe as a file name, a unit instance and a host label.
fn is_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

text_id!(
    /// An OCI digest, `sha256:` and 64 lower-case hex digits.
    Digest,
    "sparklane-digest",
    "a sha256 digest (sha256: and 64 hex digits)",
    |t| t.strip_prefix("sha256:").is_some_and(|h| is_hex(h, 64))
);
text_id!(
    /// Identity of a generation's content: 64 hex digits (design.md section 4).
    GenerationId,
    "sparklane-generation-id",
    "a generation id (64 hex digits)",
    |t| is_hex(t, 64)
);
text_id!(
    /// Name of a node, as in the cluster file.
    NodeName,
    "sparklane-node-name",
    "a node name (a-z, 0-9, -)",
    is_name
);
text_id!(
    /// Name of a lane.
    LaneName,
    "sparklane-lane-name",
    "a lane name (a-z, 0-9, -)",
    is_name
);
text_id!(
    /// Name of a cluster.
    ClusterName,
    "sparklane-cluster-name",
    "a cluster name (a-z, 0-9, -)",
    is_name
);
text_id!(
    /// One attempt to move the cluster; also the instance of `sparklane-txn@.service`.
    TxnId,
    "sparklane-txn-id",
    "a transaction id (a-z, 0-9, -)",
    is_name
);
text_id!(
    /// A top-level path of the Nix store, `/nix/store/<32 base-32 characters>-<name>`.
    StorePath,
    "sparklane-store-path",
    "a store path (/nix/store/<hash>-<name>)",
    |t| t.strip_prefix("/nix/store/").is_some_and(|r| {
        r.len() > 33
            && r.as_bytes()[32] == b'-'
            && r.bytes().take(32).all(|b| b.is_ascii_digit() || b.is_ascii_lowercase())
            && r.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-._?=".contains(&b))
    })
);

/// Checks a text by the `format` that its type's schema carries. Formats that are not ours hold for any text.
pub(crate) fn check_format(format: &str, text: &str) -> Result<(), BadId> {
    fn parse<T: FromStr<Err = BadId>>(text: &str) -> Result<(), BadId> {
        text.parse::<T>().map(|_| ())
    }
    match format {
        "sparklane-digest" => parse::<Digest>(text),
        "sparklane-generation-id" => parse::<GenerationId>(text),
        "sparklane-node-name" => parse::<NodeName>(text),
        "sparklane-lane-name" => parse::<LaneName>(text),
        "sparklane-cluster-name" => parse::<ClusterName>(text),
        "sparklane-txn-id" => parse::<TxnId>(text),
        "sparklane-store-path" => parse::<StorePath>(text),
        _ => Ok(()),
    }
}

impl Digest {
    /// From the 32 bytes of a SHA-256.
    #[must_use]
    pub fn from_sha256(sum: &[u8; 32]) -> Self {
        use fmt::Write as _;
        let mut text = String::with_capacity(71);
        text.push_str("sha256:");
        for byte in sum {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
    }

    /// The 64 hex digits.
    #[must_use]
    pub fn hex(&self) -> &str {
        self.0.strip_prefix("sha256:").unwrap_or(&self.0)
    }
}

impl StorePath {
    /// `<hash>-<name>`, the last part of the path.
    #[must_use]
    pub fn base_name(&self) -> &str {
        self.0.strip_prefix("/nix/store/").unwrap_or(&self.0)
    }
}

/// What a node is in its cluster. The head is rank 0, holds the releases and decides every transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Rank 0: serves the API, decides.
    Head,
    /// Any other rank.
    Worker,
}

impl Role {
    /// True for the node that decides a transaction.
    #[must_use]
    pub fn decides(self) -> bool {
        self == Self::Head
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head => "head",
            Self::Worker => "worker",
        })
    }
}

/// A Nix system double that a node can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum System {
    /// DGX Spark.
    #[serde(rename = "aarch64-linux")]
    Aarch64Linux,
    /// Lab nodes and control hosts.
    #[serde(rename = "x86_64-linux")]
    X86_64Linux,
}

impl System {
    /// `e_machine` of an ELF file of this system (ELF specification: EM_AARCH64 183, EM_X86_64 62).
    #[must_use]
    pub fn elf_machine(self) -> u16 {
        match self {
            Self::Aarch64Linux => 183,
            Self::X86_64Linux => 62,
        }
    }

    /// The Nix name of the system.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Aarch64Linux => "aarch64-linux",
            Self::X86_64Linux => "x86_64-linux",
        }
    }

    /// The machine name that `uname -m` gives on this system.
    #[must_use]
    pub fn uname_machine(self) -> &'static str {
        match self {
            Self::Aarch64Linux => "aarch64",
            Self::X86_64Linux => "x86_64",
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_refuse_what_they_are_not() {
        assert!("sha256:ab".parse::<Digest>().is_err());
        assert!("../x".parse::<NodeName>().is_err());
        assert!("".parse::<TxnId>().is_err());
        assert!("/nix/store/short-x".parse::<StorePath>().is_err());
        assert!("/nix/store/00000000000000000000000000000000-a/b".parse::<StorePath>().is_err());
        let ok: StorePath = "/nix/store/00000000000000000000000000000000-a".parse().unwrap();
        assert_eq!(ok.base_name(), "00000000000000000000000000000000-a");
    }
}
