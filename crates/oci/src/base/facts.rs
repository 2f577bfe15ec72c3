//! What is read from single files while layers pass by: METADATA, RECORD, compiled modules.

use super::index::Pyc;

/// Name and version from METADATA (headers end at the first empty line).
#[must_use]
pub fn metadata(text: &str) -> Option<(String, String)> {
    let header = |wanted: &str| {
        text.lines().take_while(|l| !l.trim().is_empty()).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(wanted).then(|| value.trim().to_owned())
        })
    };
    Some((header("Name")?, header("Version")?))
}

/// Paths that a RECORD lists, in its order; `site` is the folder that holds the `.dist-info`. Rows that lead out of the tree are
/// left out: nobody can own those.
#[must_use]
pub fn record_paths(text: &str, site: &str) -> Vec<String> {
    text.lines().filter_map(|line| join(site, &first_field(line)?)).collect()
}

/// The first field of a CSV row, with quotes taken off.
#[must_use]
pub fn first_field(line: &str) -> Option<String> {
    let line = line.trim_end_matches('\r');
    let Some(quoted) = line.strip_prefix('"') else {
        return line.split(',').next().filter(|f| !f.is_empty()).map(str::to_owned);
    };
    let (mut out, mut chars) = (String::new(), quoted.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            '"' if chars.peek() == Some(&'"') => {
                chars.next();
                out.push('"');
            }
            '"' => return Some(out),
            other => out.push(other),
        }
    }
    None
}

/// A path relative to a folder, `..` resolved by text; an absolute one from the root. `None` when it leads out.
#[must_use]
pub fn join(folder: &str, path: &str) -> Option<String> {
    let start = if path.starts_with('/') { "" } else { folder };
    let mut parts: Vec<&str> = start.split('/').filter(|p| !p.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            other => parts.push(other),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// How a compiled module says that it is fresh, from its first 16 bytes (PEP 552).
#[must_use]
pub fn pyc(head: &[u8]) -> Pyc {
    let word = |at: usize| head.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    match (word(4), word(8), word(12)) {
        (Some(0), Some(mtime), Some(size)) => Pyc::Timestamp(mtime, size),
        (Some(1), Some(_), Some(_)) => Pyc::UncheckedHash,
        (Some(3), Some(_), Some(_)) => Pyc::CheckedHash,
        _ => Pyc::Unknown,
    }
}

/// The folder and name of an interpreter that a path may be: `…/bin/python3.12` gives (`…`, `3.12`).
#[must_use]
pub fn interpreter(path: &str) -> Option<(&str, &str)> {
    let (folder, name) = path.rsplit_once('/')?;
    let version = name.strip_prefix("python")?;
    let (major, minor) = version.split_once('.')?;
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let prefix = folder.strip_suffix("bin")?;
    (digits(major) && digits(minor)).then(|| (prefix.trim_end_matches('/'), version))
}

/// The module whose compiled form a path is: `a/__pycache__/b.cpython-312.opt-1.pyc` gives `a/b.py`.
#[must_use]
pub fn source_of_pyc(path: &str) -> Option<String> {
    let (folder, name) = path.rsplit_once('/')?;
    let stem = name.strip_suffix(".pyc")?;
    match folder.strip_suffix("__pycache__") {
        Some(folder) => Some(format!("{folder}{}.py", stem.split('.').next()?)),
        None => Some(format!("{folder}/{stem}.py")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_lead_anywhere_within_the_tree() {
        let text = "a/b.py,sha256=x,1\r\n\"q,\"\"x.py\",,\n../../../bin/ray,,\n../../../../../../x,,\n/opt/abs,,\n\n";
        let found = record_paths(text, "usr/lib/python3.12/site-packages");
        assert_eq!(
            found,
            [
                "usr/lib/python3.12/site-packages/a/b.py",
                "usr/lib/python3.12/site-packages/q,\"x.py",
                "usr/bin/ray",
                "opt/abs"
            ]
        );
    }

    #[test]
    fn compiled_modules_say_how_they_are_checked() {
        let head = |flags: u32| {
            [b"\xcb\r\r\n".as_slice(), &flags.to_le_bytes(), &7u32.to_le_bytes(), &9u32.to_le_bytes()].concat()
        };
        assert_eq!(pyc(&head(0)), Pyc::Timestamp(7, 9));
        assert_eq!(pyc(&head(1)), Pyc::UncheckedHash);
        assert_eq!(pyc(&head(3)), Pyc::CheckedHash);
        assert_eq!(pyc(&head(2)), Pyc::Unknown);
        assert_eq!(pyc(b"short"), Pyc::Unknown);
        assert_eq!(source_of_pyc("a/__pycache__/b.cpython-312.opt-1.pyc").as_deref(), Some("a/b.py"));
        assert_eq!(source_of_pyc("a/b.pyc").as_deref(), Some("a/b.py"));
    }

    #[test]
    fn names_and_interpreters() {
        assert_eq!(
            metadata("Metadata-Version: 2.1\nName: Foo\nVersion: 1.0\n\nName: no\n"),
            Some(("Foo".into(), "1.0".into()))
        );
        assert_eq!(metadata("Name: Foo\n\nVersion: 1"), None);
        assert_eq!(interpreter("usr/bin/python3.12"), Some(("usr", "3.12")));
        assert_eq!(interpreter("opt/env/bin/python3.12"), Some(("opt/env", "3.12")));
        assert_eq!(interpreter("usr/bin/python3"), None);
        assert_eq!(interpreter("usr/bin/python3.12-config"), None);
    }

    proptest::proptest! {
        #[test]
        fn anything_is_read(text in ".{0,200}", bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..40)) {
            let _ = (metadata(&text), record_paths(&text, "a/b"), pyc(&bytes), interpreter(&text), source_of_pyc(&text));
            for path in record_paths(&text, "a/b") {
                proptest::prop_assert!(!path.split('/').any(|c| c.is_empty() || c == ".."));
            }
        }
    }
}
