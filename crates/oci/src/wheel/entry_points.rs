//! entry_points.txt: the scripts that a distribution wants (R27).

/// A script made of an entry point. Made only by the check, so its parts are plain names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    name: String,
    module: String,
    attribute: String,
}

impl Script {
    /// Its file name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The module to import.
    #[must_use]
    pub fn module(&self) -> &str {
        &self.module
    }

    /// What to call in it, dotted.
    #[must_use]
    pub fn attribute(&self) -> &str {
        &self.attribute
    }
}

/// Console and GUI scripts of an entry_points.txt, sorted by name. Lines are read as Python's importlib.metadata does: ends
/// trimmed, `=` as the only delimiter, case kept; `#` and `;` begin comments.
///
/// # Errors
/// A script whose name or target is not plain, or that stands there twice.
pub fn scripts(text: &str) -> Result<Vec<Script>, String> {
    let mut section = None;
    let mut scripts: Vec<Script> = Vec::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = Some(name.trim());
            continue;
        }
        if !matches!(section, Some("console_scripts" | "gui_scripts")) {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or_else(|| format!("{line:?} is no entry point"))?;
        let script = script(name.trim(), value.trim())?;
        if scripts.iter().any(|s| s.name == script.name) {
            return Err(format!("script {} stands there twice", script.name));
        }
        scripts.push(script);
    }
    scripts.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(scripts)
}

fn script(name: &str, value: &str) -> Result<Script, String> {
    check_name(name)?;
    let bad = || format!("script {name}: {value:?} is not module:attribute");
    let target = match value.split_once('[') {
        // Extras change what is installed, not what is called.
        Some((target, extras)) if extras.ends_with(']') => target.trim_end(),
        Some(_) => return Err(bad()),
        None => value,
    };
    let (module, attribute) = target.split_once(':').ok_or_else(bad)?;
    let (module, attribute) = (module.trim(), attribute.trim());
    if !dotted(module) || !dotted(attribute) {
        return Err(bad());
    }
    Ok(Script { name: name.to_owned(), module: module.to_owned(), attribute: attribute.to_owned() })
}

/// Checks the file name of a script, from an entry point or from .data/scripts.
///
/// # Errors
/// A name that leaves its folder, or would take an interpreter's place.
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    if name.is_empty() || name.starts_with(['.', '-']) || !name.chars().all(plain) {
        return Err(format!("script name {name:?} is not a plain file name"));
    }
    let stem = name.to_ascii_lowercase();
    let version = |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || c == '.' || c == 't');
    let reserved = ["python", "pythonw", "pypy", "graalpy"].iter().any(|p| stem.strip_prefix(p).is_some_and(version));
    if reserved || stem == "activate" || stem.starts_with("activate.") {
        return Err(format!("script name {name:?} is reserved for the interpreter"));
    }
    Ok(())
}

/// Python identifiers with dots between.
fn dotted(text: &str) -> bool {
    text.split('.').all(|part| {
        let mut chars = part.chars();
        chars.next().is_some_and(|c| c == '_' || c.is_alphabetic()) && chars.all(|c| c == '_' || c.is_alphanumeric())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_script_sections_count() {
        let text = "\u{23}c\n[other]\nname with spaces\n[console_scripts]\nray = ray.scripts.scripts:main\n  Tune=ray.tune : a.b [x, y] \n\
                    ; no\n[gui_scripts]\ng = m:f\n";
        let found: Vec<_> = scripts(text).unwrap().into_iter().map(|s| (s.name, s.module, s.attribute)).collect();
        let of = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(found, [of("Tune", "ray.tune", "a.b"), of("g", "m", "f"), of("ray", "ray.scripts.scripts", "main")]);
    }

    /// Row 23 of the issue table, its last part: script names that leave their folder or take an interpreter's place.
    #[test]
    fn row_23_script_names_are_plain() {
        for name in [
            "../x",
            "a/b",
            "..",
            ".x",
            "-x",
            "a b",
            "",
            "a\\b",
            "python",
            "Python3",
            "python3.12",
            "pypy3",
            "activate.bat",
        ] {
            assert!(scripts(&format!("[console_scripts]\n{name} = m:f\n")).is_err(), "{name:?}");
        }
        for name in ["pythonic", "python-config", "ray", "f2py", "a.b_c-d"] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn targets_are_plain() {
        for target in ["m", "m:", ":f", "m:f()", "m;x:f", "m:f [x", "m:f\"", "1m:f", "m..n:f"] {
            assert!(scripts(&format!("[console_scripts]\nx = {target}\n")).is_err(), "{target:?}");
        }
        assert!(scripts("[console_scripts]\nx = m:f\nx = m:g\n").unwrap_err().contains("twice"));
        assert!(scripts("[console_scripts]\nx\n").unwrap_err().contains("no entry point"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn any_text_is_read_or_refused(text in "(\\[console_scripts\\]\n)?([a-z./ ]{0,5}=?[a-z:\\[\\].]{0,9}\n){0,5}", any in ".{0,60}") {
            let _ = (scripts(&text), scripts(&any));
        }
    }
}
