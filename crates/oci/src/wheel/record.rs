//! RECORD: which files a distribution brings, with their hashes (R25, R26).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// One row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// Relative to the folder that holds the .dist-info; `/` between components.
    pub path: String,
    /// SHA-256 of the file; RECORD itself and signatures have none.
    pub sha256: Option<[u8; 32]>,
    /// Bytes of the file.
    pub size: Option<u64>,
}

/// Reads a RECORD: CSV with quotes; lines end in LF or CRLF.
///
/// # Errors
/// Which row breaks a rule. Hashes other than SHA-256 are refused.
pub fn parse(text: &str) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let number = rows.len() + 1;
        let fields = fields(&mut rest).map_err(|why| format!("row {number}: {why}"))?;
        if fields == [""] {
            continue;
        }
        rows.push(row(fields).map_err(|why| format!("row {number}: {why}"))?);
    }
    Ok(rows)
}

fn row(fields: Vec<String>) -> Result<Row, String> {
    let found = fields.len();
    let Ok([path, hash, size]) = <[String; 3]>::try_from(fields) else {
        return Err(format!("it has {found} fields instead of 3"));
    };
    let sha256 = match hash.split_once('=') {
        None if hash.is_empty() => None,
        Some(("sha256", sum)) => {
            let sum = URL_SAFE_NO_PAD.decode(sum).ok().and_then(|s| s.try_into().ok());
            Some(sum.ok_or_else(|| format!("{path}: {hash:?} is no SHA-256"))?)
        }
        _ => return Err(format!("{path}: only sha256 hashes are read, this is {hash:?}")),
    };
    let size = match size.as_str() {
        "" => None,
        digits if digits.bytes().all(|b| b.is_ascii_digit()) => {
            Some(digits.parse().map_err(|_| format!("{path}: size {digits} is too large"))?)
        }
        other => return Err(format!("{path}: size {other:?} is no number")),
    };
    Ok(Row { path, sha256, size })
}

/// Takes the fields of one row off the front, its line end included.
fn fields(rest: &mut &str) -> Result<Vec<String>, &'static str> {
    let mut fields = Vec::new();
    loop {
        let field = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (field, behind) = unquote(quoted)?;
                *rest = behind;
                field
            }
            None => {
                let end = rest.find([',', '\n']).unwrap_or(rest.len());
                let mut field = &rest[..end];
                if !rest[end..].starts_with(',') {
                    field = field.strip_suffix('\r').unwrap_or(field);
                }
                if field.contains(['"', '\r']) {
                    return Err("a quote or CR stands inside of a field");
                }
                *rest = &rest[end..];
                field.to_owned()
            }
        };
        fields.push(field);
        if let Some(behind) = rest.strip_prefix(',') {
            *rest = behind;
            continue;
        }
        *rest = rest.strip_prefix("\r\n").or_else(|| rest.strip_prefix('\n')).unwrap_or(rest);
        return Ok(fields);
    }
}

/// A field whose opening quote is gone, and what follows its closing one.
fn unquote(text: &str) -> Result<(String, &str), &'static str> {
    let mut field = String::new();
    let mut rest = text;
    loop {
        let (before, behind) = rest.split_once('"').ok_or("a quoted field does not end")?;
        field.push_str(before);
        match behind.strip_prefix('"') {
            Some(behind) => {
                field.push('"');
                rest = behind;
            }
            None if behind.is_empty() || behind.starts_with([',', '\n']) || behind.starts_with("\r\n") => {
                return Ok((field, behind));
            }
            None => return Err("something follows a closing quote"),
        }
    }
}

/// Writes a RECORD: sorted bytewise by path, LF (R26).
#[must_use]
pub fn write(rows: &[Row]) -> String {
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort();
    let lines = sorted.iter().map(|row| {
        let hash = row.sha256.map(|s| format!("sha256={}", URL_SAFE_NO_PAD.encode(s))).unwrap_or_default();
        let size = row.size.map(|s| s.to_string()).unwrap_or_default();
        format!("{},{hash},{size}\n", quote(&row.path))
    });
    lines.collect()
}

fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EMPTY: &str = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";

    #[test]
    fn quotes_and_both_line_ends() {
        let text = format!("a.py,{EMPTY},0\r\n\"b, \"\"c\"\".py\",{EMPTY},\nx.dist-info/RECORD,,\r\n");
        let rows = parse(&text).unwrap();
        let paths: Vec<&str> = rows.iter().map(|r| r.path.as_str()).collect();
        assert_eq!(paths, ["a.py", "b, \"c\".py", "x.dist-info/RECORD"]);
        assert_eq!((rows[0].size, rows[1].size, rows[2].sha256), (Some(0), None, None));
        assert_eq!(write(&rows), text.replace("\r\n", "\n"));
    }

    #[test]
    fn what_is_refused() {
        for (text, words) in [
            ("a,b\n", "row 1: it has 2 fields"),
            ("a,md5=x,1\n", "only sha256"),
            ("a,sha256=x,1\n", "is no SHA-256"),
            ("a,,-1\n", "is no number"),
            ("a,,99999999999999999999\n", "too large"),
            ("\"a,,\n", "does not end"),
            ("\"a\"b,,\n", "follows a closing quote"),
            ("a\"b,,\n", "inside of a field"),
        ] {
            assert!(parse(text).unwrap_err().contains(words), "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn what_is_written_is_read(paths in proptest::collection::btree_set("[ -~\n\r]{1,12}", 0..8), size in any::<Option<u64>>(), sum in any::<Option<[u8; 32]>>()) {
            let rows: Vec<Row> = paths.into_iter().map(|path| Row { path, sha256: sum, size }).collect();
            prop_assert_eq!(parse(&write(&rows)), Ok(rows));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a,\"\r\n=sha256-9]{0,40}", any in ".{0,60}") {
            let _ = (parse(&text), parse(&any));
        }
    }
}
