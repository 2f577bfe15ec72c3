//! Names and passwords for registries, from a file that a flag names. They go nowhere but into an `Authorization` header.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camino::Utf8Path;
use serde::Deserialize;

use crate::error::OciError;
use crate::reference::Host;

/// Largest file that is read.
const FILE_MAX: u64 = 1 << 20;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text, for the one header that needs it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// A name and a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// User.
    pub user: String,
    /// Password or access token.
    pub password: Secret,
}

impl Login {
    /// The value of an `Authorization` header.
    #[must_use]
    pub fn basic(&self) -> Secret {
        Secret(format!("Basic {}", STANDARD.encode(format!("{}:{}", self.user, self.password.reveal()))))
    }
}

/// Logins by registry, as docker's `config.json` holds them.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    logins: BTreeMap<String, Login>,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    #[serde(rename = "identitytoken")]
    identity_token: Option<String>,
}

impl Credentials {
    /// Reads a file of the form `{"auths": {"HOST": {"auth": "base64 of USER:PASSWORD"}}}`.
    ///
    /// # Errors
    /// When others than its owner may read it, it cannot be read, or an entry is of a kind that needs another program.
    pub fn read(path: &Utf8Path) -> Result<Self, OciError> {
        let meta = std::fs::metadata(path).map_err(OciError::io("look at", path))?;
        if meta.mode() & 0o077 != 0 {
            let why = "others may read it and it holds passwords; chmod 600 it";
            return Err(OciError::document(path.as_str(), why));
        }
        if meta.len() > FILE_MAX {
            return Err(OciError::document(path.as_str(), "it is too long for a file of credentials"));
        }
        let text = std::fs::read_to_string(path).map_err(OciError::io("read", path))?;
        Self::parse(&text).map_err(|why| OciError::document(path.as_str(), why))
    }

    /// Parses the file's content.
    ///
    /// # Errors
    /// With the place; never with a secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        // serde_json's own message may quote the text.
        let file: File = serde_json::from_str(text)
            .map_err(|e| format!("line {} column {}: it is no credentials file", e.line(), e.column()))?;
        let mut logins = BTreeMap::new();
        for (key, entry) in file.auths {
            let host = host_of(&key).to_owned();
            if entry.identity_token.is_some_and(|t| !t.is_empty()) {
                return Err(format!("auths.{host} holds an identity token; write user and password (or access token)"));
            }
            let login = match (entry.auth, entry.username, entry.password) {
                (Some(auth), _, _) if !auth.is_empty() => decode(&auth).ok_or_else(|| format!("auths.{host}.auth"))?,
                (_, Some(user), Some(password)) => Login { user, password: Secret(password) },
                // As `docker login` leaves it when a helper program keeps the password.
                _ => return Err(format!("auths.{host} holds no password (is it kept by a credential helper?)")),
            };
            logins.insert(host, login);
        }
        Ok(Self { logins })
    }

    /// The login for a registry.
    #[must_use]
    pub fn of(&self, host: &Host) -> Option<&Login> {
        self.logins.get(&host.to_string())
    }
}

/// `https://HOST/v1/` as docker once wrote it is HOST.
fn host_of(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    key.split('/').next().unwrap_or(key)
}

fn decode(auth: &str) -> Option<Login> {
    let text = String::from_utf8(STANDARD.decode(auth.trim()).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(Login { user: user.to_owned(), password: Secret(password.trim_end_matches('\0').to_owned()) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::reference::Reference;

    fn host(text: &str) -> Host {
        text.parse::<Reference>().unwrap().host().clone()
    }

    #[test]
    fn logins_are_found_by_host() {
        let text = r#"{"auths": {"ghcr.io": {"auth": "dXNlcjpwdzp4"}, "https://r.example:5000/v1/": {"username": "a", "password": "b"}}, "x": 1}"#;
        let found = Credentials::parse(text).unwrap();
        let login = found.of(&host("ghcr.io/a:1")).unwrap();
        assert_eq!((login.user.as_str(), login.password.reveal()), ("user", "pw:x"));
        assert_eq!(login.basic().reveal(), "Basic dXNlcjpwdzp4");
        assert!(found.of(&host("r.example:5000/a:1")).is_some());
        assert!(found.of(&host("r.example/a:1")).is_none());
    }

    #[test]
    fn nothing_secret_is_ever_shown() {
        let found = Credentials::parse(r#"{"auths": {"g.io": {"auth": "dXNlcjpwdzp4"}}}"#).unwrap();
        assert!(!format!("{found:?}").contains("pw"));
        let why = Credentials::parse(r#"{"auths": {"g.io": {"auth": "pw"}}}"#).unwrap_err();
        assert!(!why.contains("pw"));
        let why = Credentials::parse(r#"{"auths": {"g.io": {"auth": "#).unwrap_err();
        assert!(why.contains("line 1"));
    }

    #[test]
    fn what_needs_another_program_is_said() {
        assert!(Credentials::parse(r#"{"auths": {"g.io": {}}}"#).unwrap_err().contains("helper"));
        assert!(Credentials::parse(r#"{"auths": {"g.io": {"identitytoken": "t"}}}"#).unwrap_err().contains("identity"));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("auth.json");
        std::fs::write(&path, r#"{"auths": {}}"#).unwrap();
        let path = Utf8Path::from_path(&path).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Credentials::read(path).unwrap_err().to_string().contains("chmod 600"));
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Credentials::read(path).unwrap();
    }
}
