//! Changes of a text: replacing, inserting, unified diffs without fuzz (R37).

use super::spec::Change;

/// The text after a change.
///
/// # Errors
/// When the change does not fit exactly.
pub fn apply(text: &str, change: &Change) -> Result<String, String> {
    let changed = match change {
        Change::Replace { old, new } => once(text, old)?.0.to_owned() + new + once(text, old)?.1,
        Change::InsertBefore { anchor, text: added } => {
            let (before, after) = once(text, anchor)?;
            format!("{before}{added}{anchor}{after}")
        }
        Change::InsertAfter { anchor, text: added } => {
            let (before, after) = once(text, anchor)?;
            format!("{before}{anchor}{added}{after}")
        }
        Change::Diff(diff) => unified(text, diff)?,
    };
    if changed == text { Err("it changes nothing".into()) } else { Ok(changed) }
}

/// What is before and after a text that must be there exactly once.
fn once<'a>(text: &'a str, anchor: &str) -> Result<(&'a str, &'a str), String> {
    if anchor.is_empty() {
        return Err("the text to look for is empty".into());
    }
    let count = text.matches(anchor).count();
    match text.split_once(anchor) {
        Some(found) if count == 1 => Ok(found),
        _ => Err(format!("{anchor:?} is there {count} times, it must be there once")),
    }
}

/// Numbers of a hunk's header.
struct Hunk {
    old_start: usize,
    old_count: usize,
    new_count: usize,
}

/// Applies a unified diff of one file; every line must be where the diff says.
fn unified(text: &str, diff: &str) -> Result<String, String> {
    let old: Vec<&str> = text.split_inclusive('\n').collect();
    let mut out = String::with_capacity(text.len());
    let (mut at, mut hunks) = (0, 0);
    let mut lines = diff.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with("@@") {
            if hunks > 0 && (line.starts_with("--- ") || line.starts_with("diff ")) {
                return Err("the diff changes more than one file".into());
            }
            if hunks > 0 && !line.trim().is_empty() {
                return Err(format!("the diff has a line outside its hunks: {:?}", line.trim_end()));
            }
            continue;
        }
        let hunk = header(line)?;
        hunks += 1;
        // An empty range names the line before it.
        let start = if hunk.old_count == 0 { hunk.old_start } else { hunk.old_start.saturating_sub(1) };
        if start < at || start > old.len() {
            return Err(format!("hunk {hunks} begins at line {}, which is not in reach", hunk.old_start));
        }
        out.extend(old[at..start].iter().copied());
        at = body(&hunk, hunks, &old, start, &mut lines, &mut out)?;
    }
    if hunks == 0 {
        return Err("there is no hunk in the diff".into());
    }
    out.extend(old[at..].iter().copied());
    Ok(out)
}

/// Applies the lines of one hunk; gives the number of the next old line.
fn body<'a>(
    hunk: &Hunk,
    number: usize,
    old: &[&str],
    start: usize,
    lines: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>,
    out: &mut String,
) -> Result<usize, String> {
    let (mut at, mut removed, mut added) = (start, 0, 0);
    while removed < hunk.old_count || added < hunk.new_count {
        let line = lines.next().ok_or_else(|| format!("hunk {number} ends early"))?;
        let (sign, rest) = (line.as_bytes().first().copied(), line.get(1..).unwrap_or_default());
        let bare = lines.next_if(|l| l.starts_with('\\')).is_some();
        // An empty context line loses its blank in some editors.
        let (sign, rest) = if line == "\n" { (Some(b' '), "\n") } else { (sign, rest) };
        let rest = if bare { rest.strip_suffix('\n').unwrap_or(rest) } else { rest };
        if matches!(sign, Some(b' ' | b'-')) {
            if old.get(at) != Some(&rest) {
                let has = old.get(at).map_or("the end".to_owned(), |l| format!("{:?}", l.trim_end()));
                return Err(format!("hunk {number}: line {} is {has}, not {:?}", at + 1, rest.trim_end()));
            }
            (at, removed) = (at + 1, removed + 1);
        }
        match sign {
            Some(b' ' | b'+') => {
                out.push_str(rest);
                added += 1;
            }
            Some(b'-') => {}
            _ => return Err(format!("hunk {number} has the line {:?}", line.trim_end())),
        }
    }
    if removed == hunk.old_count && added == hunk.new_count {
        Ok(at)
    } else {
        Err(format!("hunk {number} has other numbers of lines than its header"))
    }
}

/// `@@ -1,2 +3,4 @@ …`
fn header(line: &str) -> Result<Hunk, String> {
    let bad = || format!("{:?} is no hunk header", line.trim_end());
    let mut words = line.split_ascii_whitespace();
    let range = |word: Option<&str>, sign: char| {
        let word = word?.strip_prefix(sign)?;
        let (start, count) = word.split_once(',').unwrap_or((word, "1"));
        Some((start.parse::<usize>().ok()?, count.parse::<usize>().ok()?))
    };
    if words.next() != Some("@@") {
        return Err(bad());
    }
    let (old_start, old_count) = range(words.next(), '-').ok_or_else(bad)?;
    let (_, new_count) = range(words.next(), '+').ok_or_else(bad)?;
    Ok(Hunk { old_start, old_count, new_count })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "a\nb\nc\nd\ne\nf\ng\n";

    fn diff(text: &str) -> Result<String, String> {
        apply(OLD, &Change::Diff(text.into()))
    }

    #[test]
    fn a_diff_fits_exactly_or_not_at_all() {
        let good = "--- a/x\n+++ b/x\n@@ -1,3 +1,4 @@ fn\n a\n-b\n+B\n+B2\n c\n@@ -6,2 +7 @@\n f\n-g\n";
        assert_eq!(diff(good).unwrap(), "a\nB\nB2\nc\nd\ne\nf\n");
        for (bad, word) in [
            (good.replace("-1,3", "-2,3"), "line 2 is"),
            (good.replace("-b", "-x"), "not \"x\""),
            (good.replace("-6,2", "-2,2"), "not in reach"),
            (good.replace("-6,2", "-9,2"), "not in reach"),
            (good.replace("+1,4", "+1,5"), "hunk 1"),
            (format!("{good}--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n"), "more than one file"),
            ("nothing".into(), "no hunk"),
            ("@@ x @@\n".into(), "no hunk header"),
            ("@@ -1 +1 @@\n a\n".into(), "changes nothing"),
        ] {
            let error = diff(&bad).unwrap_err();
            assert!(error.contains(word), "{error} for {bad}");
        }
    }

    #[test]
    fn the_last_line_may_be_without_end() {
        let text = "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n";
        assert_eq!(apply("a", &Change::Diff(text.into())).unwrap(), "b\n");
        assert!(apply("a\n", &Change::Diff(text.into())).is_err());
        assert_eq!(apply("", &Change::Diff("@@ -0,0 +1 @@\n+x\n".into())).unwrap(), "x\n");
    }

    #[test]
    fn anchors_are_there_once() {
        let replace = |old: &str| apply("a b a", &Change::Replace { old: old.into(), new: "x".into() });
        assert_eq!(replace("b").unwrap(), "a x a");
        assert!(replace("a").unwrap_err().contains("2 times"));
        assert!(replace("c").unwrap_err().contains("0 times"));
        assert!(replace("").is_err());
        let before = Change::InsertBefore { anchor: "b".into(), text: "1".into() };
        let after = Change::InsertAfter { anchor: "b".into(), text: "1".into() };
        assert_eq!((apply("abc", &before).unwrap(), apply("abc", &after).unwrap()), ("a1bc".into(), "ab1c".into()));
    }

    proptest::proptest! {
        #[test]
        fn any_diff_is_answered(text in "[a-c\n]{0,30}", diff in "(@@ -[0-9]{1,20},[0-9] \\+[0-9],[0-9] @@\n)?([ +-][a-c]\n|\\\\x\n){0,8}") {
            let _ = apply(&text, &Change::Diff(diff));
        }
    }
}
