//! Changes of `serve` keys in the text of a lane file, and the patch that makes them. Text in, text out: whether it means
//! what was asked for is Nix's to say.

use super::Change;

/// The lane file with the changes made; none when it has no place for them.
///
/// A key that the file sets, on its own or in its `serve` set, is set anew in its place; one that only the base sets is
/// added before the file's last brace.
#[must_use]
pub fn apply(text: &str, changes: &[Change]) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for change in changes {
        set(&mut lines, change)?;
    }
    Some(lines.join("\n") + "\n")
}

fn set(lines: &mut Vec<String>, change: &Change) -> Option<()> {
    let mut place = None;
    while let Some((at, inside)) = statement(lines, change.key) {
        let end = at + length(&lines[at..])?;
        let indent: String = lines[at].chars().take_while(|c| *c == ' ').collect();
        lines.drain(at..end);
        place.get_or_insert((at, indent, inside));
    }
    let (at, line) = match place {
        Some((at, indent, true)) => (at, format!("{indent}{} = {};", change.key, change.new)),
        Some((at, indent, false)) => (at, format!("{indent}serve.{} = {};", change.key, change.new)),
        None => (lines.iter().rposition(|l| l.trim() == "}")?, format!("  serve.{} = {};", change.key, change.new)),
    };
    lines.insert(at, line);
    Some(())
}

/// The line that sets the key, or something in it, and whether that is inside `serve = { … }`.
fn statement(lines: &[String], key: &str) -> Option<(usize, bool)> {
    let sets = |line: &str, key: &str| {
        let rest = line.trim_start().strip_prefix(key);
        rest.is_some_and(|rest| rest.trim_start().starts_with('=') || rest.starts_with('.'))
    };
    let serve = lines.iter().position(|l| sets(l, "serve") && l.trim_end().ends_with('{'));
    let block = serve.and_then(|at| Some(at + 1..at + length(&lines[at..])?));
    let inside = |at: usize| block.as_ref().is_some_and(|b| b.contains(&at));
    let dotted = format!("serve.{key}");
    let found = lines.iter().enumerate().find(|(at, line)| sets(line, &dotted) || inside(*at) && sets(line, key));
    found.map(|(at, _)| (at, inside(at)))
}

/// Lines of the statement that the first one begins: to the semicolon outside of its own brackets.
fn length(lines: &[String]) -> Option<usize> {
    let (mut depth, mut quoted) = (0_i32, false);
    for (n, line) in lines.iter().enumerate() {
        let mut chars = line.chars();
        while let Some(c) = chars.next() {
            match c {
                '\\' if quoted => drop(chars.next()),
                '"' => quoted = !quoted,
                _ if quoted => {}
                '#' => break,
                '{' | '[' | '(' => depth += 1,
                '}' | ']' | ')' => depth -= 1,
                ';' if depth == 0 => return Some(n + 1),
                _ => {}
            }
        }
    }
    None
}

/// A unified diff of two texts with one hunk, for `git apply` or `patch -p1`; empty when they are the same.
#[must_use]
pub fn unified(file: &str, old: &str, new: &str) -> String {
    const AROUND: usize = 3;
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    if a == b {
        return String::new();
    }
    let same = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let most = a.len().min(b.len()) - same;
    let tail = a.iter().rev().zip(b.iter().rev()).take(most).take_while(|(x, y)| x == y).count();
    let (from, after) = (same.saturating_sub(AROUND), tail.min(AROUND));
    let (end_a, end_b) = (a.len() - tail, b.len() - tail);
    let (in_a, in_b) = (end_a + after - from, end_b + after - from);
    let mut text = format!("--- a/{file}\n+++ b/{file}\n@@ -{},{in_a} +{},{in_b} @@\n", from + 1, from + 1);
    let rows = [(' ', &a[from..same]), ('-', &a[same..end_a]), ('+', &b[same..end_b]), (' ', &a[end_a..end_a + after])];
    for (sign, lines) in rows {
        lines.iter().for_each(|line| text.extend([&sign.to_string(), *line, "\n"]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &'static str, new: &str) -> Change {
        Change { key, old: String::new(), new: new.to_owned() }
    }

    const LANE: &str = "\
import ./base/mp.nix {
  name = \"l\";
  serve = {
    maxNumSeqs = 8;
    speculativeConfig.num_speculative_tokens = 3;
    speculativeConfig.method = \"x;}\";
  };
  env.A = \"1\";
}
";

    #[test]
    fn a_key_is_changed_where_it_is() {
        let text = apply(LANE, &[change("maxNumSeqs", "4")]).unwrap();
        assert_eq!(text, LANE.replace("maxNumSeqs = 8", "maxNumSeqs = 4"));
        let dotted = "import ./x {\n  serve.maxNumSeqs = 8;\n}\n";
        let text = apply(dotted, &[change("maxNumSeqs", "4")]).unwrap();
        assert_eq!(text, "import ./x {\n  serve.maxNumSeqs = 4;\n}\n");
    }

    #[test]
    fn a_key_of_the_base_is_added() {
        let text = apply(LANE, &[change("maxModelLen", "524288")]).unwrap();
        assert_eq!(text, LANE.replace("  env.A = \"1\";\n", "  env.A = \"1\";\n  serve.maxModelLen = 524288;\n"));
        // No part of another key's name.
        let text = apply("{\n  serve.maxModelLenX = 1;\n}\n", &[change("maxModelLen", "2")]).unwrap();
        assert_eq!(text, "{\n  serve.maxModelLenX = 1;\n  serve.maxModelLen = 2;\n}\n");
        assert_eq!(apply("no lane", &[change("a", "1")]), None);
    }

    #[test]
    fn a_set_is_replaced_whole() {
        let set = "{\n  serve = {\n    speculativeConfig = {\n      method = \"d\";\n    };\n    a = 1;\n  };\n}\n";
        let text = apply(set, &[change("speculativeConfig", "null")]).unwrap();
        assert_eq!(text, "{\n  serve = {\n    speculativeConfig = null;\n    a = 1;\n  };\n}\n");
        let several = "{\n  serve = {\n    speculativeConfig.a = 1;\n    speculativeConfig.b = 2;\n  };\n}\n";
        let text = apply(several, &[change("speculativeConfig", "null")]).unwrap();
        assert_eq!(text, "{\n  serve = {\n    speculativeConfig = null;\n  };\n}\n");
    }

    #[test]
    fn the_diff_is_one_that_patch_takes() {
        let new = apply(LANE, &[change("maxNumSeqs", "4")]).unwrap();
        let diff = unified("nix/lanes/l.nix", LANE, &new);
        let expected = "--- a/nix/lanes/l.nix\n+++ b/nix/lanes/l.nix\n@@ -1,7 +1,7 @@\n import ./base/mp.nix {\n   name = \"l\";\n   serve = {\n-    maxNumSeqs = 8;\n+    maxNumSeqs = 4;\n     speculativeConfig.num_speculative_tokens = 3;\n     speculativeConfig.method = \"x;}\";\n   };\n";
        assert_eq!(diff, expected);
        assert_eq!(unified("f", LANE, LANE), "");
    }

    proptest::proptest! {
        #[test]
        fn no_file_breaks_it(text in "[a-z={};.\\n #\"]{0,120}") {
            let changed = apply(&text, &[change("a", "1")]);
            let _ = unified("f", &text, &changed.unwrap_or_default());
        }
    }
}
