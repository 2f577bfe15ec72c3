//! Scripts for the target's interpreter, never the builder's (R27, R28).

use super::entry_points::Script;

/// The longest first line, its newline included, that every kernel reads whole.
const LONGEST: usize = 127;

/// An interpreter's absolute path in the image. Made only by the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter(String);

impl Interpreter {
    /// Checks a path.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(path: impl Into<String>) -> Result<Self, String> {
        let path = path.into();
        let plain = |c: char| !c.is_control() && !"'\"\\".contains(c);
        if !path.starts_with('/') || path.ends_with('/') || !path.chars().all(plain) {
            return Err(format!("{path:?} is no absolute path of an interpreter that a script can name"));
        }
        Ok(Self(path))
    }

    /// The path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first lines of a Python script. A path that is too long for `#!`, or has a space, goes through /bin/sh: what the
    /// shell runs is a string for Python.
    #[must_use]
    pub fn shebang(&self) -> String {
        let line = format!("#!{}\n", self.0);
        if line.len() <= LONGEST && !self.0.contains(' ') {
            return line;
        }
        format!("#!/bin/sh\n'''exec' '{}' \"$0\" \"$@\"\n' '''\n", self.0)
    }
}

/// The text of a script that calls an entry point; the same for console and GUI on Linux.
#[must_use]
pub fn text(script: &Script, interpreter: &Interpreter) -> String {
    let (module, attribute) = (script.module(), script.attribute());
    // `a.b` is called as an attribute of `a`, which is what can be imported.
    let import = attribute.split('.').next().unwrap_or(attribute);
    format!(
        "{}# -*- coding: utf-8 -*-\nimport sys\nfrom {module} import {import}\nif __name__ == \"__main__\":\n    \
         sys.argv[0] = sys.argv[0].removesuffix(\".exe\")\n    sys.exit({attribute}())\n",
        interpreter.shebang()
    )
}

/// A script of .data/scripts whose first line is `#!python…`, for this interpreter; none if it begins otherwise.
#[must_use]
pub fn rewritten(bytes: &[u8], interpreter: &Interpreter) -> Option<Vec<u8>> {
    let rest = bytes.strip_prefix(MARK)?;
    let end = rest.iter().position(|b| *b == b'\n').map_or(rest.len(), |n| n + 1);
    Some([interpreter.shebang().as_bytes(), &rest[end..]].concat())
}

/// What the first line of a script to be rewritten begins with.
pub const MARK: &[u8] = b"#!python";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::wheel::entry_points;

    fn python(path: &str) -> Interpreter {
        Interpreter::new(path).unwrap()
    }

    #[test]
    fn a_console_script_as_it_always_was() {
        let script = entry_points::scripts("[console_scripts]\nray=ray.scripts:a.b").unwrap().remove(0);
        let expected = "#!/usr/bin/python3\n# -*- coding: utf-8 -*-\nimport sys\nfrom ray.scripts import a\n\
                        if __name__ == \"__main__\":\n    sys.argv[0] = sys.argv[0].removesuffix(\".exe\")\n    sys.exit(a.b())\n";
        assert_eq!(text(&script, &python("/usr/bin/python3")), expected);
    }

    #[test]
    fn long_and_spaced_interpreters_go_through_the_shell() {
        let fits = format!("/{}", "p".repeat(123));
        assert_eq!(python(&fits).shebang().len(), 127);
        for path in [format!("{fits}p"), "/opt/my env/python".to_owned()] {
            assert_eq!(python(&path).shebang(), format!("#!/bin/sh\n'''exec' '{path}' \"$0\" \"$@\"\n' '''\n"));
        }
        for path in ["python", "/a\nb", "/a'b", "/a/", "/a\\b"] {
            assert!(Interpreter::new(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn the_trampoline_runs() {
        let folder = tempfile::tempdir().unwrap();
        let spaced = folder.path().join("a b");
        std::fs::create_dir(&spaced).unwrap();
        let real =
            std::process::Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
        std::os::unix::fs::symlink(String::from_utf8(real.stdout).unwrap().trim(), spaced.join("python")).unwrap();
        let script = entry_points::scripts("[console_scripts]\nx=platform:python_implementation").unwrap().remove(0);
        let file = folder.path().join("x");
        let text = text(&script, &python(spaced.join("python").to_str().unwrap()));
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let output = std::process::Command::new("/bin/sh").arg(&file).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains("CPython"), "{output:?}");
    }

    #[test]
    fn only_marked_scripts_are_rewritten() {
        let python = python("/usr/bin/python3");
        assert_eq!(rewritten(b"#!pythonw -u\nimport x\n", &python).unwrap(), b"#!/usr/bin/python3\nimport x\n");
        assert_eq!(rewritten(b"#!python", &python).unwrap(), b"#!/usr/bin/python3\n");
        for other in [&b"#!/bin/sh\n"[..], b"\x7fELF", b""] {
            assert_eq!(rewritten(other, &python), None);
        }
    }
}
