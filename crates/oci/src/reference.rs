//! Image references: `host[:port]/name[:tag][@sha256:…]`, always with the registry's host, so that nothing is guessed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::OciError;

/// Longest repository name that registries take (distribution specification).
const NAME_MAX: usize = 255;
/// Longest tag.
const TAG_MAX: usize = 128;

/// A registry, by host name or address and port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host {
    name: String,
    port: Option<u16>,
}

impl Host {
    /// Host name or address; an IPv6 address without its brackets.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Port, when the reference names one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// True for this machine itself: `localhost`, 127.0.0.0/8, `::1`. Only there plain http needs no word of the user.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        self.name == "localhost" || self.name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        let (name, port) = if let Some(rest) = text.strip_prefix('[') {
            let (address, rest) = rest.split_once(']').ok_or("an IPv6 address lacks its closing bracket")?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| "what stands in brackets is no IPv6 address")?;
            (address, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').ok_or("no port after ]")?) })
        } else {
            let (name, port) = match text.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (text, None),
            };
            let label = |l: &str| {
                (1..=63).contains(&l.len())
                    && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                    && !l.starts_with('-')
                    && !l.ends_with('-')
            };
            if name.len() > 253 || !name.split('.').all(label) {
                return Err("its host is no host name");
            }
            (name, port)
        };
        let port = match port {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                Some(digits.parse::<u16>().map_err(|_| "its port is out of range")?)
            }
            Some(_) => return Err("its port is no number"),
            None => None,
        };
        if port == Some(0) {
            return Err("its port is out of range");
        }
        Ok(Self { name: name.to_owned(), port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') { write!(f, "[{}]", self.name) } else { f.write_str(&self.name) }?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// An image in a registry: a repository, and a tag, a digest or both. With both, the digest is what counts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reference {
    host: Host,
    name: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// The registry.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The repository within the registry.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tag.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The digest of the manifest or index.
    #[must_use]
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// The same repository by digest, the tag kept for people.
    #[must_use]
    pub fn at(&self, digest: &Digest) -> Self {
        Self { digest: Some(digest.clone()), ..self.clone() }
    }

    /// What stands in the URL for the manifest: the digest if there is one, else the tag.
    #[must_use]
    pub fn selector(&self) -> &str {
        self.digest.as_ref().map(Digest::as_str).or(self.tag.as_deref()).unwrap_or("latest")
    }

    fn parse(text: &str) -> Result<Self, &'static str> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => {
                (rest, Some(digest.parse::<Digest>().map_err(|_| "its digest is not sha256: and 64 hex digits")?))
            }
            None => (text, None),
        };
        let (host, path) = rest.split_once('/').ok_or("it has no host: write host/name:tag")?;
        if !(host.contains(['.', ':']) || host == "localhost") {
            return Err("it has no host: write host/name:tag");
        }
        let host = Host::parse(host)?;
        let (name, tag) = match path.rsplit_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (path, None),
        };
        if name.len() > NAME_MAX || !name.split('/').all(is_component) {
            return Err("its name is not of a-z, 0-9 and single . _ - in parts between /");
        }
        if !tag.is_none_or(is_tag) {
            return Err("its tag is not of A-Z, a-z, 0-9, _ . - (128 at most)");
        }
        if tag.is_none() && digest.is_none() {
            return Err("it has neither tag nor digest");
        }
        Ok(Self { host, name: name.to_owned(), tag: tag.map(str::to_owned), digest })
    }
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`, as the distribution specification has it.
fn is_component(part: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = part.as_bytes();
    let ends = bytes.first().copied().is_some_and(plain) && bytes.last().copied().is_some_and(plain);
    let separators = || bytes.split(|b| plain(*b)).filter(|s| !s.is_empty());
    ends && separators().all(|s| matches!(s, b"." | b"_" | b"__") || s.iter().all(|b| *b == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= TAG_MAX
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

impl FromStr for Reference {
    type Err = OciError;
    fn from_str(text: &str) -> Result<Self, OciError> {
        Self::parse(text).map_err(|why| OciError::Reference { text: text.to_owned(), why })
    }
}

impl TryFrom<String> for Reference {
    type Error = OciError;
    fn try_from(text: String) -> Result<Self, OciError> {
        text.parse()
    }
}

impl From<Reference> for String {
    fn from(reference: Reference) -> String {
        reference.to_string()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.name)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        self.digest.as_ref().map_or(Ok(()), |digest| write!(f, "@{digest}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Reference {
        text.parse().unwrap()
    }

    #[test]
    fn references_have_their_parts() {
        let digest = crate::digest::of(b"x");
        let r = parsed(&format!("registry.example:5000/a/b-c:0.1.1@{digest}"));
        assert_eq!((r.host().name(), r.host().port()), ("registry.example", Some(5000)));
        assert_eq!((r.name(), r.tag(), r.digest()), ("a/b-c", Some("0.1.1"), Some(&digest)));
        assert_eq!(r.selector(), digest.as_str());
        assert_eq!(parsed("localhost/x:1").selector(), "1");
        assert_eq!(parsed("[::1]:5000/x:1").host().name(), "::1");
        assert_eq!(parsed("127.0.0.1:5000/x:1").at(&digest).to_string(), format!("127.0.0.1:5000/x:1@{digest}"));
    }

    #[test]
    fn plain_http_is_for_this_machine() {
        for (text, own) in [
            ("localhost:1/x:1", true),
            ("127.0.0.53:1/x:1", true),
            ("[::1]:1/x:1", true),
            ("localhost.example:1/x:1", false),
            ("10.0.0.1:1/x:1", false),
            ("127.0.0.1.example:1/x:1", false),
        ] {
            assert_eq!(parsed(text).host().is_loopback(), own, "{text}");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused_with_the_reason() {
        for text in [
            "",
            "x:1",
            "x/y:1",
            "h.example/x",
            "h.example/X:1",
            "h.example/x..y:1",
            "h.example/../x:1",
            "h.example//x:1",
            "h.example/x:",
            "h.example/x:-a",
            "h.example:0/x:1",
            "h.example:99999/x:1",
            "h.example:1 /x:1",
            "-h.example/x:1",
            "[::1/x:1",
            "[::g]:1/x:1",
            "h.example/x@sha512:00",
            "h.example/x@sha256:00",
            "https://h.example/x:1",
            "user:pw@h.example/x:1",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn any_text_is_answered(text in "\\PC*") {
            let _ = text.parse::<Reference>();
        }

        #[test]
        fn what_parses_is_printed_as_it_was(text in "[a-z0-9]{1,3}\\.[a-z]{2}(:[1-9][0-9]{0,3})?/[a-z0-9]{1,4}(/[a-z0-9]{1,2}[._-][a-z0-9])?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,9}") {
            prop_assert_eq!(text.parse::<Reference>().unwrap().to_string(), text);
        }
    }
}
