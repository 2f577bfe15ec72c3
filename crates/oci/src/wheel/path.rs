//! Paths that wheels bring.

/// Checks a relative path of a wheel: plain components, no backslash, no control character, no drive letter (R32).
///
/// # Errors
/// What is wrong with it.
pub fn check(path: &str) -> Result<(), String> {
    let refuse = |why: &str| Err(format!("{path:?} {why}"));
    if path.starts_with('/') {
        return refuse("is absolute");
    }
    if path.contains('\\') {
        return refuse("has a backslash");
    }
    if path.chars().any(char::is_control) {
        return refuse("has a control character");
    }
    if path.as_bytes().get(1) == Some(&b':') && path.as_bytes()[0].is_ascii_alphabetic() {
        return refuse("begins with a drive letter");
    }
    match path.split('/').find(|c| matches!(*c, "" | "." | "..")) {
        Some("..") => refuse("leaves its directory"),
        Some(_) => refuse("has an empty or . component"),
        None if path.split('/').any(|c| c.starts_with(crate::layer::WHITEOUT)) => {
            refuse("would delete a file in an image (.wh.)")
        }
        None => Ok(()),
    }
}
