//! What is kept of a failure: one folder for each, the last ten.
//!
//! Nodes write their own; the attempt's id in the folder's name is the same on all of them, so that the parts of one
//! failure are found together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::pair::AttemptId;

/// Where the folders are on a node.
pub const FOLDER: &str = "/var/lib/sparklane/evidence";
/// Folders that are kept.
pub const KEPT: usize = 10;
/// Longest file, in bytes: a full disk must not be our doing.
const LONGEST: usize = 1024 * 1024;

/// One file of evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exhibit {
    /// File name.
    pub name: &'static str,
    /// Content, already without secrets.
    pub content: String,
}

/// What is known of a failure, in `failure.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary<'a> {
    /// The lane.
    pub lane: &'a str,
    /// The node.
    pub node: &'a str,
    /// In words.
    pub why: &'a str,
    /// The attempt.
    pub attempt: Option<AttemptId>,
    /// How far it had come.
    pub phase: &'a str,
    /// Seconds since 1970 by the node's clock.
    pub at: u64,
    /// Exit code of the unit.
    pub code: u8,
}

/// Writes a folder and removes the oldest ones. A folder is there whole or not at all.
///
/// # Errors
/// When it cannot be written.
pub fn keep(folder: &Path, summary: &Summary<'_>, exhibits: &[Exhibit]) -> io::Result<PathBuf> {
    let attempt = summary.attempt.map_or_else(|| "alone".to_owned(), |id| id.to_string());
    let next = folder.join(".next");
    if next.exists() {
        fs::remove_dir_all(&next)?;
    }
    fs::create_dir_all(&next)?;
    fs::write(next.join("failure.json"), serde_json::to_vec_pretty(summary)?)?;
    for exhibit in exhibits {
        fs::write(next.join(exhibit.name), last_bytes(&exhibit.content))?;
    }
    // Counted, not dated: a clock that was set back must not make the newest one the first to go.
    let number = numbered(folder)?.last().map_or(1, |(number, _)| number + 1);
    let path = folder.join(format!("{number:06}-{attempt}"));
    fs::rename(&next, &path)?;
    prune(folder)?;
    Ok(path)
}

/// The folders, oldest first.
///
/// # Errors
/// When the folder of folders cannot be read; one that is not there holds none.
pub fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    Ok(numbered(folder)?.into_iter().map(|(_, path)| path).collect())
}

fn numbered(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut all = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let number = name.split('-').next().and_then(|number| number.parse::<u64>().ok());
        // What we did not make is not ours to list, nor to remove.
        if let Some(number) = number.filter(|_| path.is_dir()) {
            all.push((number, path));
        }
    }
    all.sort();
    Ok(all)
}

fn prune(folder: &Path) -> io::Result<()> {
    let all = list(folder)?;
    all.iter().take(all.len().saturating_sub(KEPT)).try_for_each(fs::remove_dir_all)
}

/// The end of a text, cut where a character begins.
fn last_bytes(text: &str) -> &str {
    let at = (text.len().saturating_sub(LONGEST)..=text.len()).find(|at| text.is_char_boundary(*at));
    &text[at.unwrap_or(0)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(at: u64) -> Summary<'static> {
        Summary { lane: "l", node: "n", why: "w", attempt: None, phase: "SERVING", at, code: 1 }
    }

    #[test]
    fn the_last_ten_are_kept_and_nothing_else_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        assert!(list(&dir.path().join("none")).unwrap().is_empty());
        fs::create_dir(dir.path().join("notes")).unwrap();
        // An attempt that was cut short.
        fs::create_dir(dir.path().join(".next")).unwrap();
        fs::write(dir.path().join(".next/old"), "x").unwrap();
        // The clock stands, and is set back.
        for at in [90, 90, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19] {
            let exhibit = Exhibit { name: "engine.log", content: "line\n".into() };
            let path = keep(dir.path(), &summary(at), &[exhibit]).unwrap();
            assert_eq!(fs::read_to_string(path.join("engine.log")).unwrap(), "line\n");
            assert!(!path.join("old").exists());
        }
        let names: Vec<_> = list(dir.path()).unwrap();
        assert_eq!(names.len(), KEPT);
        assert!(names[0].ends_with("000003-alone") && names[9].ends_with("000012-alone"), "{names:?}");
        assert!(dir.path().join("notes").exists());
    }

    #[test]
    fn a_long_text_keeps_its_end() {
        let text = "ä".repeat(LONGEST);
        let end = last_bytes(&text);
        assert!(end.len() <= LONGEST && end.len() > LONGEST - 4);
        assert_eq!(last_bytes("short"), "short");
    }
}
