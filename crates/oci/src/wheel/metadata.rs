//! The headers of METADATA and WHEEL.

use super::name::Tag;

/// Key and value pairs up to the first empty line; keys in lower case, folded lines joined.
///
/// # Errors
/// A line that is no header.
fn headers(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut headers: Vec<(String, String)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() {
            break;
        }
        if line.starts_with([' ', '\t']) {
            let last = headers.last_mut().ok_or_else(|| format!("line {} continues nothing", number + 1))?;
            last.1.push('\n');
            last.1.push_str(line.trim());
            continue;
        }
        let (key, value) = line.split_once(':').ok_or_else(|| format!("line {} is no header", number + 1))?;
        headers.push((key.trim().to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(headers)
}

fn one(headers: &[(String, String)], key: &str) -> Result<String, String> {
    let mut values = headers.iter().filter(|(k, _)| k == key).map(|(_, v)| v);
    match (values.next(), values.next()) {
        (Some(value), None) if !value.is_empty() => Ok(value.clone()),
        (Some(_), None) => Err(format!("{key} is empty")),
        (None, _) => Err(format!("it has no {key}")),
        (Some(_), Some(_)) => Err(format!("it has {key} twice")),
    }
}

/// What is read of METADATA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// The distribution's name as spelt there.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Metadata {
    /// Reads METADATA.
    ///
    /// # Errors
    /// What it lacks.
    pub fn parse(text: &str) -> Result<Self, String> {
        let headers = headers(text)?;
        one(&headers, "metadata-version")?;
        Ok(Self { name: one(&headers, "name")?, version: one(&headers, "version")? })
    }
}

/// What is read of WHEEL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Whether it has no compiled part; both kinds go to one folder here (R29).
    pub pure: bool,
    /// What it was built for, sorted.
    pub tags: Vec<Tag>,
}

impl About {
    /// Reads WHEEL.
    ///
    /// # Errors
    /// What it lacks, or a format that is not version 1.
    pub fn parse(text: &str) -> Result<Self, String> {
        let headers = headers(text)?;
        let version = one(&headers, "wheel-version")?;
        let major = version.split('.').next().unwrap_or_default();
        if major != "1" {
            return Err(format!("its format is version {version}, only 1 is known"));
        }
        let pure = match one(&headers, "root-is-purelib")?.to_ascii_lowercase().as_str() {
            "true" => true,
            "false" => false,
            other => return Err(format!("root-is-purelib is {other:?}")),
        };
        let mut tags = Vec::new();
        for (_, value) in headers.iter().filter(|(k, _)| k == "tag") {
            tags.extend(Tag::expand(value).ok_or_else(|| format!("tag {value:?} is none"))?);
        }
        if tags.is_empty() {
            return Err("it has no tag".to_owned());
        }
        tags.sort();
        tags.dedup();
        Ok(Self { pure, tags })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_end_at_the_first_empty_line() {
        let text = "Metadata-Version: 2.1\r\nName: Foo.Bar\r\nSummary: a\r\n  b\r\nVersion: 1.0\r\n\r\nName: other\n";
        let expected = Metadata { name: "Foo.Bar".to_owned(), version: "1.0".to_owned() };
        assert_eq!(Metadata::parse(text), Ok(expected));
        assert_eq!(
            Metadata::parse("Name: a\nName: b\nVersion: 1\nMetadata-Version: 2\n"),
            Err("it has name twice".to_owned())
        );
        assert!(Metadata::parse("Metadata-Version: 2\nName: a\n").unwrap_err().contains("no version"));
        assert!(Metadata::parse(" x").unwrap_err().contains("continues nothing"));
        assert!(Metadata::parse("hello").unwrap_err().contains("no header"));
    }

    #[test]
    fn only_format_one_is_known() {
        let about =
            About::parse("Wheel-Version: 1.9\nRoot-Is-Purelib: False\nTag: py3-none-any\nTag: py2-none-any\n").unwrap();
        assert!(!about.pure && about.tags.len() == 2);
        let words = About::parse("Wheel-Version: 2.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n").unwrap_err();
        assert_eq!(words, "its format is version 2.0, only 1 is known");
        assert!(About::parse("Wheel-Version: 1.0\nRoot-Is-Purelib: true\n").unwrap_err().contains("no tag"));
        assert!(About::parse("Wheel-Version: 1.0\nRoot-Is-Purelib: maybe\n").is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn any_text_is_read_or_refused(text in "((Name|Version|Tag|Wheel-Version|[a-z]{1,3})(: ?|)[ -~]{0,9}(\n|\r\n)){0,8}", any in ".{0,80}") {
            for text in [text, any] {
                let _ = (Metadata::parse(&text), About::parse(&text));
            }
        }
    }
}
