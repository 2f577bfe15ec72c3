//! The tree rules of our own layers (R2 to R4, R9, R10), read from the tar as it is.

use std::collections::HashSet;
use std::io::Read;

use flate2::read::MultiGzDecoder;

/// Checks a gzip layer.
///
/// # Errors
/// The first entry that breaks a rule.
pub(super) fn check(blob: impl Read) -> Result<(), String> {
    let mut archive = tar::Archive::new(MultiGzDecoder::new(blob));
    let mut seen = HashSet::new();
    for entry in archive.entries().map_err(|e| e.to_string())? {
        let entry = entry.map_err(|e| e.to_string())?;
        let path = std::str::from_utf8(&entry.path_bytes()).map(str::to_owned).map_err(|e| e.to_string())?;
        one(&entry, &path).map_err(|why| format!("{path:?} {why}"))?;
        let path = path.trim_end_matches('/').to_owned();
        if let Some((folder, _)) = path.rsplit_once('/')
            && seen.contains(&format!("{folder}\0file"))
        {
            return Err(format!("{path:?} is below a file of the same layer"));
        }
        if !entry.header().entry_type().is_dir() {
            seen.insert(format!("{path}\0file"));
        }
        if !seen.insert(path.clone()) {
            return Err(format!("{path:?} is there twice"));
        }
    }
    Ok(())
}

fn one<R: Read>(entry: &tar::Entry<'_, R>, path: &str) -> Result<(), &'static str> {
    let header = entry.header();
    let kind = header.entry_type();
    let plain = path.strip_suffix('/').filter(|_| kind.is_dir()).unwrap_or(path);
    if plain.split('/').any(|c| c.is_empty() || c == "." || c == "..") || path.contains('\0') {
        return Err("is no plain relative path");
    }
    let name = plain.rsplit('/').next().unwrap_or(plain);
    if name.starts_with(".wh.") && (!kind.is_file() || entry.size() != 0 || header.mode().ok() != Some(0o644)) {
        return Err("is a whiteout that is no empty file of mode 0644");
    }
    if !(kind.is_file() || kind.is_dir() || kind.is_symlink()) {
        return Err("is neither file, directory nor symbolic link");
    }
    if header.mtime().unwrap_or_default() < crate::layer::EARLIEST {
        return Err("is older than 1980");
    }
    let named = |n: Option<&[u8]>| n.is_some_and(|n| !n.is_empty());
    if named(header.username_bytes()) || named(header.groupname_bytes()) {
        return Err("names its owner");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn layer(paths: &[&str], mtime: u64) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for path in paths {
            let mut header = tar::Header::new_ustar();
            header.set_mode(0o644);
            header.set_size(0);
            header.set_mtime(mtime);
            header.set_entry_type(tar::EntryType::Regular);
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_cksum();
            builder.append(&header, &b""[..]).unwrap();
        }
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(&builder.into_inner().unwrap()).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn what_consumers_accept_is_refused_here() {
        check(&layer(&["a", "b/.wh.c"], 1 << 30)[..]).unwrap();
        for (paths, word) in [
            (vec!["opt/../../../../evil"], "plain"),
            (vec!["/a"], "plain"),
            (vec!["./a"], "plain"),
            (vec!["a", "a"], "twice"),
            (vec!["a", "a/b"], "below a file"),
        ] {
            let error = check(&layer(&paths, 1 << 30)[..]).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        assert!(check(&layer(&["a"], 0)[..]).unwrap_err().contains("1980"));
    }
}
